"""For all experience: a pool draws what the definition allows, and a pool restored from its rows,
TD errors and generator goes on bit for bit where the saved one was."""

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rookery.config.schema import Draw, FirstPriority
from rookery.errors import EmptyReplayError
from rookery.replay.buffer import LocalReplay
from rookery.replay.sampler import FLOOR
from rookery.replay.saved_rows import kept_apart, lost_rows
from rookery.types import Array, Batch, EnvSpec
from sample_experience import DIALS, IMAGE, MIXED, VECTOR, Move, Step, Told, acted, play
from small_replays import pool, shut, write

ACTORS, ENVS, N_STEP, GAMMA = 2, 2, 3, 0.5
MOVES = st.tuples(
    st.integers(0, ACTORS - 1),
    st.integers(0, ENVS - 1),
    st.sampled_from([Move.RUN] * 10 + [move for move in Move if move is not Move.RUN]),
)
ROUNDS = st.lists(st.lists(MOVES, min_size=5, max_size=30), min_size=2, max_size=7)
WAYS: dict[str, tuple[EnvSpec, dict[str, Any]]] = {
    "uniform": (VECTOR, {"draw": Draw.UNIFORM}),
    "prioritized": (VECTOR, {"draw": Draw.PRIORITIZED}),
    "dials": (DIALS, {"draw": Draw.PRIORITIZED}),
    "by actors": (VECTOR, {"draw": Draw.PRIORITIZED, "first": FirstPriority.ACTOR}),
    "uniform frames": (IMAGE, {"draw": Draw.UNIFORM}),
    "prioritized frames": (MIXED, {"draw": Draw.PRIORITIZED}),
    "sequences": (MIXED, {"draw": Draw.PRIORITIZED, "sequence": 4}),
}


def rounds_of(moves: list[list[tuple[int, int, Move]]]) -> list[list[Step]]:
    """Cuts one experience where the rounds were cut."""
    played = play(move for round_ in moves for move in round_)
    lengths = [sum(move[2] not in (Move.DIE, Move.LOSE) for move in round_) for round_ in moves]
    ends = np.cumsum([0, *lengths])
    return [played[a:b] for a, b in pairwise(ends)]


@contextmanager
def pools(count: int, *args: Any, **kwargs: Any) -> Iterator[list[LocalReplay]]:
    made = [pool(*args, actors=ACTORS, envs=ENVS, **kwargs) for _ in range(count)]
    try:
        yield made
    finally:
        for one in made:
            shut(one)


def draw(replay: LocalReplay, batch: int = 7) -> Batch | None:
    try:
        return replay.sample(batch, beta=0.5)
    except EmptyReplayError:
        return None


def learn(replay: LocalReplay, batch: Batch) -> None:
    """Reranks by something that depends on the batch, as a learner would."""
    error = np.abs(batch.reward).reshape(batch.rows.size, -1).sum(1) + batch.rows % 5
    replay.update_priorities(batch.rows, error)


class Saver:
    """Keeps segments as checkpoints do: rows once written are never written again."""

    def __init__(self) -> None:
        self.segments: list[tuple[int, dict[str, Array]]] = []
        self.saved = 0

    def save(self, replay: LocalReplay) -> tuple[dict[str, Any], dict[str, Array]]:
        first = max(self.saved, replay.ring.oldest)
        self.segments.append((first, replay.rows_between(first, replay.ring.committed)))
        self.saved = replay.ring.committed
        numbers, arrays = replay.state()
        return json.loads(json.dumps(numbers)), arrays


@pytest.mark.parametrize("way", WAYS)
@settings(max_examples=40)
@given(moves=ROUNDS, capacity=st.integers(5, 40))
def test_a_restored_pool_goes_on_bit_for_bit(
    way: str, moves: list[list[tuple[int, int, Move]]], capacity: int
) -> None:
    rounds = rounds_of(moves)
    half = len(rounds) // 2
    spec, options = WAYS[way]
    with pools(2, spec, capacity=capacity, n_step=N_STEP, **options) as (live, again):
        saver = Saver()
        for steps in rounds[:half]:
            play_round(live, steps)
            numbers, arrays = saver.save(live)
        newest = [s for s in saver.segments if s[0] + s[1]["end"].size > numbers["first"]]

        again.restore(numbers, arrays, newest)

        assert_same(live, again)
        for steps in rounds[half:]:
            assert_equal(play_round(live, steps), play_round(again, steps))
            assert_same(live, again)


