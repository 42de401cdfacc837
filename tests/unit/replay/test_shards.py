"""Shards: one is a pool, several are drawn from as one, and another cut takes up every row."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from rookery.config.schema import Draw
from rookery.errors import CheckpointError, EmptyReplayError
from rookery.replay.buffer import LocalReplay
from rookery.replay.saved_rows import SavedReplay
from rookery.replay.shards import TAG_BITS, ShardedReplay
from rookery.types import Batch, EnvSpec
from sample_experience import IMAGE, MIXED, VECTOR, Move, Step, play
from small_replays import pool, shut, write

RUN, TERMINATE = Move.RUN, Move.TERMINATE


@pytest.fixture
def made() -> Iterator[list[LocalReplay]]:
    pools: list[LocalReplay] = []
    yield pools
    for one in pools:
        shut(one)


def steps(count: int, actor: int, every: int = 7) -> list[Step]:
    return play((actor, 0, TERMINATE if i % every == every - 1 else RUN) for i in range(count))


def shards(
    made: list[LocalReplay], counts: list[int], spec: EnvSpec = VECTOR, **options: Any
) -> ShardedReplay:
    """Returns shards of one actor each, with so many rows."""
    pools = [pool(spec, actors=len(counts), **options) for _ in counts]
    made += pools
    for actor, (one, count) in enumerate(zip(pools, counts, strict=True)):
        write(one, steps(count, actor))
    replay = ShardedReplay(pools, np.random.default_rng(0))
    replay.insert()
    return replay


def same(one: Batch, other: Batch) -> bool:
    return all(
        np.array_equal(a[name], b[name])
        for a, b in zip(one, other, strict=True)
        if a is not None
        for name in (a if isinstance(a, dict) else [...])
    )


class TestOne:
    @pytest.mark.parametrize("draw", Draw)
    @pytest.mark.parametrize("spec", [VECTOR, IMAGE, MIXED])
    def test_one_shard_draws_what_a_pool_draws_bit_for_bit(
        self, made: list[LocalReplay], draw: Draw, spec: EnvSpec
    ) -> None:
        made.append(alone := pool(spec, draw=draw, actors=1, capacity=24))
        write(alone, steps(40, 0))
        alone.insert()
        replay = shards(made, [40], spec, draw=draw, capacity=24)

        for turn in range(20):
            one, other = alone.sample(8, beta=0.4), replay.sample(8, beta=0.4)
            assert same(one, other)
            errors = np.linspace(0.1, turn + 1, 8)
            alone.update_priorities(one.rows, errors)
            replay.update_priorities(other.rows, errors)

    def test_a_sequence_is_drawn_too(self, made: list[LocalReplay]) -> None:
        made.append(alone := pool(VECTOR, actors=1, sequence=3))
        write(alone, steps(20, 0))
        alone.insert()

        assert same(alone.sample(6), shards(made, [20], sequence=3).sample(6))


class TestSeveral:
    def test_a_drain_counts_the_rows_of_all(self, made: list[LocalReplay]) -> None:
        replay = shards(made, [0, 0])
        write(replay.shards[0], steps(5, 0))
        write(replay.shards[1], steps(9, 1))

        drained = replay.insert()

        assert (drained.count, drained.steps) == (14, 14 - 1)
        assert [part.count for part in drained.parts] == [5, 9]
        leaves, returns = replay.observed(drained)
        assert len(leaves[""]) == len(returns) == 14

    @pytest.mark.parametrize("draw", Draw)
    def test_every_closed_row_is_drawn_as_often_as_in_one_pool(
        self, made: list[LocalReplay], draw: Draw
    ) -> None:
        replay = shards(made, [25, 5, 10], draw=draw)
        errors = {tag: np.arange(1.0, 60.0) for tag in range(3)}
        for here, tag in zip(replay.shards, errors, strict=True):
            here.update_priorities(np.arange(30), errors[tag][:30])

        drawn = np.concatenate([replay.sample(60).rows for _ in range(400)])

        rows, counts = np.unique(drawn, return_counts=True)
        share = {
            (tag << TAG_BITS) + row: (row + 1.0) ** 0.6 if draw is Draw.PRIORITIZED else 1.0
            for tag, here in enumerate(replay.shards)
            for row in np.flatnonzero(here.chains.closed[: here.ring.committed])
        }
        wanted = np.array([share[row] for row in rows]) / sum(share.values()) * drawn.size
        assert set(rows.tolist()) == set(share)
        assert np.abs(counts - wanted).max() < 6 * np.sqrt(wanted.max())

    def test_importance_weights_are_those_of_the_whole_replay(
        self, made: list[LocalReplay]
    ) -> None:
        replay = shards(made, [20, 8], draw=Draw.PRIORITIZED, alpha=1.0)
        for here in replay.shards:
            here.update_priorities(np.arange(20), np.arange(1.0, 21.0) * (1 + 3 * here.tag))

        batch = replay.sample(16, beta=0.5)

        tag, row = batch.rows >> TAG_BITS, batch.rows & (1 << TAG_BITS) - 1
        priority = (row + 1.0) * (1 + 3 * tag)
        assert batch.weight == pytest.approx((priority / priority.min()) ** -0.5, rel=1e-5)

    def test_a_shard_that_grew_since_is_weighed_by_what_it_was_when_it_looked(
        self, made: list[LocalReplay]
    ) -> None:
        replay = shards(made, [10, 10], draw=Draw.PRIORITIZED, alpha=1.0)
        wanted = replay.deck.want(replay.shards, 12)
        for _, request in wanted.asked:
            found = request.found
            assert found is not None
            request.found = found._replace(spread=found.spread * (1 + request.tag))

        batch = replay.deck.take(replay.shards, wanted, beta=1.0)

        tag = batch.rows >> TAG_BITS
        assert batch.weight[tag == 1] == pytest.approx(1.0)  # half as likely, so twice the weight
        assert batch.weight[tag == 0] == pytest.approx(0.5)

    def test_a_batch_that_lost_a_shard_is_made_up_by_the_others(
        self, made: list[LocalReplay]
    ) -> None:
        replay = shards(made, [20, 20])
        gone = replay.shards[1]
        wanted = replay.deck.want(replay.shards, 16)
        gone.answer = lambda request: None  # type: ignore[method-assign]

        batch = replay.deck.take(replay.shards[:1], wanted, beta=1.0)

        assert batch.rows.size == 16
        assert set((batch.rows >> TAG_BITS).tolist()) == {0}

    def test_an_error_of_a_shard_that_is_gone_is_dropped(self, made: list[LocalReplay]) -> None:
        replay = shards(made, [10, 10], draw=Draw.PRIORITIZED)
        before = replay.shards[0].spread

        replay.update_priorities(np.array([7 << TAG_BITS]), np.array([100.0]))

        assert replay.shards[0].spread == before

    def test_empty_shards_cannot_be_drawn_from(self, made: list[LocalReplay]) -> None:
        with pytest.raises(EmptyReplayError, match="no shard has a row yet"):
            shards(made, [0, 0]).sample(4)


def keys(pools: list[LocalReplay]) -> list[tuple[int, ...]]:
    """What is unique about every row there is, sorted."""
    found = []
    for one in pools:
        rows = one.rows_since(0).columns
        found += zip(*(rows[c].tolist() for c in ("actor", "env", "episode", "t")), strict=True)
    return sorted(found)


class TestResuming:
    def taken_up(
        self, made: list[LocalReplay], replay: ShardedReplay, places: int, **options: Any
    ) -> Any:
        kept = replay.save([0] * len(replay.shards))
        pools = [pool(VECTOR, actors=4, **options) for _ in range(places)]
        made += pools
        again = ShardedReplay(pools, np.random.default_rng(9)) if places > 1 else pools[0]
        again.resume(
            SavedReplay(kept.numbers, kept.arrays, [[stretch] for stretch in kept.unsaved])
        )
        return again

    def test_the_same_shards_go_on_bit_for_bit(self, made: list[LocalReplay]) -> None:
        replay = shards(made, [20, 12], draw=Draw.PRIORITIZED)
        replay.sample(8)
        replay.update_priorities(replay.sample(8).rows, np.arange(8.0))

        again = self.taken_up(made, replay, 2, draw=Draw.PRIORITIZED)

        for _ in range(3):
            assert same(replay.sample(8), again.sample(8))

    @pytest.mark.parametrize("places", [1, 3])
    def test_another_number_of_shards_takes_up_every_row_once(
        self, made: list[LocalReplay], places: int
    ) -> None:
        replay = shards(made, [20, 12], draw=Draw.PRIORITIZED, capacity=64)

        again = self.taken_up(made, replay, places, draw=Draw.PRIORITIZED, capacity=64)

        assert keys(again.shards if places > 1 else [again]) == keys(list(replay.shards))
        assert again.sample(8).rows.size == 8

    def test_another_capacity_is_refused(self, made: list[LocalReplay]) -> None:
        with pytest.raises(CheckpointError, match="resume with the settings it was saved with"):
            self.taken_up(made, shards(made, [20, 12]), 2, capacity=64)
