"""The guard: which loans count less, and how much."""

from pathlib import Path

import numpy as np
import pytest

from experience import VECTOR
from membership import member, pool
from rookery.config.load import load
from rookery.errors import ConfigError
from rookery.sharing.guard import FLOOR, GREEDY, UNKNOWN, Guard

NOT_GREEDY = 0


def guard(epsilon: float) -> Guard:
    return Guard(lambda obs: np.zeros(len(obs), dtype=int), lambda: epsilon, choices=4)


@pytest.mark.parametrize(
    ("action", "greedy", "expected"),
    [
        (0, GREEDY, 1.0),  # we would do the same
        (1, GREEDY, 0.05 / 0.85),  # to us it would be a whim
        (0, NOT_GREEDY, 1.0),  # more likely to us than it was: cut to 1
        (1, NOT_GREEDY, 1.0),  # a whim to both
        (1, UNKNOWN, 1.0),
    ],
)
def test_a_loan_counts_as_much_as_its_action_is_likely_to_us(action, greedy, expected):
    obs, actions, known = np.zeros((1, 2)), np.array([action]), np.array([greedy], dtype=np.int8)
    assert guard(0.2).weigh(obs, actions, known) == pytest.approx([expected], rel=1e-6)


def test_no_loan_counts_less_than_the_floor():
    known = np.array([GREEDY, NOT_GREEDY], dtype=np.int8)
    weights = guard(0.0).weigh(np.zeros((2, 2)), np.array([1, 1]), known)
    assert weights.tolist() == pytest.approx([FLOOR, FLOOR])


def test_a_member_weighs_its_loans_beside_its_own_rows(tmp_path: Path) -> None:
    own, other = member(tmp_path, "own", ratio=0.5), member(tmp_path, "other")
    replay, _ = pool(own), pool(other)
    own.guard = Guard(lambda obs: np.full(len(obs), 2), lambda: 0.3, choices=VECTOR.action.n)
    batch = own.draw(replay, 200, 1.0)
    loans = batch.rows == -1
    mean = batch.weight[~loans].mean()
    # the lender's values say: known in six of seven rows, greedy in some of those
    assert set(np.unique(batch.weight[loans] / mean).round(3)) == {0.125, 1.0}
    assert (batch.weight[loans & (batch.action == 2)] == mean).all()


def test_actions_that_are_not_one_choice_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"one Discrete, .* set sharing\.guard=false"):
        Guard(lambda obs: obs, lambda: 0.1, choices=0)


def test_the_guard_is_off_by_default_and_makes_actors_write_values(tmp_path: Path) -> None:
    plain = load("corridor", changes={"sharing.pool": str(tmp_path)})
    guarded = load(plain, changes={"sharing.guard": True})
    assert (plain.wants_values, guarded.wants_values) == (False, True)


@pytest.mark.parametrize("change", [{"run.engine": "ray", "run.mode": "async"}, {"backend": "sb3"}])
def test_where_loans_cannot_be_compared_the_guard_is_refused(change) -> None:
    scenario = "dqn" if "backend" in change else "corridor"
    with pytest.raises(ConfigError, match=r"sharing\.guard"):
        load(scenario, changes={"sharing.guard": True, **change})
