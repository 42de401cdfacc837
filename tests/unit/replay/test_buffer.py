"""The pool: rings, chains and a sampler put together, saved and put back."""

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import pytest

from rookery.config.schema import Draw, FirstPriority, ReplayConfig
from rookery.errors import CheckpointError, EmptyReplayError, ProtocolError
from rookery.replay.buffer import LocalReplay, bytes_needed
from rookery.replay.replay import Inserted
from rookery.replay.ring import row_bytes, schema_of
from rookery.replay.sampler import FLOOR
from rookery.types import Array, End
from sample_experience import IMAGE, MIXED, VECTOR, Move, Step, columns, play
from small_replays import pool, shut, write

RUN, TERMINATE, TRUNCATE = Move.RUN, Move.TERMINATE, Move.TRUNCATE


@pytest.fixture
def made() -> Iterator[list[LocalReplay]]:
    """Pools put here are closed afterwards."""
    pools: list[LocalReplay] = []
    yield pools
    for one in pools:
        shut(one)


def steps(*moves: Move, actor: int = 0, env: int = 0) -> list[Step]:
    return play((actor, env, move) for move in moves)


def filled(made: list[LocalReplay], count: int = 20, **options: Any) -> LocalReplay:
    """Returns a pool with `count` rows of one endless episode."""
    made.append(pool(options.pop("spec", VECTOR), **options))
    write(made[-1], steps(*[RUN] * count))
    made[-1].insert()
    return made[-1]


class TestDraining:
    def test_transports_are_drained_in_the_actors_order(self, made: list[LocalReplay]) -> None:
        made.append(replay := pool(VECTOR))
        write(replay, steps(RUN, RUN, actor=1) + steps(RUN, actor=0))

        assert replay.insert()[:3] == (0, 3, 3)
        assert replay.ring.columns["actor"][:3].tolist() == [0, 1, 1]

    def test_a_drain_tells_where_its_rows_are_and_how_many_have_an_action(
        self, made: list[LocalReplay]
    ) -> None:
        replay = filled(made, 4)
        write(replay, steps(RUN, TERMINATE, RUN, actor=1))

        drained = replay.insert()

        assert (drained.first, drained.count, drained.steps) == (4, 3, 2)
        assert replay.insert()[:3] == (7, 0, 0)

    def test_a_transport_larger_than_replay_is_drained_whole(self, made: list[LocalReplay]) -> None:
        replay = filled(made, 50, capacity=8)

        assert replay.ring.committed == 50
        assert replay.transports[0].free == replay.transports[0].capacity
        assert sorted(replay.ring.columns["version"].tolist()) == list(range(42, 50))

    def test_fill_is_the_share_that_holds_rows(self, made: list[LocalReplay]) -> None:
        assert filled(made, 8, capacity=32).fill == 0.25
        assert filled(made, 50, capacity=32).fill == 1.0

    def test_observed_are_the_raw_leaves_of_those_rows(self, made: list[LocalReplay]) -> None:
        replay = filled(made, 40, capacity=32, spec=MIXED)

        leaves = replay.observed(Inserted(30, 5, 5)).leaves

        assert leaves.keys() == {"place", "seen", "held"}
        assert leaves["held"][:, 0].tolist() == [30, 31, 32, 33, 34]

    def test_a_drain_beyond_the_capacity_shows_every_row_that_is_left_once(
        self, made: list[LocalReplay]
    ) -> None:
        made.append(replay := pool(MIXED, capacity=8))
        write(replay, [step for actor in (0, 1) for step in steps(*[RUN] * 10, actor=actor)])

        drained = replay.insert()

        leaves = replay.observed(drained).leaves
        assert drained.count == 20
        assert leaves["held"][:, 0].tolist() == list(range(12, 20))

    def test_returns_after_a_drain_beyond_the_capacity_are_of_the_rows_that_are_left(
        self, made: list[LocalReplay]
    ) -> None:
        made.append(replay := pool(VECTOR, capacity=4))
        write(replay, steps(*[RUN] * 3))
        first = replay.insert()
        replay.observed(first)
        later = play([(0, 0, RUN)] * 3 + [(0, 0, TERMINATE)] + [(0, 0, RUN)] * 5)
        write(replay, later)

        drained = replay.insert()

        assert drained.count == 9
        left = [step.reward for step in later[5:]]  # of one episode, whose first step is gone
        sums = [sum(r * 0.5 ** (k - j) for j, r in enumerate(left[: k + 1])) for k in range(4)]
        assert replay.observed(drained).returns.tolist() == sums


