"""The main loop: trains with components, evaluates and saves, until it is told to stop.

A loop puts the components in the places of a run's parts (`loop_parts.py`), and a run trains them
by the same training loops as any (`loop_run.py`). The agent computes gradients, and a parameter
server applies them. With no parameter server the loop has one of its own, which takes the steps
that the agent's learner would take, bit for bit.
"""

import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from rookery.checkpoints.checkpoint import Content
from rookery.components import saved
from rookery.components.loop_parts import LoopPlan, sync_parts
from rookery.components.loop_run import LoopRun, loop_run
from rookery.components.protocols import (
    Environment,
    LearningAgent,
    ReplayComponent,
    Server,
    checked_methods,
)
from rookery.components.replay_buffers import ReplayBuffer, ReplayBufferPool
from rookery.config.checks import Count, CountOr0, one_of
from rookery.errors import ConfigError
from rookery.event import Collected, Counters, Episode, Event
from rookery.runtime.signals import Interrupts
from rookery.server.parameter_server import ParameterServer
from rookery.training.build import Parts
from rookery.types import Array, below, prefixed

WINDOW = 100  # episodes in the running means
AGENT, SERVER = "agent.", "server"  # of a checkpoint: the agent's arrays, the server's file
SERVER_FILE = "server.safetensors"


@checked_methods
@dataclass(frozen=True, kw_only=True)
class LoopConfig:
    """What a loop can be told beyond its parts."""

    worker: str = "main"  # the loop's name at the parameter server
    warmup: CountOr0 = 500  # experiences before the first batch
    batches_per_round: int | None = None  # none: one for `agent.update_frequency` steps
    evaluation_episodes: Count = 10  # in each evaluation
    target: float | None = None  # reward of an evaluation that training ends at
    checkpoint_path: str | Path | None = None  # a folder; none: nothing is saved by itself
    keep: Count = 2  # newest checkpoints that stay
    callback: Callable[[dict[str, Any]], Any] | None = None  # gets the progress of every round
    run_dir: str | Path | None = None  # a folder for metrics and events; none: no reports
    console: bool = True  # reports of a loop with a run_dir are printed too


