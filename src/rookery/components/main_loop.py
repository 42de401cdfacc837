"""The main loop: trains with components, evaluates and saves, until it is told to stop.

A loop puts the components in the places of a run's parts (`loop_parts.py`) and consumes the events
of the same training loops as a run does (`training/loops.py`). The agent computes gradients, and a
parameter server applies them. With no parameter server the loop has one of its own, which takes the
steps that the agent's learner would take, bit for bit.
"""

import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from rookery.actors.actor_group import epsilons_of
from rookery.checkpoints import checkpoint
from rookery.checkpoints.checkpoint import Content
from rookery.components.loop_parts import LoopPlan, sync_parts
from rookery.components.protocols import (
    Environment,
    LearningAgent,
    ReplayComponent,
    Server,
    checked_methods,
)
from rookery.components.replay_buffers import ReplayBuffer, ReplayBufferPool
from rookery.components.reporting import LoopReport, reporting
from rookery.config.checks import AT_LEAST_0, POSITIVE, Count, CountOr0, nearest
from rookery.errors import CheckpointError, ConfigError
from rookery.event import Collected, Counters, Event, IterationEnded, Reason
from rookery.runtime.signals import Interrupts
from rookery.schedule import Decay, Schedule
from rookery.server.parameter_server import ParameterServer
from rookery.training import LOOPS
from rookery.training.build import Parts
from rookery.training.steps import count, epsilon_now
from rookery.types import Array, below, prefixed

WINDOW = 100  # episodes in the running means
AGENT, SERVER = "agent.", "server"  # of a checkpoint: the agent's arrays, the server's file
SERVER_FILE = "server.safetensors"
LOOK_S = 0.05  # between two looks while it is paused


