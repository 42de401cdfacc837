"""Ratings of snapshots while a run goes on."""

import numpy as np
import pytest

from heap_games import PLUGIN
from rookery import plugins
from rookery.algorithms import build_algorithm
from rookery.config.load import load
from rookery.envs.make import make
from rookery.networks.named_arrays import arrays_of
from rookery.selfplay.evaluation_rating import SnapshotRater

CONFIG = load(changes={"env.id": "heaps", "net.hidden": [4], "selfplay.opponents": {"past": 1}})


@pytest.fixture(scope="module", autouse=True)
def heaps():
    """A game with a scripted player."""
    found = (*plugins.plugins(), PLUGIN)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plugins, "plugins", lambda: found)
        yield


@pytest.fixture(scope="module")
def rater(heaps):
    return SnapshotRater(CONFIG)


@pytest.fixture
def weights():
    envs = make(CONFIG.env, 2)
    return {k: v.copy() for k, v in arrays_of(build_algorithm(CONFIG, envs.spec).acting).items()}


def test_who_sees_no_difference_between_moves_rates_like_random_play(rater, weights):
    """All values equal: ties are broken at random."""
    elo, deviation = rater.rate(
        {k: np.zeros_like(v) for k, v in weights.items()}, games=200, seed=0
    )

    assert abs(elo) < 3 * deviation
    assert 5 < deviation < 50


def test_a_rating_is_a_function_of_weights_and_seed(rater, weights):
    first = rater.rate(weights, games=20, seed=3)

    assert SnapshotRater(CONFIG).rate(weights, games=20, seed=3) == first
    assert rater.rate(weights, games=20, seed=4) != first


def test_more_games_make_it_surer(rater, weights):
    few, many = (rater.rate(weights, games=games, seed=0)[1] for games in (10, 300))

    assert many < few / 2