@pytest.mark.parametrize("draw", Draw)
class TestDrawing:
    def test_an_empty_pool_says_so(self, made: list[LocalReplay], draw: Draw) -> None:
        with pytest.raises(EmptyReplayError):
            filled(made, 0, draw=draw).sample(4)

    def test_a_pool_of_open_rows_says_so(self, made: list[LocalReplay], draw: Draw) -> None:
        with pytest.raises(EmptyReplayError):
            filled(made, 3, draw=draw, n_step=3).sample(4)

        assert filled(made, 4, draw=draw, n_step=3).sample(2).rows.tolist() == [0, 0]

    @pytest.mark.parametrize("batch", [0, -1])
    def test_a_batch_of_nothing_is_refused(
        self, made: list[LocalReplay], draw: Draw, batch: int
    ) -> None:
        with pytest.raises(ProtocolError, match="at least one row"):
            filled(made, draw=draw).sample(batch)

    def test_overwritten_rows_are_never_drawn(self, made: list[LocalReplay], draw: Draw) -> None:
        replay = filled(made, 50, capacity=16, draw=draw)

        assert set(replay.sample(500).rows.tolist()) == set(range(34, 49))  # row 49 is open

    def test_a_batch_has_the_types_a_learner_expects(
        self, made: list[LocalReplay], draw: Draw
    ) -> None:
        batch = filled(made, 60, draw=draw, spec=MIXED).sample(5)

        assert {name: (leaf.shape, leaf.dtype.name) for name, leaf in batch.obs.items()} == {
            "place": ((5, 4), "float32"),
            "seen": ((5, 4, 2, 2), "uint8"),
            "held": ((5, 2), "int64"),
        }
        assert (batch.action.shape, batch.action.dtype.name) == ((5, 2), "float32")
        for field in (batch.reward, batch.discount, batch.weight):
            assert (field.shape, field.dtype.name) == ((5,), "float32")
        assert (batch.rows.dtype.name, batch.mask) == ("int64", None)

    def test_a_batch_of_sequences_has_a_time_axis(
        self, made: list[LocalReplay], draw: Draw
    ) -> None:
        batch = filled(made, 60, draw=draw, spec=IMAGE, sequence=4).sample(5)

        assert batch.obs.shape == (5, 5, 3, 2, 3)
        assert batch.next_obs is None
        for field in (batch.action, batch.reward, batch.discount, batch.mask):
            assert field.shape == (5, 4)

    def test_one_seed_draws_one_way(self, made: list[LocalReplay], draw: Draw) -> None:
        one, other = (filled(made, draw=draw).sample(50).rows for _ in range(2))

        assert one.tolist() == other.tolist()

    def test_a_ring_too_small_for_its_stacks_says_so(
        self, made: list[LocalReplay], draw: Draw
    ) -> None:
        replay = filled(made, 9, capacity=3, draw=draw, spec=IMAGE)  # row 8 is whole but open

        with pytest.raises(EmptyReplayError, match="all 3 frames of its stack; raise "):
            replay.sample(4)


def test_reranked_rows_are_drawn_by_their_new_priority(made: list[LocalReplay]) -> None:
    replay = filled(made, draw=Draw.PRIORITIZED, alpha=1.0)
    replay.update_priorities(np.arange(19), np.where(np.arange(19) == 7, 1e6, 0.0))

    assert set(replay.sample(64).rows.tolist()) == {7}


