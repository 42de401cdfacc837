"""Credit in one step: the cue is repeated, four actions apart."""

import pytest

from rookery.envs.toy.basic import Echo
from short_trainings import CONTROL, ECHO, solved, train

pytestmark = pytest.mark.learning

OPTIMUM = Echo().optimal_return


def test_the_cue_is_repeated_for_every_seed() -> None:
    assert solved(ECHO, OPTIMUM, range(5)) == 5


@pytest.mark.parametrize(
    "variant",
    [
        {"replay.sampling": "prioritized"},
        {"algo.dueling": True},
        {"env.normalize_obs": True},
        {"env.frame_stack": 2},
    ],
    ids=["prioritised", "dueling", "normalised", "stacked"],
)
def test_variants_repeat_it_too(variant: dict[str, object]) -> None:
    assert train(ECHO | variant, seed=1).optimal(OPTIMUM)


def test_without_learning_it_is_never_repeated_throughout() -> None:
    """Of 2000 networks that were never trained not one solves it."""
    assert solved(ECHO | CONTROL, OPTIMUM, range(5)) == 0
