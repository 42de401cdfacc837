"""Patience: silence counts while somebody is looking, and only then."""

from rookery.runtime.timeouts import Patience


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def looks(patience: Patience, clock: Clock, beat: float, every_s: float, limit_s: float) -> int:
    """Looks at somebody whose last sign of life was at `beat`; returns how many looks it took."""
    for count in range(1, 1_000):
        clock.now += every_s
        if patience.at_end(clock.now - beat, limit_s):
            return count
    raise AssertionError("endless patience")


def test_it_ends_once_the_limit_is_over() -> None:
    clock = Clock()

    assert looks(Patience(clock), clock, beat=100.0, every_s=0.5, limit_s=3.0) == 7


def test_what_came_before_it_began_does_not_count() -> None:
    """An order is given to an actor that had nothing to do for an hour."""
    clock = Clock()

    assert looks(Patience(clock), clock, beat=-3_500.0, every_s=0.5, limit_s=3.0) == 7


def test_a_sign_of_life_begins_it_anew() -> None:
    clock = Clock()
    patience = Patience(clock)

    for _ in range(1_000):
        clock.now += 0.7
        assert not patience.at_end(0.6, 1.0)


def test_time_that_the_machine_slept_is_not_counted() -> None:
    clock = Clock()
    patience = Patience(clock)
    clock.now += 3_600.0

    assert not patience.at_end(3_600.5, 60.0)
    assert patience.silent_s == 15.0


def test_who_looks_seldom_still_comes_to_an_end() -> None:
    clock = Clock()

    assert looks(Patience(clock), clock, beat=100.0, every_s=500.0, limit_s=60.0) == 5
