"""The manage process: judges snapshots and writes reports, so that training does neither.

The parent sends events to write and snapshots to judge; this answers with what it found. Reports
are written on the thread that listens, so that a long evaluation does not hold them up.
"""

import os
import queue
import sys
import threading
import time
import traceback
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from rookery import seeding
from rookery.config.schema import Backend, Config
from rookery.engines.processes import receive, send
from rookery.errors import ClosedError
from rookery.event import Counters, Event, Warned
from rookery.seeding import Role
from rookery.types import Array

BLIND = (
    "eval.record is true, but the environment gives no pictures; it must take "
    "render_mode='rgb_array', or leave eval.record out"
)
PAIR = 2  # seats of the games that ratings are made of
TIDY_S = 1.0  # for environments to close what they opened


@dataclass(frozen=True)
class Setup:
    """What the manage process needs to begin."""

    config: Config
    run_dir: str
    factory: Any  # the user's environment, where it was given from Python
    resumed_at: int | None
    console: bool
    first_try: bool  # False where only this process was started again


class Snapshot(NamedTuple):
    """Weights to judge, and the run's state when they were taken."""

    counters: Counters
    version: int
    wall_s: float
    train_s: float
    arrays: dict[str, Array]


class Judgement(NamedTuple):
    """An evaluation's outcome; `error` is the traceback of one that failed."""

    env_steps: int
    returns: tuple[float, ...]
    lengths: tuple[int, ...]
    success_rate: float | None
    error: str | None = None
    began: float = 0.0  # CLOCK_MONOTONIC
    ended: float = 0.0
    elo: float | None = None
    elo_deviation: float | None = None


class Begun(NamedTuple):
    """Child → parent: the evaluator is up and plays with the snapshot of this mark."""

    env_steps: int


class Write(NamedTuple):
    """Parent → child: put this into the record. Answered by its number."""

    number: int
    event: Event
    again: bool = False  # it may be in the record already


class Close(NamedTuple):
    """Parent → child: no more will come."""


def serve(connection: Connection, setup: Setup) -> None:
    """Works until told to close, or until the parent is gone."""
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # rendering needs no screen
    desk = _Desk(connection, setup)
    threading.Thread(target=_until_the_end, args=(desk,), name="listener", daemon=True).start()
    desk.work()


def _until_the_end(desk: "_Desk") -> None:
    """Ends the process with the listener: nobody waits for an evaluation any more."""
    status = 1
    try:
        desk.listen()
        status = 0
    except ClosedError:  # the parent is gone
        status = 0
    finally:
        if status:
            traceback.print_exc()
        os._exit(status)


