"""The fleet without a cluster: who is placed where, who is lost, and what that costs."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from experience import VECTOR
from harbour import WEIGHTS, Harbour, node, played, settings
from rookery.config.schema import Mode
from rookery.engines.interface import Failed
from rookery.errors import CheckpointError, ConfigError, LostError
from rookery.loops import fleet as module
from rookery.loops.fleet import UNLIMITED, Fleet
from rookery.loops.progress import Standing
from rookery.loops.station import Pull, Restore, Roam, Save, Tend

BROKEN = Failed("host-0: ImportError: no module named toy; install it on that host", "trace", True)


@pytest.fixture
def harbour(monkeypatch: pytest.MonkeyPatch) -> Iterator[Harbour]:
    with Harbour(monkeypatch) as made:
        yield made


def roaming(harbour: Harbour, **options: Any) -> Fleet:
    """Returns a fleet in async mode that everybody has answered."""
    fleet = harbour.fleet(mode=Mode.ASYNC, **options)
    fleet.roam()
    tended(fleet)
    return fleet


def tended(fleet: Fleet, go: bool = True) -> None:
    """Lets a whole round pass."""
    fleet.cluster.wait([], 2 * module.TEND_S)
    fleet.allow(go, [0.5] * fleet.config.actor.num)
    fleet.look()


def replaced(harbour: Harbour, fleet: Fleet, place: int) -> None:
    """Loses a station and waits until there is another."""
    harbour.lose(place)
    fleet.look()
    harbour.clock.now += 10.0
    fleet.look()


def kept(fleet: Fleet, place: int) -> Restore:
    """Returns what a checkpoint would hold of a shard now."""
    saved = fleet.ask({place: Save(0)})[place]
    stretch = saved.unsaved[0]
    return Restore(saved.numbers, saved.arrays, ((stretch.first, stretch.columns),))


class TestPlacing:
    def test_every_host_gets_a_station_with_its_share_of_the_actors(self, harbour):
        fleet = harbour.fleet(actors=5, shards=None)

        assert [berth.actors for berth in fleet.berths] == [(0, 2, 4), (1, 3)]
        assert [berth.node for berth in fleet.berths] == ["node-0", "node-1"]
        assert [options["cpus"] for *_, options in harbour.started] == [3.0, 2.0]

    def test_there_are_never_more_shards_than_actors(self, harbour):
        assert len(harbour.fleet(actors=1, shards=None).berths) == 1

    def test_more_stations_than_hosts_share_their_cpus(self, harbour):
        harbour.up = [node(0, cpus=2.0)]
        fleet = harbour.fleet(actors=6, shards=3)

        assert {berth.node for berth in fleet.berths} == {"node-0"}
        assert sum(options["cpus"] for *_, options in harbour.started) <= 2.0

    def test_a_cluster_without_cpus_is_refused(self, harbour):
        harbour.up = [node(0, cpus=0.0)]
        with pytest.raises(ConfigError, match="no host with CPUs"):
            harbour.fleet()

    def test_a_station_that_finds_no_cpus_is_started_without_any(self, harbour):
        harbour.full = True
        fleet = harbour.fleet()
        harbour.clock.now += module.ROOM_S + 0.1
        fleet.look()

        assert [options["cpus"] for *_, options in harbour.started] == [1.0, 1.0, 0.0, 0.0]
        assert "shares the CPUs of its host" in next(iter(fleet.complaints()))
        assert [report.env_steps for report in played(fleet, 4)] == [4, 4]
        assert (fleet.restarts, fleet.incarnations) == (0, [0, 0])

    def test_one_that_fell_silent_is_placed_elsewhere_where_there_is_another_host(self, harbour):
        fleet = roaming(harbour)
        harbour.pier(1).silent = True
        tended(fleet)
        harbour.clock.now += fleet.config.cluster.lost_s + 1.0
        fleet.look()
        fleet.look()

        assert [berth.node for berth in fleet.berths] == ["node-0", "node-0"]

    def test_an_empty_place_is_tended_once_somebody_is_there(self, harbour):
        fleet = roaming(harbour)
        fleet.berths[1].strikes = 1  # so that the next one is not there at once
        harbour.lose(1)
        fleet.look()
        tended(fleet)
        harbour.clock.now += 10.0
        fleet.look()
        tended(fleet)

        assert harbour.pier(1).orders(Tend)

    def test_nobody_is_started_while_the_head_is_silent(self, harbour):
        fleet = roaming(harbour)
        harbour.silence_s = 1.0
        replaced(harbour, fleet, 1)
        assert harbour.starts(1) == 1

        harbour.silence_s = 0.0
        harbour.clock.now += module.NODES_S
        fleet.look()
        assert harbour.starts(1) == 2

    def test_without_its_head_a_run_ends(self, harbour):
        fleet = roaming(harbour)
        harbour.silence_s = fleet.config.cluster.lost_s + 1.0
        harbour.clock.now += module.NODES_S
        with pytest.raises(LostError, match="the head of the Ray cluster"):
            fleet.look()

    def test_a_new_host_gets_a_station_where_actors_are_counted_by_host(self, harbour):
        fleet = roaming(harbour, cluster={"actors_per_node": 2}, actors=4, shards=None)
        harbour.up = [*harbour.up, node(2)]
        harbour.clock.now += module.NODES_S
        fleet.look()
        tended(fleet)

        assert [berth.actors for berth in fleet.berths] == [(0, 2), (1, 3), (4, 5)]
        assert fleet.berths[2].node == "node-2"
        assert fleet.incarnations == [0] * 6
        assert "host-2 (10.0.0.2) joined with 2 actors" in fleet.complaints()
        assert len(harbour.pier(2).orders(Roam)) == 1
        assert harbour.pier(2).hands.allowed[-1] == (True, [0.5, 0.5])

    def test_a_new_host_is_left_alone_where_actors_are_counted_altogether(self, harbour):
        fleet = roaming(harbour)
        harbour.up = [*harbour.up, node(2)]
        harbour.clock.now += 2 * module.NODES_S
        fleet.look()

        assert len(fleet.berths) == 2


class TestLosing:
    def test_the_next_station_has_the_next_incarnations_and_another_tag(self, harbour):
        fleet = harbour.fleet(actors=4)
        played(fleet, 5)
        before = [berth.tag for berth in fleet.berths]
        harbour.lose(1)
        played(fleet, 5)

        assert fleet.incarnations == [0, 1, 0, 1]
        assert fleet.berths[0].tag == before[0]
        assert fleet.berths[1].tag not in before
        assert (harbour.starts(0), harbour.starts(1), fleet.restarts) == (1, 2, 1)
        assert "station 1 on 10.0.0.1 was lost (its host is gone)" in next(fleet.complaints())

    def test_it_is_placed_on_a_host_that_is_there(self, harbour):
        fleet = harbour.fleet()
        played(fleet, 5)
        harbour.up = harbour.up[:1]
        harbour.lose(1)
        played(fleet, 5)

        assert harbour.pier(1).node.id == "node-0"

    def test_an_order_is_repeated_and_answered_once_by_each(self, harbour):
        fleet = harbour.fleet()
        played(fleet, 5)
        answers = fleet.play(5, [0.5, 0.5])
        harbour.lose(0)

        (reports,) = answers
        assert len(reports) == 2

    def test_rows_that_were_acknowledged_are_counted_as_lost_exactly(self, harbour):
        fleet = harbour.fleet()
        played(fleet, 30)
        harbour.pier(1).hands.write(0, 11)  # of which nobody was told
        harbour.lose(1)
        fleet.look()

        assert (fleet.acknowledged_rows, fleet.lost_rows) == (60, 30)
        assert "30 rows of replay are gone with it" in next(fleet.complaints())

    def test_rows_that_were_overwritten_before_are_not_lost(self, harbour):
        fleet = harbour.fleet(replay={"capacity": 64})
        played(fleet, 50)
        harbour.lose(1)
        fleet.look()

        assert fleet.lost_rows == 32  # the shard's capacity

    def test_what_a_checkpoint_has_is_given_back_and_not_counted(self, harbour):
        fleet = harbour.fleet()
        played(fleet, 30)
        checkpoint = kept(fleet, 1)
        fleet.recall = lambda place: checkpoint if place == 1 else None
        played(fleet, 12)
        harbour.lose(1)
        played(fleet, 4)

        assert fleet.lost_rows == 12
        assert harbour.pier(1).station.pool.ring.committed == 30 + 4
        assert fleet.berths[1].acknowledged == (0, 34)
        assert fleet.berths[1].recalled is None  # it may be large

    def test_a_station_lost_before_it_said_anything_costs_nothing_more(self, harbour):
        fleet = harbour.fleet()
        played(fleet, 30)
        harbour.lose(1)
        fleet.look()
        harbour.lose(1)
        fleet.look()

        assert fleet.lost_rows == 30

    def test_too_many_losses_in_a_row_end_the_run(self, harbour):
        fleet = harbour.fleet(actor={"max_restarts": 2})
        played(fleet, 5)
        for _ in range(2):
            replaced(harbour, fleet, 1)
        harbour.lose(1, "out of memory")

        with pytest.raises(LostError, match=r"lost 3 times in a row, the last time: out of memory"):
            fleet.look()

    def test_rows_wipe_out_the_strikes(self, harbour):
        fleet = harbour.fleet(actor={"max_restarts": 1})
        for _ in range(4):
            played(fleet, 5)
            replaced(harbour, fleet, 1)

        assert fleet.restarts == 4

    def test_what_can_never_work_is_refused_at_once(self, harbour):
        harbour.refuses = BROKEN
        fleet = harbour.fleet()

        with pytest.raises(ConfigError, match="no module named toy"):
            fleet.look()

    def test_a_host_that_cannot_play_later_on_is_a_loss_like_any_other(self, harbour):
        fleet = harbour.fleet()
        played(fleet, 5)
        harbour.lose(1)
        harbour.refuses = BROKEN
        fleet.look()
        harbour.refuses = None
        fleet.look()
        harbour.clock.now += 10.0
        played(fleet, 5)

        assert fleet.restarts == 2

    def test_a_station_that_is_silent_for_too_long_is_lost(self, harbour):
        fleet = roaming(harbour, cluster={"lost_s": 20.0})
        harbour.pier(1).silent = True
        tended(fleet)
        harbour.clock.now += 19.0
        fleet.look()
        assert harbour.starts(1) == 1
        harbour.clock.now += 2.0
        fleet.look()

        assert harbour.starts(1) == 2

    def test_a_station_that_plays_a_long_chunk_is_not_silent(self, harbour):
        fleet = harbour.fleet(cluster={"lost_s": 20.0})
        answers = fleet.play(5, [0.5, 0.5])
        harbour.pier(1).silent = True
        wait, waited = harbour.wait, []

        def patient(hosts: Any, timeout_s: float) -> None:
            waited.append(timeout_s)
            wait(hosts, timeout_s)
            harbour.pier(1).silent = len(waited) < 5_000

        harbour.wait = patient  # type: ignore[method-assign]
        assert len(next(answers)) == 2
        assert harbour.starts(1) == 1

    def test_without_any_host_the_run_gives_up_after_a_while(self, harbour):
        fleet = harbour.fleet(cluster={"start_s": 30.0})
        played(fleet, 5)
        harbour.up = []
        for place in (0, 1):
            harbour.lose(place)
        fleet.look()
        harbour.clock.now += 29.0
        fleet.look()
        harbour.clock.now += 2.0

        with pytest.raises(LostError, match="no host of the Ray cluster has come back within 30 s"):
            fleet.look()

    def test_a_host_that_comes_back_in_time_is_used(self, harbour):
        fleet = harbour.fleet(cluster={"start_s": 30.0})
        played(fleet, 5)
        there, harbour.up = harbour.up, []
        for place in (0, 1):
            harbour.lose(place)
        fleet.look()
        harbour.clock.now += 10.0
        harbour.up = there

        assert len(played(fleet, 5)) == 2

    def test_the_end_of_a_fleet_is_the_end_of_its_stations_and_of_the_cluster(self, harbour):
        fleet = harbour.fleet()
        played(fleet, 5)
        fleet.close()

        assert all(pier.killed for _, pier, _, _ in harbour.started)
        assert all(pier.keeper._closed for _, pier, _, _ in harbour.started)
        assert harbour.closed == 1


class TestWeights:
    def test_a_version_lies_in_the_store_once_for_all(self, harbour):
        fleet = harbour.fleet(actors=3, shards=3)
        fleet.spread(2, {"w": np.ones(2, dtype=np.float32)})
        fleet.settle()

        assert len(harbour.shared) == 1
        boards = [harbour.pier(place).station.board for place in range(3)]
        assert [board.version for board in boards] == [2, 2, 2]
        assert boards[0].latest(0).arrays["w"].tolist() == [1.0, 1.0]

    def test_in_async_one_is_on_its_way_to_each_and_the_newest_follows(self, harbour):
        fleet = roaming(harbour)
        harbour.pier(1).silent = True
        for version in range(2, 8):
            fleet.spread(version, WEIGHTS)
            fleet.look()
        harbour.pier(1).silent = False
        for _ in range(3):
            fleet.look()

        assert [pull.version for pull in harbour.pier(0).orders(Pull)] == [2, 3, 4, 5, 6, 7]
        assert [pull.version for pull in harbour.pier(1).orders(Pull)] == [2, 7]
        assert harbour.pier(1).station.board.version == 7

    def test_in_sync_nobody_misses_a_version(self, harbour):
        fleet = harbour.fleet()
        for version in (2, 3):
            fleet.spread(version, WEIGHTS)

        assert [pull.version for pull in harbour.pier(0).orders(Pull)] == [2, 3]

    def test_a_new_station_begins_with_the_newest(self, harbour):
        fleet = harbour.fleet()
        played(fleet, 5)
        fleet.spread(9, WEIGHTS)
        harbour.lose(1)
        played(fleet, 5)

        assert harbour.pier(1).station.board.version == 9
        assert harbour.pier(1).orders(Pull) == []


class TestTending:
    def test_where_no_limiter_counts_a_station_may_take_in_many_chunks(self, harbour):
        fleet = roaming(harbour, actors=6)
        actor = fleet.config.actor
        (first, *_) = harbour.pier(0).orders(Tend)

        assert first.allowance == 3 * UNLIMITED * (actor.chunk + actor.envs)

    def test_stations_share_the_room_that_the_limiter_has(self, harbour):
        fleet = roaming(harbour)
        harbour.clock.now += 0.5
        for room in (100, 100):  # nothing comes, and nothing is learned
            fleet.allow(True, [0.5, 0.5], room)
            fleet.wait_a_little()
            harbour.clock.now += 0.5

        assert [harbour.pier(place).orders(Tend)[-1].allowance for place in (0, 1)] == [50, 50]

    def test_the_first_round_offers_the_room_there_is(self, harbour):
        fleet = harbour.fleet()
        fleet.roam()
        fleet.allow(True, [0.5, 0.5], 100)

        assert [harbour.pier(place).orders(Tend)[0].allowance for place in (0, 1)] == [50, 50]

    def test_what_the_learner_learns_from_in_a_round_is_offered_for_two(self, harbour):
        fleet = roaming(harbour)
        harbour.pier(0).hands.write(0, 30)
        harbour.pier(0).station.roam()
        harbour.clock.now += 0.5
        fleet.allow(True, [0.5, 0.5], 100)
        fleet.wait_a_little()
        heard = sum(berth.drain().steps for berth in fleet.berths)
        left, learned = 100 - heard, 20
        harbour.clock.now += 0.5
        fleet.allow(True, [0.5, 0.5], left + learned)

        assert heard > learned
        offers = [harbour.pier(place).orders(Tend)[-1].allowance for place in (0, 1)]
        assert offers == [(left + learned + 2 * learned) // 2] * 2

    def test_beyond_the_allowance_a_station_closes_the_gates_by_itself(self, harbour):
        fleet = roaming(harbour)
        station, hands = harbour.pier(0).station, harbour.pier(0).hands
        allowance = harbour.pier(0).orders(Tend)[0].allowance
        opened = hands.allowed[-1][0]
        hands.write(0, 2 * allowance)
        station.roam()

        assert opened
        assert not hands.allowed[-1][0]
        tended(fleet)  # it tells of them, and the terms were made without them
        assert not hands.allowed[-1][0]
        tended(fleet)
        assert hands.allowed[-1][0]

    def test_a_round_begins_once_the_last_one_was_answered(self, harbour):
        fleet = roaming(harbour)
        harbour.pier(0).silent = True
        for _ in range(5):
            tended(fleet)
        sent = [len(harbour.pier(place).orders(Tend)) for place in (0, 1)]

        assert sent[0] <= 2 < sent[1]

    def test_gates_and_epsilons_reach_the_actors(self, harbour):
        fleet = roaming(harbour, actors=3)
        harbour.clock.now += 2 * module.TEND_S
        fleet.allow(False, [0.1, 0.2, 0.3])
        fleet.look()

        assert harbour.pier(0).hands.allowed[-1] == (False, [0.1, 0.3])
        assert harbour.pier(1).hands.allowed[-1] == (False, [0.2])

    def test_what_actors_complain_about_is_told_with_their_place(self, harbour):
        fleet = roaming(harbour)
        harbour.pier(1).hands.complained.append("actor 1 was lost")
        tended(fleet)

        assert "station 1 on 10.0.0.1: actor 1 was lost" in fleet.complaints()


class TestSaving:
    def test_actors_are_saved_and_seated_by_their_numbers(self, harbour):
        fleet = harbour.fleet(actors=3)
        dealt = fleet.save()
        assert dealt.exact
        assert dealt.numbers["actors"] == ["actor 0", "actor 1", "actor 2"]
        assert {name: a.tolist() for name, a in dealt.arrays.items()} == {
            "0.at": [0],
            "1.at": [1],
            "2.at": [2],
        }

        fleet.restore(dealt.numbers, dealt.arrays)

        assert harbour.pier(0).hands.restored == [
            (["actor 0", "actor 2"], {"0.at": [0], "1.at": [2]})
        ]
        assert harbour.pier(1).hands.restored == [(["actor 1"], {"0.at": [1]})]

    def test_another_number_of_actors_is_refused(self, harbour):
        fleet = harbour.fleet(actors=3)
        with pytest.raises(CheckpointError, match="resume with --actors 2"):
            fleet.restore({"actors": ["a", "b"]}, {})

    def test_incarnations_are_taken_up_by_actor(self, harbour):
        fleet = Fleet(
            settings(actors=3),
            VECTOR,
            cluster=harbour,  # type: ignore[arg-type]
            weights=dict(WEIGHTS),
            version=1,
            incarnations=[4, 5, 6],
        )

        assert [berth.incarnations for berth in fleet.berths] == [(4, 6), (5,)]
        assert fleet.incarnations == [4, 5, 6]


class TestProgress:
    def test_a_station_that_takes_anothers_place_gets_what_its_actors_have_told(self, harbour):
        fleet = roaming(harbour, actors=3)
        for number, lesson in ((0, 3), (1, 4), (0, 5), (2, 6)):
            harbour.pier(number % 2).hands.tell(Standing(number, [{"lesson": lesson}]))
            tended(fleet)
        replaced(harbour, fleet, 0)

        assert harbour.pier(0).hands.progress == [
            Standing(0, [{"lesson": 5}]),
            Standing(2, [{"lesson": 6}]),
        ]
        assert harbour.pier(1).hands.progress == []  # that one was there from the beginning
        assert fleet.progress.state() == [
            Standing(0, [{"lesson": 5}]),
            Standing(1, [{"lesson": 4}]),
            Standing(2, [{"lesson": 6}]),
        ]

    def test_a_run_that_goes_on_hands_out_what_was_saved(self, harbour):
        fleet = Fleet(
            settings(mode=Mode.ASYNC, actors=3),
            VECTOR,
            cluster=harbour,  # type: ignore[arg-type]
            weights=dict(WEIGHTS),
            version=1,
            progress=[[0, ["a"]], [1, ["b"]], [2, ["c"]]],
        )
        fleet.look()

        assert [standing.envs for standing in harbour.pier(0).hands.progress] == [["a"], ["c"]]
        assert [standing.envs for standing in harbour.pier(1).hands.progress] == [["b"]]