@checked_methods
class MainLoop:
    """Puts the components together. Each of them may be an object of yours (`protocols.py`).

    loop = MainLoop(environment, replay_buffer, agent, parameter_server=None)
    loop.run_training(total_episodes=500)
    loop.pause_training(); loop.resume_training(); loop.stop_training()      # from another thread
    loop.save_checkpoint("runs/loop"); loop.load_checkpoint("runs/loop")     # → the episode

    `config` is a `LoopConfig` or a mapping of its fields. Ctrl+C and SIGTERM end training after the
    round: a checkpoint is written where there is a `checkpoint_path`, the handlers that were there
    before are back, and `run_training` raises KeyboardInterrupt or SystemExit. A second signal ends
    the process at once.
    """

    def __init__(
        self,
        environment: Any,
        replay_buffer: Any,
        agent: Any,
        parameter_server: Any = None,
        config: LoopConfig | Mapping[str, Any] | None = None,
    ):
        self.config = _loop_config(config)
        if isinstance(replay_buffer, ReplayBuffer):
            replay_buffer = ReplayBufferPool.around(replay_buffer)
        self.environment: Environment = _fitting(Environment, environment, "environment")
        self.replay_buffer: ReplayComponent = _fitting(
            ReplayComponent, replay_buffer, "replay_buffer"
        )
        self.agent: LearningAgent = _fitting(LearningAgent, agent, "agent")
        server = attached(agent, parameter_server)
        self.parameter_server: Server = _fitting(Server, server, "parameter_server")
        self.counters = Counters()
        self.refused = 0  # gradients that the server did not take
        self.version = -1  # of the parameters that the agent has
        self.seconds = 0.0  # of training
        self.evaluation: Any = None
        self.parts: Parts | None = None  # while it trains
        self.running, self.stopped = threading.Event(), threading.Event()
        self.running.set()
        self._ended: deque[Episode] = deque(maxlen=WINDOW)
        self.run: LoopRun | None = None  # that began last
        self._saved: Counters | None = None  # counts at the last checkpoint

    @property
    def episode(self) -> int:
        """Episodes that have ended."""
        return self.counters.episodes

    @property
    def env_steps(self) -> int:
        return self.counters.env_steps

    @property
    def gradients(self) -> int:
        """Gradients that were handed to the server."""
        return self.counters.learner_steps

    def run_training(
        self,
        total_episodes: Count = 1000,
        max_steps: Count = 1000,
        evaluation_frequency: CountOr0 = 100,
        checkpoint_frequency: CountOr0 = 500,
    ) -> dict[str, Any]:
        """Trains until `total_episodes` are over, counted with those of a checkpoint.

        Evaluates and saves every so many episodes, at the end of the round in which they are
        reached; 0 is never. Returns the progress, with the `reason` of the end.
        """
        return self._train(
            LoopPlan(
                "episodes", total_episodes, max_steps, evaluation_frequency, checkpoint_frequency
            )
        )

    def run_single_episode(self, max_steps: Count = 1000) -> dict[str, Any]:
        """Plays one episode and learns from what it brought; returns `reward` and `length`."""
        self._train(LoopPlan("episodes", self.episode + 1, max_steps))
        last = self._ended[-1]
        return {"reward": last.score, "length": last.length, "episode": self.episode}

    def evaluate_policy(self, num_episodes: int = 10) -> Any:
        """Returns what the agent's own `evaluate_policy` does."""
        self.evaluation = self.agent.evaluate_policy(num_episodes)
        return self.evaluation

    # Training, which a run does with these (`loop_run.py`).

    def build(self, plan: LoopPlan) -> Parts:
        """Returns the parts to train with; their `run.mode` says by which training loop."""
        return sync_parts(self, plan)

    def _train(self, plan: LoopPlan) -> dict[str, Any]:
        with Interrupts() as interrupts:
            for _ in self.events(plan, interrupts):
                pass
        interrupts.leave()
        return self.get_training_progress()

    def events(self, plan: LoopPlan, interrupts: Interrupts) -> Iterator[Event]:
        """Trains, and yields the events of the run."""
        self.stopped.clear()
        with loop_run(self, plan, interrupts) as self.run:
            yield from self.run.events()

    def note(self, event: Event) -> None:
        """Takes over the counts of an event, and the episodes that have ended."""
        self.counters = event.counters
        if isinstance(event, Collected):
            self._ended.extend(event.ended)

    def hand_over(self, gradients: Mapping[str, Array]) -> None:
        """Has the server step by gradients, and the agent take over what came of it."""
        receipt = self.parameter_server.push_gradients(
            self.config.worker, dict(gradients), version=max(0, self.version)
        )
        self.count_gradient(receipt)
        self.pull()

    def count_gradient(self, receipt: Any) -> None:
        """Counts a gradient that the server has answered."""
        self.counters = replace(self.counters, learner_steps=self.gradients + 1)
        self.refused += not receipt.accepted

    def join(self) -> None:
        """Registers at the server, and begins with the parameters that it has."""
        self.parameter_server.register_worker(self.config.worker)
        self.pull()

    def pull(self) -> int:
        """Has the agent take over the server's parameters if they are newer."""
        newer = self.parameter_server.get_parameters(newer_than=self.version)
        if newer is not None:
            self.agent.set_policy_parameters(newer.arrays)
            self.version = newer.version
        return self.version

    # From outside.

    def pause_training(self) -> None:
        """Waits after the round that is on, until it is resumed or stopped."""
        self.running.clear()

    def resume_training(self) -> None:
        """Continues training."""
        self.running.set()

    def stop_training(self) -> None:
        """Ends training after the round that is on; `run_training` may be called again."""
        self.stopped.set()
        self.running.set()

    def get_training_progress(self) -> dict[str, Any]:
        """Returns how far training is; means are over the last 100 episodes."""
        returns = [episode.score for episode in list(self._ended)]
        reason = None if self.run is None else self.run.reason
        return {
            "episode": self.episode,
            "env_steps": self.env_steps,
            "gradients": self.gradients,
            "refused": self.refused,
            "version": self.version,
            "experiences": self.replay_buffer.get_total_experiences(),
            "mean_reward": float(np.mean(returns)) if returns else float("nan"),
            "evaluation": getattr(self.evaluation, "reward", None),
            "paused": not self.running.is_set(),
            "seconds": self.seconds,
            "reason": None if reason is None else reason.value,
        }

    # Checkpoints.

    def save_if_new(self) -> Path | None:
        """Saves if there is a `checkpoint_path`, and training since; returns the checkpoint."""
        if self.config.checkpoint_path is None or self._saved == self.counters:
            return None
        folder, self._saved = self.save_checkpoint(), self.counters
        return folder

    def save_checkpoint(self, path: str | Path | None = None) -> Path:
        """Writes a checkpoint into a folder of them; it is there whole or not at all.

        Has the agent (all of one with `state` and `restore`, else its parameters), a server that
        lives in this process, and the counts. Replay is not in it: `replay_buffer.save_buffers`
        saves it.
        """
        agent: Any = self.agent
        whole = hasattr(agent, "state") and hasattr(agent, "restore")
        numbers, arrays = agent.state() if whole else ({}, {})
        counts = {
            "episode": self.episode,
            "env_steps": self.env_steps,
            "gradients": self.gradients,
            "refused": self.refused,
            "_seconds": self.seconds,
        }
        content = Content(
            env_steps=self.env_steps,
            version=max(0, self.version),
            exact=False,
            final=False,
            about={"what": "main loop", "episode": self.episode},
            weights=self.agent.get_policy_parameters(),
            state={"loop": counts, "agent": numbers, "server": None},
            arrays=prefixed(AGENT, arrays) | _saved_server(self.parameter_server),
        )
        return saved.write(self._folder(path), self.env_steps, content, keep=self.config.keep)

    def load_checkpoint(self, path: str | Path | None = None) -> int:
        """Continues from the newest checkpoint of a folder that is whole; returns its episode."""
        parent = self._folder(path)
        found = saved.newest(parent)
        state, arrays = found.state(), found.arrays()
        self.version = _restore_server(self.parameter_server, parent, state["server"], arrays)
        if state["agent"] and hasattr(self.agent, "restore"):
            self.agent.restore(state["agent"], below(AGENT, arrays))
        else:
            self.agent.set_policy_parameters(found.weights())
        counts = state["loop"]
        self.counters = Counters(counts["env_steps"], counts["gradients"], counts["episode"])
        self.refused, self.seconds = counts["refused"], counts["_seconds"]
        return self.episode

    def _folder(self, path: str | Path | None) -> Path:
        usual = self.config.checkpoint_path
        return saved.folder_of(path, usual, "checkpoint_path in the loop's config")


