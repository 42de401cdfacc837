"""A ring is a list of which the last rows are remembered; a transport ring is a queue."""

from collections import deque
from contextlib import closing
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rookery.replay.fold import Chains
from rookery.replay.ring import BOOKKEEPING, Column, Ring
from rookery.types import Array

SCHEMA = (Column("obs", (3,), "uint8"), Column("action", (), "int64"), *BOOKKEEPING)
CAPACITIES = st.integers(1, 9)


def rows(first: int, count: int) -> dict[str, Array]:
    """Returns rows that say which ones they are."""
    number = np.arange(first, first + count)
    return {
        "obs": (number[:, None] + np.arange(3)).astype(np.uint8),
        "action": number,
        "reward": number / 2,
        "version": -number,
    }


def check(ring: Ring, numbers: list[int], first: int) -> None:
    """Compares the ring's rows from `first` on with the rows that have these numbers."""
    slots = np.arange(first, first + len(numbers)) % ring.capacity
    for name, expected in rows(0, max(numbers, default=0) + 1).items():
        assert np.array_equal(ring.columns[name][slots], expected[numbers]), name


class Transported(RuleBasedStateMachine):
    """An actor appends to a transport ring while there is room; replay drains it when it likes."""

    @initialize(transport=CAPACITIES, replay=CAPACITIES)
    def begin(self, transport: int, replay: int) -> None:
        self.transport = Ring.create(SCHEMA, transport)
        self.replay = Ring.create(SCHEMA, replay)
        self.chains = Chains(1, 1, window=1, stride=1, capacity=replay)
        self.queue: deque[int] = deque()
        self.stored: list[int] = []
        self.made = 0
        self.seen = (0, 0)

    @precondition(lambda self: self.transport.free > 0)
    @rule(data=st.data())
    def append(self, data: st.DataObject) -> None:
        count = data.draw(st.integers(0, self.transport.free))
        self.transport.append(rows(self.made, count))
        self.queue.extend(range(self.made, self.made + count))
        self.made += count

    @rule()
    def append_too_much(self) -> None:
        with pytest.raises(RuntimeError, match="do not fit"):
            self.transport.append(rows(0, self.transport.capacity + 1))

    @rule()
    def drain(self) -> None:
        first, count = self.replay.drain_from(self.transport)

        assert count == min(len(self.queue), self.replay.capacity)
        assert first == len(self.stored) == self.replay.committed  # not committed before linked
        self.chains.link(self.replay, first, count)
        self.stored += [self.queue.popleft() for _ in range(count)]

    @invariant()
    def transport_is_a_queue(self) -> None:
        ring = self.transport
        assert ring.committed == ring.reserved == self.made
        assert ring.committed - ring.consumed == len(self.queue)
        assert ring.free == ring.capacity - len(self.queue)
        check(ring, list(self.queue), ring.consumed)

    @invariant()
    def replay_is_the_end_of_a_list(self) -> None:
        ring = self.replay
        assert ring.committed == ring.reserved == len(self.stored)
        assert ring.oldest == max(0, len(self.stored) - ring.capacity)
        check(ring, self.stored[ring.oldest :], ring.oldest)

    @invariant()
    def numbers_only_grow(self) -> None:
        now = (self.replay.oldest, self.replay.committed)
        assert now >= self.seen
        self.seen = now

    def teardown(self) -> None:
        for ring in (getattr(self, "transport", None), getattr(self, "replay", None)):
            if ring is not None:
                ring.close()


Transported.TestCase.settings = settings(max_examples=40, stateful_step_count=30)
TestTransported = Transported.TestCase


@given(CAPACITIES, st.lists(st.integers(0, 9), max_size=20))
def test_a_ring_holds_the_last_rows(capacity: int, counts: list[int]) -> None:
    with closing(Ring.create(SCHEMA, capacity)) as ring:
        made = 0
        for count in (min(count, capacity) for count in counts):
            ring.append(rows(made, count))
            made += count

            assert (ring.reserved, ring.committed) == (made, made)
            assert ring.oldest == max(0, made - capacity)
            check(ring, list(range(ring.oldest, made)), ring.oldest)


@given(st.integers(1, 30), st.integers(0, 10**12), st.integers(0, 30))
def test_slots_are_row_numbers_modulo_capacity(capacity: int, first: int, count: int) -> None:
    with closing(Ring.create(SCHEMA, capacity)) as ring:
        slots = ring.slots(first, min(count, capacity))

        expected = [row % capacity for row in islice(range(first, first + capacity), count)]
        assert np.arange(capacity)[slots].tolist() == expected
