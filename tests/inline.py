"""Runs inside the test's own process: judged on the spot, stopped between any two events."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from rookery import seeding
from rookery.config.load import load, load_run
from rookery.envs.make import make
from rookery.evaluator import Evaluator
from rookery.event import Counters, Event, Reason, Stopped
from rookery.loops import launch
from rookery.loops.desk import Judgement, Setup, Snapshot, policy_for
from rookery.loops.driver import Driver
from rookery.loops.launch import Request, conclude, session
from rookery.nets.arrays import load_arrays
from rookery.report.jsonl import Jsonl
from rookery.seeding import Role

TINY: dict[str, Any] = {
    "run.env_steps": 1_200,
    "eval.target": None,
    "eval.period": 300,
    "eval.episodes": 2,
    "checkpoint.period": 300,
    "replay.capacity": 1_000,
    "replay.warmup": 100,
    "replay.samples_per_insert": 4.0,
    "report.tensorboard": False,
    "report.log_period": 200,
    "env.check": False,
}


class Inline:
    """Stands in for the manager: no process, and judgements arrive at the turn after their mark."""

    def __init__(self, setup: Setup):
        self._setup = setup
        self._jsonl = Jsonl(Path(setup.run_dir))
        self._evaluator: Evaluator | None = None
        self.pending: deque[Snapshot] = deque()
        self.unwritten: list[Event] = []
        self.counters, self.pid = Counters(), None

    def write(self, event: Event) -> None:
        with suppress(OSError):  # a full disk stops no sink
            self._jsonl.write(event)

    def rewrite(self, events: Sequence[Event]) -> None:
        assert not events, "nothing is ever unwritten here"

    def submit(self, snapshot: Snapshot) -> None:
        self.pending.append(snapshot)

    def news(self, timeout_s: float = 0.0) -> Iterator[tuple[Snapshot, Judgement]]:
        if self.pending and (timeout_s or len(self.pending) > 1):
            snapshot = self.pending.popleft()
            yield snapshot, self._judge(snapshot)

    def close(self) -> None:
        self._jsonl.close()
        if self._evaluator is not None:
            self._evaluator.close()

    def _judge(self, snapshot: Snapshot) -> Judgement:
        config = self._setup.config
        if self._evaluator is None:
            envs = make(config.judged_env, 1, factory=self._setup.factory)
            self._evaluator = Evaluator(
                lambda num: make(config.judged_env, num, factory=self._setup.factory),
                policy_for(config, envs, self._setup.factory),
                episodes=config.eval.episodes,
            )
            envs.close()
        load_arrays(self._evaluator.algorithm.acting, snapshot.arrays)
        mark = snapshot.counters.env_steps
        seed = seeding.integer(config.run.seed, Role.EVALUATOR, index=mark)
        judged = self._evaluator.run(seed=seed)
        return Judgement(mark, judged.returns, judged.lengths, judged.success_rate)


@contextmanager
def begin(
    run_dir: Path, settings: Mapping[str, Any] | None = None, **request: Any
) -> Iterator[Driver]:
    """Opens a run that nothing has happened in yet."""
    changes = {**TINY, **(settings or {}), "run.run_dir": str(run_dir)}
    config = load("corridor", changes=changes)
    with session(config, Request(**request)) as driver:
        yield driver


@contextmanager
def resume(run_dir: Path, *, exact: bool = False, **request: Any) -> Iterator[Driver]:
    """Opens a run where it stopped."""
    with session(load_run(run_dir), Request(resume=run_dir, exact=exact, **request)) as driver:
        yield driver


def finish(
    driver: Driver, look: Callable[[Driver, Event], None] = lambda driver, event: None
) -> dict[str, Any]:
    """Runs to the end and returns the answer. `look` sees every event and may interfere."""
    answer: dict[str, Any] = {}
    for event in driver.events():
        look(driver, event)
        if isinstance(event, Stopped):
            answer = conclude(driver, event)
    return answer


@pytest.fixture
def inline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes sessions of this test judge without a process."""
    monkeypatch.setattr(launch, "Manager", Inline)


def stop_at(number: int) -> Callable[[Driver, Event], None]:
    """Interrupts a run, as a signal would, between its event `number` and the next."""
    seen = 0

    def look(driver: Driver, event: Event) -> None:
        nonlocal seen
        seen += 1
        if seen == number:
            driver.interrupts.reason = Reason.INTERRUPTED

    return look