class TestFirstPriorities:
    ACTOR: ClassVar[dict[str, Any]] = {
        "draw": Draw.PRIORITIZED,
        "first": FirstPriority.ACTOR,
        "alpha": 1.0,
    }

    @staticmethod
    def given(
        replay: LocalReplay, taken: list[float], best: list[float], *moves: Move
    ) -> list[float]:
        """Drains an episode with these values and rewards of 1; returns the new priorities."""
        played = [s._replace(reward=float(s.end is End.RUNNING)) for s in steps(*moves)]
        values = {"taken": np.array(taken), "best": np.array(best)}
        replay.transports[0].append(columns(VECTOR, played, 0) | values)
        replay.insert()
        return [round(leaf - FLOOR, 9) if leaf > 0 else 0.0 for leaf in replay.sampler.leaves]

    @pytest.mark.parametrize(
        ("ending", "n_step", "expected"),
        [  # rewards 1, gamma 0.5, taken 10 20 30, best 4 8 16 and 32 at the end
            (TERMINATE, 1, [10 - 5, 20 - 9, 30 - 1]),
            (TRUNCATE, 1, [10 - 5, 20 - 9, 30 - 17]),
            (TERMINATE, 2, [10 - 5.5, 20 - 1.5, 30 - 1]),
            (TRUNCATE, 2, [10 - 5.5, 20 - 9.5, 30 - 17]),
            (TERMINATE, 3, [10 - 1.75, 20 - 1.5, 30 - 1]),
            (TRUNCATE, 3, [10 - 5.75, 20 - 9.5, 30 - 17]),
        ],
    )
    def test_they_are_n_step_errors_by_the_actors_values(
        self, made: list[LocalReplay], ending: Move, n_step: int, expected: list[float]
    ) -> None:
        made.append(replay := pool(VECTOR, capacity=4, n_step=n_step, **self.ACTOR))
        values = [10.0, 20.0, 30.0, np.nan], [4.0, 8.0, 16.0, 32.0]

        found = self.given(replay, *values, RUN, RUN, RUN, ending)

        assert found == [*expected, 0.0]

    @pytest.mark.parametrize("bad", [np.nan, np.inf])
    def test_what_the_actor_did_not_estimate_gets_the_largest(
        self, made: list[LocalReplay], bad: float
    ) -> None:
        made.append(replay := pool(VECTOR, capacity=4, **self.ACTOR))

        found = self.given(replay, [bad, 5.0, 5.0, 5.0], [0.0, 0.0, bad, 0.0], *[RUN] * 4)

        assert found == [round(1 - FLOOR, 9), round(1 - FLOOR, 9), 4.0, 0.0]

    @pytest.mark.parametrize("off", [{"first": FirstPriority.LARGEST}, {"sequence": 2}])
    def test_sequences_and_runs_that_did_not_ask_get_the_largest(
        self, made: list[LocalReplay], off: dict[str, Any]
    ) -> None:
        made.append(replay := pool(VECTOR, capacity=4, **self.ACTOR | off))

        self.given(replay, [5.0] * 4, [0.0] * 4, RUN, RUN, RUN, TERMINATE)

        assert replay.sampler.leaves.tolist() == [1.0, 1.0, 1.0, 0.0]

    def test_a_row_whose_writer_named_no_values_gets_the_largest(
        self, made: list[LocalReplay]
    ) -> None:
        made.append(replay := pool(VECTOR, capacity=4, **self.ACTOR))
        rows = columns(VECTOR, steps(RUN, RUN), 0)
        replay.transports[0].append({k: v for k, v in rows.items() if k not in ("taken", "best")})

        replay.insert()

        assert replay.sampler.leaves.tolist() == [1.0, 0.0, 0.0, 0.0]

    def test_a_learners_error_takes_their_place(self, made: list[LocalReplay]) -> None:
        made.append(replay := pool(VECTOR, capacity=4, **self.ACTOR))
        self.given(replay, [5.0] * 4, [0.0] * 4, *[RUN] * 4)

        replay.update_priorities(np.array([1]), np.array([0.25]))

        assert replay.sampler.leaves.tolist() == [4.0 + FLOOR, 0.25 + FLOOR, 4.0 + FLOOR, 0.0]


class TestLag:
    """Versions of rows are their numbers here."""

    @pytest.mark.parametrize("draw", Draw)
    def test_rows_of_a_policy_that_is_too_old_are_kept_counted_and_never_drawn(
        self, made: list[LocalReplay], draw: Draw
    ) -> None:
        made.append(replay := pool(VECTOR, draw=draw, lag=5))
        replay.version = 12
        write(replay, steps(*[RUN] * 20))
        replay.insert()

        drawn = np.concatenate([replay.sample(8).rows for _ in range(50)])

        assert set(drawn.tolist()) == set(range(7, 19))
        assert (replay.stale, replay.ring.committed) == (7, 20)

    def test_without_a_limit_all_are_drawn(self, made: list[LocalReplay]) -> None:
        made.append(replay := pool(VECTOR))
        replay.version = 1_000
        write(replay, steps(*[RUN] * 20))
        replay.insert()

        assert len(set(replay.sample(500).rows.tolist())) == 19

    def test_a_resumed_run_does_not_draw_them_either(self, made: list[LocalReplay]) -> None:
        made.append(replay := pool(VECTOR, lag=5))
        replay.version = 12
        write(replay, steps(*[RUN] * 20))
        replay.insert()
        made.append(again := pool(VECTOR, lag=5))

        again.restore(*saved(replay, 0))

        assert again.sample(500).rows.min() == 7


