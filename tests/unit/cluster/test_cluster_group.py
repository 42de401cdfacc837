"""The cluster group without a cluster: who is placed where, who is lost, and what that costs."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fake_cluster import WEIGHTS, FakeCluster, node, played, settings
from rookery.actors.actor_group import ActorGroupState
from rookery.actors.env_progress import EnvProgress
from rookery.actors.messages import ActorState, PlayFreely
from rookery.cluster import cluster_group as module
from rookery.cluster.cluster_group import UNLIMITED, ClusterActors
from rookery.cluster.messages import (
    HostSetup,
    PublishWeights,
    RestoreShard,
    SaveShard,
    SetTerms,
)
from rookery.config.schema import Mode
from rookery.errors import CheckpointError, ConfigError, EnvError, LostError, RoleFailed
from rookery.replay.replay import Inserted
from rookery.replay.saved_rows import ReplayState
from rookery.runtime.supervision import ActorLoss, LossKind
from sample_experience import VECTOR

BROKEN = RoleFailed(
    "host-0: ImportError: no module named toy; install it on that host", "trace", True
)


@pytest.fixture
def fake_cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCluster]:
    with FakeCluster(monkeypatch) as made:
        yield made


def self_driven(fake_cluster: FakeCluster, **options: Any) -> ClusterActors:
    """Returns a cluster group in async mode that all hosts have answered."""
    cluster_actors = fake_cluster.cluster_actors(mode=Mode.ASYNC, **options)
    cluster_actors.start()
    tended(cluster_actors)
    return cluster_actors


def tended(cluster_actors: ClusterActors, go: bool = True) -> None:
    """Lets a whole round pass."""
    cluster_actors.cluster.wait([], 2 * module.TEND_S)
    cluster_actors.allow(go, [0.5] * cluster_actors.config.actor.num)
    cluster_actors.look()


def replaced(fake_cluster: FakeCluster, cluster_actors: ClusterActors, place: int) -> None:
    """Loses a host worker and waits until there is another."""
    fake_cluster.lose(place)
    cluster_actors.look()
    fake_cluster.clock.now += 10.0
    cluster_actors.look()


def kept(cluster_actors: ClusterActors, place: int) -> RestoreShard:
    """Returns what a checkpoint would hold of a shard now."""
    (saved,) = cluster_actors.ask([*[None] * place, SaveShard(0)])
    assert isinstance(saved, ReplayState)
    stretch = saved.unsaved[0]
    return RestoreShard(saved.numbers, saved.arrays, ((stretch.first, stretch.columns),))


class TestPlacing:
    def test_every_host_gets_a_worker_with_its_share_of_the_actors(self, fake_cluster):
        cluster_actors = fake_cluster.cluster_actors(actors=5, shards=None)

        assert [handle.actors for handle in cluster_actors.handles] == [(0, 2, 4), (1, 3)]
        assert [handle.placement.node for handle in cluster_actors.handles] == ["node-0", "node-1"]
        assert [options["cpus"] for *_, options in fake_cluster.started] == [3.0, 2.0]

    def test_there_are_never_more_shards_than_actors(self, fake_cluster):
        assert len(fake_cluster.cluster_actors(actors=1, shards=None).handles) == 1

    def test_more_host_workers_than_hosts_share_their_cpus(self, fake_cluster):
        fake_cluster.up = [node(0, cpus=2.0)]
        cluster_actors = fake_cluster.cluster_actors(actors=6, shards=3)

        assert {handle.placement.node for handle in cluster_actors.handles} == {"node-0"}
        assert sum(options["cpus"] for *_, options in fake_cluster.started) <= 2.0

    def test_a_cluster_without_cpus_is_refused(self, fake_cluster):
        fake_cluster.up = [node(0, cpus=0.0)]
        with pytest.raises(ConfigError, match="no host with CPUs"):
            fake_cluster.cluster_actors()

    def test_a_host_worker_that_finds_no_cpus_is_started_without_any(self, fake_cluster):
        fake_cluster.full = True
        cluster_actors = fake_cluster.cluster_actors()
        fake_cluster.clock.now += module.ROOM_S + 0.1
        cluster_actors.look()

        assert [options["cpus"] for *_, options in fake_cluster.started] == [1.0, 1.0, 0.0, 0.0]
        assert "shares the CPUs of its host" in next(iter(cluster_actors.warnings()))
        assert [report.env_steps for report in played(cluster_actors, 4)] == [4, 4]
        assert (cluster_actors.restarts, cluster_actors.incarnations) == (0, [0, 0])

    def test_one_that_fell_silent_is_placed_elsewhere_where_there_is_another_host(
        self, fake_cluster
    ):
        cluster_actors = self_driven(fake_cluster)
        fake_cluster.fake_host(1).silent = True
        tended(cluster_actors)
        fake_cluster.clock.now += cluster_actors.config.cluster.lost_s + 1.0
        cluster_actors.look()
        cluster_actors.look()

        assert [handle.placement.node for handle in cluster_actors.handles] == ["node-0", "node-0"]

    def test_an_empty_place_is_filled_once_a_host_is_there(self, fake_cluster):
        cluster_actors = self_driven(fake_cluster)
        cluster_actors.handles[1].watch.in_a_row = 1  # so that the next one is not there at once
        fake_cluster.lose(1)
        cluster_actors.look()
        tended(cluster_actors)
        fake_cluster.clock.now += 10.0
        cluster_actors.look()
        tended(cluster_actors)

        assert fake_cluster.fake_host(1).orders(SetTerms)

    def test_no_host_worker_is_started_while_the_head_is_silent(self, fake_cluster):
        cluster_actors = self_driven(fake_cluster)
        fake_cluster.silence_s = 1.0
        replaced(fake_cluster, cluster_actors, 1)
        assert fake_cluster.starts(1) == 1

        fake_cluster.silence_s = 0.0
        fake_cluster.clock.now += module.NODES_S
        cluster_actors.look()
        assert fake_cluster.starts(1) == 2

    def test_without_its_head_a_run_ends(self, fake_cluster):
        cluster_actors = self_driven(fake_cluster)
        fake_cluster.silence_s = cluster_actors.config.cluster.lost_s + 1.0
        fake_cluster.clock.now += module.NODES_S
        with pytest.raises(LostError, match="the head of the Ray cluster"):
            cluster_actors.look()

    def test_a_new_host_gets_a_worker_where_actors_are_counted_by_host(self, fake_cluster):
        cluster_actors = self_driven(
            fake_cluster, cluster={"actors_per_node": 2}, actors=4, shards=None
        )
        fake_cluster.up = [*fake_cluster.up, node(2)]
        fake_cluster.clock.now += module.NODES_S
        cluster_actors.look()
        tended(cluster_actors)

        assert [handle.actors for handle in cluster_actors.handles] == [(0, 2), (1, 3), (4, 5)]
        assert cluster_actors.handles[2].placement.node == "node-2"
        assert cluster_actors.incarnations == [0] * 6
        assert "host-2 (10.0.0.2) joined with 2 actors" in cluster_actors.warnings()
        assert len(fake_cluster.fake_host(2).orders(PlayFreely)) == 1
        assert fake_cluster.fake_host(2).hands.allowed[-1] == (True, [0.5, 0.5])

    def test_rows_of_a_new_hosts_actors_are_linked_though_the_run_had_fewer(self, fake_cluster):
        cluster_actors = self_driven(
            fake_cluster, cluster={"actors_per_node": 2}, actors=4, shards=None
        )
        fake_cluster.up = [*fake_cluster.up, node(2)]
        fake_cluster.clock.now += module.NODES_S
        cluster_actors.look()
        tended(cluster_actors)
        fake_cluster.fake_host(2).hands.write(1, 14)  # two episodes of actor 5
        tended(cluster_actors)

        pool = fake_cluster.fake_host(2).host_worker.replay
        assert pool.ring.committed > 0
        assert len(pool.chains.lanes) >= 6 * cluster_actors.config.actor.envs
        assert pool.chains.closed.any()

    def test_a_new_host_is_left_alone_where_actors_are_counted_altogether(self, fake_cluster):
        cluster_actors = self_driven(fake_cluster)
        fake_cluster.up = [*fake_cluster.up, node(2)]
        fake_cluster.clock.now += 2 * module.NODES_S
        cluster_actors.look()

        assert len(cluster_actors.handles) == 2


class TestLosing:
    def test_the_next_host_worker_has_the_next_incarnations_and_another_tag(self, fake_cluster):
        cluster_actors = fake_cluster.cluster_actors(actors=4)
        played(cluster_actors, 5)
        before = [handle.tag for handle in cluster_actors.handles]
        fake_cluster.lose(1)
        played(cluster_actors, 5)

        assert cluster_actors.incarnations == [0, 1, 0, 1]
        assert cluster_actors.handles[0].tag == before[0]
        assert cluster_actors.handles[1].tag not in before
        assert (fake_cluster.starts(0), fake_cluster.starts(1), cluster_actors.restarts) == (
            1,
            2,
            1,
        )
        assert "host worker 1 on 10.0.0.1 was lost (its host is gone)" in next(
            cluster_actors.warnings()
        )

    def test_it_is_placed_on_a_host_that_is_there(self, fake_cluster):
        cluster_actors = fake_cluster.cluster_actors()
        played(cluster_actors, 5)
        fake_cluster.up = fake_cluster.up[:1]
        fake_cluster.lose(1)
        played(cluster_actors, 5)

        assert fake_cluster.fake_host(1).node.id == "node-0"

    def test_an_order_is_repeated_and_answered_once_by_each(self, fake_cluster):
        cluster_actors = fake_cluster.cluster_actors()
        played(cluster_actors, 5)
        answers = cluster_actors.collect(5, [0.5, 0.5])
        fake_cluster.lose(0)

        (reports,) = answers
        assert len(reports) == 2

    def test_rows_that_were_acknowledged_are_counted_as_lost_exactly(self, fake_cluster):
        cluster_actors = fake_cluster.cluster_actors()
        played(cluster_actors, 30)
        fake_cluster.fake_host(1).hands.write(0, 11)  # not reported
        fake_cluster.lose(1)
        cluster_actors.look()

        assert (cluster_actors.acknowledged_rows, cluster_actors.lost_rows) == (60, 30)
        assert "30 rows of its replay shard are lost" in next(cluster_actors.warnings())

    def test_rows_that_were_overwritten_before_are_not_lost(self, fake_cluster):
        cluster_actors = fake_cluster.cluster_actors(replay={"capacity": 64})
        played(cluster_actors, 50)
        fake_cluster.lose(1)
        cluster_actors.look()

        assert cluster_actors.lost_rows == 32  # the shard's capacity

    def test_what_a_checkpoint_has_is_given_back_and_not_counted(self, fake_cluster):
        cluster_actors = fake_cluster.cluster_actors()
        played(cluster_actors, 30)
        checkpoint = kept(cluster_actors, 1)
        cluster_actors.recall = lambda place: checkpoint if place == 1 else None
        played(cluster_actors, 12)
        fake_cluster.lose(1)
        played(cluster_actors, 4)

        assert cluster_actors.lost_rows == 12
        assert fake_cluster.fake_host(1).host_worker.replay.ring.committed == 30 + 4
        assert cluster_actors.handles[1].acknowledged == (0, 34)
        assert cluster_actors.handles[1].recalled is None  # it may be large

    def test_a_host_worker_lost_before_its_first_answer_costs_nothing_more(self, fake_cluster):
        cluster_actors = fake_cluster.cluster_actors()
        played(cluster_actors, 30)
        fake_cluster.lose(1)
        cluster_actors.look()
        fake_cluster.lose(1)
        cluster_actors.look()

        assert cluster_actors.lost_rows == 30

    def test_too_many_losses_in_a_row_end_the_run(self, fake_cluster):
        cluster_actors = fake_cluster.cluster_actors(actor={"max_restarts": 2})
        played(cluster_actors, 5)
        for _ in range(2):
            replaced(fake_cluster, cluster_actors, 1)
        fake_cluster.lose(1, "out of memory")

        with pytest.raises(LostError, match=r"lost 3 times in a row, the last time: out of memory"):
            cluster_actors.look()

    def test_rows_wipe_out_the_strikes(self, fake_cluster):
        cluster_actors = fake_cluster.cluster_actors(actor={"max_restarts": 1})
        for _ in range(4):
            played(cluster_actors, 5)
            replaced(fake_cluster, cluster_actors, 1)

        assert cluster_actors.restarts == 4

    def test_what_can_never_work_is_refused_at_once(self, fake_cluster):
        fake_cluster.refuses = BROKEN
        cluster_actors = fake_cluster.cluster_actors()

        with pytest.raises(ConfigError, match="no module named toy"):
            cluster_actors.look()

    def test_a_host_that_cannot_play_later_on_is_a_loss_like_any_other(self, fake_cluster):
        cluster_actors = fake_cluster.cluster_actors()
        played(cluster_actors, 5)
        fake_cluster.lose(1)
        fake_cluster.refuses = BROKEN
        cluster_actors.look()
        fake_cluster.refuses = None
        cluster_actors.look()
        fake_cluster.clock.now += 10.0
        played(cluster_actors, 5)

        assert cluster_actors.restarts == 2

    def test_a_host_worker_that_is_silent_for_too_long_is_lost(self, fake_cluster):
        cluster_actors = self_driven(fake_cluster, cluster={"lost_s": 20.0})
        fake_cluster.fake_host(1).silent = True
        tended(cluster_actors)
        fake_cluster.clock.now += 19.0
        cluster_actors.look()
        assert fake_cluster.starts(1) == 1
        fake_cluster.clock.now += 2.0
        cluster_actors.look()

        assert fake_cluster.starts(1) == 2

    def test_a_host_worker_that_plays_a_long_chunk_is_not_silent(self, fake_cluster):
        cluster_actors = fake_cluster.cluster_actors(cluster={"lost_s": 20.0})
        answers = cluster_actors.collect(5, [0.5, 0.5])
        fake_cluster.fake_host(1).silent = True
        wait, waited = fake_cluster.wait, []

        def patient(hosts: Any, timeout_s: float) -> None:
            waited.append(timeout_s)
            wait(hosts, timeout_s)
            fake_cluster.fake_host(1).silent = len(waited) < 5_000

        fake_cluster.wait = patient  # type: ignore[method-assign]
        assert len(next(answers)) == 2
        assert fake_cluster.starts(1) == 1

    def test_without_any_host_the_run_gives_up_after_a_while(self, fake_cluster):
        cluster_actors = fake_cluster.cluster_actors(cluster={"start_s": 30.0})
        played(cluster_actors, 5)
        fake_cluster.up = []
        for place in (0, 1):
            fake_cluster.lose(place)
        cluster_actors.look()
        fake_cluster.clock.now += 29.0
        cluster_actors.look()
        fake_cluster.clock.now += 2.0

        with pytest.raises(LostError, match="no host of the Ray cluster has come back within 30 s"):
            cluster_actors.look()

    def test_a_host_that_comes_back_in_time_is_used(self, fake_cluster):
        cluster_actors = fake_cluster.cluster_actors(cluster={"start_s": 30.0})
        played(cluster_actors, 5)
        there, fake_cluster.up = fake_cluster.up, []
        for place in (0, 1):
            fake_cluster.lose(place)
        cluster_actors.look()
        fake_cluster.clock.now += 10.0
        fake_cluster.up = there

        assert len(played(cluster_actors, 5)) == 2

    def test_closing_cluster_actors_ends_their_host_workers_and_the_cluster(self, fake_cluster):
        cluster_actors = fake_cluster.cluster_actors()
        played(cluster_actors, 5)
        cluster_actors.close()

        assert all(fake_host.killed for _, fake_host, _, _ in fake_cluster.started)
        assert all(fake_host.server._closed for _, fake_host, _, _ in fake_cluster.started)
        assert fake_cluster.closed == 1


class TestWeights:
    def test_a_version_lies_in_the_store_once_for_all(self, fake_cluster):
        cluster_actors = fake_cluster.cluster_actors(actors=3, shards=3)
        cluster_actors.spread(2, {"w": np.ones(2, dtype=np.float32)})
        cluster_actors.settle()

        assert len(fake_cluster.shared) == 1
        weight_stores = [
            fake_cluster.fake_host(place).host_worker.weight_store for place in range(3)
        ]
        assert [weight_store.version for weight_store in weight_stores] == [2, 2, 2]
        assert weight_stores[0].latest(0).arrays["w"].tolist() == [1.0, 1.0]

    def test_in_async_one_is_on_its_way_to_each_and_the_newest_follows(self, fake_cluster):
        cluster_actors = self_driven(fake_cluster)
        fake_cluster.fake_host(1).silent = True
        for version in range(2, 8):
            cluster_actors.spread(version, WEIGHTS)
            cluster_actors.look()
        fake_cluster.fake_host(1).silent = False
        for _ in range(3):
            cluster_actors.look()

        assert [pull.version for pull in fake_cluster.fake_host(0).orders(PublishWeights)] == [
            2,
            3,
            4,
            5,
            6,
            7,
        ]
        assert [pull.version for pull in fake_cluster.fake_host(1).orders(PublishWeights)] == [2, 7]
        assert fake_cluster.fake_host(1).host_worker.weight_store.version == 7

    def test_in_sync_no_host_misses_a_version(self, fake_cluster):
        cluster_actors = fake_cluster.cluster_actors()
        for version in (2, 3):
            cluster_actors.spread(version, WEIGHTS)

        assert [pull.version for pull in fake_cluster.fake_host(0).orders(PublishWeights)] == [2, 3]

    def test_a_new_host_worker_begins_with_the_newest_weights(self, fake_cluster):
        cluster_actors = fake_cluster.cluster_actors()
        played(cluster_actors, 5)
        cluster_actors.spread(9, WEIGHTS)
        fake_cluster.lose(1)
        played(cluster_actors, 5)

        assert fake_cluster.fake_host(1).host_worker.weight_store.version == 9
        assert fake_cluster.fake_host(1).orders(PublishWeights) == []


class TestTending:
    def test_where_no_limiter_counts_a_host_may_insert_many_chunks(self, fake_cluster):
        cluster_actors = self_driven(fake_cluster, actors=6)
        actor = cluster_actors.config.actor
        (first, *_) = fake_cluster.fake_host(0).orders(SetTerms)

        assert first.allowance == 3 * UNLIMITED * (actor.chunk + actor.envs)

    def test_hosts_share_the_rows_that_the_limiter_allows(self, fake_cluster):
        cluster_actors = self_driven(fake_cluster)
        fake_cluster.clock.now += 0.5
        for room in (100, 100):  # nothing comes, and nothing is learned
            cluster_actors.allow(True, [0.5, 0.5], room)
            cluster_actors.wait_a_little()
            fake_cluster.clock.now += 0.5

        assert [
            fake_cluster.fake_host(place).orders(SetTerms)[-1].allowance for place in (0, 1)
        ] == [50, 50]

    def test_hosts_are_asked_less_and_less_often_while_no_rows_come(
        self, fake_cluster, monkeypatch
    ):
        cluster_actors = self_driven(fake_cluster)
        cluster_actors.acknowledged_rows = 1  # hosts that have not sent any are asked rarely anyway
        cluster_actors.allow(True, [0.5, 0.5], 100)
        asked: list[float] = []

        def tend(every_s: float = module.TEND_S) -> None:
            asked.append(every_s)
            fake_cluster.clock.now += every_s

        monkeypatch.setattr(cluster_actors, "_tend", tend)
        cluster_actors.wait(0.3)

        assert asked[:5] == [0.004, 0.008, 0.016, 0.032, 0.05]
        assert set(asked[5:]) == {module.PATIENT_S}

    def test_the_learner_waits_for_as_many_env_steps_as_a_batch_needs(
        self, fake_cluster, monkeypatch
    ):
        cluster_actors = self_driven(fake_cluster)
        reports: list[Any] = []
        cluster_actors.handles[1].arrived = reports

        def tend(every_s: float = module.TEND_S) -> None:
            reports.append(SimpleNamespace(inserted=Inserted(-1, 10, 10)))

        monkeypatch.setattr(cluster_actors, "_tend", tend)
        cluster_actors.wait(60.0, rows=25)

        assert len(reports) == 3

    def test_the_first_round_offers_the_room_there_is(self, fake_cluster):
        cluster_actors = fake_cluster.cluster_actors()
        cluster_actors.start()
        cluster_actors.allow(True, [0.5, 0.5], 100)

        assert [
            fake_cluster.fake_host(place).orders(SetTerms)[0].allowance for place in (0, 1)
        ] == [50, 50]

    def test_what_the_learner_learns_from_in_a_round_is_offered_for_two(self, fake_cluster):
        cluster_actors = self_driven(fake_cluster)
        fake_cluster.fake_host(0).hands.write(0, 30)
        fake_cluster.fake_host(0).host_worker.work()
        fake_cluster.clock.now += 0.5
        cluster_actors.allow(True, [0.5, 0.5], 100)
        cluster_actors.wait_a_little()
        heard = sum(handle.insert().steps for handle in cluster_actors.handles)
        left, learned = 100 - heard, 20
        fake_cluster.clock.now += 0.5
        cluster_actors.allow(True, [0.5, 0.5], left + learned)

        assert heard > learned
        offers = [fake_cluster.fake_host(place).orders(SetTerms)[-1].allowance for place in (0, 1)]
        assert offers == [(left + learned + 2 * learned) // 2] * 2

    def test_beyond_the_allowance_a_host_halts_its_actors_by_itself(self, fake_cluster):
        cluster_actors = self_driven(fake_cluster)
        host_worker, hands = fake_cluster.fake_host(0).host_worker, fake_cluster.fake_host(0).hands
        allowance = fake_cluster.fake_host(0).orders(SetTerms)[0].allowance
        opened = hands.allowed[-1][0]
        hands.write(0, 2 * allowance)
        host_worker.work()

        assert opened
        assert not hands.allowed[-1][0]
        tended(cluster_actors)  # it tells of them, and the terms were made without them
        assert not hands.allowed[-1][0]
        tended(cluster_actors)
        assert hands.allowed[-1][0]

    def test_a_round_begins_once_the_last_one_was_answered(self, fake_cluster):
        cluster_actors = self_driven(fake_cluster)
        fake_cluster.fake_host(0).silent = True
        for _ in range(5):
            tended(cluster_actors)
        sent = [len(fake_cluster.fake_host(place).orders(SetTerms)) for place in (0, 1)]

        assert sent[0] <= 2 < sent[1]

    def test_gates_and_epsilons_reach_the_actors(self, fake_cluster):
        cluster_actors = self_driven(fake_cluster, actors=3)
        fake_cluster.clock.now += 2 * module.TEND_S
        cluster_actors.allow(False, [0.1, 0.2, 0.3])
        cluster_actors.look()

        assert fake_cluster.fake_host(0).hands.allowed[-1] == (False, [0.1, 0.3])
        assert fake_cluster.fake_host(1).hands.allowed[-1] == (False, [0.2])

    def test_what_actors_complain_about_is_told_with_their_place(self, fake_cluster):
        cluster_actors = self_driven(fake_cluster)
        fake_cluster.fake_host(1).hands.complained.append("actor 1 was lost")
        tended(cluster_actors)

        assert "host worker 1 on 10.0.0.1: actor 1 was lost" in cluster_actors.warnings()

    def test_lost_actors_of_all_hosts_are_counted_by_kind(self, fake_cluster):
        cluster_actors = self_driven(fake_cluster)
        fake_cluster.fake_host(0).hands.losses.append(ActorLoss(LossKind.HANG))
        fake_cluster.fake_host(1).hands.losses.append(ActorLoss(LossKind.HANG))
        tended(cluster_actors)

        assert cluster_actors.metrics()["faults/hang"] == 2.0

    def test_the_same_environment_error_on_three_hosts_or_one_ends_the_run(self, fake_cluster):
        cluster_actors = self_driven(fake_cluster)
        same = ActorLoss(LossKind.ENV_ERROR, "EnvError: my:Env, step 3: a is nan")
        fake_cluster.fake_host(0).hands.losses += [same, same]
        fake_cluster.fake_host(1).hands.losses.append(same)

        with pytest.raises(EnvError, match="my:Env, step 3: a is nan; 3 actors of this run"):
            tended(cluster_actors)


class TestSaving:
    def test_actors_are_saved_and_seated_by_their_numbers(self, fake_cluster):
        cluster_actors = fake_cluster.cluster_actors(actors=3)
        dealt = cluster_actors.save()
        assert dealt.exact
        numbers, arrays = dealt.to_checkpoint()
        assert numbers["actors"] == [{"name": f"actor {number}"} for number in range(3)]
        assert {name: a.tolist() for name, a in arrays.items()} == {
            "0.at": [0],
            "1.at": [1],
            "2.at": [2],
        }

        cluster_actors.restore(ActorGroupState.from_checkpoint(numbers, arrays))

        assert fake_cluster.fake_host(0).hands.restored == [[("actor 0", 0), ("actor 2", 2)]]
        assert fake_cluster.fake_host(1).hands.restored == [[("actor 1", 1)]]

    def test_another_number_of_actors_is_refused(self, fake_cluster):
        cluster_actors = fake_cluster.cluster_actors(actors=3)
        with pytest.raises(CheckpointError, match="resume with --actors 2"):
            cluster_actors.restore(ActorGroupState([], [ActorState({}, {}, True)] * 2))

    def test_incarnations_are_taken_up_by_actor(self, fake_cluster):
        cluster_actors = ClusterActors(
            HostSetup(settings(actors=3), VECTOR, None, 1, dict(WEIGHTS)),
            cluster=fake_cluster,  # type: ignore[arg-type]
            saved=ActorGroupState(incarnations=[4, 5, 6]),
        )

        assert [handle.incarnations for handle in cluster_actors.handles] == [(4, 6), (5,)]
        assert cluster_actors.incarnations == [4, 5, 6]


class TestProgress:
    def test_a_replacement_host_worker_gets_the_progress_that_its_actors_reported(
        self, fake_cluster
    ):
        cluster_actors = self_driven(fake_cluster, actors=3)
        for number, level in ((0, 3), (1, 4), (0, 5), (2, 6)):
            fake_cluster.fake_host(number % 2).hands.tell(EnvProgress(number, [{"level": level}]))
            tended(cluster_actors)
        replaced(fake_cluster, cluster_actors, 0)

        assert fake_cluster.fake_host(0).hands.progress == [
            EnvProgress(0, [{"level": 5}]),
            EnvProgress(2, [{"level": 6}]),
        ]
        assert (
            fake_cluster.fake_host(1).hands.progress == []
        )  # that one was there from the beginning
        assert cluster_actors.progress.state() == [
            EnvProgress(0, [{"level": 5}]),
            EnvProgress(1, [{"level": 4}]),
            EnvProgress(2, [{"level": 6}]),
        ]

    def test_a_run_that_goes_on_hands_out_what_was_saved(self, fake_cluster):
        cluster_actors = ClusterActors(
            HostSetup(settings(mode=Mode.ASYNC, actors=3), VECTOR, None, 1, dict(WEIGHTS)),
            cluster=fake_cluster,  # type: ignore[arg-type]
            saved=ActorGroupState(
                (), progress=[EnvProgress(i, [at]) for i, at in enumerate("abc")]
            ),
        )
        cluster_actors.look()

        assert [standing.envs for standing in fake_cluster.fake_host(0).hands.progress] == [
            ["a"],
            ["c"],
        ]
        assert [standing.envs for standing in fake_cluster.fake_host(1).hands.progress] == [["b"]]
