"""The main loop: plays, stores, learns, evaluates, saves, until it is told to stop.

A round is: every worker of the environment plays an episode, its steps are stored, and the agent
computes gradients, one batch for `agent.update_frequency` steps, that the parameter server applies.
With no parameter server the loop has one of its own, which takes the steps that the agent's learner
would take, bit for bit.
"""

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from rookery.actors.policy import checked
from rookery.checkpoints import checkpoint
from rookery.checkpoints.checkpoint import Content
from rookery.components.experience import ROWS
from rookery.components.protocols import (
    Environment,
    Experience,
    LearningAgent,
    ReplayComponent,
    Server,
)
from rookery.components.replay_buffers import ReplayBuffer, ReplayBufferPool
from rookery.config.checks import at_least_0, positive
from rookery.config.parse import nearest
from rookery.errors import CheckpointError, ConfigError
from rookery.event import Reason
from rookery.runtime.signals import Interrupts
from rookery.server.parameter_server import ParameterServer
from rookery.types import Array

WINDOW = 100  # episodes in the running means
LOOK_S = 0.05  # between two looks while it is paused
AGENT = "agent."  # what of a checkpoint's arrays is the agent's
COUNTS = ("episode", "env_steps", "gradients", "refused", "_unlearned", "_seconds")
STATE = ("state", "restore")  # what an agent has that is saved with the loop
T = TypeVar("T")


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

    def __post_init__(self) -> None:
        for name in ("evaluation_episodes", "keep"):
            positive(name, getattr(self, name))
        at_least_0("warmup", self.warmup)


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

    @checked
    def __init__(
        self,
        environment: Any,
        replay_buffer: Any,
        agent: Any,
        parameter_server: Any = None,
        config: Any = None,
    ):
        self.config = settled(LoopConfig, config)
        if isinstance(replay_buffer, ReplayBuffer):
            replay_buffer = ReplayBufferPool.around(replay_buffer)
        self.environment: Environment = _fitting(Environment, environment, "environment")
        self.replay_buffer: ReplayComponent = _fitting(
            ReplayComponent, replay_buffer, "replay_buffer"
        )
        self.agent: LearningAgent = _fitting(LearningAgent, agent, "agent")
        self.integrated = parameter_server is None
        server = integrated(agent) if parameter_server is None else parameter_server
        self.parameter_server: Server = _fitting(Server, server, "parameter_server")
        self.episode = self.env_steps = self.gradients = self.refused = 0
        self._version = -1  # of the parameters that the agent has
        self._unlearned = 0.0  # batches that steps have earned and nobody has learned from
        self._returns: deque[float] = deque(maxlen=WINDOW)
        self._evaluation: Any = None
        self._running, self._stopped = threading.Event(), threading.Event()
        self._running.set()
        self._reason: Reason | None = None
        self._seconds = 0.0

    @checked
    def run_training(
        self,
        total_episodes: int = 1000,
        max_steps: int = 1000,
        evaluation_frequency: int = 100,
        checkpoint_frequency: int = 500,
    ) -> dict[str, Any]:
        """Trains until `total_episodes` are over, counted with those of a checkpoint.

        Evaluates and saves every so many episodes, at the end of the round in which they are
        reached; 0 is never. Returns the progress, with the `reason` of the end.
        """
        _refuse_odd(total_episodes, max_steps, evaluation_frequency, checkpoint_frequency)
        self._stopped.clear()
        self._reason, began, before = None, time.monotonic(), self._seconds
        with Interrupts() as interrupts:
            self._join()
            interrupts.begin()
            while not self._over(interrupts, total_episodes):
                last = self.episode
                self._round(min(self._width, total_episodes - self.episode), max_steps)
                self._seconds = before + time.monotonic() - began
                self._look(last, self.episode, evaluation_frequency, checkpoint_frequency)
            self._reason = self._why(interrupts, total_episodes)
            if interrupts.reason is not None or checkpoint_frequency:
                self._save_by_itself()
        leave(interrupts)
        return self.get_training_progress()

    @checked
    def run_single_episode(self, max_steps: int = 1000) -> dict[str, Any]:
        """Plays one episode and learns from what it brought; returns `reward` and `length`."""
        self._join()
        steps = self._round(1, max_steps)
        return {"reward": _rewards(steps)[0], "length": len(steps), "episode": self.episode}

    @checked
    def evaluate_policy(self, num_episodes: int = 10) -> Any:
        """Returns what the agent's own `evaluate_policy` does."""
        self._evaluation = self.agent.evaluate_policy(num_episodes)
        return self._evaluation

    # A round.

    def _look(self, last: int, now: int, evaluation: int, saving: int) -> None:
        """Does what became due since the last look, with the newest parameters."""
        if _passed(last, now, evaluation):
            self._pull()
            self.evaluate_policy(self.config.evaluation_episodes)
        if _passed(last, now, saving):
            self._pull()
            self._save_by_itself()
        if now > last and self.config.callback is not None:
            self.config.callback(self.get_training_progress())

    @property
    def _width(self) -> int:
        """Episodes that are played at once."""
        return int(getattr(self.environment, "num_workers", 1))

    def _round(self, episodes: int, max_steps: int) -> list[dict[str, Any]]:
        steps = self.environment.generate_experiences(self.agent, episodes, max_steps)
        self.replay_buffer.add_experiences(steps)
        self._returns.extend(_rewards(steps))
        self.episode += episodes
        self.env_steps += len(steps)
        for _ in range(self._batches(len(steps))):
            self._learn()
        return steps

    def _batches(self, steps: int) -> int:
        """Returns how many batches to learn from now."""
        if self.replay_buffer.get_total_experiences() < self.config.warmup:
            return 0
        if self.config.batches_per_round is not None:
            return self.config.batches_per_round
        self._unlearned += steps / int(getattr(self.agent, "update_frequency", 4))
        whole, self._unlearned = divmod(self._unlearned, 1.0)
        return int(whole)

    def _learn(self) -> None:
        """One batch: its gradients go to the server, whose parameters come back."""
        batch = self.replay_buffer.sample_batch(int(getattr(self.agent, "batch_size", 32)))
        if gradients := self.agent.compute_gradients(batch):
            self.hand_over(gradients)
            self._rerank(batch)

    @checked
    def hand_over(self, gradients: Mapping[str, Array]) -> None:
        """Has the server step by gradients, and the agent take over what came of it."""
        receipt = self.parameter_server.push_gradients(
            self.config.worker, dict(gradients), version=max(0, self._version)
        )
        self.gradients += 1
        self.refused += not receipt.accepted
        self._pull()

    def _rerank(self, batch: Mapping[str, Any]) -> None:
        rerank = getattr(self.replay_buffer, "update_priorities", None)
        td_error = getattr(self.agent, "td_error", None)
        if rerank is not None and td_error is not None and ROWS in batch:
            rerank(batch[ROWS], td_error)

    def _join(self) -> None:
        """Registers at the server, and begins with the parameters that it has."""
        self.parameter_server.register_worker(self.config.worker)
        self._pull()

    def _pull(self) -> int:
        newer = self.parameter_server.get_parameters(newer_than=self._version)
        if newer is not None:
            self.agent.set_policy_parameters(newer.arrays)
            self._version = newer.version
        return self._version

    # Being told.

    @checked
    def pause_training(self) -> None:
        """Waits after the round that is on, until it is resumed or stopped."""
        self._running.clear()

    @checked
    def resume_training(self) -> None:
        """Goes on."""
        self._running.set()

    @checked
    def stop_training(self) -> None:
        """Ends training after the round that is on; `run_training` may be called again."""
        self._stopped.set()
        self._running.set()

    def _over(self, interrupts: Interrupts, total_episodes: int) -> bool:
        while not self._running.wait(LOOK_S) and interrupts.reason is None:
            pass
        return self._why(interrupts, total_episodes) is not None

    def _why(self, interrupts: Interrupts, total_episodes: int) -> Reason | None:
        if interrupts.reason is not None:
            return interrupts.reason
        if self._stopped.is_set():
            return Reason.CALLBACK
        reward = getattr(self._evaluation, "reward", None)
        if self.config.target is not None and reward is not None and reward >= self.config.target:
            return Reason.TARGET
        return Reason.EPISODES if self.episode >= total_episodes else None

    @checked
    def get_training_progress(self) -> dict[str, Any]:
        """Returns how far training is; means are over the last 100 episodes."""
        returns, reward = list(self._returns), getattr(self._evaluation, "reward", None)
        return {
            "episode": self.episode,
            "env_steps": self.env_steps,
            "gradients": self.gradients,
            "refused": self.refused,
            "version": self._version,
            "experiences": self.replay_buffer.get_total_experiences(),
            "mean_reward": float(np.mean(returns)) if returns else float("nan"),
            "evaluation": reward,
            "paused": not self._running.is_set(),
            "seconds": self._seconds,
            "reason": None if self._reason is None else self._reason.value,
        }

    # The disk.

    def _save_by_itself(self) -> None:
        if self.config.checkpoint_path is not None:
            self.save_checkpoint()

    @checked
    def save_checkpoint(self, path: str | Path | None = None) -> Path:
        """Writes a checkpoint into a folder of them; it is there whole or not at all.

        Has the agent (all of one with `state` and `restore`, else its parameters), the server where
        it can be saved, and the counts. Replay is not in it: `replay_buffer.save_buffers` saves it.
        """
        parent = self._folder(path)
        numbers, arrays = self._agent_state()
        name = checkpoint.name_of(self.episode)
        state = {
            "loop": self._counts(),
            "agent": numbers,
            "server": self._saved_server(parent, name),
        }
        folder = checkpoint.write(
            parent,
            name,
            Content(
                env_steps=self.episode,
                version=max(0, self._version),
                exact=False,
                final=False,
                about={"what": "main loop", "episode": self.episode},
                weights=self.agent.get_policy_parameters(),
                state=state,
                arrays={AGENT + key: value for key, value in arrays.items()},
            ),
        )
        checkpoint.prune(parent, self.config.keep)
        _forget_servers(parent)
        return folder

    @checked
    def load_checkpoint(self, path: str | Path | None = None) -> int:
        """Goes on from the newest checkpoint of a folder that is whole; returns its episode."""
        parent = self._folder(path)
        search = checkpoint.newest(parent)
        if search.found is None:
            raise CheckpointError(
                f"there is no checkpoint in {str(parent)!r} that is whole "
                f"({'; '.join(search.broken) or 'it has none'}); give the folder that was saved to"
            )
        state, arrays = search.found.state(), search.found.arrays()
        self._restore_server(parent, state["server"])
        self._restore_agent(state["agent"], arrays, search.found.weights())
        for name in COUNTS:
            setattr(self, name, state["loop"][name])
        return self.episode

    def _counts(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in COUNTS}

    def _agent_state(self) -> tuple[dict[str, Any], dict[str, Array]]:
        whole = all(hasattr(self.agent, name) for name in STATE)
        return self.agent.state() if whole else ({}, {})  # type: ignore[attr-defined]

    def _restore_agent(
        self,
        numbers: Mapping[str, Any],
        arrays: Mapping[str, Array],
        parameters: dict[str, Array],
    ) -> None:
        if numbers and all(hasattr(self.agent, name) for name in STATE):
            own = {k[len(AGENT) :]: v for k, v in arrays.items() if k.startswith(AGENT)}
            self.agent.restore(numbers, own)  # type: ignore[attr-defined]
        else:
            self.agent.set_policy_parameters(parameters)

    def _saved_server(self, parent: Path, name: str) -> str | None:
        """Saves a server that lives here; one elsewhere, or of yours, looks after itself."""
        if not isinstance(self.parameter_server, ParameterServer):
            return None
        parent.mkdir(parents=True, exist_ok=True)
        return self.parameter_server.save_checkpoint(_server_file(parent, name)).name

    def _restore_server(self, parent: Path, saved: str | None) -> None:
        if saved is None or not isinstance(self.parameter_server, ParameterServer):
            self._version = -1  # the server goes its own way: its parameters are the newest
            return
        self._version = self.parameter_server.load_checkpoint(parent / Path(saved).name)

    def _folder(self, path: str | Path | None) -> Path:
        given = self.config.checkpoint_path if path is None else path
        if given is None:
            raise ConfigError(
                "checkpoints are kept in a folder, got none; give a path here, or checkpoint_path "
                "in the loop's config"
            )
        return Path(given)


