"""A run on a cluster that shares: what it borrows on which host, and whom it does not wait for."""

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fake_cluster import FakeCluster, FakeHost, played, replay_of
from rookery.cluster.cluster_group import ClusterActors
from rookery.cluster.messages import AskPeers
from rookery.cluster.remote_replay import RemoteReplay
from rookery.config.schema import Draw, Mode, Strategy
from rookery.replay.ring import _HEARTBEAT
from rookery.sharing import cluster_sharing as module
from rookery.sharing.cluster_sharing import ClusterPoolMember
from rookery.sharing.mixed_batches import BORROWED
from rookery.sharing.pool_member import BorrowedBatch
from rookery.sharing.registry import BufferState, Registry
from rookery.types import Batch

BATCH = 16
SIZES: dict[str, Any] = {"batch_size": BATCH, "learning_starts": BATCH}


@pytest.fixture
def fake_cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCluster]:
    with FakeCluster(monkeypatch) as made:
        yield made


class Run:
    """A run with a host worker on each node, whose shards have rows."""

    def __init__(self, fake_cluster: FakeCluster, folder: Path, rows: int = 40, **options: Any):
        sharing = {"pool": str(folder), "cross_sample_ratio": 0.25, **options.pop("sharing", {})}
        replay = SIZES | options.pop("replay", {})
        self.fake_cluster = fake_cluster
        self.cluster_actors: ClusterActors = fake_cluster.cluster_actors(
            sharing=sharing, replay=replay, **options
        )
        self.replay: RemoteReplay = replay_of(self.cluster_actors)
        self.pool_member = ClusterPoolMember(self.cluster_actors, np.random.default_rng(5))
        played(self.cluster_actors, rows)
        if self.cluster_actors.config.run.mode is Mode.ASYNC:
            self.cluster_actors.start()
        self.cluster_actors.settle()
        self.replay.insert()

    def sample(self, batch: int = BATCH) -> Batch:
        return self.pool_member.sample(self.replay, batch, 1.0)

    def meet(self) -> "Run":
        """Has it hear of the others: the first batches are its own."""
        for _ in range(2):
            self.fake_cluster.clock.now += module.POLL_S
            self.sample()
            self.cluster_actors.look()
        return self

    def fake_host(self, place: int) -> FakeHost:
        host: Any = self.cluster_actors.handles[place].host
        link = host._link
        assert isinstance(link, FakeHost)
        return link

    def asked_rows(self, place: int) -> list[AskPeers]:
        return [order for order in self.fake_host(place).orders(AskPeers) if order.rows]


def borrowed(batch: Batch) -> int:
    return int((batch.rows == BORROWED).sum())


def asynchronous(fake_cluster: FakeCluster, folder: Path, **options: Any) -> Run:
    return Run(fake_cluster, folder, mode=Mode.ASYNC, **options)


