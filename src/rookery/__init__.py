"""Rookery: many actors, one learner, and runs that learn from each other.

    run = rookery.train("cartpole", seed=3)
    policy = rookery.load(run.run_dir)

The public names are imported when they are first used, so that `import rookery` costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOME = {
    "Actor": "rookery.actor",
    "Ask": "rookery.event",
    "AsyncAgent": "rookery.components.agent",
    "AsyncMainLoop": "rookery.components.asynchronous",
    "Board": "rookery.board",
    "Config": "rookery.config.schema",
    "DistributedAgent": "rookery.components.agent",
    "DistributedEnvironment": "rookery.components.environment",
    "DistributedMainLoop": "rookery.components.cluster",
    "DistributedReplayBuffer": "rookery.sharing.sb3",
    "DqnAgent": "rookery.loops.agent",
    "FederatedParameterServer": "rookery.server.federated",
    "InferencePolicy": "rookery.loops.rollout",
    "Learner": "rookery.learner",
    "Limiter": "rookery.replay.limiter",
    "MainLoop": "rookery.components.mainloop",
    "MultiAgentLearner": "rookery.components.agent",
    "ParameterServer": "rookery.server.parameters",
    "Policy": "rookery.loops.front",
    "Pool": "rookery.replay.pool",
    "PrioritizedDQN": "rookery.sharing.prioritized",
    "PrioritizedDistributedReplayBuffer": "rookery.sharing.prioritized",
    "PrioritizedReplayBuffer": "rookery.components.buffers",
    "PrioritizedSAC": "rookery.sharing.prioritized",
    "PrioritizedTD3": "rookery.sharing.prioritized",
    "Registry": "rookery.sharing.registry",
    "ReplayBuffer": "rookery.components.buffers",
    "ReplayBufferPool": "rookery.components.buffers",
    "RookeryError": "rookery.errors",
    "Run": "rookery.loops.front",
    "Trajectory": "rookery.loops.trajectory",
    "create_distributed_registry": "rookery.sharing.registry",
    "events": "rookery.loops.front",
    "load": "rookery.loops.front",
    "rollout_worker": "rookery.loops.rollout",
    "train": "rookery.loops.front",
    "train_dqn": "rookery.loops.cycles",
}
_EXTRAS = {"stable_baselines3": "sb3"}  # module → the extra that brings it
__all__ = [
    "Actor",
    "Ask",
    "AsyncAgent",
    "AsyncMainLoop",
    "Board",
    "Config",
    "DistributedAgent",
    "DistributedEnvironment",
    "DistributedMainLoop",
    "DistributedReplayBuffer",
    "DqnAgent",
    "FederatedParameterServer",
    "InferencePolicy",
    "Learner",
    "Limiter",
    "MainLoop",
    "MultiAgentLearner",
    "ParameterServer",
    "Policy",
    "Pool",
    "PrioritizedDQN",
    "PrioritizedDistributedReplayBuffer",
    "PrioritizedReplayBuffer",
    "PrioritizedSAC",
    "PrioritizedTD3",
    "Registry",
    "ReplayBuffer",
    "ReplayBufferPool",
    "RookeryError",
    "Run",
    "Trajectory",
    "__version__",
    "create_distributed_registry",
    "events",
    "load",
    "rollout_worker",
    "train",
    "train_dqn",
]

if TYPE_CHECKING:
    from rookery.actor import Actor
    from rookery.board import Board
    from rookery.components.agent import AsyncAgent, DistributedAgent, MultiAgentLearner
    from rookery.components.asynchronous import AsyncMainLoop
    from rookery.components.buffers import PrioritizedReplayBuffer, ReplayBuffer, ReplayBufferPool
    from rookery.components.cluster import DistributedMainLoop
    from rookery.components.environment import DistributedEnvironment
    from rookery.components.mainloop import MainLoop
    from rookery.config.schema import Config
    from rookery.errors import RookeryError
    from rookery.event import Ask
    from rookery.learner import Learner
    from rookery.loops.agent import DqnAgent
    from rookery.loops.cycles import train_dqn
    from rookery.loops.front import Policy, Run, events, load, train
    from rookery.loops.rollout import InferencePolicy, rollout_worker
    from rookery.loops.trajectory import Trajectory
    from rookery.replay.limiter import Limiter
    from rookery.replay.pool import Pool
    from rookery.server.federated import FederatedParameterServer
    from rookery.server.parameters import ParameterServer
    from rookery.sharing.prioritized import (
        PrioritizedDistributedReplayBuffer,
        PrioritizedDQN,
        PrioritizedSAC,
        PrioritizedTD3,
    )
    from rookery.sharing.registry import Registry, create_distributed_registry
    from rookery.sharing.sb3 import DistributedReplayBuffer


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'rookery' has no attribute {name!r}; it has {__all__}")
    try:
        value = getattr(import_module(_HOME[name]), name)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in _EXTRAS:
            raise
        package = error.name.partition(".")[0]
        raise ImportError(
            f"rookery.{name} needs {package}, which is not installed; "
            f"pip install 'rookery[{_EXTRAS[package]}]'"
        ) from error
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