@dataclass(frozen=True, kw_only=True)
class LoopConfig:
    """What a loop can be told beyond its parts."""

    worker: str = "main"  # the loop's name at the parameter server
    warmup: int = 500  # experiences before the first batch
    batches_per_round: int | None = None  # none: one for `agent.update_frequency` steps
    evaluation_episodes: int = 10  # in each evaluation
    target: float | None = None  # reward of an evaluation that training ends at
    checkpoint_path: str | Path | None = None  # a folder; none: nothing is saved by itself
    keep: int = 2  # newest checkpoints that stay
    callback: Callable[[dict[str, Any]], Any] | None = None  # gets the progress of every round
    run_dir: str | Path | None = None  # a folder for metrics and events; none: no reports
    console: bool = True  # reports of a loop with a run_dir are printed too

    def __post_init__(self) -> None:
        for name in ("evaluation_episodes", "keep"):
            POSITIVE.check(name, getattr(self, name))
        AT_LEAST_0.check("warmup", self.warmup)


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
        self._returns: deque[float] = deque(maxlen=WINDOW)
        self._running, self._stopped = threading.Event(), threading.Event()
        self._running.set()
        self._reason: Reason | None = None
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
        self._join()
        before = self.counters
        plan = LoopPlan("episodes", before.episodes + 1, max_steps)
        parts = sync_parts(self, plan)
        for event in LOOPS[parts.config.run.mode](parts):
            self._note(event)
            if isinstance(event, IterationEnded) and self.episode >= plan.total:
                break
        length = self.env_steps - before.env_steps
        return {"reward": self._returns[-1], "length": length, "episode": self.episode}

    def evaluate_policy(self, num_episodes: int = 10) -> Any:
        """Returns what the agent's own `evaluate_policy` does."""
        self.evaluation = self.agent.evaluate_policy(num_episodes)
        return self.evaluation

    # Training.

    def _build(self, plan: LoopPlan) -> Parts:
        """Returns the parts to train with; their `run.mode` says by which loop."""
        return sync_parts(self, plan)

    def _train(self, plan: LoopPlan) -> dict[str, Any]:
        self._stopped.clear()
        self._reason = None
        with Interrupts() as interrupts, reporting(self, plan) as report:
            self._join()
            self.parts = parts = self._build(plan)
            try:
                interrupts.begin()
                self._drive(parts, plan, interrupts, report)
            finally:
                self.parts = None
                parts.close()
            self._pull()
            if interrupts.reason is not None or plan.saving:
                self._save(report)
            report.stopped(self._reason or Reason.FAILED)
        interrupts.leave()
        return self.get_training_progress()

    def _drive(
        self, parts: Parts, plan: LoopPlan, interrupts: Interrupts, report: LoopReport
    ) -> None:
        """Trains until the plan is fulfilled, or something else ends training."""
        began = time.monotonic() - self.seconds
        if self._over(plan, interrupts):
            return
        seen = getattr(self.counters, plan.unit)
        for event in LOOPS[parts.config.run.mode](parts):
            self._note(event)
            report.observe(event)
            if not isinstance(event, IterationEnded):
                continue
            self.seconds = time.monotonic() - began
            seen = self._look(plan, seen, report)
            report.look(parts)
            self._rest(parts, interrupts)
            if self._over(plan, interrupts):
                break
            if parts.actors.asynchronous() is None:
                epsilon = float(getattr(self.agent, "epsilon", 0.0))
                parts.epsilon = Schedule(epsilon, epsilon, Decay.CONSTANT)

    def _note(self, event: Event) -> None:
        self.counters = event.counters
        if isinstance(event, Collected):
            self._returns.extend(episode.score for episode in event.ended)

    def _look(self, plan: LoopPlan, seen: int, report: LoopReport) -> int:
        """Evaluates and saves if they became due since `seen`, with the newest parameters."""
        now: int = getattr(self.counters, plan.unit)
        if _passed(seen, now, plan.evaluation):
            self._pull()
            report.evaluated(self.evaluate_policy(self.config.evaluation_episodes))
        if _passed(seen, now, plan.saving):
            self._pull()
            self._save(report)
        if now > seen and self.config.callback is not None:
            self.config.callback(self.get_training_progress())
        return now

    def _rest(self, parts: Parts, interrupts: Interrupts) -> None:
        """Waits while training is paused; actors that play by themselves are supervised."""
        actors = parts.actors.asynchronous()
        while not self._running.is_set() and interrupts.reason is None:
            if actors is not None:
                epsilon = epsilon_now(parts)
                actors.allow(False, epsilons_of(epsilon, parts.config), 0)
                ended = [episode for report in actors.reports() for episode in report.ended]
                self._note(count(parts, 0, ended, epsilon, max(0, self.version)))
            self._running.wait(LOOK_S)

    def _over(self, plan: LoopPlan, interrupts: Interrupts) -> bool:
        target, reward = self.config.target, getattr(self.evaluation, "reward", None)
        if interrupts.reason is not None:
            self._reason = interrupts.reason
        elif self._stopped.is_set():
            self._reason = Reason.CALLBACK
        elif target is not None and reward is not None and reward >= target:
            self._reason = Reason.TARGET
        elif getattr(self.counters, plan.unit) >= plan.total:
            self._reason = Reason(plan.unit)
        return self._reason is not None

    def hand_over(self, gradients: Mapping[str, Array]) -> None:
        """Has the server step by gradients, and the agent take over what came of it."""
        receipt = self.parameter_server.push_gradients(
            self.config.worker, dict(gradients), version=max(0, self.version)
        )
        self.count_gradient(receipt)
        self._pull()

    def count_gradient(self, receipt: Any) -> None:
        """Counts a gradient that the server has answered."""
        self.counters = replace(self.counters, learner_steps=self.gradients + 1)
        self.refused += not receipt.accepted

    def _join(self) -> None:
        """Registers at the server, and begins with the parameters that it has."""
        self.parameter_server.register_worker(self.config.worker)
        self._pull()

    def _pull(self) -> int:
        newer = self.parameter_server.get_parameters(newer_than=self.version)
        if newer is not None:
            self.agent.set_policy_parameters(newer.arrays)
            self.version = newer.version
        return self.version

    # From outside.

    def pause_training(self) -> None:
        """Waits after the round that is on, until it is resumed or stopped."""
        self._running.clear()

    def resume_training(self) -> None:
        """Continues training."""
        self._running.set()

    def stop_training(self) -> None:
        """Ends training after the round that is on; `run_training` may be called again."""
        self._stopped.set()
        self._running.set()

    def get_training_progress(self) -> dict[str, Any]:
        """Returns how far training is; means are over the last 100 episodes."""
        returns = list(self._returns)
        return {
            "episode": self.episode,
            "env_steps": self.env_steps,
            "gradients": self.gradients,
            "refused": self.refused,
            "version": self.version,
            "experiences": self.replay_buffer.get_total_experiences(),
            "mean_reward": float(np.mean(returns)) if returns else float("nan"),
            "evaluation": getattr(self.evaluation, "reward", None),
            "paused": not self._running.is_set(),
            "seconds": self.seconds,
            "reason": None if self._reason is None else self._reason.value,
        }

    # Checkpoints.

    def _save(self, report: LoopReport) -> None:
        if self.config.checkpoint_path is not None and self._saved != self.counters:
            report.saved(self.save_checkpoint())
            self._saved = self.counters

    def save_checkpoint(self, path: str | Path | None = None) -> Path:
        """Writes a checkpoint into a folder of them; it is there whole or not at all.

        Has the agent (all of one with `state` and `restore`, else its parameters), a server that
        lives in this process, and the counts. Replay is not in it: `replay_buffer.save_buffers`
        saves it.
        """
        parent = self._folder(path)
        numbers, arrays = _agent_state(self.agent)
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
        folder = checkpoint.write(parent, checkpoint.name_of(self.env_steps), content)
        checkpoint.prune(parent, self.config.keep)
        return folder

    def load_checkpoint(self, path: str | Path | None = None) -> int:
        """Continues from the newest checkpoint of a folder that is whole; returns its episode."""
        parent = self._folder(path)
        search = checkpoint.newest(parent)
        if search.found is None:
            raise CheckpointError(
                f"there is no checkpoint in {str(parent)!r} that is whole "
                f"({'; '.join(search.broken) or 'it has none'}); give the folder that was saved to"
            )
        state, arrays = search.found.state(), search.found.arrays()
        self.version = _restore_server(self.parameter_server, parent, state["server"], arrays)
        if state["agent"] and hasattr(self.agent, "restore"):
            self.agent.restore(state["agent"], below(AGENT, arrays))
        else:
            self.agent.set_policy_parameters(search.found.weights())
        counts = state["loop"]
        self.counters = Counters(counts["env_steps"], counts["gradients"], counts["episode"])
        self.refused, self.seconds = counts["refused"], counts["_seconds"]
        return self.episode

    def _folder(self, path: str | Path | None) -> Path:
        given = self.config.checkpoint_path if path is None else path
        if given is None:
            raise ConfigError(
                "checkpoints are kept in a folder, got none; give a path here, or checkpoint_path "
                "in the loop's config"
            )
        return Path(given)


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
    known, settings = [field.name for field in fields(LoopConfig)], dict(given or {})
    for key in settings:
        if key not in known:
            raise ConfigError(
                f"config has {key!r}, a LoopConfig has {', '.join(known)}; did you mean "
                f"{nearest(str(key), known) or known[0]!r}?"
            )
    return LoopConfig(**settings)


def _fitting(kind: Any, part: Any, name: str) -> Any:
    if isinstance(part, kind):
        return part
    methods = [method for method in vars(kind) if not method.startswith("_")]
    missing = [method for method in methods if not hasattr(part, method)]
    raise ConfigError(
        f"{name} has {', '.join(methods)}, got a {type(part).__name__} without "
        f"{', '.join(missing)}; add what is missing"
    )


def _passed(before: int, now: int, period: int) -> bool:
    """Returns whether a multiple of the period was reached."""
    return period > 0 and now // period > before // period


def _agent_state(agent: Any) -> tuple[dict[str, Any], dict[str, Array]]:
    whole = hasattr(agent, "state") and hasattr(agent, "restore")
    return agent.state() if whole else ({}, {})


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
