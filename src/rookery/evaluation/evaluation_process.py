"""The evaluation process: evaluates weight snapshots and writes reports, alongside training.

The training process sends events to write and snapshots to evaluate; this process answers with
confirmations and results. The thread that receives messages also writes reports, so that a long
evaluation does not delay them.
"""

import contextlib
import os
import queue
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from rookery import seeding
from rookery.config.schema import Config
from rookery.engines.processes import receive, send
from rookery.envs.env_calls import EnvCalls
from rookery.errors import ClosedError
from rookery.evaluation.backend import backend_of
from rookery.event import Counters, Event, Warned
from rookery.seeding import Role
from rookery.types import Array

NO_FRAMES = (
    "eval.record is true, but the environment renders no frames; it must take "
    "render_mode='rgb_array', or set eval.record=false"
)
CLOSE_ENVS_S = 1.0  # for environments to close


@dataclass(frozen=True)
class EvaluationSetup:
    """Arguments with which the evaluation process is started."""

    config: Config
    run_dir: str
    factory: Any  # makes the user's environment, if it was given from Python
    resumed_at: int | None  # env steps, where this process is the first of a resumed run
    console: bool


class EvaluationSnapshot(NamedTuple):
    """Message from the training to the evaluation process: weights to evaluate.

    It also contains the run's counters at the time of the snapshot.
    """

    counters: Counters
    version: int
    wall_s: float
    train_s: float
    arrays: dict[str, Array]


class SnapshotEvaluated(NamedTuple):
    """Message from the evaluation to the training process: the result of one evaluation.

    It contains the scores of its episodes, or the traceback if it failed.
    """

    returns: tuple[float, ...]
    lengths: tuple[int, ...]
    success_rate: float | None
    error: str | None = None
    began: float = 0.0  # CLOCK_MONOTONIC
    ended: float = 0.0
    figures: Mapping[str, float] = {}  # by name, such as elo, from a `Rater`


class EvaluationBegun(NamedTuple):
    """Message from the evaluation to the training process: an evaluation has begun."""


class WriteEvent(NamedTuple):
    """Message from the training to the evaluation process: write an event to all sinks.

    Sinks are the log file, trackers and console. The evaluation process confirms the event by
    sending back its `number`.
    """

    number: int
    event: Event
    again: bool = False  # the log may have it already


class CloseProcess(NamedTuple):
    """Message from the training to the evaluation process: close all log sinks and end.

    The evaluation process confirms it with the same message.
    """


def serve(connection: "Connection[object, object]", setup: EvaluationSetup) -> None:
    """Main function of the evaluation process; never returns.

    The process ends on a `CloseProcess` message, or when the training process is gone.
    """
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # rendering needs no screen
    process = _EvaluationProcess(connection, setup)
    threading.Thread(target=_listen_and_exit, args=(process,), name="listener", daemon=True).start()
    process.work()


def _listen_and_exit(process: "_EvaluationProcess") -> None:
    """Main function of the thread that receives messages from the training process.

    It ends the evaluation process, even during an evaluation, on a `CloseProcess` message or when
    the training process is gone.
    """
    try:
        with contextlib.suppress(ClosedError):  # the training process is gone
            process.listen()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


Answer: TypeAlias = int | EvaluationBegun | SnapshotEvaluated | Warned | CloseProcess


