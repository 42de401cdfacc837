"""A whole run whose new rows are ranked by their actor's own values."""

from typing import Any

import numpy as np
import pytest

from inline_runs import begin, finish, inline
from rookery.event import Collected
from rookery.types import End

__all__ = ["inline"]  # a fixture
pytestmark = pytest.mark.usefixtures("inline")

BRIEF = {"run.env_steps": 600, "replay.sampling": "prioritized"}


@pytest.mark.parametrize("first", ["largest", "actor"])
def test_rows_have_values_and_priorities_of_their_own_where_actors_are_asked(
    tmp_path: Any, first: str
) -> None:
    valued, different = [], []

    def look(training_run: Any, event: Any) -> None:
        pool = training_run.parts.replay
        if not isinstance(event, Collected) or pool.ring.committed > pool.config.learning_starts:
            return  # learned from: its priorities are the learner's
        rows = np.arange(pool.ring.committed)
        running = pool.ring.columns["end"][rows] == End.RUNNING
        leaves = pool.sampler.leaves
        valued.append(bool(np.isfinite(pool.ring.columns["taken"][rows][running]).all()))
        different.append(len(set(leaves[leaves > 0].tolist())) > 1)

    with begin(tmp_path, BRIEF | {"replay.initial_priority": first}) as training_run:
        answer = finish(training_run, look)

    assert answer["learner_steps"] > 0
    assert set(valued) == set(different) == {first == "actor"}