def saved(replay: LocalReplay, *cuts: int) -> tuple[Any, Any, list[tuple[int, dict[str, Array]]]]:
    """Returns a pool's state and its rows, in segments that begin at `cuts`."""
    ends = [*cuts[1:], replay.ring.committed]
    segments = [(a, replay.rows_between(a, b)) for a, b in zip(cuts, ends, strict=True)]
    return *replay.state(), segments


class TestRestoring:
    def test_the_old_part_of_a_segment_is_left_out(self, made: list[LocalReplay]) -> None:
        replay = filled(made, 20, capacity=32)
        early = (0, replay.rows_between(0, 20))
        write(replay, steps(*[RUN] * 20, actor=1))
        replay.insert()
        numbers, arrays, late = saved(replay, 20)
        made.append(again := pool(VECTOR, capacity=32))

        again.restore(numbers, arrays, [early, *late])  # rows 0 to 7 are overwritten by now

        assert (again.ring.oldest, again.ring.committed) == (8, 40)
        assert again.ring.columns["version"].tolist() == replay.ring.columns["version"].tolist()

    def test_a_segment_whose_rows_are_all_overwritten_is_left_out(
        self, made: list[LocalReplay]
    ) -> None:
        replay = filled(made, 5, capacity=8)
        gone = (0, replay.rows_between(0, 5))
        write(replay, steps(*[RUN] * 20))
        replay.insert()
        made.append(again := pool(VECTOR, capacity=8))

        numbers, arrays, rest = saved(replay, 17)
        again.restore(numbers, arrays, [gone, *rest])

        assert (again.ring.oldest, again.ring.committed) == (17, 25)

    def test_an_empty_pool_can_be_restored(self, made: list[LocalReplay]) -> None:
        made.append(again := pool(VECTOR))

        again.restore(*saved(filled(made, 0), 0))

        assert again.ring.committed == 0

    @pytest.mark.parametrize(
        ("cuts", "drop", "message"),
        [
            ((0, 8, 16), 0, "rows 0 to 8 are missing"),
            ((0, 8, 16), 1, "rows 8 to 16 are missing"),
            ((0, 8, 16), 2, "end at row 16, expected 20"),
            ((0,), 0, "end at row 0, expected 20"),
        ],
    )
    def test_missing_rows_are_an_error(
        self, made: list[LocalReplay], cuts: tuple[int, ...], drop: int, message: str
    ) -> None:
        numbers, arrays, segments = saved(filled(made), *cuts)
        made.append(again := pool(VECTOR))

        with pytest.raises(CheckpointError, match=message):
            again.restore(numbers, arrays, segments[:drop] + segments[drop + 1 :])

    @pytest.mark.parametrize(
        "other", [{"capacity": 31}, {"envs": 3}, {"n_step": 2}, {"sequence": 5}]
    )
    def test_other_settings_than_the_saved_ones_are_refused(
        self, made: list[LocalReplay], other: dict[str, int]
    ) -> None:
        state = saved(filled(made), 0)
        made.append(again := pool(VECTOR, **other))

        with pytest.raises(CheckpointError, match="resume with the settings it was saved with"):
            again.restore(*state)

    def test_returns_so_far_go_on(self, made: list[LocalReplay]) -> None:
        replay = filled(made, 3)
        replay.observed(Inserted(0, 3, 3))
        made.append(again := pool(VECTOR))

        again.restore(*saved(replay, 0))

        assert again.running.tolist() == replay.running.tolist() != [0.0] * 4


def test_bytes_needed_covers_what_a_pool_takes(made: list[LocalReplay]) -> None:
    config = ReplayConfig(capacity=10_000, sampling=Draw.PRIORITIZED)
    made.append(replay := pool(VECTOR, capacity=10_000, draw=Draw.PRIORITIZED))
    tree = replay.sampler._tree.nbytes

    taken = replay.ring.bytes.nbytes + tree + replay.chains.closed.nbytes

    assert row_bytes(schema_of(VECTOR)) * 10_000 < bytes_needed(VECTOR, config)
    assert taken == pytest.approx(bytes_needed(VECTOR, config), rel=0.05)
