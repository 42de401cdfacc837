"""Rookery: reinforcement learning with many actors, one learner, and shared replay buffers.

    run = rookery.train("cartpole", seed=3)
    policy = rookery.load(run.run_dir)

`train` runs a scenario (a named training configuration) or a YAML file; `load` returns the trained
policy. Public names are imported when they are first used, so that `import rookery` is fast.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rookery.version import __version__

_HOME = {
    "A2C": "rookery.api.algorithm_agents",
    "Actor": "rookery.actors.actor",
    "Agent": "rookery.api.agent",
    "Ask": "rookery.event",
    "AsyncAgent": "rookery.components.async_loop",
    "AsyncMainLoop": "rookery.components.async_loop",
    "Config": "rookery.config.schema",
    "DDPG": "rookery.api.algorithm_agents",
    "DQN": "rookery.api.algorithm_agents",
    "DistributedAgent": "rookery.components.agents",
    "DistributedEnvironment": "rookery.components.environment",
    "DistributedMainLoop": "rookery.components.cluster_loop",
    "DistributedReplayBuffer": "rookery.sb3.shared_buffer",
    "DqnAgent": "rookery.api.dqn_agent",
    "FederatedParameterServer": "rookery.server.federated",
    "IMPALA": "rookery.api.algorithm_agents",
    "InferencePolicy": "rookery.actors.policy",
    "Learner": "rookery.learner.learner",
    "Limiter": "rookery.replay.limiter",
    "LocalReplay": "rookery.replay.buffer",
    "MainLoop": "rookery.components.main_loop",
    "MultiAgentLearner": "rookery.components.agents",
    "PPO": "rookery.api.algorithm_agents",
    "ParameterServer": "rookery.server.parameter_server",
    "Policy": "rookery.actors.policy",
    "PrioritizedDQN": "rookery.sb3.prioritized",
    "PrioritizedDistributedReplayBuffer": "rookery.sb3.prioritized",
    "PrioritizedReplayBuffer": "rookery.components.replay_buffers",
    "PrioritizedSAC": "rookery.sb3.prioritized",
    "PrioritizedTD3": "rookery.sb3.prioritized",
    "R2D2": "rookery.api.algorithm_agents",
    "Registry": "rookery.sharing.registry",
    "RemoteParameterServer": "rookery.server.http.remote_server",
    "ReplayBuffer": "rookery.components.replay_buffers",
    "ReplayBufferPool": "rookery.components.replay_buffers",
    "RookeryError": "rookery.errors",
    "Run": "rookery.api.runs",
    "SAC": "rookery.api.algorithm_agents",
    "TD3": "rookery.api.algorithm_agents",
    "TQC": "rookery.api.algorithm_agents",
    "Trajectory": "rookery.api.trajectories",
    "WeightStore": "rookery.learner.weight_store",
    "create_distributed_registry": "rookery.sharing.registry",
    "events": "rookery.api.runs",
    "load": "rookery.api.runs",
    "rollout_worker": "rookery.api.rollout_worker",
    "train": "rookery.api.runs",
    "train_dqn": "rookery.api.train_dqn",
}
_EXTRAS = {"stable_baselines3": "sb3"}  # module → the extra that brings it
__all__ = [
    "A2C",
    "DDPG",
    "DQN",
    "IMPALA",
    "PPO",
    "R2D2",
    "SAC",
    "TD3",
    "TQC",
    "Actor",
    "Agent",
    "Ask",
    "AsyncAgent",
    "AsyncMainLoop",
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
    "LocalReplay",
    "MainLoop",
    "MultiAgentLearner",
    "ParameterServer",
    "Policy",
    "PrioritizedDQN",
    "PrioritizedDistributedReplayBuffer",
    "PrioritizedReplayBuffer",
    "PrioritizedSAC",
    "PrioritizedTD3",
    "Registry",
    "RemoteParameterServer",
    "ReplayBuffer",
    "ReplayBufferPool",
    "RookeryError",
    "Run",
    "Trajectory",
    "WeightStore",
    "__version__",
    "create_distributed_registry",
    "events",
    "load",
    "rollout_worker",
    "train",
    "train_dqn",
]

if TYPE_CHECKING:
    from rookery.actors.actor import Actor
    from rookery.actors.policy import InferencePolicy, Policy
    from rookery.api.agent import Agent
    from rookery.api.algorithm_agents import A2C, DDPG, DQN, IMPALA, PPO, R2D2, SAC, TD3, TQC
    from rookery.api.dqn_agent import DqnAgent
    from rookery.api.rollout_worker import rollout_worker
    from rookery.api.runs import Run, events, load, train
    from rookery.api.train_dqn import train_dqn
    from rookery.api.trajectories import Trajectory
    from rookery.components.agents import DistributedAgent, MultiAgentLearner
    from rookery.components.async_loop import AsyncAgent, AsyncMainLoop
    from rookery.components.cluster_loop import DistributedMainLoop
    from rookery.components.environment import DistributedEnvironment
    from rookery.components.main_loop import MainLoop
    from rookery.components.replay_buffers import (
        PrioritizedReplayBuffer,
        ReplayBuffer,
        ReplayBufferPool,
    )
    from rookery.config.schema import Config
    from rookery.errors import RookeryError
    from rookery.event import Ask
    from rookery.learner.learner import Learner
    from rookery.learner.weight_store import WeightStore
    from rookery.replay.buffer import LocalReplay
    from rookery.replay.limiter import Limiter
    from rookery.sb3.prioritized import (
        PrioritizedDistributedReplayBuffer,
        PrioritizedDQN,
        PrioritizedSAC,
        PrioritizedTD3,
    )
    from rookery.sb3.shared_buffer import DistributedReplayBuffer
    from rookery.server.federated import FederatedParameterServer
    from rookery.server.http.remote_server import RemoteParameterServer
    from rookery.server.parameter_server import ParameterServer
    from rookery.sharing.registry import Registry, create_distributed_registry


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