class TestBorrowing:
    @pytest.mark.parametrize("mode", [Mode.SYNC, Mode.ASYNC])
    def test_batches_hold_rows_of_another_run_from_every_host(self, fake_cluster, tmp_path, mode):
        Run(fake_cluster, tmp_path)
        own = Run(fake_cluster, tmp_path, mode=mode).meet()
        short = own.pool_member.stats()["sharing/short_rows"]
        batches = [own.sample() for _ in range(50)]

        assert [batch.rows.size for batch in batches] == [BATCH] * 50
        assert {borrowed(batch) for batch in batches} == {BATCH // 4}
        assert own.asked_rows(0)
        assert own.asked_rows(1)
        stats = own.pool_member.stats()
        assert stats["sharing/foreign_rows"] >= 50 * BATCH // 4
        assert stats["sharing/short_rows"] == short
        assert stats["sharing/peers"] == 2

    def test_a_run_alone_in_its_pool_samples_its_own_rows_and_counts_missing_ones(
        self, fake_cluster, tmp_path
    ):
        own = asynchronous(fake_cluster, tmp_path).meet()
        before = own.pool_member.stats()
        batches = [own.sample() for _ in range(20)]

        assert sum(map(borrowed, batches)) == 0
        after = own.pool_member.stats()
        assert after["sharing/local_rows"] - before["sharing/local_rows"] == 20 * BATCH
        assert after["sharing/short_rows"] - before["sharing/short_rows"] == 20 * BATCH // 4

    def test_the_share_is_kept_where_a_batch_cannot_hold_it(self, fake_cluster, tmp_path):
        """Stochastic rounding: 3.2 rows of 16, within 5 deviations of the mean of 100 batches."""
        Run(fake_cluster, tmp_path)
        own = asynchronous(fake_cluster, tmp_path, sharing={"cross_sample_ratio": 0.2}).meet()
        rows = [borrowed(own.sample()) for _ in range(100)]

        assert set(rows) == {3, 4}
        assert np.mean(rows) == pytest.approx(3.2, abs=5 * 0.4 / 10)

    def test_borrowed_rows_are_whole_and_have_the_mean_weight(self, fake_cluster, tmp_path):
        Run(fake_cluster, tmp_path)
        replay = {"sampling": Draw.PRIORITIZED, "alpha": 1.0}
        own = asynchronous(fake_cluster, tmp_path, replay=replay).meet()
        batch = own.sample()
        foreign = batch.rows == BORROWED

        assert batch.obs.shape == batch.next_obs.shape == (BATCH, 2)
        assert np.isfinite(batch.reward).all()
        assert batch.weight[foreign] == pytest.approx(batch.weight[~foreign].mean())

    def test_only_own_rows_are_reranked(self, fake_cluster, tmp_path):
        Run(fake_cluster, tmp_path)
        replay = {"sampling": Draw.PRIORITIZED, "alpha": 1.0}
        own = Run(fake_cluster, tmp_path, replay=replay).meet()
        batch = own.sample()
        own.pool_member.update_priorities(own.replay, batch.rows, np.full(BATCH, 9.0))
        own.cluster_actors.settle()

        leaves = [
            own.fake_host(place).host_worker.replay.sampler.state()["leaves"] for place in (0, 1)
        ]
        ranked = sum(int(np.isclose(leaf, 9.0, atol=1e-3).sum()) for leaf in leaves)
        assert ranked == np.unique(batch.rows[batch.rows != BORROWED]).size

    @pytest.mark.parametrize("draw", Draw)
    @pytest.mark.parametrize(
        "sharing", [{"cross_sample_ratio": 0.0}, {"strategy": Strategy.LOCAL_ONLY}]
    )
    def test_without_a_share_a_run_is_what_it_is_without_a_pool(
        self, fake_cluster, tmp_path, draw, sharing
    ):
        Run(fake_cluster, tmp_path)
        own = Run(fake_cluster, tmp_path, sharing=sharing, replay={"sampling": draw})
        alone = fake_cluster.cluster_actors(replay=SIZES | {"sampling": draw})
        played(alone, 40)
        plain = replay_of(alone)
        for _ in range(10):
            mine, theirs = own.sample(), plain.sample(BATCH, beta=1.0)
            assert all((a == b).all() for a, b in zip(mine[:7], theirs[:7], strict=True))
        assert not own.fake_host(0).orders(AskPeers)

    def test_rows_are_asked_for_ahead(self, fake_cluster, tmp_path):
        Run(fake_cluster, tmp_path)
        own = asynchronous(fake_cluster, tmp_path).meet()
        began = fake_cluster.clock.now
        for _ in range(module.PREFETCH_BATCHES):
            own.sample()

        assert fake_cluster.clock.now - began < 0.2
        assert {order.rows for order in own.asked_rows(0)} == {module.PREFETCH_BATCHES * BATCH // 8}
        assert len(own.asked_rows(0)) <= 4

    def test_every_row_in_stock_is_handed_out_once(self):
        stock, rng = module.PrefetchedRows(), np.random.default_rng(0)
        for first in (0, 10):
            numbers = np.arange(first, first + 10)
            stock.put(BorrowedBatch(Batch(*[numbers] * 7), numbers > 3), rng)
        taken = [part for rows in (3, 4, 8, 1, 9) for part in stock.take(rows)]

        assert sorted(np.concatenate([part.batch.reward for part in taken])) == list(range(20))
        assert all((part.foreign == (part.batch.reward > 3)).all() for part in taken)
        assert stock.size == 0

    def test_rows_that_came_while_another_host_was_waited_for_are_used(
        self, fake_cluster, tmp_path
    ):
        Run(fake_cluster, tmp_path)
        own = asynchronous(fake_cluster, tmp_path).meet()
        own.cluster_actors.settle()
        for host in own.pool_member._hosts.values():
            host.receive(np.random.default_rng(0))
            host.stock.take(host.stock.size)
            host.ask(0.25, 1.0)
            own.cluster_actors.settle()

            assert (host.stock.size, host.handle.lending) == (0, None)
            assert sum(part.foreign.size for part in host.take(2, np.random.default_rng(0))) == 2


class TestStrategies:
    def assigned(self, run: Run) -> dict[str, float]:
        """What all host workers together are told to borrow, in shares."""
        weights = Counter[str]()
        for place in (0, 1):
            weights.update(run.asked_rows(place)[-1].question.assigned.weights)
        return {name: weight / weights.total() for name, weight in weights.items()}

    def own(self, run: Run) -> list[str]:
        return [host.own for host in run.pool_member._hosts.values()]

    @pytest.mark.parametrize(
        ("strategy", "shares"),
        [
            (Strategy.SELF_HEAVY, [0.0, 0.0, 0.5, 0.5]),
            (Strategy.UNIFORM, [1 / 6, 1 / 6, 1 / 3, 1 / 3]),
            (Strategy.WEIGHTED, [0.4, 0.4, 0.1, 0.1]),
            (Strategy.NEWEST, [0.4, 0.4, 0.1, 0.1]),
        ],
    )
    def test_a_strategy_holds_for_all_hosts_together(
        self, fake_cluster, tmp_path, strategy, shares
    ):
        """Two shards of 80 rows are own, two of 20 are another run's."""
        Run(fake_cluster, tmp_path, rows=20)
        own = asynchronous(fake_cluster, tmp_path, rows=80, sharing={"strategy": strategy}).meet()
        own.sample()
        assigned = self.assigned(own)
        mine, theirs = self.own(own), [name for name in assigned if name not in self.own(own)]

        assert [assigned[name] for name in mine + theirs] == pytest.approx(shares)
        newest = {order.question.assigned.newest for order in own.asked_rows(0)}
        assert newest == ({0.2} if strategy is Strategy.NEWEST else {1.0})

    def test_own_rows_of_the_pool_are_not_counted_as_foreign(self, fake_cluster, tmp_path):
        sharing = {"strategy": Strategy.WEIGHTED, "cross_sample_ratio": 1.0}
        own = asynchronous(fake_cluster, tmp_path, sharing=sharing).meet()
        assert borrowed(own.sample()) == BATCH
        assert own.pool_member.stats()["sharing/foreign_rows"] == 0
        assert own.pool_member.stats()["sharing/peers"] == 0

    def test_buffers_that_two_workers_of_one_host_see_count_once(self, fake_cluster, tmp_path):
        fake_cluster.apart = False
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(fake_cluster, "up", fake_cluster.up[:1])
            Run(fake_cluster, tmp_path, shards=1, actors=1)
        own = asynchronous(fake_cluster, tmp_path, sharing={"strategy": Strategy.UNIFORM}).meet()
        own.sample()
        assigned = self.assigned(own)

        assert sorted(assigned.values()) == pytest.approx([0.25, 0.25, 0.5])
        assert own.pool_member.stats()["sharing/peers"] == 1

    def test_the_shards_of_a_run_do_not_borrow_from_each_other(self, fake_cluster, tmp_path):
        fake_cluster.apart = False
        own = asynchronous(fake_cluster, tmp_path).meet()

        assert own.pool_member.stats()["sharing/peers"] == 0
        assert not own.asked_rows(0)
        assert [
            len(own.fake_host(place).host_worker.peers.borrower.filled) for place in (0, 1)
        ] == [
            1,
            1,
        ]


class TestHosts:
    def test_a_silent_host_is_not_waited_for_twice_and_is_used_again(self, fake_cluster, tmp_path):
        Run(fake_cluster, tmp_path)
        own = asynchronous(fake_cluster, tmp_path).meet()
        own.sample()
        own.fake_host(1).silent = True
        began = fake_cluster.clock.now
        during = [own.sample() for _ in range(40)]
        waited_s = fake_cluster.clock.now - began
        own.fake_host(1).silent = False
        own.cluster_actors.look()
        asked_rows = len(own.asked_rows(1))
        after = [own.sample() for _ in range(40)]

        assert waited_s < 2 * own.cluster_actors.config.cluster.absent_s
        assert [batch.rows.size for batch in during] == [BATCH] * 40
        assert sum(map(borrowed, during[-20:])) == 20 * BATCH // 4  # the other host makes up
        assert sum(map(borrowed, after)) == 40 * BATCH // 4
        assert len(own.asked_rows(1)) > asked_rows

    def test_what_arrives_late_is_used_once(self, fake_cluster, tmp_path):
        """Every borrowed row that a host worker lent is handed out once or still there."""
        Run(fake_cluster, tmp_path)
        own = asynchronous(fake_cluster, tmp_path).meet()
        for place in (0, 1, 0, 1):
            own.fake_host(place).silent = True
            for _ in range(10):
                own.sample()
            own.fake_host(place).silent = False
            own.cluster_actors.look()
        own.cluster_actors.settle()
        own.pool_member._receive()

        borrowed = sum(
            own.fake_host(place).host_worker.peers.borrower.counts.foreign for place in (0, 1)
        )
        left = sum(host.stock.size for host in own.pool_member._hosts.values())
        assert borrowed == own.pool_member.stats()["sharing/foreign_rows"] + left

    def test_a_host_worker_that_replaces_a_lost_one_lends_and_borrows(self, fake_cluster, tmp_path):
        other = Run(fake_cluster, tmp_path)
        own = asynchronous(fake_cluster, tmp_path).meet()
        fake_cluster.lose(1)
        for _ in range(20):
            assert own.sample().rows.size == BATCH
        fake_cluster.clock.now += 10.0
        own.cluster_actors.look()
        own.fake_host(1).hands.write(0, 30)
        own.cluster_actors.settle()
        own.meet().sample()

        assert own.asked_rows(1)
        assert other.meet().pool_member.stats()["sharing/peers"] >= 2

    def test_a_buffer_that_goes_is_not_borrowed_from_any_more(self, fake_cluster, tmp_path):
        other = Run(fake_cluster, tmp_path)
        own = asynchronous(fake_cluster, tmp_path).meet()
        for place in (0, 1):
            other.fake_host(place).server._close()
        for _ in range(6):
            own.meet()

        assert own.pool_member.stats()["sharing/peers"] == 0
        assert borrowed(own.sample()) == 0
        assert own.sample().rows.size == BATCH

    def test_a_pool_that_is_removed_on_one_host_is_said_and_done_without(
        self, fake_cluster, tmp_path
    ):
        Run(fake_cluster, tmp_path)
        own = asynchronous(fake_cluster, tmp_path).meet()
        shutil.rmtree(tmp_path / "host-1")
        own.meet().meet()
        asked_rows = len(own.asked_rows(1))
        batches = [own.sample() for _ in range(40)]
        own.cluster_actors.allow(True, [0.5, 0.5])
        own.cluster_actors.settle()
        own.cluster_actors.look()

        assert {borrowed(batch) for batch in batches} == {BATCH // 4}
        assert len(own.asked_rows(1)) == asked_rows
        said = [line for line in own.cluster_actors.warnings() if "is gone" in line]
        assert len(said) == 1
        assert said[0].startswith("host worker 1 on 10.0.0.1: the pool in ")

    def test_a_pool_without_usable_rows_delays_no_run(self, fake_cluster, tmp_path):
        Run(fake_cluster, tmp_path, rows=1)  # no row of it is closed
        own = asynchronous(fake_cluster, tmp_path).meet()
        asked_rows, began = len(own.asked_rows(0)), fake_cluster.clock.now
        for _ in range(50):
            assert borrowed(own.sample()) == 0

        assert fake_cluster.clock.now - began < 1.0
        assert len(own.asked_rows(0)) - asked_rows <= 2

    def test_a_run_that_leaves_removes_its_buffers(self, fake_cluster, tmp_path):
        own = Run(fake_cluster, tmp_path)
        there = [(tmp_path / f"host-{n}").exists() for n in (0, 1)]
        own.cluster_actors.close()

        assert there == [True, True]
        assert [(tmp_path / f"host-{n}").exists() for n in (0, 1)] == [False, False]

    def test_files_of_a_killed_host_worker_on_the_learners_host_are_removed(
        self, fake_cluster, tmp_path
    ):
        own = Run(fake_cluster, tmp_path)
        left = tmp_path / "run-0.json"
        left.touch(0o600)
        left.write_text(json.dumps({"owner": [1 << 30, 1, "00" * 16]}))
        own.cluster_actors.close()

        assert not left.exists()

    def test_rows_are_a_sign_of_life_in_the_pool(self, fake_cluster, tmp_path):
        own = Run(fake_cluster, tmp_path)
        rings = [own.fake_host(place).host_worker.replay.ring for place in (0, 1)]
        before = [int(ring.words[_HEARTBEAT]) for ring in rings]
        played(own.cluster_actors, 5)

        assert all(int(r.words[_HEARTBEAT]) > old for r, old in zip(rings, before, strict=True))

    def test_the_same_run_twice_is_renamed_and_said_with_its_host(self, fake_cluster, tmp_path):
        Run(fake_cluster, tmp_path)
        twin = Run(fake_cluster, tmp_path)
        registry = Registry(tmp_path / "host-1")
        registry.start()
        listed = registry.list()
        registry.stop()

        assert len({one.buffer_id for one in listed}) == 2
        assert {one.run_id for one in listed} == {"run.1"}
        assert {one.state for one in listed} == {BufferState.LENDING}
        said = [line for line in twin.cluster_actors.warnings() if "in the pool already" in line]
        assert [line.partition(":")[0] for line in said] == [
            "host worker 0 on 10.0.0.0",
            "host worker 1 on 10.0.0.1",
        ]

    def test_one_that_was_given_up_takes_in_no_more_than_it_was_allowed(
        self, fake_cluster, tmp_path
    ):
        """So it falls silent in the pool, if it is not ended before."""
        own = asynchronous(fake_cluster, tmp_path)
        own.cluster_actors.allow(True, [0.5, 0.5])
        own.cluster_actors.look()
        old = own.fake_host(1)
        fake_cluster.lose(1)
        own.cluster_actors.look()
        for _ in range(40):
            if old.hands.allowed[-1][0]:
                old.hands.write(0, 500)
            old.host_worker.work()

        assert old.hands.allowed[-1][0] is False
        assert own.fake_host(1) is not old
