"""Freshness: from publishing weights to the first row that was played with them."""

import pytest

from rookery.report.metrics import policy_lag
from rookery.report.metrics.policy_lag import Freshness


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_before_the_first_row_there_is_nothing_to_say(clock: Clock) -> None:
    fresh = Freshness(clock)
    fresh.published(1)

    assert fresh.metrics() == {}
    assert fresh.version == 0


def test_it_measures_from_publishing_to_the_first_row(clock: Clock) -> None:
    fresh = Freshness(clock)
    for version, took in ((1, 0.010), (2, 0.030), (3, 0.020)):
        fresh.published(version)
        clock.now += took
        fresh.seen(version)

    assert fresh.metrics()["actors/fresh_ms_p50"] == pytest.approx(20.0)
    assert fresh.metrics()["actors/fresh_ms_p99"] == pytest.approx(29.8)


def test_only_the_first_row_of_a_version_counts(clock: Clock) -> None:
    fresh = Freshness(clock)
    fresh.published(1)
    for _ in range(3):
        clock.now += 0.010
        fresh.seen(1)

    assert fresh.metrics()["actors/fresh_ms_p99"] == pytest.approx(10.0)


def test_a_version_nobody_played_with_is_not_measured(clock: Clock) -> None:
    fresh = Freshness(clock)
    fresh.published(1)
    clock.now += 5.0
    fresh.published(2)
    clock.now += 0.010
    fresh.seen(2)
    fresh.seen(1)  # a slower actor

    assert fresh.metrics()["actors/fresh_ms_p99"] == pytest.approx(10.0)
    assert fresh.version == 2


def test_versions_of_an_earlier_session_are_seen_but_not_measured(clock: Clock) -> None:
    fresh = Freshness(clock)
    fresh.seen(70)

    assert (fresh.version, fresh.metrics()) == (70, {})


def test_what_waits_to_be_measured_is_bounded(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy_lag, "KEPT", 3)
    fresh = Freshness(clock)
    for version in range(1, 6):
        fresh.published(version)
    clock.now += 1.0
    fresh.seen(1)
    assert fresh.metrics() == {}  # forgotten
    fresh.seen(4)

    assert fresh.metrics()["actors/fresh_ms_p50"] == 1_000.0
