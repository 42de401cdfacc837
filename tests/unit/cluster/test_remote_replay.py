"""Remote replay without a cluster: which shards are sampled, which answers count, what is saved."""

import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fake_cluster import FakeActorGroup, FakeCluster, played, replay_of
from rookery.checkpoints import checkpoint
from rookery.checkpoints.checkpoint import Content, read_segments
from rookery.checkpoints.saver import Saver
from rookery.cluster import remote_replay as module
from rookery.cluster.cluster_group import WAIT_S, ClusterActors
from rookery.cluster.messages import CopyRows, LookUpRows, PublishWeights, UpdatePriorities
from rookery.cluster.remote_replay import RemoteReplay, recall
from rookery.config.schema import Draw, Mode
from rookery.errors import EmptyReplayError
from rookery.replay.ring import row_bytes, schema_of
from rookery.replay.saved_rows import ReplayState, RowBlock, SavedReplay
from rookery.replay.shards import TAG_BITS
from rookery.training.run_state import flush_rows
from rookery.types import ArrayBatch
from sample_experience import VECTOR

PRIORITIZED = {"sampling": Draw.PRIORITIZED, "alpha": 1.0}
NUMBER = (1 << TAG_BITS) - 1
PATIENCE_S = 30.0


@pytest.fixture
def fake_cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCluster]:
    with FakeCluster(monkeypatch) as made:
        yield made


def self_driven(
    fake_cluster: FakeCluster, rows: int = 40, **options: Any
) -> tuple[ClusterActors, RemoteReplay]:
    """Returns a cluster group in async mode whose shards have so many rows each."""
    cluster_actors = fake_cluster.cluster_actors(mode=Mode.ASYNC, **options)
    played(cluster_actors, rows)
    cluster_actors.start()
    cluster_actors.settle()
    replay = replay_of(cluster_actors)
    replay.insert()
    return cluster_actors, replay


def tags(rows: Any) -> set[int]:
    return set((rows >> TAG_BITS).tolist())


def true_rows(fake_cluster: FakeCluster, cluster_actors: ClusterActors, rows: Any) -> bool:
    """Is every row one that its shard would hand out?"""
    return all(
        fake_cluster.fake_host(handle.place)
        .host_worker.replay.chains.closed[(rows[own] & NUMBER) % 512]
        .all()
        for handle in cluster_actors.handles
        for own in [rows >> TAG_BITS == handle.tag]
    )