def settled(kind: type[T], given: Any) -> T:
    """Returns settings of a kind: as they are, or of a mapping with their names."""
    if isinstance(given, kind):
        return given
    known = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    if given is None:
        given = {}
    if not isinstance(given, Mapping):
        raise ConfigError(
            f"config is a {kind.__name__} or a mapping of {', '.join(known)}, got {given!r}; give "
            "one of them, or leave it out"
        )
    for key in given:
        if key not in known:
            raise ConfigError(
                f"config has {key!r}, a {kind.__name__} has {', '.join(known)}; did you mean "
                f"{nearest(str(key), known) or known[0]!r}?"
            )
    return kind(**given)


def integrated(agent: Any) -> ParameterServer:
    """Makes the server of a loop that was given none: it steps as the agent itself would."""
    config = getattr(getattr(agent, "config", None), "learner", None)
    return ParameterServer(
        agent.get_policy_parameters(),
        update_frequency=1,
        optimizer="adam" if config is None else config.optimizer.value,
        lr=float(getattr(agent, "lr", 0.001)),
        optimizer_kwargs={} if config is None else config.optimizer_kwargs,
    )


def _fitting(kind: Any, part: Any, name: str) -> Any:
    if isinstance(part, kind):
        return part
    wanted = [method for method in vars(kind) if not method.startswith("_")]
    missing = [method for method in wanted if not hasattr(part, method)]
    raise ConfigError(
        f"{name} has {', '.join(wanted)}, got a {type(part).__name__} without "
        f"{', '.join(missing)}; add what is missing"
    )


