"""Time limits: a loop that is cut off after 20 steps is valued as if it went on for ever."""

from typing import Any

import numpy as np
import pytest

from rookery.envs.toy.basic import Loop
from rookery.replay.buffer import LocalReplay
from rookery.types import Array
from short_trainings import CONTROL, LOOP, solved, train

pytestmark = pytest.mark.learning

GAMMA: float = LOOP["algo.gamma"]
VALUE = Loop().value_of(GAMMA)  # 5
PLACES = np.eye(4, dtype=np.float32)


def values(settings: dict[str, Any], seed: int) -> Array:
    return train(settings, seed).q(PLACES).max(1)  # type: ignore[no-any-return]


@pytest.mark.parametrize("steps", [1, 3])
def test_a_time_limit_is_not_learned_as_death(steps: int) -> None:
    """Every place is worth 1 / (1 - gamma), to within 2%: death would take off more."""
    for seed in range(3):
        # Three steps of a policy that explores earn less than those of the best: so it does not.
        greedy = {"actor.epsilon_end": 0.0} if steps > 1 else {}
        learned = values({**LOOP, **greedy, "algo.n_step": steps, "replay.capacity": 600}, seed)

        assert learned == pytest.approx(VALUE, rel=0.02)


def test_the_limit_taken_for_death_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same training with truncations passed off as terminations misses the bar everywhere."""
    honest = LocalReplay.sample

    def lie(self: LocalReplay, batch: int, *, beta: float = 1.0) -> Any:
        drawn = honest(self, batch, beta=beta)
        place = self.ring.columns["t"][drawn.rows % self.ring.capacity]
        drawn.discount[place == Loop().limit - 1] = 0.0
        return drawn

    monkeypatch.setattr(LocalReplay, "sample", lie)
    learned = values(LOOP, seed=0)

    assert (learned < 0.96 * VALUE).all()


def test_the_best_actions_are_found_for_every_seed() -> None:
    assert solved(LOOP, Loop().optimal_return, range(4)) == 4


def test_without_learning_neither_actions_nor_values_are_found() -> None:
    """By luck a network finds the actions in 2% of seeds (46 of 2000), with these in none."""
    assert solved(LOOP | CONTROL, Loop().optimal_return, range(4)) == 0
    assert np.abs(values(LOOP | CONTROL, 0) - VALUE).min() > 0.5 * VALUE