class TestDrawing:
    def test_in_sync_a_batch_is_asked_for_when_everything_else_was_done(self, fake_cluster):
        cluster_actors = fake_cluster.cluster_actors(replay=PRIORITIZED)
        played(cluster_actors, 40)
        replay = replay_of(cluster_actors)
        batch = replay.sample(8)
        replay.update_priorities(batch.rows, np.full(8, 50.0))
        cluster_actors.spread(2, {"w": np.ones(2, dtype=np.float32)})
        replay.sample(8)

        for place in tags(batch.rows):
            kinds = [type(order) for order in fake_cluster.fake_host(place).sent]
            assert kinds[kinds.index(LookUpRows) :] == [
                LookUpRows,
                UpdatePriorities,
                PublishWeights,
                LookUpRows,
            ]
        shards = [
            fake_cluster.fake_host(place).host_worker.replay.sampler.spread for place in (0, 1)
        ]
        assert [handle.status.spread for handle in cluster_actors.handles] == shards

    def test_in_async_batches_are_asked_for_ahead_several_in_one_message(self, fake_cluster):
        _, replay = self_driven(fake_cluster)
        for _ in range(module.PACK):
            assert replay.sample(8).rows.size == 8

        looks = fake_cluster.fake_host(0).orders(LookUpRows)
        assert len(looks) == module.AHEAD
        assert {len(look.questions) for look in looks} == {module.PACK}

    def test_every_answer_is_that_of_its_own_question(self, fake_cluster):
        """A batch of the rows that it was asked for has weights of exactly these rows."""
        cluster_actors, replay = self_driven(fake_cluster, replay=PRIORITIZED)
        for handle in cluster_actors.handles:
            pool = fake_cluster.fake_host(handle.place).host_worker.replay
            pool.update_priorities(np.arange(40), np.arange(1.0, 41.0) * (1 + handle.place))
            handle.status = fake_cluster.fake_host(handle.place).host_worker.replay.status
        for _ in range(3 * module.PACK):
            batch = replay.sample(8, beta=1.0)
            priority = ((batch.rows & NUMBER) + 1.0) * (1 + (batch.rows >> TAG_BITS))
            assert batch.weight == pytest.approx(priority.min() / priority, rel=1e-4)
            assert true_rows(fake_cluster, cluster_actors, batch.rows)

    def test_a_batch_that_has_to_ask_again_leaves_those_on_their_way_alone(self, fake_cluster):
        """Uniform draws guess: of shards with few closed rows, some batches ask twice."""
        cluster_actors, replay = self_driven(fake_cluster, rows=8)
        batches = [replay.sample(8) for _ in range(12 * module.PACK)]

        again = [
            look
            for look in fake_cluster.fake_host(0).orders(LookUpRows)
            if len(look.questions) < module.PACK
        ]
        assert again, "no request was repeated"
        assert all(batch.rows.size == 8 for batch in batches)
        assert all(true_rows(fake_cluster, cluster_actors, batch.rows) for batch in batches)

    def test_a_silent_host_is_not_sampled_and_others_replace_its_rows(self, fake_cluster):
        cluster_actors, replay = self_driven(fake_cluster)
        assert tags(replay.sample(64).rows) == {0, 1}
        fake_cluster.fake_host(1).silent = True
        late = [replay.sample(64).rows for _ in range(4 * module.PACK)]

        assert tags(late[-1]) == {0}
        assert {rows.size for rows in late} == {64}
        assert cluster_actors.handles[1].absent
        assert cluster_actors.metrics()["cluster/hosts"] == 1.0

    def test_late_answers_are_dropped_and_the_host_is_sampled_again(self, fake_cluster):
        cluster_actors, replay = self_driven(fake_cluster)
        fake_cluster.fake_host(1).silent = True
        for _ in range(4 * module.PACK):
            replay.sample(16)
        late = cluster_actors.handles[1].owes
        fake_cluster.fake_host(1).silent = False
        cluster_actors.look()

        assert late
        assert not cluster_actors.handles[1].owes
        drawn = [replay.sample(16).rows for _ in range(4 * module.PACK)]
        assert tags(drawn[-1]) == {0, 1}
        assert all(true_rows(fake_cluster, cluster_actors, rows) for rows in drawn)

    def test_open_requests_to_a_lost_host_are_replaced_by_other_hosts(self, fake_cluster):
        _, replay = self_driven(fake_cluster)
        replay.sample(16)
        fake_cluster.lose(1)
        drawn = [replay.sample(16).rows for _ in range(3 * module.PACK)]

        assert {rows.size for rows in drawn} == {16}
        assert tags(drawn[-1]) == {0}

    def test_td_errors_for_a_lost_host_do_not_reach_its_replacement(self, fake_cluster):
        cluster_actors = fake_cluster.cluster_actors(replay=PRIORITIZED)
        played(cluster_actors, 40)
        replay = replay_of(cluster_actors)
        batch = replay.sample(16)
        fake_cluster.lose(1)
        played(cluster_actors, 40)
        replay.update_priorities(batch.rows, np.full(16, 1_000.0))
        cluster_actors.settle()

        assert fake_cluster.fake_host(0).orders(UpdatePriorities)
        assert not fake_cluster.fake_host(1).orders(UpdatePriorities)

    def test_in_sync_a_slow_host_is_waited_for(self, fake_cluster):
        cluster_actors = fake_cluster.cluster_actors(cluster={"absent_s": 1.0, "lost_s": 1_000.0})
        played(cluster_actors, 40)
        alone, replay = (
            replay_of(cluster_actors).sample(32).rows.tolist(),
            replay_of(cluster_actors),
        )
        wait, began = fake_cluster.wait, fake_cluster.clock.now

        def late(hosts: Any, timeout_s: float) -> None:
            wait(hosts, timeout_s)
            fake_cluster.fake_host(1).silent = fake_cluster.clock.now < began + 20.0

        fake_cluster.wait = late  # type: ignore[method-assign]
        fake_cluster.fake_host(1).silent = True

        assert replay.sample(32).rows.tolist() == alone

    def test_in_sync_a_run_whose_only_shard_was_lost_plays_until_there_are_rows(self, fake_cluster):
        cluster_actors = fake_cluster.cluster_actors(shards=1, actors=1)
        played(cluster_actors, 40)
        fake_cluster.lose(0)
        replay = replay_of(cluster_actors)

        assert replay.sample(8).rows.size == 8
        assert tags(replay.sample(8).rows) == {cluster_actors.handles[0].tag}

    def test_episodes_played_until_there_are_rows_are_counted_with_the_next_ones(
        self, fake_cluster
    ):
        cluster_actors = fake_cluster.cluster_actors(shards=1, actors=1)
        fake_cluster.lose(0)
        replay_of(cluster_actors).sample(8)
        reports = played(cluster_actors, 5)

        assert [report.env_steps for report in reports] == [8, 5]
        assert [report.env_steps for report in played(cluster_actors, 5)] == [5]

    def test_a_batch_may_be_asked_for_any_number_of_times(self, fake_cluster, monkeypatch):
        _, replay = self_driven(fake_cluster)
        tries = iter(range(2 * sys.getrecursionlimit()))
        draw = replay._draw
        monkeypatch.setattr(
            replay, "_draw", lambda *given: draw(*given) if next(tries, None) is None else None
        )

        assert replay.sample(8).rows.size == 8

    def test_hosts_may_be_lost_any_number_of_times_while_a_batch_is_sampled(
        self, fake_cluster, monkeypatch
    ):
        _, replay = self_driven(fake_cluster)
        tries, draw, lost = iter(range(2 * sys.getrecursionlimit())), replay._draw, [False]

        def losing(*given: Any) -> ArrayBatch | None:
            lost[0] = next(tries, None) is not None
            if lost[0]:
                raise EmptyReplayError("all hosts were lost")
            return draw(*given)

        def drawable(_: RemoteReplay) -> bool:
            found, lost[0] = not lost[0], False  # they are back at the next look
            return found

        monkeypatch.setattr(replay, "_draw", losing)
        monkeypatch.setattr(RemoteReplay, "_drawable", property(drawable))

        assert replay.sample(8).rows.size == 8

    def test_the_only_host_is_waited_for_when_it_is_silent(self, fake_cluster):
        _, replay = self_driven(fake_cluster, shards=1, actors=1)
        replay.sample(8)
        fake_cluster.fake_host(0).silent = True
        wait, began = fake_cluster.wait, fake_cluster.clock.now

        def late(hosts: Any, timeout_s: float) -> None:
            wait(hosts, timeout_s)
            fake_cluster.fake_host(0).silent = fake_cluster.clock.now < began + 5.0

        fake_cluster.wait = late  # type: ignore[method-assign]

        assert [replay.sample(8).rows.size for _ in range(40)] == [8] * 40
        assert fake_cluster.starts(0) == 1

    def test_where_no_host_can_be_sampled_all_actors_may_play(self, fake_cluster):
        cluster_actors, replay = self_driven(fake_cluster)
        for place in (0, 1):
            fake_cluster.lose(place)
        wait = fake_cluster.wait

        def refill(hosts: Any, timeout_s: float) -> None:
            wait(hosts, timeout_s)
            if fake_cluster.starts(0) == 2 and fake_cluster.fake_host(0).server._role is not None:
                fake_cluster.fake_host(0).hands.write(0, 8)

        fake_cluster.wait = refill  # type: ignore[method-assign]
        cluster_actors.allow(False, [0.5, 0.5])

        assert replay.sample(8).rows.size == 8
        assert fake_cluster.fake_host(0).hands.allowed[-1][0]


