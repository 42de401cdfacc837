"""The depot without a cluster: who is drawn from, whose answers count, what a checkpoint keeps."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harbour import Harbour, depot, played
from rookery.config.schema import Draw, Mode
from rookery.loops import depot as module
from rookery.loops.archive import Archive
from rookery.loops.depot import Depot
from rookery.loops.fleet import Fleet
from rookery.loops.station import Look, Pull, Rerank, Unsaved
from rookery.manage import checkpoint
from rookery.manage.checkpoint import Content, read_segments
from rookery.manage.saver import Saver
from rookery.replay.kept import Kept
from rookery.replay.shards import TAG_BITS

PRIORITIZED = {"draw": Draw.PRIORITIZED, "alpha": 1.0}
NUMBER = (1 << TAG_BITS) - 1
PATIENCE_S = 30.0


@pytest.fixture
def harbour(monkeypatch: pytest.MonkeyPatch) -> Iterator[Harbour]:
    with Harbour(monkeypatch) as made:
        yield made


def roaming(harbour: Harbour, rows: int = 40, **options: Any) -> tuple[Fleet, Depot]:
    """Returns a fleet in async mode whose shards have so many rows each."""
    fleet = harbour.fleet(mode=Mode.ASYNC, **options)
    played(fleet, rows)
    fleet.roam()
    fleet.settle()
    replay = depot(fleet)
    replay.drain()
    return fleet, replay


def tags(rows: Any) -> set[int]:
    return set((rows >> TAG_BITS).tolist())


def true_rows(harbour: Harbour, fleet: Fleet, rows: Any) -> bool:
    """Is every row one that its shard would hand out?"""
    return all(
        harbour.pier(berth.place).station.pool.chains.closed[(rows[own] & NUMBER) % 512].all()
        for berth in fleet.berths
        for own in [rows >> TAG_BITS == berth.tag]
    )


class TestDrawing:
    def test_in_sync_a_batch_is_asked_for_when_everything_else_was_done(self, harbour):
        fleet = harbour.fleet(replay=PRIORITIZED)
        played(fleet, 40)
        replay = depot(fleet)
        batch = replay.draw(8)
        replay.rerank(batch.rows, np.full(8, 50.0))
        fleet.spread(2, {"w": np.ones(2, dtype=np.float32)})
        replay.draw(8)

        for place in tags(batch.rows):
            kinds = [type(order) for order in harbour.pier(place).sent]
            assert kinds[kinds.index(Look) :] == [Look, Rerank, Pull, Look]
        shards = [harbour.pier(place).station.pool.sampler.spread for place in (0, 1)]
        assert [berth.facts.spread for berth in fleet.berths] == shards

    def test_in_async_batches_are_asked_for_ahead_several_in_one_message(self, harbour):
        _, replay = roaming(harbour)
        for _ in range(module.PACK):
            assert replay.draw(8).rows.size == 8

        looks = harbour.pier(0).orders(Look)
        assert len(looks) == module.AHEAD
        assert {len(look.questions) for look in looks} == {module.PACK}

    def test_every_answer_is_that_of_its_own_question(self, harbour):
        """A batch of the rows that it was asked for has weights of exactly these rows."""
        fleet, replay = roaming(harbour, replay=PRIORITIZED)
        for berth in fleet.berths:
            pool = harbour.pier(berth.place).station.pool
            pool.rerank(np.arange(40), np.arange(1.0, 41.0) * (1 + berth.place))
            berth.facts = harbour.pier(berth.place).station.facts
        for _ in range(3 * module.PACK):
            batch = replay.draw(8, beta=1.0)
            priority = ((batch.rows & NUMBER) + 1.0) * (1 + (batch.rows >> TAG_BITS))
            assert batch.weight == pytest.approx(priority.min() / priority, rel=1e-4)
            assert true_rows(harbour, fleet, batch.rows)

    def test_a_batch_that_has_to_ask_again_leaves_those_on_their_way_alone(self, harbour):
        """Uniform draws guess: of shards with few closed rows, some batches ask twice."""
        fleet, replay = roaming(harbour, rows=8)
        batches = [replay.draw(8) for _ in range(12 * module.PACK)]

        again = [look for look in harbour.pier(0).orders(Look) if len(look.questions) < module.PACK]
        assert again, "nobody had to ask again"
        assert all(batch.rows.size == 8 for batch in batches)
        assert all(true_rows(harbour, fleet, batch.rows) for batch in batches)
        assert not fleet.berths[0]._answers.keys() - set(range(fleet.berths[0]._asked + 1))

    def test_a_station_that_is_silent_is_not_drawn_from_and_others_make_up_for_it(self, harbour):
        fleet, replay = roaming(harbour)
        assert tags(replay.draw(64).rows) == {0, 1}
        harbour.pier(1).silent = True
        late = [replay.draw(64).rows for _ in range(4 * module.PACK)]

        assert tags(late[-1]) == {0}
        assert {rows.size for rows in late} == {64}
        assert fleet.berths[1].absent
        assert fleet.metrics()["cluster/stations"] == 1.0

    def test_late_answers_are_dropped_and_the_station_is_drawn_from_again(self, harbour):
        fleet, replay = roaming(harbour)
        harbour.pier(1).silent = True
        for _ in range(4 * module.PACK):
            replay.draw(16)
        waived = len(fleet.berths[1]._waived)
        harbour.pier(1).silent = False
        fleet.look()

        assert waived > 0
        assert not fleet.berths[1]._waived
        assert fleet.berths[1]._answers.keys().isdisjoint(range(waived + 1))
        drawn = [replay.draw(16).rows for _ in range(4 * module.PACK)]
        assert tags(drawn[-1]) == {0, 1}
        assert all(true_rows(harbour, fleet, rows) for rows in drawn)

    def test_open_questions_of_a_lost_station_are_made_up_by_the_others(self, harbour):
        _, replay = roaming(harbour)
        replay.draw(16)
        harbour.lose(1)
        drawn = [replay.draw(16).rows for _ in range(3 * module.PACK)]

        assert {rows.size for rows in drawn} == {16}
        assert tags(drawn[-1]) == {0}

    def test_errors_of_a_lost_station_do_not_reach_the_next_one(self, harbour):
        fleet = harbour.fleet(replay=PRIORITIZED)
        played(fleet, 40)
        replay = depot(fleet)
        batch = replay.draw(16)
        harbour.lose(1)
        played(fleet, 40)
        replay.rerank(batch.rows, np.full(16, 1_000.0))
        fleet.settle()

        assert harbour.pier(0).orders(Rerank)
        assert not harbour.pier(1).orders(Rerank)

    def test_in_sync_a_slow_station_is_waited_for(self, harbour):
        fleet = harbour.fleet(cluster={"absent_s": 1.0, "lost_s": 1_000.0})
        played(fleet, 40)
        alone, replay = depot(fleet).draw(32).rows.tolist(), depot(fleet)
        wait, began = harbour.wait, harbour.clock.now

        def late(hosts: Any, timeout_s: float) -> None:
            wait(hosts, timeout_s)
            harbour.pier(1).silent = harbour.clock.now < began + 20.0

        harbour.wait = late  # type: ignore[method-assign]
        harbour.pier(1).silent = True

        assert replay.draw(32).rows.tolist() == alone

    def test_in_sync_a_run_whose_only_shard_was_lost_plays_until_there_are_rows(self, harbour):
        fleet = harbour.fleet(shards=1, actors=1)
        played(fleet, 40)
        harbour.lose(0)
        replay = depot(fleet)

        assert replay.draw(8).rows.size == 8
        assert tags(replay.draw(8).rows) == {fleet.berths[0].tag}

    def test_a_station_that_falls_silent_alone_is_waited_for(self, harbour):
        _, replay = roaming(harbour, shards=1, actors=1)
        replay.draw(8)
        harbour.pier(0).silent = True
        wait, began = harbour.wait, harbour.clock.now

        def late(hosts: Any, timeout_s: float) -> None:
            wait(hosts, timeout_s)
            harbour.pier(0).silent = harbour.clock.now < began + 5.0

        harbour.wait = late  # type: ignore[method-assign]

        assert [replay.draw(8).rows.size for _ in range(40)] == [8] * 40
        assert harbour.starts(0) == 1

    def test_where_nobody_can_be_drawn_from_everybody_may_play(self, harbour):
        fleet, replay = roaming(harbour)
        for place in (0, 1):
            harbour.lose(place)
        wait = harbour.wait

        def refill(hosts: Any, timeout_s: float) -> None:
            wait(hosts, timeout_s)
            if harbour.starts(0) == 2 and harbour.pier(0).keeper._role is not None:
                harbour.pier(0).hands.write(0, 8)

        harbour.wait = refill  # type: ignore[method-assign]
        fleet.allow(False, [0.5, 0.5])

        assert replay.draw(8).rows.size == 8
        assert harbour.pier(0).hands.allowed[-1][0]


class TestDrawingFewer:
    """Where runs share, a part of a batch is own rows."""

    def test_rows_are_left_out_at_random(self, harbour):
        """Strata are in the order of their rows: the first ones alone would be the oldest rows."""
        replay = PRIORITIZED | {"batch": 16, "warmup": 16}
        _, own = roaming(harbour, rows=200, replay=replay)
        rows = np.concatenate([own.draw(4).rows for _ in range(60)])

        assert rows.size == 240
        assert tags(rows) == {0, 1}
        assert 0.35 < ((rows & NUMBER) >= 100).mean() < 0.65  # 4.6 deviations of 240 rows

    def test_the_largest_weight_is_1(self, harbour):
        fleet, own = roaming(harbour, replay=PRIORITIZED)
        for berth in fleet.berths:
            station = harbour.pier(berth.place).station
            station.pool.rerank(np.arange(40), np.arange(1.0, 41.0))
            berth.facts = station.facts

        assert {float(own.draw(3, beta=1.0).weight.max()) for _ in range(20)} == {1.0}


def keys(harbour: Harbour, fleet: Fleet) -> list[tuple[int, ...]]:
    """What is unique about every row there is, sorted."""
    found = list[tuple[int, ...]]()
    for stretch in fleet.ask({b.place: Unsaved(0) for b in fleet.berths}).values():
        rows = stretch.columns
        names = ("actor", "incarnation", "env", "episode", "t")
        found += zip(*(rows[name].tolist() for name in names), strict=True)
    return sorted(found)


class TestSaving:
    @pytest.mark.parametrize("shards", [1, 2, 4])
    def test_another_number_of_shards_takes_up_every_row_once(self, harbour, shards):
        fleet = harbour.fleet(actors=4, shards=2, replay={"capacity": 2_048})
        played(fleet, 30)
        before, kept = keys(harbour, fleet), depot(fleet).save([0, 0])
        again = harbour.fleet(actors=4, shards=shards, replay={"capacity": 1_024 * shards})
        replay = depot(again)
        replay.resume(kept.numbers, kept.arrays, [[stretch] for stretch in kept.unsaved])

        assert keys(harbour, again) == before
        assert len(set(before)) == len(before) == 120
        assert replay.draw(8).rows.size == 8

    def test_the_same_shards_draw_on_as_if_nothing_had_happened(self, harbour):
        fleet = harbour.fleet(replay=PRIORITIZED)
        played(fleet, 40)
        replay = depot(fleet)
        replay.rerank(replay.draw(8).rows, np.arange(8.0))
        kept = replay.save([0, 0])
        another = depot(harbour.fleet(replay=PRIORITIZED))
        another.resume(kept.numbers, kept.arrays, [[stretch] for stretch in kept.unsaved])

        for _ in range(3):
            one, other = replay.draw(8), another.draw(8)
            assert (one.rows & NUMBER).tolist() == (other.rows & NUMBER).tolist()
            assert one.weight.tolist() == other.weight.tolist()


class TestArchive:
    """A lost shard, and checkpoints of the run before and after."""

    @pytest.fixture
    def saver(self, tmp_path: Path) -> Iterator[Saver]:
        saver = Saver(tmp_path, keep=3)
        yield saver
        saver.close()

    def saved(self, saver: Saver, replay: Depot, mark: int) -> Kept:
        """Writes a checkpoint, as a run does."""
        kept = replay.save([saver.saved_rows[place] for place in range(2)])
        for place, stretch in enumerate(kept.unsaved):
            saver.rows(stretch.first, stretch.columns, place)
        content = Content(
            env_steps=mark,
            version=1,
            exact=False,
            final=False,
            about={"replay": True},
            weights={"w": np.zeros(1)},
            state={"pool": kept.numbers},
            arrays={f"pool:{name}": array for name, array in kept.arrays.items()},
        )
        saver.save(content, oldest=[e.oldest for e in kept.extents], done=lambda folder: None)
        saver.flush(PATIENCE_S)
        assert saver.complaints() == []
        return kept

    def test_what_was_written_after_the_checkpoint_is_forgotten(self, harbour, saver, tmp_path):
        fleet = harbour.fleet()
        fleet.recall = Archive(saver).recall
        replay = depot(fleet)
        played(fleet, 30)
        self.saved(saver, replay, 60)
        played(fleet, 20)
        (_, stretch) = replay.unsaved([saver.saved_rows[0], saver.saved_rows[1]])
        saver.rows(stretch.first, stretch.columns, 1)  # as a run does with many unsaved rows
        harbour.lose(1)
        played(fleet, 7)
        self.saved(saver, replay, 120)

        search = checkpoint.newest(tmp_path / "checkpoints")
        assert search.broken == []
        assert search.found is not None
        segments = search.found.segments()
        assert [(s.first, s.last) for s in segments if s.shard == 1] == [(0, 30), (30, 37)]
        assert fleet.lost_rows == 20
        before = keys(harbour, fleet)
        again = harbour.fleet()
        state = search.found.state()["pool"]
        arrays = {name.partition(":")[2]: a for name, a in search.found.arrays().items()}
        depot(again).resume(state, arrays, [read_segments(segments, n) for n in (0, 1)])
        assert keys(harbour, again) == before

    def test_without_a_checkpoint_nothing_is_given_back(self, harbour, saver, tmp_path):
        fleet = harbour.fleet()
        fleet.recall = Archive(saver).recall
        replay = depot(fleet)
        played(fleet, 30)
        harbour.lose(1)
        played(fleet, 7)
        self.saved(saver, replay, 60)

        found = checkpoint.newest(tmp_path / "checkpoints").found
        assert found is not None
        assert [(s.shard, s.first, s.last) for s in found.segments()] == [(0, 0, 37), (1, 0, 7)]
        assert fleet.lost_rows == 30
