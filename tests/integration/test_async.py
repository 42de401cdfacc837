"""Async runs: actors and learner do not wait for each other, and samples per insert is kept."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import row_lineage as lineage
from inline_runs import begin, finish, inline, resume
from rookery.event import Collected, Event, Logged
from rookery.training.run import TrainingRun
from run_processes import record

__all__ = ["inline"]  # a fixture

TWO_ACTORS: dict[str, Any] = {
    "run.mode": "async",
    "actor.num": 2,
    "actor.chunk": 16,
    "run.env_steps": 16_000,
    "replay.capacity": 32_000,
    "replay.learning_starts": 500,
    "checkpoint.period": 10_000_000,
    "eval.period": 10_000_000,
    "report.log_period": 500,
}

# Actors of this corridor make more than ten thousand rows a second, a learner a thousand batches.
BOUND: dict[str, dict[str, Any]] = {
    "learner": {"replay.samples_per_insert": 8.0, "replay.batch_size": 128},
    "actors": {"replay.samples_per_insert": 0.1, "replay.batch_size": 16},
}


class Notes:
    """How things stood when the last row was in, before the learner took what was left."""

    def __init__(self) -> None:
        self.ratio_when_played = 0.0

    def look(self, training_run: TrainingRun, event: Event) -> None:
        parts = training_run.parts
        if isinstance(event, Collected) and not self.ratio_when_played:
            over = event.counters.env_steps >= parts.config.run.env_steps
            self.ratio_when_played = parts.limiter.ratio if over else 0.0


@pytest.mark.usefixtures("inline")
@pytest.mark.parametrize("bound", BOUND)
def test_samples_per_insert_is_kept_with_slow_actors_and_with_a_slow_learner(bound, tmp_path):
    """Within 5% over the run after warm-up, before the learner takes what is left, and after."""
    notes, wanted = Notes(), BOUND[bound]["replay.samples_per_insert"]

    with begin(tmp_path, TWO_ACTORS | BOUND[bound]) as training_run:
        finish(training_run, notes.look)
        limiter = training_run.parts.limiter

    assert notes.ratio_when_played == pytest.approx(wanted, rel=0.05)
    assert limiter.ratio == pytest.approx(wanted, rel=0.05)
    assert limiter.ratio <= wanted  # never more
    assert limiter.stored == training_run.parts.counters.env_steps < 16_000 + 2 * limiter.slack


@pytest.mark.usefixtures("inline")
def test_a_resumed_run_counts_on_and_nothing_of_its_actors_goes_back(tmp_path: Path) -> None:
    """Killed after a checkpoint: the next session goes on from there, with new incarnations."""
    settings = TWO_ACTORS | {"checkpoint.period": 1_500, "run.env_steps": 10_000_000}

    class Killed(BaseException):
        """The process is gone, wherever it was."""

    def kill(training_run: TrainingRun, event: Event) -> None:
        done = list((tmp_path / "run" / "checkpoints").glob("ckpt-*[0-9]"))
        if isinstance(event, Logged) and done:
            raise Killed

    with pytest.raises(Killed), begin(tmp_path / "run", settings) as training_run:
        finish(training_run, kill)
    reached = training_run.parts.counters.env_steps

    with resume(tmp_path / "run") as training_run:
        first = training_run.parts.counters
        limit = first.env_steps + 2_000

        def stop(training_run: TrainingRun, event: Event) -> None:
            if training_run.parts.counters.env_steps >= limit:
                training_run.callbacks.append(lambda event: "stop")

        finish(training_run, stop)
        rows, ring = lineage.rows_of(training_run.parts.replay.ring), training_run.parts.replay.ring
        lineage.check(ring)
        version = training_run.parts.weight_store.version

    assert 1_500 <= first.env_steps <= reached
    assert training_run.parts.actors.incarnations == [1, 1]
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
