"""A run on a cluster that shares: what it borrows on which host, and whom it does not wait for."""

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harbour import Harbour, Pier, depot, played
from rookery.config.schema import Draw, Mode, Strategy
from rookery.loops import envoy as module
from rookery.loops.depot import Depot
from rookery.loops.envoy import Envoy
from rookery.loops.fleet import Fleet
from rookery.loops.station import Borrow
from rookery.replay.ring import _HEARTBEAT
from rookery.sharing.blend import NOBODYS
from rookery.sharing.member import Lent
from rookery.sharing.registry import Registry, Standing
from rookery.types import Batch

BATCH = 16
SIZES: dict[str, Any] = {"batch": BATCH, "warmup": BATCH}


@pytest.fixture
def harbour(monkeypatch: pytest.MonkeyPatch) -> Iterator[Harbour]:
    with Harbour(monkeypatch) as made:
        yield made


class Run:
    """A run with a station on each node, whose shards have rows."""

    def __init__(self, harbour: Harbour, folder: Path, rows: int = 40, **options: Any):
        sharing = {"pool": str(folder), "cross_sample_ratio": 0.25, **options.pop("sharing", {})}
        replay = SIZES | options.pop("replay", {})
        self.harbour = harbour
        self.fleet: Fleet = harbour.fleet(sharing=sharing, replay=replay, **options)
        self.replay: Depot = depot(self.fleet)
        self.envoy = Envoy(self.fleet, np.random.default_rng(5))
        played(self.fleet, rows)
        if self.fleet.config.run.mode is Mode.ASYNC:
            self.fleet.roam()
        self.fleet.settle()
        self.replay.drain()

    def draw(self, batch: int = BATCH) -> Batch:
        return self.envoy.draw(self.replay, batch, 1.0)

    def meet(self) -> "Run":
        """Has it hear of the others: the first batches are its own."""
        for _ in range(2):
            self.harbour.clock.now += module.LOOK_S
            self.draw()
            self.fleet.look()
        return self

    def pier(self, place: int) -> Pier:
        host: Any = self.fleet.berths[place].host
        link = host._link
        assert isinstance(link, Pier)
        return link

    def asked(self, place: int) -> list[Borrow]:
        return [order for order in self.pier(place).orders(Borrow) if order.rows]


def borrowed(batch: Batch) -> int:
    return int((batch.rows == NOBODYS).sum())


def asynchronous(harbour: Harbour, folder: Path, **options: Any) -> Run:
    return Run(harbour, folder, mode=Mode.ASYNC, **options)


