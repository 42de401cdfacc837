"""Schedules: their shapes, their ends, and what lies outside."""

import pytest

from rookery.schedule import SHAPES, Decay, Schedule

# first, last → value at 0, 1/4, 1/2, 3/4, 1
TABLE = [
    (Decay.CONSTANT, 0.5, 0.1, (0.5, 0.5, 0.5, 0.5, 0.5)),
    (Decay.LINEAR, 1.0, 0.0, (1.0, 0.75, 0.5, 0.25, 0.0)),
    (Decay.LINEAR, 0.0, 2.0, (0.0, 0.5, 1.0, 1.5, 2.0)),
    (Decay.EXPONENTIAL, 1.0, 1e-4, (1.0, 1e-1, 1e-2, 1e-3, 1e-4)),
    (Decay.EXPONENTIAL, 1e-2, 1.0, (1e-2, 10**-1.5, 1e-1, 10**-0.5, 1.0)),
    (Decay.COSINE, 1.0, 0.0, (1.0, 0.8535533906, 0.5, 0.1464466094, 0.0)),  # (1 + cos pi s) / 2
    (Decay.COSINE, 2.0, 1.0, (2.0, 1.8535533906, 1.5, 1.1464466094, 1.0)),
]


@pytest.mark.parametrize(("decay", "first", "last", "values"), TABLE)
def test_a_schedule_has_its_shape(
    decay: Decay, first: float, last: float, values: tuple[float, ...]
) -> None:
    schedule = Schedule(first, last, decay)

    assert [schedule.at(share / 4) for share in range(5)] == pytest.approx(values)


@pytest.mark.parametrize(("decay", "first", "last", "values"), TABLE)
def test_ends_are_exact_and_nothing_lies_beyond_them(
    decay: Decay, first: float, last: float, values: tuple[float, ...]
) -> None:
    schedule = Schedule(first, last, decay)
    end = first if decay is Decay.CONSTANT else last

    assert schedule.at(-3.0) == schedule.at(0.0) == first
    assert schedule.at(1.0) == schedule.at(1.0001) == schedule.at(1e9) == end


@pytest.mark.parametrize("decay", Decay)
@pytest.mark.parametrize(("first", "last"), [(0.0, 0.0), (0.0, 1.0), (1.0, 0.0)])
def test_zero_is_a_value_like_any_other(decay: Decay, first: float, last: float) -> None:
    schedule = Schedule(first, last, decay)
    values = [schedule.at(share / 10) for share in range(11)]

    assert all(min(first, last) <= value <= max(first, last) for value in values)
    assert values[0] == first


@pytest.mark.parametrize("decay", Decay)
def test_a_schedule_never_turns_back(decay: Decay) -> None:
    schedule = Schedule(1.0, 0.05, decay)
    values = [schedule.at(share / 100) for share in range(110)]

    assert values == sorted(values, reverse=True)


def test_every_decay_has_a_shape_and_only_one_is_constant() -> None:
    assert SHAPES.keys() == set(Decay)
    assert [d for d in Decay if Schedule(1.0, 0.0, d).constant] == [Decay.CONSTANT]