class _Desk:
    def __init__(self, connection: Connection, setup: Setup):
        self._connection, self._setup = connection, setup
        self._sending = threading.Lock()
        self._tasks: queue.Queue[Snapshot | None] = queue.Queue()
        self._judging = False
        self._tidied = threading.Event()
        self._best = float("-inf")
        self._blind = False  # has it been said that there are no pictures?
        self._rater: Any = None  # of games against opponents
        self._seats = 1  # of such a game

    def listen(self) -> None:
        """Writes events as they come and queues snapshots; runs on its own thread."""
        from rookery.report.sinks import make_sinks

        setup = self._setup
        sinks = make_sinks(
            Path(setup.run_dir),
            setup.config,
            resumed_at=setup.resumed_at if setup.first_try else None,
            stream=sys.stdout if setup.console else None,
            terminal=setup.console and _is_terminal(),
        )
        while not isinstance(message := receive(self._connection), Close):
            if not isinstance(message, Write):
                self._tasks.put(message)
            elif message.again and self._recorded(message.event):
                self._tell(message.number)
            else:
                self._tell(*sinks.write(message.event), message.number)
        farewell = sinks.close()
        self._tasks.put(None)
        if not self._judging:  # an evaluation nobody waits for any more is not waited for
            self._tidied.wait(TIDY_S)
        self._tell(*farewell, Close())

    def _recorded(self, event: Event) -> bool:
        """Was this written by a process that died before it could say so?"""
        from rookery.report import jsonl, lines

        return jsonl.line(event) in lines.read(Path(self._setup.run_dir) / jsonl.NAME)

    def work(self) -> None:
        """Judges snapshots in the order of their marks; the listener ends the process."""
        evaluator: Any = None
        while (snapshot := self._tasks.get()) is not None:
            self._judging = True
            try:
                evaluator = evaluator or self._evaluator()
                judged = self._judge(evaluator, snapshot)
            except Exception:  # the user's environment may raise anything; training goes on
                judged = Judgement(
                    snapshot.counters.env_steps, (), (), None, traceback.format_exc()
                )
                evaluator = None
            self._judging = False
            self._tell(judged)
        if evaluator is not None:
            evaluator.close()
        self._tidied.set()
        threading.Event().wait()  # the listener has the last word

    def _evaluator(self) -> Any:
        import torch

        from rookery.envs.make import make
        from rookery.evaluator import Evaluator
        from rookery.loops.company import seat_judge

        torch.set_num_threads(1)
        config, factory = self._setup.config, self._setup.factory

        def make_envs(num: int) -> Any:
            return make(config.judged_env, num, factory=factory, render=config.eval.record)

        probe = make_envs(1)
        self._seats = probe.tables.seats if probe.tables is not None else 1
        policy = policy_for(config, probe, factory)
        probe.close()

        def seated(num: int) -> Any:
            return seat_judge(config, make_envs(num), policy)

        return Evaluator(seated, policy, episodes=config.eval.episodes)

    def _judge(self, evaluator: Any, snapshot: Snapshot) -> Judgement:
        from rookery.nets.arrays import load_arrays

        config, began = self._setup.config, time.monotonic()
        self._tell(Begun(snapshot.counters.env_steps))
        load_arrays(evaluator.algorithm.acting, snapshot.arrays)
        judged = evaluator.run(
            seed=seeding.integer(
                config.run.seed, Role.EVALUATOR, index=snapshot.counters.env_steps
            ),
            epsilon=config.eval.epsilon,
            timeout_s=config.eval.timeout_s,
            record=config.eval.record,
        )
        rating = self._rating(snapshot)
        ended = time.monotonic()
        self._film(snapshot, judged)
        return Judgement(
            snapshot.counters.env_steps,
            judged.returns,
            judged.lengths,
            judged.success_rate,
            began=began,
            ended=ended,
            elo=rating[0],
            elo_deviation=rating[1],
        )

    def _rating(self, snapshot: Snapshot) -> tuple[float | None, float | None]:
        """Rates a snapshot where it plays a game for two against opponents."""
        config = self._setup.config
        if not config.selfplay.on or self._seats != PAIR:
            return None, None
        if self._rater is None:
            from rookery.loops.rater import Rater

            self._rater = Rater(config, self._setup.factory)
        seed = seeding.integer(config.run.seed, Role.RATER, index=snapshot.counters.env_steps)
        rated: tuple[float, float] = self._rater.rate(
            snapshot.arrays, games=config.eval.episodes, seed=seed
        )
        return rated

    def _film(self, snapshot: Snapshot, judged: Any) -> None:
        if self._setup.config.eval.record and not judged.frames:
            self._say_blind(snapshot)
        score = sum(judged.returns) / len(judged.returns)
        if not judged.frames or score <= self._best:
            return
        from rookery.report.gif import write_gif

        self._best = score
        folder = Path(self._setup.run_dir) / "videos"
        folder.mkdir(exist_ok=True)
        write_gif(folder / f"best-{snapshot.counters.env_steps:012d}.gif", judged.frames, fps=30)

    def _say_blind(self, snapshot: Snapshot) -> None:
        if not self._blind:
            self._blind = True
            self._tell(Warned(snapshot.counters, "video", BLIND))

    def _tell(self, *messages: int | Begun | Judgement | Warned | Close) -> None:
        with self._sending:
            for message in messages:
                send(self._connection, message)


def policy_for(config: Config, envs: Any, factory: Any) -> Any:
    """Builds what acts in an evaluation; its weights come with the snapshots."""
    if config.backend is Backend.SB3:
        from rookery.loops.sb3 import Player

        return Player(config, envs.codec, factory)
    from rookery.algos import build_algorithm

    return build_algorithm(config, envs.spec)


def _is_terminal() -> bool:
    from rookery.report.console import is_terminal

    return is_terminal(sys.stdout)
