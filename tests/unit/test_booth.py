"""Booths: what is asked arrives, what is answered arrives, and the dead are in nobody's way."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from rookery.algos import Acted
from rookery.booth import Booths, Layout, Question, layout_of
from rookery.errors import ClosedError
from rookery.types import ActionSpec, EnvSpec, Extra, Kind, Leaf

ENVS, MEMORY = 3, 2
LAYOUT: Layout = layout_of(
    EnvSpec(
        "here",
        (Leaf("a", (4,), "float32", Kind.VECTOR), Leaf("b", (3, 6, 6), "uint8", Kind.IMAGE)),
        ActionSpec(shape=(2,), sizes=(3, 5)),
        frame_stack=2,
        extras=(Extra("log_prob"), Extra("memory", (MEMORY,)), Extra("ahead")),
    ),
    MEMORY,
    ENVS,
)
RNG = np.random.default_rng(0)


@pytest.fixture
def booths() -> Iterator[Booths]:
    made = Booths(LAYOUT, 2)
    yield made
    made.close()


def question(size: int = ENVS, **changes: Any) -> Question:
    leaves = {
        "a": RNG.normal(size=(size, 8)).astype(np.float32),
        "b": RNG.integers(0, 256, (size, 6, 6, 6), np.uint8),
    }
    memory = RNG.normal(size=(size, MEMORY)).astype(np.float32)
    return Question(leaves, memory, 2**63 - 1, 0.25, True, False)._replace(**changes)


def answer(size: int = ENVS, **changes: Any) -> Acted:
    acted = Acted(
        RNG.integers(0, 3, (size, 2)),
        RNG.random(size, np.float32),
        RNG.random(size, np.float32),
        {"log_prob": RNG.random(size, np.float32)},
        RNG.random((size, MEMORY), np.float32),
    )
    return acted._replace(**changes)


@pytest.mark.parametrize("size", [1, ENVS])
@pytest.mark.parametrize("memory", ["some", None])
def test_a_question_arrives_as_it_was_asked(booths, size, memory):
    asked = question(size, noise=False, values=True)
    asked = asked if memory else asked._replace(memory=None)

    booths[1].ask(asked)
    ((place, booth, number),) = booths.open()
    heard = booth.question()

    assert (place, number, heard.size) == (1, 1, size)
    assert heard[2:] == asked[2:]
    for name, leaf in asked.leaves.items():
        np.testing.assert_array_equal(heard.leaves[name], leaf)
    assert (heard.memory is None) == (memory is None)
    if memory:
        np.testing.assert_array_equal(heard.memory, asked.memory)


@pytest.mark.parametrize("nothing", [(), ("taken", "best"), ("memory",), ("extras",)])
def test_an_answer_arrives_as_it_was_given_with_the_version_that_gave_it(booths, nothing):
    given = answer(**{name: {} if name == "extras" else None for name in nothing})
    booth = booths[0]
    booth.ask(question())

    booth.tell(1, given, version=17)
    taken = booth.take()

    assert booth.answered
    assert taken.version == 17
    for said, heard in zip(given[:3] + given[4:5], taken[:3] + taken[4:5], strict=True):
        np.testing.assert_equal(heard, said)
    assert taken.extras.keys() == given.extras.keys()


def test_the_next_answer_does_not_change_the_last_one(booths):
    booth, first = booths[0], answer()
    booth.ask(question())
    booth.tell(1, first, version=1)
    taken = booth.take()

    booth.ask(question())
    booth.tell(2, answer(), version=2)

    np.testing.assert_array_equal(taken.action, first.action)
    np.testing.assert_array_equal(taken.memory, first.memory)


def test_what_is_said_to_a_dead_actor_is_not_taken_by_its_successor(booths):
    """The oracle has read the first question when its actor dies, and answers it late."""
    dead, booth = question(1), booths[0]
    booth.ask(dead)
    ((_, _, number),) = booths.open()

    booth.ask(question())
    booth.tell(number, answer(1), version=1)

    assert not booth.answered
    assert [(place, open_now) for place, _, open_now in booths.open()] == [(0, number + 1)]


def test_what_a_dead_oracle_has_left_open_the_next_one_finds(booths):
    booths[0].ask(question())
    booths[1].ask(question())
    booths[1].tell(1, answer(), version=1)

    again = Booths(LAYOUT, 2, fd=booths.fd)

    assert [place for place, _, _ in again.open()] == [0]
    np.testing.assert_array_equal(again[0].question().leaves["a"], booths[0].question().leaves["a"])


def test_what_was_done_is_counted(booths):
    booths.count(questions=2, observations=6)
    booths.count(questions=1, observations=1)
    booths[0].waited(1_000_000_000)
    booths[1].waited(500_000_000)

    assert booths.done == (3, 7, 2, 1.5)


def test_silence_is_counted_from_the_last_beat(booths):
    assert booths.silence_s > 1.0
    booths.beat()
    assert booths.silence_s < 1.0


def test_booths_are_closed_once():
    made = Booths(LAYOUT, 1)
    made.close()

    with pytest.raises(ClosedError, match="keep one owner"):
        made.close()