class TestDrawingFewer:
    """Where runs share, a part of a batch is own rows."""

    def test_rows_are_left_out_at_random(self, fake_cluster):
        """Strata are in the order of their rows: the first ones alone would be the oldest rows."""
        replay = PRIORITIZED | {"batch_size": 16, "learning_starts": 16}
        _, own = self_driven(fake_cluster, rows=200, replay=replay)
        rows = np.concatenate([own.sample(4).rows for _ in range(60)])

        assert rows.size == 240
        assert tags(rows) == {0, 1}
        assert 0.35 < ((rows & NUMBER) >= 100).mean() < 0.65  # 4.6 deviations of 240 rows

    def test_the_largest_weight_is_1(self, fake_cluster):
        cluster_actors, own = self_driven(fake_cluster, replay=PRIORITIZED)
        for handle in cluster_actors.handles:
            host_worker = fake_cluster.fake_host(handle.place).host_worker
            host_worker.replay.update_priorities(np.arange(40), np.arange(1.0, 41.0))
            handle.status = host_worker.replay.status

        assert {float(own.sample(3, beta=1.0).weight.max()) for _ in range(20)} == {1.0}


def keys(fake_cluster: FakeCluster, cluster_actors: ClusterActors) -> list[tuple[int, ...]]:
    """What is unique about every row there is, sorted."""
    found = list[tuple[int, ...]]()
    for stretch in cluster_actors.ask([CopyRows(0) for _ in cluster_actors.handles]):
        assert isinstance(stretch, RowBlock)
        rows = stretch.columns
        names = ("actor", "incarnation", "env", "episode", "t")
        found += zip(*(rows[name].tolist() for name in names), strict=True)
    return sorted(found)


