"""Arguments of functions are checked by the limits of their annotations."""

import pytest

from rookery.actors.policy import checked
from rookery.config.checks import Count, Fraction, check_arguments
from rookery.errors import ConfigError


@check_arguments
def play(episodes: Count, *, epsilon: Fraction = 0.5, most: Count | None = None) -> str:
    """What it was called with."""
    return f"{episodes} {epsilon} {most}"


def test_arguments_within_their_limits_arrive():
    assert play(3) == "3 0.5 None"
    assert play(episodes=1, epsilon=1.0, most=2) == "1 1.0 2"


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: play(0), "episodes must be above 0, got 0"),
        (lambda: play(1, epsilon=1.5), "epsilon must be between 0.0 and 1.0, got 1.5"),
        (lambda: play(1, epsilon=float("nan")), "epsilon must be between .*, got nan"),
        (lambda: play(1, most=-1), "most must be above 0, got -1"),
    ],
)
def test_an_argument_outside_its_limits_is_refused_by_name(call, says):
    with pytest.raises(ConfigError, match=says):
        call()


def test_types_are_checked_before_limits_and_a_function_without_limits_stays_itself():
    def plain(number: int) -> int:
        return number

    assert check_arguments(plain) is plain
    with pytest.raises(Exception, match="parameter episodes='all'"):
        checked(play)("all")
