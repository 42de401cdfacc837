"""Whom a run meets: kinds of opponents, their weights, and the past by its strength."""

import pytest

from rookery.config.schema import Config, SelfplayConfig, Weighting
from rookery.envs.turn_based.game import Who
from rookery.errors import ConfigError
from rookery.selfplay.matchmaking import Rival, odds

RIVALS = [Rival(10, 1.0), Rival(20, 0.5), Rival(30, 0.0)]


def chances(rivals=RIVALS, **settings):
    return odds(SelfplayConfig(**settings), rivals)


def test_each_kind_has_its_share():
    found = chances(opponents={"random": 1, "scripted": 1, "latest": 2})

    assert found == {Who.RANDOM: 0.25, Who.SCRIPTED: 0.25, Who.LATEST: 0.5}


def test_the_past_is_met_evenly():
    assert chances(opponents={"past": 1}) == pytest.approx({10: 1 / 3, 20: 1 / 3, 30: 1 / 3})


def test_those_that_beat_us_are_met_most_and_those_we_always_beat_never():
    found = chances(opponents={"prioritized": 1})

    assert found == pytest.approx({20: 0.25 / 1.25, 30: 1 / 1.25})


def test_an_even_weighting_prefers_those_about_as_strong_as_we_are():
    assert chances(opponents={"prioritized": 1}, weighting=Weighting.EVEN) == {20: 1.0}


def test_opponents_that_always_lose_are_met_evenly():
    rivals = [Rival(10, 1.0), Rival(20, 1.0)]

    assert chances(rivals, opponents={"prioritized": 1}) == {10: 0.5, 20: 0.5}


@pytest.mark.parametrize("kind", ["past", "prioritized"])
def test_before_the_first_snapshot_random_plays_in_its_place(kind):
    assert chances([], opponents={kind: 3, "latest": 1}) == {Who.RANDOM: 0.75, Who.LATEST: 0.25}


def test_shares_of_one_opponent_by_several_kinds_add_up():
    found = chances([Rival(7, 0.5)], opponents={"past": 1, "prioritized": 1})

    assert found == {7: 1.0}


def test_a_kind_that_there_is_not_is_refused_with_those_there_are():
    with pytest.raises(
        ConfigError, match=r"one of random, .*got the text 'passt'; did you mean 'past'"
    ):
        SelfplayConfig(opponents={"passt": 1.0})


def test_weights_that_are_all_0_are_refused():
    with pytest.raises(ConfigError, match="no weight above 0"):
        Config(selfplay=SelfplayConfig(opponents={"past": 0.0}))
