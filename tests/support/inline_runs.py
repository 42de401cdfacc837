"""Runs inside the test's own process: evaluated in place, stopped between any two events."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from rookery import seeding
from rookery.config.load import load, load_run
from rookery.envs.make import make
from rookery.evaluation.backend import RunRequest
from rookery.evaluation.evaluation_process import (
    EvaluationSetup,
    EvaluationSnapshot,
    SnapshotEvaluated,
    build_policy,
)
from rookery.evaluation.evaluator import Evaluator
from rookery.event import Counters, Event, Reason, Stopped
from rookery.networks.named_arrays import load_arrays
from rookery.report.trackers.jsonl import Jsonl
from rookery.seeding import Role
from rookery.training import launch
from rookery.training.launch import conclude, session
from rookery.training.run import TrainingRun

TINY: dict[str, Any] = {
    "run.env_steps": 1_200,
    "eval.target": None,
    "eval.period": 300,
    "eval.episodes": 2,
    "checkpoint.period": 300,
    "replay.capacity": 1_000,
    "replay.learning_starts": 100,
    "replay.samples_per_insert": 4.0,
    "report.tensorboard": False,
    "report.log_period": 200,
    "env.check": False,
}


class Inline:
    """Stands in for the manager: no process, and judgements arrive at the turn after their mark."""

    def __init__(self, setup: EvaluationSetup):
        self._setup = setup
        self._jsonl = Jsonl(Path(setup.run_dir))
        self._evaluator: Evaluator | None = None
        self.pending: deque[EvaluationSnapshot] = deque()
        self.unwritten: list[Event] = []
        self.unconfirmed: list[Event] = []
        self.counters, self.pid = Counters(), None

    def write(self, event: Event, *, again: bool = False) -> None:
        assert not again, "nothing is ever unwritten here"
        with suppress(OSError):  # a full disk stops no sink
            self._jsonl.write(event)

    def submit(self, snapshot: EvaluationSnapshot) -> None:
        self.pending.append(snapshot)

    def poll(
        self, timeout_s: float = 0.0
    ) -> Iterator[tuple[EvaluationSnapshot, SnapshotEvaluated]]:
        if self.pending and (timeout_s or len(self.pending) > 1):
            snapshot = self.pending.popleft()
            yield snapshot, self._evaluate(snapshot)

    def close(self) -> None:
        self._jsonl.close()
        if self._evaluator is not None:
            self._evaluator.close()

    def _evaluate(self, snapshot: EvaluationSnapshot) -> SnapshotEvaluated:
        config = self._setup.config
        if self._evaluator is None:
            envs = make(config.eval_env, 1, factory=self._setup.factory)
            self._evaluator = Evaluator(
                lambda num: make(config.eval_env, num, factory=self._setup.factory),
                build_policy(config, envs, self._setup.factory),
                episodes=config.eval.episodes,
            )
            envs.close()
        load_arrays(self._evaluator.algorithm.acting, snapshot.arrays)
        mark = snapshot.counters.env_steps
        seed = seeding.integer(config.run.seed, Role.EVALUATOR, index=mark)
        evaluation = self._evaluator.run(seed=seed)
        return SnapshotEvaluated(evaluation.returns, evaluation.lengths, evaluation.success_rate)


@contextmanager
def begin(
    run_dir: Path, settings: Mapping[str, Any] | None = None, **request: Any
) -> Iterator[TrainingRun]:
    """Opens a run that nothing has happened in yet."""
    changes = {**TINY, **(settings or {}), "run.run_dir": str(run_dir)}
    config = load("corridor", changes=changes)
    with session(config, RunRequest(**request)) as training_run:
        yield training_run


@contextmanager
def resume(run_dir: Path, *, exact: bool = False, **request: Any) -> Iterator[TrainingRun]:
    """Opens a run where it stopped."""
    with session(
        load_run(run_dir), RunRequest(resume=run_dir, exact=exact, **request)
    ) as training_run:
        yield training_run


def finish(
    training_run: TrainingRun,
    look: Callable[[TrainingRun, Event], None] = lambda training_run, event: None,
) -> dict[str, Any]:
    """Runs to the end and returns the answer. `look` sees every event and may interfere."""
    answer: dict[str, Any] = {}
    for event in training_run.events():
        look(training_run, event)
        if isinstance(event, Stopped):
            answer = conclude(training_run.run_dir, event)
    return answer


@pytest.fixture
def inline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes sessions of this test evaluate without a process."""
    monkeypatch.setattr(launch, "EvaluationClient", Inline)


def stop_at(number: int) -> Callable[[TrainingRun, Event], None]:
    """Interrupts a run, as a signal would, between its event `number` and the next."""
    seen = 0

    def look(training_run: TrainingRun, event: Event) -> None:
        nonlocal seen
        seen += 1
        if seen == number:
            training_run.interrupts.reason = Reason.INTERRUPTED

    return look
