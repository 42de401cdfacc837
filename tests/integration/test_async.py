"""Async runs: nobody waits for anybody, and learning still keeps its ratio to playing."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lineage
from inline import begin, finish, inline, resume
from rookery.event import Collected, Event, Logged
from rookery.loops.driver import Driver
from running import record

__all__ = ["inline"]  # a fixture

CREW: dict[str, Any] = {
    "run.mode": "async",
    "actor.num": 2,
    "run.env_steps": 20_000,
    "replay.capacity": 40_000,
    "replay.warmup": 1_000,
    "checkpoint.period": 10_000_000,
    "eval.period": 10_000_000,
    "report.log_period": 1_000,
}

# Actors of this corridor make more than ten thousand rows a second, a learner a thousand batches.
BOUND: dict[str, dict[str, Any]] = {
    "learner": {"replay.samples_per_insert": 8.0, "replay.batch": 64},
    "actors": {"replay.samples_per_insert": 0.1, "replay.batch": 16},
}


class Notes:
    """How things stood when the last row was in, before the learner took what was left."""

    def __init__(self) -> None:
        self.ratio_when_played = 0.0

    def look(self, driver: Driver, event: Event) -> None:
        parts = driver.parts
        if isinstance(event, Collected) and not self.ratio_when_played:
            over = event.counters.env_steps >= parts.config.run.env_steps
            self.ratio_when_played = parts.limiter.ratio if over else 0.0


@pytest.mark.usefixtures("inline")
@pytest.mark.parametrize("bound", BOUND)
def test_samples_per_insert_is_kept_whoever_is_the_slower(bound, tmp_path):
    """Within 5% over the run after warm-up, before the learner takes what is left, and after."""
    notes, wanted = Notes(), BOUND[bound]["replay.samples_per_insert"]

    with begin(tmp_path, CREW | BOUND[bound]) as driver:
        finish(driver, notes.look)
        limiter = driver.parts.limiter

    assert notes.ratio_when_played == pytest.approx(wanted, rel=0.05)
    assert limiter.ratio == pytest.approx(wanted, rel=0.05)
    assert limiter.ratio <= wanted  # never more
    assert limiter.stored == driver.parts.counters.env_steps < 20_000 + 2 * limiter.slack


@pytest.mark.usefixtures("inline")
def test_a_resumed_run_counts_on_and_nothing_of_its_actors_goes_back(tmp_path: Path) -> None:
    """Killed after a checkpoint: the next session goes on from there, with new incarnations."""
    settings = CREW | {"checkpoint.period": 4_000, "run.env_steps": 10_000_000}

    class Killed(BaseException):
        """The process is gone, wherever it was."""

    def kill(driver: Driver, event: Event) -> None:
        done = list((tmp_path / "run" / "checkpoints").glob("ckpt-*[0-9]"))
        if isinstance(event, Logged) and done:
            raise Killed

    with pytest.raises(Killed), begin(tmp_path / "run", settings) as driver:
        finish(driver, kill)
    reached = driver.parts.counters.env_steps

    with resume(tmp_path / "run") as driver:
        first = driver.parts.counters
        limit = first.env_steps + 6_000

        def stop(driver: Driver, event: Event) -> None:
            if driver.parts.counters.env_steps >= limit:
                driver.callbacks.append(lambda event: "stop")

        finish(driver, stop)
        rows, ring = lineage.rows_of(driver.parts.pool.ring), driver.parts.pool.ring
        lineage.check(ring)
        version = driver.parts.board.version

    assert 4_000 <= first.env_steps <= reached
    assert driver.parts.crew.incarnations == [1, 1]
    logged = record(tmp_path / "run", "logged")
    steps = [entry["env_steps"] for entry in logged]
    assert steps == sorted(set(steps))
    for counter in ("learner_steps", "episodes", "wall_s"):
        values = [entry[counter] for entry in logged]
        assert values == sorted(values)
    assert set(np.unique(rows["incarnation"])) == {0, 1}
    assert rows["version"].max() <= version
    for actor in (0, 1):
        own = rows["version"][rows["actor"] == actor]
        assert (np.diff(own) >= 0).all(), "an actor went back to older weights"
        assert own[-1] > own[0]