class TestRowsBetweenCheckpoints:
    """In async mode the learner copies many unsaved rows to the disk before a checkpoint is due."""

    def counts(self, blocks: Any) -> list[int | None]:
        return [None if block is None else len(block.columns["end"]) for block in blocks]

    def test_a_silent_host_does_not_stop_the_learner(self, fake_cluster, tmp_path, monkeypatch):
        monkeypatch.setattr("rookery.training.run_state.SEGMENT_BYTES", 1)
        cluster_actors, replay = self_driven(fake_cluster)
        run: Any = SimpleNamespace(config=cluster_actors.config, spec=VECTOR, replay=replay)
        fake_cluster.fake_host(1).silent = True
        began, saver = fake_cluster.clock.now, Saver(tmp_path, keep=3)
        flush_rows(run, saver)
        saver.close()

        assert dict(saver.saved_rows) == {0: 40, 1: 0}
        limit_s = cluster_actors.config.cluster.absent_s + 2 * WAIT_S
        assert fake_cluster.clock.now - began < limit_s

    def test_an_absent_host_is_not_asked(self, fake_cluster):
        cluster_actors, replay = self_driven(fake_cluster)
        fake_cluster.fake_host(1).silent = True
        cluster_actors.allow(True, [0.5, 0.5])
        fake_cluster.clock.now += 2 * cluster_actors.config.cluster.absent_s
        cluster_actors.look()

        assert self.counts(replay.unsaved([0, 0])) == [40, None]
        assert fake_cluster.fake_host(1).orders(CopyRows) == []

    def test_a_host_that_falls_silent_meanwhile_is_lost_after_lost_s(self, fake_cluster):
        cluster_actors, replay = self_driven(fake_cluster)
        fake_cluster.fake_host(1).silent = True
        replay.unsaved([0, 0])
        fake_cluster.clock.now += cluster_actors.config.cluster.lost_s
        cluster_actors.look()

        assert fake_cluster.starts(1) == 2
        assert fake_cluster.fake_host(1).orders(CopyRows) == []

    def test_a_late_copy_is_returned_once_by_the_next_call(self, fake_cluster):
        cluster_actors, replay = self_driven(fake_cluster)
        fake_cluster.fake_host(1).silent = True
        replay.unsaved([0, 0])
        fake_cluster.fake_host(1).silent = False
        cluster_actors.look()

        assert self.counts(replay.unsaved([40, 0])) == [0, 40]
        assert self.counts(replay.unsaved([40, 40])) == [0, 0]
        assert len(fake_cluster.fake_host(1).orders(CopyRows)) == 2

    def test_a_late_copy_of_rows_that_a_checkpoint_has_saved_is_dropped(self, fake_cluster):
        _, replay = self_driven(fake_cluster)
        fake_cluster.fake_host(1).silent = True
        replay.unsaved([0, 0])
        fake_cluster.fake_host(1).silent = False
        replay.save([40, 0])

        assert self.counts(replay.unsaved([40, 40])) == [0, None]

    def test_a_copy_of_a_lost_shard_is_dropped(self, fake_cluster):
        cluster_actors, replay = self_driven(fake_cluster)
        fake_cluster.fake_host(1).silent = True
        replay.unsaved([0, 0])
        fake_cluster.lose(1)
        cluster_actors.look()
        cluster_actors.look()
        cluster_actors.settle()

        assert self.counts(replay.unsaved([40, 0])) == [0, 0]

    def test_one_copy_has_about_as_many_bytes_as_a_segment(self, fake_cluster, monkeypatch):
        monkeypatch.setattr(module, "SEGMENT_BYTES", 25 * row_bytes(schema_of(VECTOR)))
        _, replay = self_driven(fake_cluster)

        assert self.counts(replay.unsaved([0, 0])) == [25, 25]
        assert self.counts(replay.unsaved([25, 25])) == [15, 15]

    def test_in_sync_a_slow_host_is_waited_for(self, fake_cluster):
        cluster_actors = fake_cluster.cluster_actors(cluster={"absent_s": 1.0, "lost_s": 1_000.0})
        played(cluster_actors, 40)
        wait, began = fake_cluster.wait, fake_cluster.clock.now

        def late(hosts: Any, timeout_s: float) -> None:
            wait(hosts, timeout_s)
            fake_cluster.fake_host(1).silent = fake_cluster.clock.now < began + 20.0

        fake_cluster.wait = late  # type: ignore[method-assign]
        fake_cluster.fake_host(1).silent = True

        assert self.counts(replay_of(cluster_actors).unsaved([0, 0])) == [40, 40]


