"""Adaptive sharing: shares that follow our own TD error, within bounds."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rookery.sharing import adaptive
from rookery.sharing.adaptive import CEILING, FLOOR, WINDOW, Tuner
from rookery.types import Array

PEERS = ("good", "bad", "neither")
EFFECT = np.array([-1.0, 1.0, 0.0])  # on our error, of a larger share of each


def tuner(seed: int = 0) -> Tuner:
    made = Tuner(np.random.default_rng(seed))
    made.meet(PEERS)
    return made


def conclude(made: Tuner, error: float) -> bool:
    """Lets a window of learner steps pass, all of which have this error."""
    return [made.observe(np.array([error])) for _ in range(WINDOW)][-1]


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """A window is one step, whose error is already the mean of many."""
    monkeypatch.setattr(adaptive, "WINDOW", 1)


ERRORS = st.lists(st.floats(allow_nan=True, allow_infinity=True, width=32), max_size=4)


@given(st.lists(ERRORS, max_size=20), st.integers(0, 99))
def test_floor_and_ceiling_hold_for_any_errors(windows: list[list[float]], seed: int) -> None:
    made = tuner(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(adaptive, "WINDOW", 1)
        for errors in windows:
            made.observe(np.array(errors))
            assert _in_range(made.factors(PEERS))


@pytest.mark.usefixtures("brief")
def test_floor_and_ceiling_are_reached_and_held() -> None:
    """The error is what the shares say and nothing else: they go as far as they may."""
    good, bad = tuner(), tuner()
    for _ in range(300):
        good.observe(1 / good.factors(["one"]))
        bad.observe(bad.factors(["one"]))
        good.meet(["one"])
        bad.meet(["one"])
    assert settled(good)["one"] > 0.9 * CEILING
    assert settled(bad)["one"] < 1.1 * FLOOR


def _level(base: float, effect: float) -> tuple[float, float]:
    """The error itself is smaller or larger, and what it is made of falls slowly."""
    return base * np.exp(0.1 * effect), base * 0.999


def _rate(base: float, effect: float) -> tuple[float, float]:
    """The error falls faster or slower, and less the smaller it is."""
    after = base * np.exp(WINDOW * 2e-3 * (0.5 * effect - 0.1 * np.log(base)))
    return (base + after) / 2, after


@pytest.mark.usefixtures("brief")
@pytest.mark.parametrize("world", [_level, _rate])
@pytest.mark.parametrize("seed", range(4))
def test_who_reduces_the_error_gets_more_than_who_raises_it(world, seed) -> None:
    """Noise as that of the mean of 32 rows in each of 50 steps. Right in 400 of 400 seeds."""
    made, rng, base = tuner(seed), np.random.default_rng(seed), 1.0
    spread = 0.75 / np.sqrt(32 * WINDOW)
    for _ in range(300):
        effect = float(EFFECT @ np.log(made.factors(PEERS)))
        error, base = world(base, effect)
        made.observe(error * np.array([1 + spread * rng.normal()]))
    factors = settled(made)
    assert factors["good"] > 1.1 * factors["bad"]


@pytest.mark.usefixtures("brief")
def test_a_share_that_makes_no_difference_stays_near_the_plain_one() -> None:
    """In 300 windows of noise; a walk without a way back would be at the bounds by then."""
    found = []
    for seed in range(6):
        made, rng = tuner(seed), np.random.default_rng(seed)
        for _ in range(300):
            made.observe(1 + 0.02 * rng.normal(size=1))
        found += list(settled(made).values())
    assert np.exp(np.abs(np.log(found)).mean()) < 1.5


@pytest.mark.parametrize("error", [[np.nan], [np.inf, 1.0], []])
def test_errors_that_are_no_numbers_are_ignored(error: list[float]) -> None:
    plain, disturbed = tuner(), tuner()
    for step in range(5 * WINDOW):
        for made in (plain, disturbed):
            made.observe(np.array([1.0 + step % 7]))
        assert not disturbed.observe(np.array(error))
    assert (plain.factors(PEERS) == disturbed.factors(PEERS)).all()


def test_factors_change_once_in_a_window() -> None:
    made = tuner()
    before = made.factors(PEERS)
    told = [made.observe(np.ones(4)) for _ in range(2 * WINDOW)]
    assert [step for step, changed in enumerate(told) if changed] == [WINDOW - 1, 2 * WINDOW - 1]
    assert (before == 1.0).all()
    assert (made.factors(PEERS) != 1.0).all()


def settled(made: Tuner) -> dict[str, float]:
    """Returns the factors without what is being tried at the moment."""
    return {peer: float(np.exp(log)) for peer, log in made._log.items()}


def test_peers_come_and_go() -> None:
    made, rng = tuner(), np.random.default_rng(0)
    for _ in range(50):
        conclude(made, rng.uniform(0.5, 1.5))
    before = settled(made)
    made.meet(["bad", "new"])
    assert settled(made) == {"bad": before["bad"], "new": 1.0}
    made.meet([])
    assert conclude(made, 1.0)
    assert made.factors([]).size == 0
    made.meet(["bad"])
    assert settled(made) == {"bad": 1.0}  # whoever was gone begins in the middle
    assert _in_range(made.factors(["bad", "a stranger"]))


def _in_range(factors: Array) -> bool:
    return bool(((factors >= FLOOR) & (factors <= CEILING)).all())


def test_an_error_of_nothing_is_no_reason_to_fail() -> None:
    made = tuner()
    for error in (0.0, 0.0, 1.0, 0.0, 1e-300, 1e300):
        conclude(made, error)
    assert _in_range(made.factors(PEERS))
