"""Inference slots: requests and answers arrive, and dead actors block no other."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from rookery.actors.inference.slots import InferenceRequest, InferenceSlots
from rookery.algorithms import Acted
from rookery.config.schema import ActorConfig
from rookery.errors import ClosedError
from rookery.types import ActionSpec, EnvSpec, Extra, Leaf, LeafKind

ENVS, MEMORY = 3, 2
SPEC = EnvSpec(
    "here",
    (
        Leaf("a", (4,), "float32", LeafKind.VECTOR),
        Leaf("b", (3, 6, 6), "uint8", LeafKind.IMAGE),
    ),
    ActionSpec(shape=(2,), sizes=(3, 5)),
    frame_stack=2,
    extras=(Extra("log_prob"), Extra("memory", (MEMORY,)), Extra("ahead")),
)
TWO_ACTORS = ActorConfig(num=2, envs=ENVS)
RNG = np.random.default_rng(0)


@pytest.fixture
def slots() -> Iterator[InferenceSlots]:
    made = InferenceSlots(TWO_ACTORS, SPEC, MEMORY)
    yield made
    made.close()


def question(size: int = ENVS, **changes: Any) -> InferenceRequest:
    leaves = {
        "a": RNG.normal(size=(size, 8)).astype(np.float32),
        "b": RNG.integers(0, 256, (size, 6, 6, 6), np.uint8),
    }
    memory = RNG.normal(size=(size, MEMORY)).astype(np.float32)
    return InferenceRequest(leaves, memory, 2**63 - 1, 0.25, True, False)._replace(**changes)


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
def test_a_question_arrives_as_it_was_asked(slots, size, memory):
    asked = question(size, noise=False, values=True)
    asked = asked if memory else asked._replace(memory=None)

    slots[1].ask(asked)
    ((place, slot, number),) = slots.open()
    heard = slot.question()

    assert (place, number, heard.size) == (1, 1, size)
    assert heard[2:] == asked[2:]
    for name, leaf in asked.leaves.items():
        np.testing.assert_array_equal(heard.leaves[name], leaf)
    assert (heard.memory is None) == (memory is None)
    if memory:
        np.testing.assert_array_equal(heard.memory, asked.memory)


@pytest.mark.parametrize("nothing", [(), ("taken", "best"), ("memory",), ("extras",)])
def test_an_answer_arrives_as_it_was_given_with_the_version_that_gave_it(slots, nothing):
    given = answer(**{name: {} if name == "extras" else None for name in nothing})
    slot = slots[0]
    slot.ask(question())

    slot.tell(1, given, version=17)
    taken = slot.take()

    assert slot.answered
    assert taken.version == 17
    for said, heard in zip(given[:3] + given[4:5], taken[:3] + taken[4:5], strict=True):
        np.testing.assert_equal(heard, said)
    assert taken.extras.keys() == given.extras.keys()


def test_the_next_answer_does_not_change_the_last_one(slots):
    slot, first = slots[0], answer()
    slot.ask(question())
    slot.tell(1, first, version=1)
    taken = slot.take()

    slot.ask(question())
    slot.tell(2, answer(), version=2)

    np.testing.assert_array_equal(taken.action, first.action)
    np.testing.assert_array_equal(taken.memory, first.memory)


def test_what_is_said_to_a_dead_actor_is_not_taken_by_its_successor(slots):
    """The inference server has read the first question when its actor dies, and answers it late."""
    dead, slot = question(1), slots[0]
    slot.ask(dead)
    ((_, _, number),) = slots.open()

    slot.ask(question())
    slot.tell(number, answer(1), version=1)

    assert not slot.answered
    assert [(place, open_now) for place, _, open_now in slots.open()] == [(0, number + 1)]


def test_requests_left_open_by_a_dead_server_are_found_by_the_next_one(slots):
    slots[0].ask(question())
    slots[1].ask(question())
    slots[1].tell(1, answer(), version=1)

    again = InferenceSlots(TWO_ACTORS, SPEC, MEMORY, fd=slots.fd)

    assert [place for place, _, _ in again.open()] == [0]
    np.testing.assert_array_equal(again[0].question().leaves["a"], slots[0].question().leaves["a"])


def test_what_was_done_is_counted(slots):
    slots.count(questions=2, observations=6)
    slots.count(questions=1, observations=1)
    slots[0].waited_ns += 1_000_000_000
    slots[1].waited_ns += 500_000_000

    assert slots.done == (3, 7, 2, 1.5)


def test_silence_is_counted_from_the_last_beat(slots):
    assert slots.silence_s > 1.0
    slots.beat()
    assert slots.silence_s < 1.0


def test_slots_are_closed_once():
    made = InferenceSlots(TWO_ACTORS, SPEC, MEMORY)
    made.close()

    with pytest.raises(ClosedError, match="keep one owner"):
        made.close()