class TestSaving:
    @pytest.mark.parametrize("shards", [1, 2, 4])
    def test_another_number_of_shards_takes_up_every_row_once(self, fake_cluster, shards):
        cluster_actors = fake_cluster.cluster_actors(actors=4, shards=2, replay={"capacity": 2_048})
        played(cluster_actors, 30)
        before, kept = keys(fake_cluster, cluster_actors), replay_of(cluster_actors).save([0, 0])
        again = fake_cluster.cluster_actors(
            actors=4, shards=shards, replay={"capacity": 1_024 * shards}
        )
        replay = replay_of(again)
        replay.resume(
            SavedReplay(kept.numbers, kept.arrays, [[stretch] for stretch in kept.unsaved])
        )

        assert keys(fake_cluster, again) == before
        assert len(set(before)) == len(before) == 120
        assert replay.sample(8).rows.size == 8

    def test_the_same_shards_draw_on_as_if_nothing_had_happened(self, fake_cluster):
        cluster_actors = fake_cluster.cluster_actors(replay=PRIORITIZED)
        played(cluster_actors, 40)
        replay = replay_of(cluster_actors)
        replay.update_priorities(replay.sample(8).rows, np.arange(8.0))
        kept = replay.save([0, 0])
        another = replay_of(fake_cluster.cluster_actors(replay=PRIORITIZED))
        another.resume(
            SavedReplay(kept.numbers, kept.arrays, [[stretch] for stretch in kept.unsaved])
        )

        for _ in range(3):
            one, other = replay.sample(8), another.sample(8)
            assert (one.rows & NUMBER).tolist() == (other.rows & NUMBER).tolist()
            assert one.weight.tolist() == other.weight.tolist()


