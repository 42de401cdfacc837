"""For all experience, however it is interleaved, cut, restarted and overwritten: what is drawn is
what the definition says, and a row may be drawn exactly when its window is known."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experience_strategies import ACTORS, CAPACITIES, ENVS, EXPERIENCE, GAMMA, SIZES, WINDOWS
from rookery.replay import fold
from rookery.replay.fold import Chains
from rookery.replay.ring import Ring, schema_of
from rookery.types import Array, End, EnvSpec, Extra
from sample_experience import DIALS, IMAGE, MIXED, VECTOR, Step, Told, acted, feed


@contextmanager
def told(
    spec: EnvSpec,
    steps: list[Step],
    capacity: int,
    sizes: list[int],
    *,
    window: int,
    stride: int = 1,
    burn_in: int = 0,
) -> Iterator[tuple[Ring, Chains, Told]]:
    """Gives the same steps to a ring and to the definition."""
    with closing(Ring.create(schema_of(spec), capacity)) as ring:
        lanes = ACTORS * ENVS
        chains = Chains(
            lanes, ENVS, window=window, stride=stride, capacity=capacity, burn_in=burn_in
        )
        feed(ring, chains, spec, steps, sizes)
        yield ring, chains, Told(steps, capacity)


@given(EXPERIENCE, CAPACITIES, SIZES, WINDOWS, st.integers(1, 3), st.integers(0, 3))
def test_a_row_is_closed_exactly_when_its_window_is_known(
    steps: list[Step], capacity: int, sizes: list[int], window: int, stride: int, burn_in: int
) -> None:
    """And when there is more of its episode than burning in takes, or all of it."""
    burn_in = min(burn_in, window - 1)
    with told(VECTOR, steps, capacity, sizes, window=window, stride=stride, burn_in=burn_in) as (
        ring,
        chains,
        plain,
    ):
        rows = np.array(plain.rows(), dtype=np.int64)

        expected = [plain.may_begin(row, window, stride, burn_in) for row in plain.rows()]
        assert chains.closed[rows % capacity].tolist() == expected

        expected = [plain.may_begin(row, window, 1, burn_in) for row in plain.rows()]
        assert fold.is_closed(ring, rows, window, burn_in).tolist() == expected


@given(EXPERIENCE, SIZES, st.integers(1, 4), st.integers(0, 3), st.integers(0, 3))
def test_every_step_that_has_ended_is_learned_from(
    steps: list[Step], sizes: list[int], length: int, burn_in: int, overlap: int
) -> None:
    """By a sequence that is burnt in before it, or begins its episode."""
    stride, capacity = length - min(overlap, length - 1), max(1, len(steps))
    window = burn_in + length
    with told(VECTOR, steps, capacity, sizes, window=window, stride=stride, burn_in=burn_in) as (
        _,
        chains,
        plain,
    ):
        learned: set[int] = set()
        for row in np.flatnonzero(chains.closed).tolist():
            skipped = burn_in if plain.steps[row].t else 0
            learned.update(taught := plain.walk(row, window)[skipped:-1])
            assert taught

    for row, step in enumerate(plain.steps):
        last = plain.walk(row, len(steps))[-1]
        if step.end is End.RUNNING and plain.steps[last].end is not End.RUNNING:
            assert row in learned


@given(EXPERIENCE, SIZES, WINDOWS)
def test_link_reports_every_row_once_when_it_closes(
    steps: list[Step], sizes: list[int], window: int
) -> None:
    capacity = max(1, len(steps))
    with closing(Ring.create(schema_of(VECTOR), capacity)) as ring:
        chains = Chains(ACTORS * ENVS, ENVS, window=window, stride=1, capacity=capacity)

        closed = feed(ring, chains, VECTOR, steps, sizes)

    plain = Told(steps, capacity)
    assert sorted(closed) == [row for row in plain.rows() if plain.may_begin(row, window)]


@given(EXPERIENCE, CAPACITIES, SIZES, WINDOWS)
def test_transitions_equal_the_definition(
    steps: list[Step], capacity: int, sizes: list[int], n: int
) -> None:
    with told(VECTOR, steps, capacity, sizes, window=n) as (ring, _, plain):
        rows = np.array([row for row in plain.rows() if plain.may_begin(row, n)], dtype=np.int64)

        folded = fold.fold(ring, rows, n_step=n, gamma=GAMMA)

    expected = [plain.transition(row, n, GAMMA) for row in rows.tolist()]
    assert list(zip(*(field.tolist() for field in folded), strict=True)) == expected


@given(EXPERIENCE, CAPACITIES, SIZES, WINDOWS)
def test_errors_by_the_actors_values_equal_the_definition(
    steps: list[Step], capacity: int, sizes: list[int], n: int
) -> None:
    with told(VECTOR, steps, capacity, sizes, window=n) as (ring, _, plain):
        rows = np.array([row for row in plain.rows() if plain.may_begin(row, n)], dtype=np.int64)

        found = fold.errors(ring, rows, n_step=n, gamma=GAMMA)

    expected = [plain.td_error(row, n, GAMMA) for row in rows.tolist()]
    np.testing.assert_array_equal(found, expected)  # nan where nan is due


@given(EXPERIENCE, CAPACITIES, SIZES, st.integers(1, 5))
def test_stacks_hold_the_frames_of_one_episode_or_the_row_is_not_whole(
    steps: list[Step], capacity: int, sizes: list[int], depth: int
) -> None:
    with told(VECTOR, steps, capacity, sizes, window=1) as (ring, _, plain):
        rows = np.array(plain.rows(), dtype=np.int64)
        expected = {row: plain.stack(row, depth) for row in plain.rows()}

        whole = fold.is_whole(ring, rows, depth, plain.oldest)
        assert whole.tolist() == [expected[row] is not None for row in plain.rows()]

        found = fold.stacks(ring, rows[whole], depth, plain.oldest)
        assert found.tolist() == [expected[row] for row in rows[whole].tolist()]


@given(EXPERIENCE, CAPACITIES, SIZES, WINDOWS)
def test_sequences_equal_the_definition(
    steps: list[Step], capacity: int, sizes: list[int], length: int
) -> None:
    with told(VECTOR, steps, capacity, sizes, window=length) as (ring, _, plain):
        starts = [row for row in plain.rows() if plain.may_begin(row, length)]

        found = fold.sequences(ring, np.array(starts, dtype=np.int64), length=length, gamma=GAMMA)

    for b, row in enumerate(starts):
        walked = plain.walk(row, length)
        taken = len(walked) - 1
        padding = [walked[-1]] * (length - taken)
        discounts = [plain.transition(r, 1, GAMMA)[1] for r in walked[:-1]]
        assert found.rows[b].tolist() == walked + padding
        assert found.mask[b].tolist() == [1.0] * taken + [0.0] * len(padding)
        assert found.discount[b].tolist() == discounts + [0.0] * len(padding)


@pytest.mark.parametrize("spec", [VECTOR, DIALS, IMAGE, MIXED], ids=lambda spec: spec.name)
@given(steps=EXPERIENCE, capacity=CAPACITIES, sizes=SIZES, n=st.integers(1, 4))
def test_a_batch_holds_what_the_policy_saw_and_did(
    spec: EnvSpec, steps: list[Step], capacity: int, sizes: list[int], n: int
) -> None:
    with told(spec, steps, capacity, sizes, window=n) as (ring, _, plain):
        rows = drawable(plain, spec, n)
        if rows.size == 0:
            return
        batch = fold.gather(
            ring,
            spec,
            rows,
            np.ones(rows.size, dtype=np.float32),
            fold.Horizon(n, GAMMA),
            plain.oldest,
        )

    last = [plain.transition(row, n, GAMMA)[2] for row in rows.tolist()]
    assert_seen(spec, batch.obs, [plain.seen(spec, row) for row in rows.tolist()])
    assert_seen(spec, batch.next_obs, [plain.seen(spec, row) for row in last])
    assert np.array_equal(batch.action, acted(spec, rows))
    assert batch.action.dtype == spec.action.dtype


@pytest.mark.parametrize("spec", [IMAGE, MIXED], ids=lambda spec: spec.name)
@given(steps=EXPERIENCE, capacity=CAPACITIES, length=st.integers(1, 4))
def test_a_batch_of_sequences_holds_what_the_policy_saw_and_did(
    spec: EnvSpec, steps: list[Step], capacity: int, length: int
) -> None:
    spec = replace(spec, extras=(Extra("all"), Extra("first", (2,), each=False)))
    with told(spec, steps, capacity, [], window=length) as (ring, _, plain):
        rows = drawable(plain, spec, length)
        if rows.size == 0:
            return
        batch = fold.gather(
            ring,
            spec,
            rows,
            np.ones(rows.size, dtype=np.float32),
            fold.Horizon(1, GAMMA, length),
            plain.oldest,
        )

    assert batch.extras["all"].shape == (rows.size, length)
    assert batch.extras["first"].tolist() == [[row, row + 1] for row in rows.tolist()]
    for b, row in enumerate(rows.tolist()):
        walked = plain.walk(row, length)
        taken = len(walked) - 1
        assert batch.extras["all"][b, :taken].tolist() == walked[:-1]
        seen = [plain.seen(spec, r) for r in walked + [walked[-1]] * (length - taken)]
        obs = {name: leaf[b] for name, leaf in spec.unpack(batch.obs).items()}
        assert_seen(spec, spec.pack(obs), seen)
        assert np.array_equal(batch.action[b, :taken], acted(spec, np.array(walked[:-1])))
        rewards = [plain.steps[r].reward for r in walked[:-1]]
        assert batch.reward[b].tolist() == rewards + [0.0] * (length - taken)


@given(EXPERIENCE, SIZES)
def test_returns_so_far_begin_anew_with_every_episode(steps: list[Step], sizes: list[int]) -> None:
    capacity = max(1, len(steps))
    with told(VECTOR, steps, capacity, sizes, window=1) as (ring, _, plain):
        running = np.zeros(ACTORS * ENVS)
        found = fold.returns(ring, 0, len(steps), envs=ENVS, gamma=GAMMA, running=running)

    expected: list[float] = []
    for row, step in enumerate(steps):
        so_far = expected[plain.before[row]] if row in plain.before else 0.0
        expected.append(0.0 if step.end else so_far * GAMMA + step.reward)
    assert found.tolist() == np.float32(expected).tolist()


def drawable(plain: Told, spec: EnvSpec, window: int) -> Array:
    return np.array(
        [
            row
            for row in plain.rows()
            if plain.may_begin(row, window) and plain.stack(row, spec.frame_stack) is not None
        ],
        dtype=np.int64,
    )


def assert_seen(spec: EnvSpec, found: Any, expected: list[Any]) -> None:
    """Compares observations leaf by leaf, dtypes included."""
    for leaf in spec.obs:
        stacked = np.stack([spec.unpack(obs)[leaf.name] for obs in expected])
        leaves = spec.unpack(found)[leaf.name]
        assert leaves.dtype == leaf.dtype
        assert np.array_equal(leaves, stacked)