@pytest.mark.parametrize("way", WAYS)
@settings(max_examples=40)
@given(moves=ROUNDS, capacity=st.integers(5, 40), which=st.integers(0, 10))
def test_a_pool_without_the_rows_of_a_damaged_file_never_samples_across_them(
    way: str, moves: list[list[tuple[int, int, Move]]], capacity: int, which: int
) -> None:
    rounds = rounds_of(moves)
    spec, options = WAYS[way]
    with pools(2, spec, capacity=capacity, n_step=N_STEP, **options) as (live, again):
        saver = Saver()
        for steps in rounds[:-1]:
            play_round(live, steps)
            numbers, arrays = saver.save(live)
        newest = [s for s in saver.segments if s[0] + s[1]["end"].size > numbers["first"]]
        damaged = {which % len(newest), which // 3 % len(newest)} if newest else set()
        lost = {row for at in damaged for row in range_of(newest[at])}

        again.restore(numbers, arrays, without(newest, damaged))

        slots = np.flatnonzero(again.chains.closed)
        assert live.chains.closed[slots].all()
        for row in range(again.ring.oldest, again.ring.committed):
            if again.chains.closed[row % capacity]:
                assert not lost & set(walk(again, row)), "a row that was lost"
                assert walk(again, row) == walk(live, row)
        if options["draw"] is Draw.PRIORITIZED:
            assert np.flatnonzero(again.sampler.leaves).tolist() == slots.tolist()
        play_round(again, rounds[-1])


def range_of(segment: tuple[int, dict[str, Array]]) -> range:
    return range(segment[0], segment[0] + segment[1]["end"].size)


def without(
    segments: list[tuple[int, dict[str, Array]]], damaged: set[int]
) -> list[tuple[int, dict[str, Array]]]:
    """Returns segments as `read_segments` does where some files are damaged."""
    read: list[tuple[int, dict[str, Array]]] = []
    for at, (first, columns) in enumerate(segments):
        gaps = sum(later >= at for later in damaged)
        read.append(
            (first, lost_rows(columns["end"].size) if at in damaged else kept_apart(columns, gaps))
        )
    return read


def walk(replay: LocalReplay, row: int) -> list[int]:
    """Returns the rows that a return or sequence from `row` on is made of."""
    rows, capacity = [row], replay.ring.capacity
    for _ in range(replay.chains.window):
        slot = rows[-1] % capacity
        if replay.ring.columns["end"][slot]:
            break
        rows.append(rows[-1] + int(replay.ring.columns["next"][slot]))
    return rows


def play_round(replay: LocalReplay, steps: list[Step]) -> list[Batch | None]:
    """Drains a round, then learns a little."""
    write(replay, steps)
    replay.insert()
    batches = []
    for _ in range(2):
        batches.append(draw(replay))
        if batches[-1] is not None:
            learn(replay, batches[-1])
    return batches


def assert_same(one: LocalReplay, other: LocalReplay) -> None:
    assert one.chains.closed.tolist() == other.chains.closed.tolist()
    (numbers, arrays), (same, alike) = one.state(), other.state()
    assert numbers == same
    assert arrays.keys() == alike.keys()
    for name, array in arrays.items():
        assert array.tobytes() == alike[name].tobytes()


def assert_equal(some: list[Batch | None], others: list[Batch | None]) -> None:
    for batch, other in zip(some, others, strict=True):
        assert (batch is None) == (other is None)
        if batch is not None and other is not None:
            for field, same in zip(leaves(batch), leaves(other), strict=True):
                assert field.tobytes() == same.tobytes()


def leaves(batch: Batch) -> Iterator[Array]:
    for field in batch:
        yield from field.values() if isinstance(field, dict) else [np.asarray(field)]


@pytest.mark.parametrize("way", [way for way in WAYS if way != "sequences"])
@settings(max_examples=40)
@given(moves=ROUNDS, capacity=st.integers(5, 40))
def test_every_draw_is_what_the_definition_allows(
    way: str, moves: list[list[tuple[int, int, Move]]], capacity: int
) -> None:
    spec, options = WAYS[way]
    with pools(1, spec, capacity=capacity, n_step=N_STEP, **options) as (replay,):
        arrived: list[Step] = []
        for steps in rounds_of(moves):
            ordered = write(replay, steps)
            drained = replay.insert()
            assert drained[:2] == (len(arrived), len(ordered))
            assert drained.steps == sum(not step.end for step in ordered)
            arrived += ordered
            plain = Told(arrived, capacity)

            batch = draw(replay)

            may = [
                row
                for row in plain.rows()
                if plain.may_begin(row, N_STEP) and plain.stack(row, spec.frame_stack)
            ]
            assert (batch is None) == (not may)
            if batch is not None:
                assert set(batch.rows.tolist()) <= set(may)
                assert_folded(spec, plain, batch)
                learn(replay, batch)


def assert_folded(spec: EnvSpec, plain: Told, batch: Batch) -> None:
    for b, row in enumerate(batch.rows.tolist()):
        reward, discount, last = plain.transition(row, N_STEP, GAMMA)
        assert (batch.reward[b], batch.discount[b]) == (reward, discount)
        assert np.array_equal(batch.action[b], acted(spec, np.array([row]))[0])
        for found, seen in ((batch.obs, row), (batch.next_obs, last)):
            for name, leaf in spec.unpack(plain.seen(spec, seen)).items():
                assert np.array_equal(spec.unpack(found)[name][b], leaf)
    assert batch.weight.max() == 1.0


@settings(max_examples=60)
@given(moves=ROUNDS, capacity=st.integers(5, 200), n_step=st.integers(1, 3))
def test_rows_not_sampled_yet_are_ranked_by_their_actors_errors(
    moves: list[list[tuple[int, int, Move]]], capacity: int, n_step: int
) -> None:
    options = {"n_step": n_step, "alpha": 1.0, **WAYS["by actors"][1]}
    with pools(1, VECTOR, capacity=capacity, **options) as (replay,):
        arrived: list[Step] = []
        for steps in rounds_of(moves):
            arrived += write(replay, steps)
            replay.insert()

        plain = Told(arrived, capacity)
        wanted = [first_priority(plain, row, n_step) for row in plain.rows()]
        assert replay.sampler.leaves[np.array(plain.rows()) % capacity].tolist() == wanted


def first_priority(plain: Told, row: int, n_step: int) -> float:
    if not plain.may_begin(row, n_step):
        return 0.0
    error = plain.td_error(row, n_step, GAMMA)
    return 1.0 if math.isnan(error) else abs(error) + FLOOR