class TestBorrowing:
    @pytest.mark.parametrize("mode", [Mode.SYNC, Mode.ASYNC])
    def test_batches_hold_rows_of_another_run_from_every_host(self, harbour, tmp_path, mode):
        Run(harbour, tmp_path)
        own = Run(harbour, tmp_path, mode=mode).meet()
        short = own.envoy.stats()["sharing/short_rows"]
        batches = [own.draw() for _ in range(50)]

        assert [batch.rows.size for batch in batches] == [BATCH] * 50
        assert {borrowed(batch) for batch in batches} == {BATCH // 4}
        assert own.asked(0)
        assert own.asked(1)
        stats = own.envoy.stats()
        assert stats["sharing/foreign_rows"] >= 50 * BATCH // 4
        assert stats["sharing/short_rows"] == short
        assert stats["sharing/peers"] == 2

    def test_whoever_is_alone_draws_its_own_rows_and_counts_what_is_missing(
        self, harbour, tmp_path
    ):
        own = asynchronous(harbour, tmp_path).meet()
        before = own.envoy.stats()
        batches = [own.draw() for _ in range(20)]

        assert sum(map(borrowed, batches)) == 0
        after = own.envoy.stats()
        assert after["sharing/local_rows"] - before["sharing/local_rows"] == 20 * BATCH
        assert after["sharing/short_rows"] - before["sharing/short_rows"] == 20 * BATCH // 4

    def test_the_share_is_kept_where_a_batch_cannot_hold_it(self, harbour, tmp_path):
        """Stochastic rounding: 3.2 rows of 16, within 5 deviations of the mean of 100 batches."""
        Run(harbour, tmp_path)
        own = asynchronous(harbour, tmp_path, sharing={"cross_sample_ratio": 0.2}).meet()
        rows = [borrowed(own.draw()) for _ in range(100)]

        assert set(rows) == {3, 4}
        assert np.mean(rows) == pytest.approx(3.2, abs=5 * 0.4 / 10)

    def test_borrowed_rows_are_whole_and_have_the_mean_weight(self, harbour, tmp_path):
        Run(harbour, tmp_path)
        replay = {"draw": Draw.PRIORITIZED, "alpha": 1.0}
        own = asynchronous(harbour, tmp_path, replay=replay).meet()
        batch = own.draw()
        foreign = batch.rows == NOBODYS

        assert batch.obs.shape == batch.next_obs.shape == (BATCH, 2)
        assert np.isfinite(batch.reward).all()
        assert batch.weight[foreign] == pytest.approx(batch.weight[~foreign].mean())

    def test_only_own_rows_are_reranked(self, harbour, tmp_path):
        Run(harbour, tmp_path)
        replay = {"draw": Draw.PRIORITIZED, "alpha": 1.0}
        own = Run(harbour, tmp_path, replay=replay).meet()
        batch = own.draw()
        own.envoy.rerank(own.replay, batch.rows, np.full(BATCH, 9.0))
        own.fleet.settle()

        leaves = [own.pier(place).station.pool.sampler.state()["leaves"] for place in (0, 1)]
        ranked = sum(int(np.isclose(leaf, 9.0, atol=1e-3).sum()) for leaf in leaves)
        assert ranked == np.unique(batch.rows[batch.rows != NOBODYS]).size

    @pytest.mark.parametrize("draw", Draw)
    @pytest.mark.parametrize(
        "sharing", [{"cross_sample_ratio": 0.0}, {"strategy": Strategy.LOCAL_ONLY}]
    )
    def test_without_a_share_a_run_is_what_it_is_without_a_pool(
        self, harbour, tmp_path, draw, sharing
    ):
        Run(harbour, tmp_path)
        own = Run(harbour, tmp_path, sharing=sharing, replay={"draw": draw})
        alone = harbour.fleet(replay=SIZES | {"draw": draw})
        played(alone, 40)
        plain = depot(alone)
        for _ in range(10):
            mine, theirs = own.draw(), plain.draw(BATCH, beta=1.0)
            assert all((a == b).all() for a, b in zip(mine[:7], theirs[:7], strict=True))
        assert not own.pier(0).orders(Borrow)

    def test_rows_are_asked_for_ahead(self, harbour, tmp_path):
        Run(harbour, tmp_path)
        own = asynchronous(harbour, tmp_path).meet()
        began = harbour.clock.now
        for _ in range(module.PACK):
            own.draw()

        assert harbour.clock.now - began < 0.2
        assert {order.rows for order in own.asked(0)} == {module.PACK * BATCH // 8}
        assert len(own.asked(0)) <= 4

    def test_every_row_in_stock_is_handed_out_once(self):
        stock, rng = module.Stock(), np.random.default_rng(0)
        for first in (0, 10):
            numbers = np.arange(first, first + 10)
            stock.put(Lent(Batch(*[numbers] * 7), numbers > 3), rng)
        taken = [part for rows in (3, 4, 8, 1, 9) for part in stock.take(rows)]

        assert sorted(np.concatenate([part.batch.reward for part in taken])) == list(range(20))
        assert all((part.foreign == (part.batch.reward > 3)).all() for part in taken)
        assert stock.size == 0

    def test_rows_that_came_while_another_station_was_waited_for_are_used(self, harbour, tmp_path):
        Run(harbour, tmp_path)
        own = asynchronous(harbour, tmp_path).meet()
        own.fleet.settle()
        for till in own.envoy._tills.values():
            till.hear(np.random.default_rng(0))
            till.stock.take(till.stock.size)
            till.ask(0.25, 1.0)
            own.fleet.settle()

            assert (till.stock.size, till.berth.lending) == (0, None)
            assert sum(part.foreign.size for part in till.take(2, np.random.default_rng(0))) == 2


class TestStrategies:
    def told(self, run: Run) -> dict[str, float]:
        """What all stations together are told to borrow, in shares."""
        weights = Counter[str]()
        for place in (0, 1):
            weights.update(run.asked(place)[-1].told.weights)
        return {name: weight / weights.total() for name, weight in weights.items()}

    def own(self, run: Run) -> list[str]:
        return [till.own for till in run.envoy._tills.values()]

    @pytest.mark.parametrize(
        ("strategy", "shares"),
        [
            (Strategy.SELF_HEAVY, [0.0, 0.0, 0.5, 0.5]),
            (Strategy.UNIFORM, [1 / 6, 1 / 6, 1 / 3, 1 / 3]),
            (Strategy.WEIGHTED, [0.4, 0.4, 0.1, 0.1]),
            (Strategy.NEWEST, [0.4, 0.4, 0.1, 0.1]),
            (Strategy.ADAPTIVE, [0.0, 0.0, 0.5, 0.5]),
        ],
    )
    def test_a_strategy_holds_for_all_hosts_together(self, harbour, tmp_path, strategy, shares):
        """Two shards of 80 rows are own, two of 20 are another run's."""
        Run(harbour, tmp_path, rows=20)
        own = asynchronous(harbour, tmp_path, rows=80, sharing={"strategy": strategy}).meet()
        own.draw()
        told = self.told(own)
        mine, theirs = self.own(own), [name for name in told if name not in self.own(own)]

        assert [told[name] for name in mine + theirs] == pytest.approx(shares)
        newest = {order.told.newest for order in own.asked(0)}
        assert newest == ({0.2} if strategy is Strategy.NEWEST else {1.0})

    def test_own_rows_of_the_pool_are_not_counted_as_foreign(self, harbour, tmp_path):
        sharing = {"strategy": Strategy.WEIGHTED, "cross_sample_ratio": 1.0}
        own = asynchronous(harbour, tmp_path, sharing=sharing).meet()
        assert borrowed(own.draw()) == BATCH
        assert own.envoy.stats()["sharing/foreign_rows"] == 0
        assert own.envoy.stats()["sharing/peers"] == 0

    def test_what_two_stations_of_one_host_see_counts_once(self, harbour, tmp_path):
        harbour.apart = False
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(harbour, "up", harbour.up[:1])
            Run(harbour, tmp_path, shards=1, actors=1)
        own = asynchronous(harbour, tmp_path, sharing={"strategy": Strategy.UNIFORM}).meet()
        own.draw()
        told = self.told(own)

        assert sorted(told.values()) == pytest.approx([0.25, 0.25, 0.5])
        assert own.envoy.stats()["sharing/peers"] == 1

    def test_the_shards_of_a_run_do_not_borrow_from_each_other(self, harbour, tmp_path):
        harbour.apart = False
        own = asynchronous(harbour, tmp_path).meet()

        assert own.envoy.stats()["sharing/peers"] == 0
        assert not own.asked(0)
        assert [len(own.pier(place).station.member.borrower.filled) for place in (0, 1)] == [1, 1]

    def test_adaptive_follows_the_errors_of_own_rows(self, harbour, tmp_path):
        Run(harbour, tmp_path)
        own = asynchronous(harbour, tmp_path, sharing={"strategy": Strategy.ADAPTIVE}).meet()
        before = own.envoy._fare.weights.tolist()
        for step in range(200):
            own.envoy.observe(np.full(4, 2.0 + np.sin(step)))

        assert own.envoy._fare.weights.tolist() != before


class TestHosts:
    def test_a_silent_station_is_not_waited_for_twice_and_is_used_again(self, harbour, tmp_path):
        Run(harbour, tmp_path)
        own = asynchronous(harbour, tmp_path).meet()
        own.draw()
        own.pier(1).silent = True
        began = harbour.clock.now
        during = [own.draw() for _ in range(40)]
        waited_s = harbour.clock.now - began
        own.pier(1).silent = False
        own.fleet.look()
        asked = len(own.asked(1))
        after = [own.draw() for _ in range(40)]

        assert waited_s < 2 * own.fleet.config.cluster.absent_s
        assert [batch.rows.size for batch in during] == [BATCH] * 40
        assert sum(map(borrowed, during[-20:])) == 20 * BATCH // 4  # the other host makes up
        assert sum(map(borrowed, after)) == 40 * BATCH // 4
        assert len(own.asked(1)) > asked

    def test_what_arrives_late_is_used_once(self, harbour, tmp_path):
        """F49: every borrowed row that a station lent is handed out once or still there."""
        Run(harbour, tmp_path)
        own = asynchronous(harbour, tmp_path).meet()
        for place in (0, 1, 0, 1):
            own.pier(place).silent = True
            for _ in range(10):
                own.draw()
            own.pier(place).silent = False
            own.fleet.look()
        own.fleet.settle()
        own.envoy._hear()

        lent = sum(own.pier(place).station.member.borrower.foreign for place in (0, 1))
        left = sum(till.stock.size for till in own.envoy._tills.values())
        assert lent == own.envoy.stats()["sharing/foreign_rows"] + left

    def test_a_station_that_replaces_a_lost_one_lends_and_borrows(self, harbour, tmp_path):
        other = Run(harbour, tmp_path)
        own = asynchronous(harbour, tmp_path).meet()
        harbour.lose(1)
        for _ in range(20):
            assert own.draw().rows.size == BATCH
        harbour.clock.now += 10.0
        own.fleet.look()
        own.pier(1).hands.write(0, 30)
        own.fleet.settle()
        own.meet().draw()

        assert own.asked(1)
        assert other.meet().envoy.stats()["sharing/peers"] >= 2

    def test_a_buffer_that_goes_is_not_borrowed_from_any_more(self, harbour, tmp_path):
        other = Run(harbour, tmp_path)
        own = asynchronous(harbour, tmp_path).meet()
        for place in (0, 1):
            other.pier(place).keeper._close()
        for _ in range(6):
            own.meet()

        assert own.envoy.stats()["sharing/peers"] == 0
        assert borrowed(own.draw()) == 0
        assert own.draw().rows.size == BATCH

    def test_a_pool_that_is_removed_on_one_host_is_said_and_done_without(self, harbour, tmp_path):
        Run(harbour, tmp_path)
        own = asynchronous(harbour, tmp_path).meet()
        shutil.rmtree(tmp_path / "host-1")
        own.meet().meet()
        asked = len(own.asked(1))
        batches = [own.draw() for _ in range(40)]
        own.fleet.allow(True, [0.5, 0.5])
        own.fleet.settle()
        own.fleet.look()

        assert {borrowed(batch) for batch in batches} == {BATCH // 4}
        assert len(own.asked(1)) == asked
        said = [line for line in own.fleet.complaints() if "is gone" in line]
        assert len(said) == 1
        assert said[0].startswith("station 1 on 10.0.0.1: the pool in ")

    def test_a_pool_without_usable_rows_does_not_hold_anybody_up(self, harbour, tmp_path):
        Run(harbour, tmp_path, rows=1)  # no row of it is closed
        own = asynchronous(harbour, tmp_path).meet()
        asked, began = len(own.asked(0)), harbour.clock.now
        for _ in range(50):
            assert borrowed(own.draw()) == 0

        assert harbour.clock.now - began < 1.0
        assert len(own.asked(0)) - asked <= 2

    def test_whoever_leaves_takes_its_buffers_along(self, harbour, tmp_path):
        own = Run(harbour, tmp_path)
        there = [(tmp_path / f"host-{n}").exists() for n in (0, 1)]
        own.fleet.close()

        assert there == [True, True]
        assert [(tmp_path / f"host-{n}").exists() for n in (0, 1)] == [False, False]

    def test_what_a_killed_station_left_on_the_learners_host_is_removed(self, harbour, tmp_path):
        own = Run(harbour, tmp_path)
        left = tmp_path / "run-0.json"
        left.touch(0o600)
        left.write_text(json.dumps({"owner": [1 << 30, 1, "00" * 16]}))
        own.fleet.close()

        assert not left.exists()

    def test_rows_are_a_sign_of_life_in_the_pool(self, harbour, tmp_path):
        own = Run(harbour, tmp_path)
        rings = [own.pier(place).station.pool.ring for place in (0, 1)]
        before = [int(ring.words[_HEARTBEAT]) for ring in rings]
        played(own.fleet, 5)

        assert all(int(r.words[_HEARTBEAT]) > old for r, old in zip(rings, before, strict=True))

    def test_the_same_run_twice_is_renamed_and_said_with_its_host(self, harbour, tmp_path):
        Run(harbour, tmp_path)
        twin = Run(harbour, tmp_path)
        registry = Registry(tmp_path / "host-1")
        registry.start()
        listed = registry.list()
        registry.stop()

        assert len({one.buffer_id for one in listed}) == 2
        assert {one.run_id for one in listed} == {"run.1"}
        assert {one.state for one in listed} == {Standing.LENDING}
        said = [line for line in twin.fleet.complaints() if "in the pool already" in line]
        assert [line.partition(":")[0] for line in said] == [
            "station 0 on 10.0.0.0",
            "station 1 on 10.0.0.1",
        ]

    def test_one_that_was_given_up_takes_in_no_more_than_it_was_allowed(self, harbour, tmp_path):
        """So it falls silent in the pool, if it is not ended before."""
        own = asynchronous(harbour, tmp_path)
        own.fleet.allow(True, [0.5, 0.5])
        own.fleet.look()
        old = own.pier(1)
        harbour.lose(1)
        own.fleet.look()
        for _ in range(40):
            if old.hands.allowed[-1][0]:
                old.hands.write(0, 500)
            old.station.roam()

        assert old.hands.allowed[-1][0] is False
        assert own.pier(1) is not old