def attached(agent: Any, server: Any) -> Any:
    """Returns the server, which steps as the agent itself would if it was given no optimizer.

    Without a server it is one of the loop's own, which applies every gradient at once.
    """
    if server is None:
        server = ParameterServer(agent.get_policy_parameters(), update_frequency=1)
    if hasattr(server, "adopt_optimizer"):
        learner = getattr(getattr(agent, "config", None), "learner", None)
        server.adopt_optimizer(
            "adam" if learner is None else learner.optimizer.value,
            float(getattr(agent, "lr", 0.001)),
            {} if learner is None else learner.optimizer_kwargs,
        )
    return server


def _loop_config(given: LoopConfig | Mapping[str, Any] | None) -> LoopConfig:
    if isinstance(given, LoopConfig):
        return given
    for key in given or {}:
        one_of(*(field.name for field in fields(LoopConfig))).check("a name in config", key)
    return LoopConfig(**(given or {}))


def _fitting(kind: Any, part: Any, name: str) -> Any:
    if isinstance(part, kind):
        return part
    methods = [method for method in vars(kind) if not method.startswith("_")]
    missing = [method for method in methods if not hasattr(part, method)]
    raise ConfigError(
        f"{name} has {', '.join(methods)}, got a {type(part).__name__} without "
        f"{', '.join(missing)}; add what is missing"
    )


def _saved_server(server: Any) -> dict[str, Array]:
    if not isinstance(server, ParameterServer):
        return {}
    with tempfile.TemporaryDirectory(prefix="rookery-server-") as folder:
        file = server.save_checkpoint(Path(folder) / SERVER_FILE)
        return {SERVER: np.frombuffer(file.read_bytes(), dtype=np.uint8)}


def _restore_server(server: Any, parent: Path, beside: str | None, arrays: dict[str, Array]) -> int:
    """Returns the version of the server's parameters; -1: it continues with those it has.

    `beside` is the name of the server's file where an earlier release put it next to checkpoints.
    """
    if not isinstance(server, ParameterServer):
        return -1
    if beside is not None:
        return server.load_checkpoint(parent / Path(beside).name)
    if SERVER not in arrays:
        return -1
    with tempfile.TemporaryDirectory(prefix="rookery-server-") as folder:
        file = Path(folder) / SERVER_FILE
        file.write_bytes(arrays[SERVER].tobytes())
        return server.load_checkpoint(file)
