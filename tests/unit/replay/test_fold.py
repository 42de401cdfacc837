"""Folding, by hand: small episodes whose transitions, stacks and sequences can be read off."""

from collections.abc import Iterator
from contextlib import closing

import numpy as np
import pytest

from rookery.replay import fold
from rookery.replay.fold import Chains, Horizon
from rookery.replay.ring import Ring, row_bytes, schema_of
from rookery.types import EnvSpec
from sample_experience import IMAGE, VECTOR, Move, columns, feed, play

RUN, DIE, TERMINATE, TRUNCATE = Move.RUN, Move.DIE, Move.TERMINATE, Move.TRUNCATE
GAMMA = 0.9


class Replay:
    """A ring with two environments of one actor, and the rewards of its rows."""

    def __init__(self, ring: Ring, window: int):
        self.ring = ring
        self.chains = Chains(2, 2, window=window, stride=1, capacity=ring.capacity)

    def add(self, *moves: Move, rewards: tuple[float, ...] = ()) -> list[int]:
        """Plays environment 0; returns the rows that closed."""
        return self.interleaved(*((0, move) for move in moves), rewards=rewards)

    def interleaved(self, *moves: tuple[int, Move], rewards: tuple[float, ...] = ()) -> list[int]:
        steps = play((0, env, move) for env, move in moves)
        if rewards:
            steps = [s._replace(reward=r) for s, r in zip(steps, rewards, strict=True)]
        return feed(self.ring, self.chains, VECTOR, steps)

    def fold(self, row: int, n_step: int) -> tuple[float, float, int]:
        reward, discount, last = fold.fold(self.ring, np.array([row]), n_step=n_step, gamma=GAMMA)
        return float(reward[0]), float(discount[0]), int(last[0])


@pytest.fixture
def ring() -> Iterator[Ring]:
    with closing(Ring.create(schema_of(VECTOR), 64)) as ring:
        yield ring


@pytest.mark.parametrize(
    ("ending", "row", "expected"),
    [
        (TERMINATE, 0, (1 + 0.9 * 2 + 0.81 * 4, 0.729, 3)),  # n steps, and on
        (TERMINATE, 1, (2 + 0.9 * 4 + 0.81 * 8, 0.0, 4)),  # n steps, and dead
        (TERMINATE, 2, (4 + 0.9 * 8, 0.0, 4)),  # fewer than n
        (TERMINATE, 3, (8, 0.0, 4)),
        (TRUNCATE, 1, (2 + 0.9 * 4 + 0.81 * 8, 0.729, 4)),  # a time limit is not death
        (TRUNCATE, 2, (4 + 0.9 * 8, 0.81, 4)),  # gamma ** len(window), not ** n
        (TRUNCATE, 3, (8, 0.9, 4)),
    ],
)
def test_three_steps_of_an_episode_of_four(
    ring: Ring, ending: Move, row: int, expected: tuple[float, float, int]
) -> None:
    replay = Replay(ring, window=3)
    replay.add(RUN, RUN, RUN, RUN, ending, RUN, RUN, rewards=(1, 2, 4, 8, 100, 100, 100))

    assert replay.fold(row, 3) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(("ending", "discount"), [(TERMINATE, 0.0), (TRUNCATE, 0.9)])
def test_an_episode_of_one_step_is_shorter_than_any_n(
    ring: Ring, ending: Move, discount: float
) -> None:
    replay = Replay(ring, window=10)

    assert replay.add(RUN, ending, rewards=(5.0, 0.0)) == [0]
    assert replay.fold(0, 10) == pytest.approx((5.0, discount, 1))


def test_rows_close_as_soon_as_their_window_is_there_and_not_before(ring: Ring) -> None:
    replay = Replay(ring, window=2)
    moves = [RUN, RUN, RUN, RUN, TERMINATE]

    closed = [
        replay.chains.link(ring, *_append(ring, moves[: k + 1])).closed.tolist() for k in range(5)
    ]

    assert [sorted(rows) for rows in closed] == [[], [], [0], [1], [2, 3]]


def _append(ring: Ring, moves: list[Move]) -> tuple[int, int]:
    """Appends the last of these moves."""
    steps = play((0, 0, move) for move in moves)
    first = ring.committed
    ring.append(columns(VECTOR, steps[-1:], first))
    return first, 1


def test_environments_that_take_turns_are_not_mixed(ring: Ring) -> None:
    replay = Replay(ring, window=2)
    replay.interleaved(
        *((0, RUN), (1, RUN), (1, RUN), (0, RUN), (1, TERMINATE), (0, RUN)),
        rewards=(1, 10, 20, 2, 0, 4),
    )

    assert replay.fold(0, 2) == pytest.approx((1 + 0.9 * 2, 0.81, 5))
    assert replay.fold(1, 2) == pytest.approx((10 + 0.9 * 20, 0.0, 4))


def test_the_steps_of_a_lost_actor_are_not_joined_to_its_successors(ring: Ring) -> None:
    replay = Replay(ring, window=1)

    closed = replay.add(RUN, RUN, DIE, RUN, RUN)

    assert closed == [0, 2]  # row 1 waits for a step that will not come
    assert fold.is_closed(ring, np.arange(4), 1).tolist() == [True, False, True, False]


def test_link_counts_the_rows_that_have_an_action(ring: Ring) -> None:
    replay = Replay(ring, window=1)
    ring.append(columns(VECTOR, play((0, 0, m) for m in (RUN, RUN, TERMINATE, RUN)), 0))

    assert replay.chains.link(ring, 0, 4).steps == 3