class TestShardRecovery:
    """A lost shard, and checkpoints of the run before and after."""

    @pytest.fixture
    def saver(self, tmp_path: Path) -> Iterator[Saver]:
        saver = Saver(tmp_path, keep=3)
        yield saver
        saver.close()

    def saved(self, saver: Saver, replay: RemoteReplay, mark: int) -> ReplayState:
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
            state={"replay": kept.numbers},
            arrays={f"replay:{name}": array for name, array in kept.arrays.items()},
        )
        saver.save(content, oldest=[e.oldest for e in replay.extents], done=lambda folder: None)
        saver.flush(PATIENCE_S)
        assert saver.take_failures() == []
        return kept

    def test_what_was_written_after_the_checkpoint_is_forgotten(
        self, fake_cluster, saver, tmp_path
    ):
        cluster_actors = fake_cluster.cluster_actors()
        cluster_actors.recall = partial(recall, saver)
        replay = replay_of(cluster_actors)
        played(cluster_actors, 30)
        self.saved(saver, replay, 60)
        played(cluster_actors, 20)
        (_, stretch) = replay.unsaved([saver.saved_rows[0], saver.saved_rows[1]])
        saver.rows(stretch.first, stretch.columns, 1)  # as a run does with many unsaved rows
        fake_cluster.lose(1)
        played(cluster_actors, 7)
        self.saved(saver, replay, 120)

        search = checkpoint.newest(tmp_path / "checkpoints")
        assert search.broken == []
        assert search.found is not None
        segments = search.found.segments()
        assert [(s.first, s.last) for s in segments if s.shard == 1] == [(0, 30), (30, 37)]
        assert cluster_actors.lost_rows == 20
        before = keys(fake_cluster, cluster_actors)
        again = fake_cluster.cluster_actors()
        state = search.found.state()["replay"]
        arrays = {name.partition(":")[2]: a for name, a in search.found.arrays().items()}
        replay_of(again).resume(
            SavedReplay(state, arrays, [read_segments(segments, n) for n in (0, 1)])
        )
        assert keys(fake_cluster, again) == before

    def test_a_checkpoint_in_which_a_shard_is_lost_has_every_row_that_it_counts(
        self, fake_cluster, saver, tmp_path, monkeypatch
    ):
        """The next host worker plays before it saves: its rows follow those that were restored."""
        cluster_actors, replay = self_driven(fake_cluster, rows=30)
        cluster_actors.recall = partial(recall, saver)
        self.saved(saver, replay, 60)
        fake_cluster.fake_host(1).hands.write(0, 20)
        cluster_actors.settle()
        (_, block) = replay.unsaved([30, 30])
        saver.rows(block.first, block.columns, 1)
        wait = fake_cluster.wait

        def lose_once(hosts: Any, timeout_s: float) -> None:
            wait(hosts, timeout_s)
            if fake_cluster.starts(1) == 1:
                fake_cluster.lose(1)

        monkeypatch.setattr(FakeActorGroup, "start", lambda group: group.write(0, 7))
        fake_cluster.wait = lose_once  # type: ignore[method-assign]
        fake_cluster.fake_host(1).silent = True
        self.saved(saver, replay, 120)

        found = checkpoint.newest(tmp_path / "checkpoints").found
        assert found is not None
        assert found.state()["replay"]["shards"][1]["committed"] == 37
        assert [(s.first, s.last) for s in found.segments() if s.shard == 1] == [(0, 30), (30, 37)]

    def test_without_a_checkpoint_nothing_is_given_back(self, fake_cluster, saver, tmp_path):
        cluster_actors = fake_cluster.cluster_actors()
        cluster_actors.recall = partial(recall, saver)
        replay = replay_of(cluster_actors)
        played(cluster_actors, 30)
        fake_cluster.lose(1)
        played(cluster_actors, 7)
        self.saved(saver, replay, 60)

        found = checkpoint.newest(tmp_path / "checkpoints").found
        assert found is not None
        assert [(s.shard, s.first, s.last) for s in found.segments()] == [(0, 0, 37), (1, 0, 7)]
        assert cluster_actors.lost_rows == 30