class _EvaluationProcess:
    def __init__(self, connection: "Connection[object, object]", setup: EvaluationSetup):
        self._connection, self._setup = connection, setup
        self._sending = threading.Lock()
        self._tasks: queue.Queue[EvaluationSnapshot | None] = queue.Queue()
        self._evaluating = False
        self._envs_closed = threading.Event()
        self._best = float("-inf")
        self._warned_no_frames = False
        self._rater: Any = None  # for games against opponents

    def listen(self) -> None:
        """Receives messages until `CloseProcess`: logs events, and queues weights to evaluate.

        It runs in a thread of its own, beside the evaluations.
        """
        from rookery.report.console.plain_lines import is_terminal
        from rookery.report.trackers.sinks import make_sinks

        setup = self._setup
        sinks = make_sinks(
            Path(setup.run_dir),
            setup.config,
            resumed_at=setup.resumed_at,
            stream=sys.stdout if setup.console else None,
            terminal=setup.console and is_terminal(sys.stdout),
        )
        while not isinstance(message := receive(self._connection), CloseProcess):
            if not isinstance(message, WriteEvent):
                self._tasks.put(message)
            elif message.again and self._is_logged(message.event):
                self._send(message.number)
            else:
                self._send(*sinks.write(message.event), message.number)
        warnings = sinks.close()
        self._tasks.put(None)
        if not self._evaluating:  # an unfinished evaluation is dropped
            self._envs_closed.wait(CLOSE_ENVS_S)
        self._send(*warnings, CloseProcess())

    def _is_logged(self, event: Event) -> bool:
        """Returns whether the event log contains this event already.

        An earlier evaluation process may have written it and died before confirming it.
        """
        from rookery.report.trackers import jsonl, whole_lines

        return jsonl.line(event) in whole_lines.read(Path(self._setup.run_dir) / jsonl.NAME)

    def work(self) -> None:
        """Evaluates queued weight snapshots in order, in the main thread; never returns."""
        evaluator: Any = None
        while (snapshot := self._tasks.get()) is not None:
            self._evaluating = True
            try:
                evaluator = evaluator or self._evaluator()
                evaluated = self._evaluate(evaluator, snapshot)
            except (Exception, SystemExit):  # a user's code may raise anything; training continues
                evaluated = SnapshotEvaluated((), (), None, traceback.format_exc())
                evaluator = None
            self._evaluating = False
            self._send(evaluated)
        if evaluator is not None:
            evaluator.close()
        self._envs_closed.set()
        threading.Event().wait()  # the listener ends the process

    def _evaluator(self) -> Any:
        import torch

        from rookery.envs.make import make
        from rookery.evaluation.evaluator import MOST_ENVS, Evaluator, with_opponents

        torch.set_num_threads(1)
        config, factory = self._setup.config, self._setup.factory
        num, render = min(config.eval.episodes, MOST_ENVS), config.eval.record
        with self._watched() as calls:
            envs = make(config.eval_env, num, factory=factory, render=render, calls=calls)
        policy = build_policy(config, envs, factory)
        with_opponents(config, envs, policy)
        return Evaluator(lambda num: envs, policy, episodes=config.eval.episodes)

    def _watched(
        self, calls: EnvCalls | None = None
    ) -> contextlib.AbstractContextManager[EnvCalls]:
        """Returns a context manager around calls of environments, which must not hang.

        It raises StalledError after `actor.env_step_timeout_s` seconds in one call.
        """
        from rookery.runtime.watchdog import watched_calls

        config = self._setup.config
        return watched_calls(config.eval_env.id, config.actor.env_step_timeout_s, calls)

    def _evaluate(self, evaluator: Any, snapshot: EvaluationSnapshot) -> SnapshotEvaluated:
        from rookery.networks.named_arrays import load_arrays

        config, began = self._setup.config, time.monotonic()
        self._send(EvaluationBegun())
        load_arrays(evaluator.algorithm.acting, snapshot.arrays)
        seed = seeding.integer(config.run.seed, Role.EVALUATOR, index=snapshot.counters.env_steps)
        with self._watched(evaluator.envs.calls):
            result = evaluator.run(
                seed=seed,
                epsilon=config.eval.epsilon,
                timeout_s=config.eval.timeout_s,
                record=config.eval.record,
            )
        figures = self._figures(evaluator.envs, snapshot)
        ended = time.monotonic()
        self._record(snapshot, result)
        return SnapshotEvaluated(
            result.returns,
            result.lengths,
            result.success_rate,
            began=began,
            ended=ended,
            figures=figures,
        )

    def _figures(self, envs: Any, snapshot: EvaluationSnapshot) -> dict[str, float]:
        """Returns further metrics of a weight snapshot, such as its Elo rating in a game.

        Empty for runs without opponents, and for games that cannot be rated.
        """
        from rookery.envs.turn_based.opponents import opponents_builder

        config = self._setup.config
        if self._rater is None and (builder := opponents_builder(config)) is not None:
            seats = 1 if envs.tables is None else envs.tables.seats
            self._rater = builder.rater(config, self._setup.factory, seats)
        if self._rater is None:
            return {}
        seed = seeding.integer(config.run.seed, Role.RATER, index=snapshot.counters.env_steps)
        figures: dict[str, float] = self._rater.figures(
            snapshot.arrays, games=config.eval.episodes, seed=seed
        )
        return figures

    def _record(self, snapshot: EvaluationSnapshot, result: Any) -> None:
        """Writes a GIF of the first episode if this evaluation's mean return is the best so far."""
        wanted = self._setup.config.eval.record and not self._warned_no_frames
        if wanted and not result.frames:
            self._warned_no_frames = True
            self._send(Warned(snapshot.counters, "video", NO_FRAMES))
        score = sum(result.returns) / len(result.returns)
        if not result.frames or score <= self._best:
            return
        from rookery.report.video import write_gif

        self._best = score
        folder = Path(self._setup.run_dir) / "videos"
        folder.mkdir(exist_ok=True)
        write_gif(folder / f"best-{snapshot.counters.env_steps:012d}.gif", result.frames, fps=30)

    def _send(self, *messages: Answer) -> None:
        with self._sending:
            for message in messages:
                send(self._connection, message)


def build_policy(config: Config, envs: Any, factory: Any) -> Any:
    """Builds the policy that evaluations use.

    Its weights are loaded later, before each evaluation.
    """
    if (backend := backend_of(config)) is not None:
        return backend.evaluation_policy(config, envs, factory)
    from rookery.algorithms import build_algorithm

    return build_algorithm(config, envs.spec)