def test_a_row_of_an_unknown_lane_is_refused_before_anything_is_changed(ring: Ring) -> None:
    chains = Chains(2, 2, window=1, stride=1, capacity=ring.capacity)  # of actor 0 alone
    ring.append(columns(VECTOR, play([(0, 0, RUN), (1, 1, RUN)]), 0))
    known = chains.lanes.copy()

    with pytest.raises(ValueError, match=r"lane 3, and there is room for 2"):
        chains.link(ring, 0, 2)
    assert np.array_equal(chains.lanes, known)


def test_a_link_to_a_row_that_is_not_committed_is_not_there_yet(ring: Ring) -> None:
    Replay(ring, window=1).add(RUN, RUN)
    ring.columns["next"][1] = 1  # its writer is at work on row 2

    assert fold.is_closed(ring, np.array([0, 1, 2]), 1).tolist() == [True, False, False]


def test_a_stack_begins_with_its_episodes_first_frame_repeated(ring: Ring) -> None:
    Replay(ring, window=1).add(RUN, RUN, RUN, TERMINATE, RUN, RUN)

    found = fold.stacks(ring, np.arange(6), 3, 0)

    assert found.tolist() == [[0, 0, 0], [0, 0, 1], [0, 1, 2], [1, 2, 3], [4, 4, 4], [4, 4, 5]]


def test_rows_whose_frames_were_overwritten_are_not_whole() -> None:
    with closing(Ring.create(schema_of(VECTOR), 4)) as ring:
        Replay(ring, window=1).add(*[RUN] * 6)  # rows 2 to 5 are left of one episode

        whole = fold.is_whole(ring, np.arange(2, 6), 3, ring.oldest)

        assert whole.tolist() == [False, False, True, True]


def test_a_row_whose_predecessor_was_gone_on_arrival_is_not_whole() -> None:
    with closing(Ring.create(schema_of(VECTOR), 3)) as ring:
        replay = Replay(ring, window=1)
        replay.interleaved((0, RUN), (1, RUN), (1, RUN), (1, RUN), (0, RUN))

        assert ring.columns["prev"][4 % 3] == -1
        assert fold.is_whole(ring, np.array([4]), 2, ring.oldest).tolist() == [False]


def test_every_frame_is_stored_once() -> None:
    """Three frames are seen, one is stored: a row of a stack of 3 takes what a row of 1 takes."""
    single = IMAGE.__class__(IMAGE.name, IMAGE.obs, IMAGE.action, frame_stack=1)

    assert IMAGE.frame_stack == 3
    assert schema_of(IMAGE) == schema_of(single)
    assert row_bytes(schema_of(IMAGE)) == 6 + row_bytes(schema_of(VECTOR)) - 8


def test_a_sequence_is_padded_after_its_episodes_end(ring: Ring) -> None:
    Replay(ring, window=4).add(RUN, RUN, TERMINATE, RUN)

    found = fold.sequences(ring, np.array([0, 1]), length=4, gamma=GAMMA)

    assert found.rows.tolist() == [[0, 1, 2, 2, 2], [1, 2, 2, 2, 2]]
    assert found.mask.tolist() == [[1, 1, 0, 0], [1, 0, 0, 0]]
    assert found.discount == pytest.approx(np.array([[0.9, 0, 0, 0], [0, 0, 0, 0]]))


def test_a_sequence_cut_by_a_time_limit_bootstraps(ring: Ring) -> None:
    Replay(ring, window=4).add(RUN, RUN, TRUNCATE)

    found = fold.sequences(ring, np.array([0]), length=4, gamma=GAMMA)

    assert found.discount == pytest.approx(np.array([[0.9, 0.9, 0, 0]]))


def test_sequences_begin_a_stride_apart(ring: Ring) -> None:
    chains = Chains(1, 1, window=4, stride=2, capacity=ring.capacity)

    closed = feed(ring, chains, VECTOR, play((0, 0, m) for m in [RUN] * 7 + [TERMINATE]))

    assert sorted(closed) == [0, 2, 4, 6]


def test_two_folds_of_one_ring_may_differ_in_n_and_gamma(ring: Ring) -> None:
    Replay(ring, window=1).add(RUN, RUN, RUN, TRUNCATE, rewards=(1, 1, 1, 0))

    one = fold.fold(ring, np.array([0]), n_step=1, gamma=0.5)
    three = fold.fold(ring, np.array([0]), n_step=3, gamma=1.0)

    assert (one.reward[0], one.discount[0], one.last[0]) == (1.0, 0.5, 1)
    assert (three.reward[0], three.discount[0], three.last[0]) == (3.0, 1.0, 3)


@pytest.mark.parametrize("spec", [VECTOR, IMAGE], ids=lambda spec: spec.name)
@pytest.mark.parametrize("sequence", [0, 3])
def test_no_rows_are_an_empty_batch_of_the_shapes_that_any_other_has(
    spec: EnvSpec, sequence: int
) -> None:
    """On a cluster a shard may be asked for none of a batch."""
    with closing(Ring.create(schema_of(spec), 64)) as ring:
        feed(
            ring,
            Chains(2, 2, window=3, stride=1, capacity=64),
            spec,
            play((0, 0, RUN) for _ in range(8)),
        )
        none, two = (
            fold.gather(
                ring,
                spec,
                np.arange(count),
                np.ones(count, np.float32),
                Horizon(1, GAMMA, sequence),
                oldest=0,
            )
            for count in (0, 2)
        )

    assert none.obs.shape == (0, *two.obs.shape[1:])
    assert none.action.shape == (0, *two.action.shape[1:])
    assert none.reward.shape == (0, *two.reward.shape[1:])