def _rewards(steps: Sequence[Experience]) -> list[float]:
    """Returns what each episode earned, of steps in their order."""
    returns, score = [], 0.0
    for step in steps:
        score += float(step["reward"])
        if step["terminated"] or step["truncated"]:
            returns.append(score)
            score = 0.0
    return returns if returns or not steps else [score]


def _passed(before: int, now: int, period: int) -> bool:
    """Was a multiple of the period reached?"""
    return period > 0 and now // period > before // period


def _refuse_odd(episodes: int, steps: int, evaluation: int, saving: int) -> None:
    if episodes < 1 or steps < 1 or evaluation < 0 or saving < 0:
        raise ConfigError(
            f"training has at least 1 episode of at least 1 step, and frequencies from 0 on, got "
            f"{episodes}, {steps}, {evaluation} and {saving}; leave them out for the defaults"
        )


def _server_file(parent: Path, name: str) -> Path:
    taken = {path.name for path in parent.glob(f"server-{name[5:]}*")}
    return parent / f"server-{name[5:]}-{len(taken)}.safetensors"


def _forget_servers(parent: Path) -> None:
    """Removes what no checkpoint that is left was saved with."""
    wanted = set()
    for folder in checkpoint.folders(parent):
        with contextlib.suppress(CheckpointError):  # one that is broken is nobody's
            wanted.add(checkpoint.VerifiedCheckpoint(folder, {}).state()["server"])
    for file in parent.glob("server-*.safetensors"):
        if file.name not in wanted:
            file.unlink()


def leave(interrupts: Interrupts) -> None:
    """Raises what a signal asked for, once everything is in order."""
    if interrupts.reason is Reason.INTERRUPTED:
        raise KeyboardInterrupt
    if interrupts.reason is Reason.TERMINATED:
        raise SystemExit(interrupts.exit_code)
