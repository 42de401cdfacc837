"""What is decided about actors that fail, tried on some that only pretend to play."""

import errno
import json
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from rookery.actors import local_group as local_group_module
from rookery.actors.actor_group import ActorGroupState, epsilons_of
from rookery.actors.env_progress import EnvProgress
from rookery.actors.local_group import NAP_S, SOON_S, LocalActors
from rookery.actors.messages import (
    ActorDone,
    ActorGroupSetup,
    ActorReport,
    ActorSetup,
    ActorState,
    CutEpisodes,
    PlayChunk,
    PlayFreely,
    RestoreActor,
    SaveActor,
)
from rookery.actors.worker import InlineWatch
from rookery.config.load import load
from rookery.config.schema import Config, Engine
from rookery.engines.engine import CloseRole
from rookery.errors import CheckpointError, ConfigError, LostError, RoleFailed
from rookery.learner.weight_store import WeightStore
from rookery.replay.ring import Ring
from rookery.runtime.timeouts import Patience
from scripted_roles import flat_spec, written

CHUNK, ENVS = 16, 2


def settings(**changes: Any) -> Config:
    base = {"run.mode": "sync", "actor.num": 2, "actor.chunk": CHUNK, "actor.envs": ENVS}
    changes = {key.replace("__", "."): value for key, value in changes.items()}
    return load("corridor", changes=base | changes)


class Pretender:
    """A host whose actor writes the rows it is asked for, until it is told to be otherwise."""

    def __init__(self, setup: ActorSetup, name: str, world: "World"):
        self.setup, self.name, self.world, self.pid = setup, name, world, 1
        self.ring = Ring.from_fd(setup.ring_fd)
        os.close(setup.weights_fd)
        self.alive, self.sent, self.grace_s = True, list[Any](), None
        self.answers: deque[Any] = deque()

    def send(self, message: Any) -> None:
        self.sent.append(message)
        obey = self.world.moods.get(self.name, Pretender.obey)
        if self.alive and not isinstance(message, CloseRole):
            obey(self, message)

    def obey(self, order: Any) -> None:
        answers: dict[type, Callable[[], Any]] = {
            PlayChunk: lambda: self.play(order.env_steps),
            PlayFreely: lambda: ActorReport(0, (), 1),
            CutEpisodes: ActorDone,
            RestoreActor: ActorDone,
            SaveActor: lambda: ActorState(
                {"mark": self.setup.incarnation}, {"w": np.ones(1)}, True
            ),
        }
        self.answers.append(answers[type(order)]())

    def play(self, rows: int) -> ActorReport:
        self.ring.put(rows, {"end": 0, "env": 0, "episode": 0, "t": np.arange(rows)})
        return ActorReport(rows, (), 1)

    def die(self, order: Any = None) -> None:
        self.alive = False

    def fail(self, order: Any = None) -> None:
        self.answers.append(RoleFailed("EnvError: on fire", "Traceback: on fire", final=False))
        self.alive = False

    def receive(self, timeout_s: float = 0.0) -> Any | None:
        return self.answers.popleft() if self.answers else None

    def stop(self, grace_s: float = 0.0) -> int:
        self.alive, self.grace_s = False, grace_s
        self.ring.close()
        return -9


class World:
    """Starts pretenders, decides how they are, and keeps the time."""

    def __init__(self) -> None:
        self.hosts: list[Pretender] = []
        self.moods: dict[str, Callable[[Pretender, Any], None]] = {}
        self.broken: OSError | None = None
        self.now = 1_000.0

    def start(self, target: str, setup: ActorSetup, *, name: str, fds: Sequence[int]) -> Pretender:
        if self.broken is not None:
            for fd in fds:
                os.close(fd)
            raise self.broken
        self.hosts.append(Pretender(setup, name, self))
        return self.hosts[-1]

    def of(self, index: int) -> list[Pretender]:
        return [host for host in self.hosts if host.setup.actor == index]

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    world = World()
    monkeypatch.setitem(local_group_module.ENGINES, Engine.PROCESSES, world.start)
    monkeypatch.setattr(local_group_module, "time", world)
    monkeypatch.setattr("rookery.runtime.supervision.time", world)
    return world


@pytest.fixture
def make(world: World) -> Iterator[Callable[..., LocalActors]]:
    weight_store = WeightStore({"w": np.zeros(1)})
    made: list[LocalActors] = []

    def build(
        incarnations: Sequence[int] = (), progress: Sequence[Any] = (), **changes: Any
    ) -> LocalActors:
        local_actors = LocalActors(
            ActorGroupSetup(
                settings(**changes),
                flat_spec(),
                weight_store.fd,
                incarnations=incarnations,
                progress=progress,
            )
        )
        made.append(local_actors)
        return local_actors

    yield build
    for local_actors in made:
        local_actors.close()
    weight_store.close()


def play(local_actors: LocalActors, rows: int = CHUNK) -> list[ActorReport]:
    """Has all actors play a chunk, and drains it."""
    found = []
    for reports in local_actors.collect(rows, [0.5] * len(local_actors.seats)):
        found += reports
        drain(local_actors)
    return found


def drain(local_actors: LocalActors) -> None:
    for ring in local_actors.rings:
        ring.consume(ring.committed)


def turns(local_actors: LocalActors, world: World, count: int) -> None:
    """Lets all actors play by themselves for a while."""
    for _ in range(count):
        local_actors.reports()
        drain(local_actors)
        world.now += 1.0


class TestExploration:
    def test_a_ladder_has_its_rungs_where_the_paper_puts_them(self) -> None:
        ladder = settings(actor__num=4, actor__exploration="ladder")

        assert epsilons_of(0.4, ladder) == [0.4 ** (1 + 7 * i / 3) for i in range(4)]
        assert epsilons_of(0.4, ladder)[-1] == pytest.approx(0.4**8)

    def test_one_epsilon_is_shared_unless_told_otherwise(self) -> None:
        assert epsilons_of(0.4, settings(actor__num=3)) == [0.4] * 3

    def test_a_lonely_actor_stands_on_the_first_rung(self) -> None:
        assert epsilons_of(0.4, settings(actor__num=1, actor__exploration="ladder")) == [0.4]


class TestOrders:
    def test_reports_come_in_the_actors_order(self, make: Any, world: World) -> None:
        local_actors = make(actor__num=3)

        (reports,) = list(local_actors.collect(CHUNK, [0.1, 0.2, 0.3]))

        assert [host.sent for host in world.hosts] == [
            [PlayChunk(CHUNK, None, epsilon)] for epsilon in (0.1, 0.2, 0.3)
        ]
        assert [report.env_steps for report in reports] == [CHUNK] * 3

    def test_only_actors_with_episodes_left_are_asked_again(self, make: Any, world: World) -> None:
        local_actors = make()
        left = iter([1, 0])
        world.moods["actor-1"] = lambda host, order: host.answers.append(
            host.play(4)._replace(left=next(left))
        )

        assert [
            len(reports) for reports in local_actors.collect(CHUNK, [0.5, 0.5], episodes=2)
        ] == [2, 1]
        assert [len(host.sent) for host in world.hosts] == [1, 2]

    def test_states_are_saved_and_handed_back_to_whom_they_belong(
        self, make: Any, world: World
    ) -> None:
        local_actors = make(incarnations=[3, 5])

        dealt = local_actors.save()
        local_actors.restore(dealt)

        assert dealt.exact
        assert dealt.incarnations == [3, 5]
        assert [actor.numbers for actor in dealt.actors] == [{"mark": 3}, {"mark": 5}]
        assert [host.sent[-1].state.numbers for host in world.hosts] == [{"mark": 3}, {"mark": 5}]
        assert [list(host.sent[-1].state.arrays) for host in world.hosts] == [["w"], ["w"]]

    def test_a_checkpoint_of_more_actors_is_refused(self, make: Any) -> None:
        with pytest.raises(CheckpointError, match=r"has 3 actors, this run has 2; .*--actors 3"):
            make().restore(ActorGroupState([], [ActorState({}, {}, True)] * 3))

    def test_a_run_that_goes_on_with_more_actors_begins_the_new_ones(self, make: Any) -> None:
        assert make(incarnations=[4]).incarnations == [4, 0]


class TestLosing:
    @pytest.mark.parametrize("how", [Pretender.die, Pretender.fail])
    def test_the_next_incarnation_gets_the_order_and_a_ring_of_its_own(
        self, how: Any, make: Any, world: World
    ) -> None:
        local_actors = make()
        play(local_actors)
        old = local_actors.rings[1]
        how(world.hosts[1])

        reports = play(local_actors)

        assert [report.env_steps for report in reports] == [CHUNK] * 2
        assert local_actors.incarnations == [0, 1]
        assert local_actors.rings[1] is not old
        assert old.fd == -1
        assert {row["incarnation"] for row in written(local_actors.rings[1])} == {1}
        assert {row["actor"] for row in written(local_actors.rings[1])} == {1}
        assert len(world.of(0)) == 1

    def test_what_it_wrote_of_an_unfinished_chunk_is_played_anew(
        self, make: Any, world: World
    ) -> None:
        def stumble(host: Pretender, order: Any) -> None:
            if host.setup.incarnation == 0:
                host.play(5)
                host.die()
            else:
                host.obey(order)

        world.moods["actor-1"] = stumble
        local_actors = make()

        ((first, second),) = list(local_actors.collect(CHUNK, [0.5, 0.5]))

        assert (first.env_steps, second.env_steps) == (CHUNK, CHUNK)
        assert len(written(local_actors.rings[1])) == CHUNK

    def test_a_chunk_that_was_finished_is_drained_before_its_ring_goes(
        self, make: Any, world: World
    ) -> None:
        """The first one dies after its answer, while the second one still plays."""
        local_actors = make()

        def play_last(host: Pretender, order: Any) -> None:
            world.hosts[0].die()
            host.obey(order)

        world.moods["actor-1"] = play_last
        plays = local_actors.collect(CHUNK, [0.5, 0.5])
        next(plays)

        assert len(written(local_actors.rings[0])) == CHUNK
        assert {row["incarnation"] for row in written(local_actors.rings[0])} == {0}
        drain(local_actors)
        world.moods.clear()
        play(local_actors)
        assert local_actors.incarnations == [1, 0]

    def test_one_that_dies_between_two_orders_is_noticed_at_the_next(
        self, make: Any, world: World
    ) -> None:
        local_actors = make()
        play(local_actors)
        world.hosts[0].die()

        play(local_actors)

        assert local_actors.incarnations == [1, 0]
        assert list(local_actors.warnings()) == [
            "actor 0 was lost (died (exit status -9)) and is replaced"
        ]
        assert list(local_actors.warnings()) == []

    def test_one_that_dies_while_it_is_saved_is_saved_as_its_next_incarnation(
        self, make: Any, world: World
    ) -> None:
        local_actors = make()
        play(local_actors)
        world.moods["actor-1"] = lambda host, order: (
            host.die() if host.setup.incarnation == 0 else host.obey(order)
        )

        dealt = local_actors.save()

        assert dealt.incarnations == [0, 1]
        assert [actor.numbers for actor in dealt.actors] == [{"mark": 0}, {"mark": 1}]

    def test_all_may_go_at_once(self, make: Any, world: World) -> None:
        local_actors = make(actor__num=3)
        play(local_actors)
        for host in world.hosts:
            host.die()

        assert [report.env_steps for report in play(local_actors)] == [CHUNK] * 3
        assert local_actors.incarnations == [1, 1, 1]

    def test_a_lost_actor_is_not_waited_for(self, make: Any, world: World) -> None:
        local_actors = make()
        play(local_actors)
        world.hosts[0].die()
        play(local_actors)

        assert world.hosts[0].grace_s == 0.0

    def test_one_that_failed_may_close_its_environments_before_it_goes(
        self, make: Any, world: World
    ) -> None:
        def confess(host: Pretender, order: Any) -> None:
            if host.setup.incarnation == 0:
                host.fail()
                host.alive = True  # for now
            else:
                host.obey(order)

        local_actors = make()
        world.moods["actor-0"] = confess
        local_actors._tell(local_actors.seats[0], PlayChunk(CHUNK, None, 0.5))
        local_actors.reports()
        assert world.hosts[0].grace_s is None
        world.hosts[0].alive = False
        local_actors.reports()

        assert local_actors.incarnations == [1, 0]
        (complaint,) = local_actors.warnings()
        assert complaint == "actor 0 was lost (EnvError: on fire) and is replaced"

    def test_descriptors_are_given_back(self, make: Any, world: World) -> None:
        local_actors = make()
        play(local_actors)
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(20):
            world.of(1)[-1].die()
            play(local_actors)

        assert local_actors.restarts == 20
        assert len(os.listdir("/proc/self/fd")) == before


class TestGivingUp:
    def test_pauses_double_and_then_it_is_over(self, make: Any, world: World) -> None:
        world.moods["actor-0"] = Pretender.fail
        local_actors = make(actor__max_restarts=4)
        started = [world.now]
        start = world.start

        def note(*args: Any, **kwargs: Any) -> Pretender:
            started.append(world.now)
            return start(*args, **kwargs)

        local_actors._start_role = note
        with pytest.raises(LostError) as lost:
            play(local_actors)

        pauses = np.diff(started)
        assert pauses[0] < 0.1  # at once
        assert pauses[1:] == pytest.approx([0.5, 1.0, 2.0], abs=0.1)
        message = str(lost.value)
        assert message.startswith(
            "actor 0 of flat (seed 0, incarnation 4) was lost 5 times in a row"
        )
        assert "EnvError: on fire; correct the environment" in message
        assert "raise actor.max_restarts (4)" in message
        assert lost.value.__notes__ == ["Traceback: on fire"]
        assert lost.value.exit_code == 3
        assert [line.partition(" is replaced")[2] for line in local_actors.warnings()] == [
            "",
            " in 0.5 s",
            " in 1 s",
            " in 2 s",
        ]

    def test_a_chunk_in_between_begins_the_count_anew(self, make: Any, world: World) -> None:
        local_actors = make(actor__max_restarts=1)
        for _ in range(5):
            play(local_actors)
            world.of(0)[-1].die()

        assert local_actors.seats[0].watch.in_a_row <= 1

    def test_an_answer_without_rows_does_not(self, make: Any, world: World) -> None:
        """It can be built and saved, but never plays."""
        world.moods["actor-0"] = lambda host, order: (
            host.fail() if isinstance(order, PlayChunk) else host.obey(order)
        )
        local_actors = make(actor__max_restarts=1)
        local_actors.save()

        with pytest.raises(LostError, match="2 times in a row"):
            play(local_actors)

    def test_a_wrong_request_ends_the_run_at_once_and_is_one(self, make: Any, world: World) -> None:
        world.moods["actor-1"] = lambda host, order: (
            host.answers.append(
                RoleFailed("ConfigError: no such device", "Traceback: cuda", final=True)
            )
            or host.die()
        )
        local_actors = make()

        with pytest.raises(ConfigError, match=r"^actor 1: no such device") as refused:
            play(local_actors)
        assert refused.value.exit_code == 2
        assert refused.value.__notes__ == ["Traceback: cuda"]

    def test_a_request_that_was_right_before_is_tried_again(self, make: Any, world: World) -> None:
        """An environment whose licence server is away for a moment is no wrong setting."""
        local_actors = make()
        play(local_actors)
        world.of(0)[-1].answers.append(RoleFailed("ConfigError: no licence", "", final=True))
        world.of(0)[-1].die()

        play(local_actors)

        assert local_actors.incarnations == [1, 0]

    def test_where_no_process_is_left_the_start_says_what_to_do(
        self, make: Any, world: World
    ) -> None:
        world.broken = OSError(errno.EMFILE, "Too many open files")
        before = len(os.listdir("/proc/self/fd"))

        with pytest.raises(LostError) as lost:
            make()

        assert str(lost.value).startswith("actor 0 of 2 could not be started ([Errno 24] Too many")
        assert "(ulimit -n), or use fewer actors (--actors)" in str(lost.value)
        assert len(os.listdir("/proc/self/fd")) == before

    def test_where_no_process_is_left_for_a_moment_it_is_tried_again(
        self, make: Any, world: World
    ) -> None:
        local_actors = make()
        play(local_actors)
        world.broken = OSError(errno.EAGAIN, "Resource temporarily unavailable")
        world.hosts[0].die()
        local_actors.reports()
        world.broken = None

        play(local_actors)

        assert any("could not be started" in line for line in local_actors.warnings())
        assert [report.env_steps for report in play(local_actors)] == [CHUNK] * 2


class Impatient:
    """Comes to its end at once, where the silence allowed is no longer than a second."""

    silent_s = 7.0

    def at_end(self, silence_s: float, limit_s: float) -> bool:
        return limit_s <= 1.0


class TestSilence:
    @pytest.fixture(autouse=True)
    def impatient(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("rookery.runtime.supervision.Patience", Impatient)

    def test_one_that_does_not_move_is_replaced(self, make: Any, world: World) -> None:
        local_actors = make(actor__env_step_timeout_s=1.0)
        play(local_actors)
        world.moods["actor-1"] = lambda host, order: (
            None if host.setup.incarnation == 0 else host.obey(order)
        )
        play(local_actors)

        assert local_actors.incarnations == [0, 1]
        (complaint,) = local_actors.warnings()
        assert "has not moved for 7 s (actor.env_step_timeout_s is 1)" in complaint

    def test_one_that_has_nothing_to_do_may_be_silent(self, make: Any) -> None:
        local_actors = make(actor__env_step_timeout_s=1.0)
        play(local_actors)
        local_actors.reports()

        assert local_actors.incarnations == [0, 0]

    def test_one_that_never_said_a_word_is_given_time_to_start(
        self, make: Any, world: World
    ) -> None:
        world.moods["actor-1"] = lambda host, order: None
        local_actors = make(actor__env_step_timeout_s=1.0, run__mode="async")
        local_actors.start()
        local_actors.reports()

        assert local_actors.incarnations[1] == 0
        world.of(1)[0].obey(PlayFreely())
        local_actors.reports()
        assert local_actors.incarnations[1] == 1


class TestStarting:
    def test_the_time_it_took_to_start_is_not_held_against_it(
        self, make: Any, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its first answer is a sign of life, although it has not beaten its heart yet."""
        patience = "rookery.runtime.supervision.Patience"
        monkeypatch.setattr(patience, lambda: Patience(world.monotonic))
        monkeypatch.setattr(Ring, "silence_s", property(lambda ring: 1e9))
        world.moods["actor-0"] = world.moods["actor-1"] = lambda host, order: None
        local_actors = make(actor__env_step_timeout_s=1.0, run__mode="async")
        local_actors.start()
        for _ in range(60):
            world.now += 0.5
            local_actors.reports()
        for host in world.hosts:
            host.obey(PlayFreely())
        local_actors.reports()
        assert local_actors.incarnations == [0, 0]

        for _ in range(5):
            world.now += 0.5
            local_actors.reports()
        assert local_actors.incarnations == [1, 1]


class TestHanging:
    def test_one_that_was_slow_is_not_held_against_the_next(
        self, make: Any, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Two that live here work one after the other, each for less than the limit."""
        beats: dict[Ring, float] = {}
        monkeypatch.setattr(Ring, "beat", lambda ring: beats.update({ring: world.now}))
        monkeypatch.setattr(Ring, "silence_s", property(lambda ring: world.now - beats[ring]))
        local_actors = make()
        config = settings(actor__env_step_timeout_s=10.0)
        hangs = InlineWatch(ActorGroupSetup(config, flat_spec(), weights_fd=-1))
        hangs._patience = Patience(world.monotonic)
        said = []
        for ring in local_actors.rings:
            with hangs.watch(ring):
                for _ in range(9):
                    world.now += 1.0
                    said.append(hangs._message())
        assert said == [None] * 18

        with hangs.watch(local_actors.rings[0]):
            for _ in range(11):
                world.now += 1.0
                said.append(hangs._message())
        hangs.close()
        assert "flat has not answered for 11 s (actor.env_step_timeout_s is 10)" in said[-1]


class TestRoaming:
    def test_the_next_incarnation_roams_too_and_its_gate_is_opened(
        self, make: Any, world: World
    ) -> None:
        local_actors = make(run__mode="async")
        local_actors.start()
        local_actors.allow(True, [0.3, 0.4])
        local_actors.reports()
        world.hosts[1].die()
        local_actors.reports()
        assert not local_actors.rings[1].may_write

        local_actors.allow(True, [0.3, 0.4])

        assert [type(order) for order in world.of(1)[-1].sent] == [PlayFreely]
        assert local_actors.rings[1].may_write
        assert local_actors.rings[1].epsilon == 0.4

    def test_room_is_given_anew_with_every_call(self, make: Any, world: World) -> None:
        local_actors = make(run__mode="async")
        local_actors.start()
        ring = local_actors.rings[0]

        local_actors.allow(True, [0.3, 0.4], 1)
        ring.reserve(1)
        used_up = ring.may_write
        local_actors.allow(True, [0.3, 0.4], 1)

        assert not used_up
        assert ring.may_write

    @pytest.mark.parametrize(
        ("rows", "wanted", "waited"),
        [(0, 1, 0.5), (0, CHUNK, 0.5), (1, 1, 0.0), (CHUNK, CHUNK, 0.0), (1, CHUNK, SOON_S)],
    )
    def test_many_rows_are_waited_for_no_longer_than_a_little_once_some_are_there(
        self, make: Any, world: World, rows: int, wanted: int, waited: float
    ) -> None:
        local_actors = make(run__mode="async")
        local_actors.start()
        world.hosts[1].play(rows)
        began = world.now

        local_actors.wait(0.5, wanted)

        assert world.now - began == pytest.approx(waited, abs=2 * NAP_S)

    def test_the_learner_does_not_wait_for_rows_if_a_ring_is_half_full(
        self, make: Any, world: World
    ) -> None:
        local_actors = make(run__mode="async")
        local_actors.start()
        world.hosts[0].play(-(-local_actors.rings[0].capacity // 2))
        began = world.now

        local_actors.wait(0.5, 10**9)

        assert world.now == began

    def test_its_rows_are_drained_before_it_is_replaced(self, make: Any, world: World) -> None:
        local_actors = make(run__mode="async")
        local_actors.start()
        world.hosts[0].play(CHUNK)
        world.hosts[0].die()
        local_actors.reports()
        assert local_actors.incarnations == [0, 0]
        assert local_actors.rings[0].waiting
        drain(local_actors)
        local_actors.reports()

        assert local_actors.incarnations == [1, 0]

    def test_one_that_starts_but_never_plays_is_given_up(self, make: Any, world: World) -> None:
        def one_step(host: Pretender, order: Any) -> None:
            host.obey(order)
            host.play(ENVS)
            host.fail()

        world.moods["actor-0"] = one_step
        local_actors = make(run__mode="async")
        local_actors.start()

        with pytest.raises(LostError, match="4 times in a row"):
            turns(local_actors, world, 100)

    def test_one_that_fails_after_every_few_chunks_is_given_up_beyond_20_in_an_hour(
        self, make: Any, world: World
    ) -> None:
        def some_chunks(host: Pretender, order: Any) -> None:
            host.obey(order)
            host.play(2 * CHUNK)
            host.fail()

        world.moods["actor-0"] = some_chunks
        local_actors = make(run__mode="async")
        local_actors.start()
        with pytest.raises(LostError, match="was lost 21 times within an hour"):
            turns(local_actors, world, 60)

        assert local_actors.restarts == 20
        assert local_actors.seats[0].watch.in_a_row == 1

    def test_losses_are_counted_by_kind_and_taken_once(self, make: Any, world: World) -> None:
        local_actors = make(run__mode="async")
        local_actors.start()
        world.hosts[0].die()
        broken = RoleFailed("EnvError: a is nan", "Traceback: a", final=False, environment=True)
        world.hosts[1].answers.append(broken)
        world.hosts[1].die()
        local_actors.reports()

        assert local_actors.metrics() == {"faults/crash": 1.0, "faults/env_error": 1.0}
        assert [loss.kind for loss in local_actors.take_losses()] == ["crash", "env_error"]
        assert local_actors.take_losses() == ()


class TestProgress:
    def tell(self, local_actors: LocalActors, host: Pretender, envs: list[Any]) -> None:
        standing = EnvProgress(host.setup.actor, envs)
        host.answers.append(ActorReport(0, (), 1, progress=standing))
        local_actors.reports()

    def test_the_next_incarnation_begins_with_the_newest(self, make: Any, world: World) -> None:
        local_actors = make(run__mode="async")
        local_actors.start()
        for level in (1, 2):
            self.tell(local_actors, world.hosts[1], [{"level": level}])
        self.tell(local_actors, world.hosts[0], [{"level": 7}])
        world.hosts[1].die()
        local_actors.reports()

        assert [host.setup.progress for host in world.of(1)] == [None, [{"level": 2}]]

    def test_what_an_actor_told_before_it_died_counts(self, make: Any, world: World) -> None:
        local_actors = make(run__mode="async")
        local_actors.start()
        host = world.hosts[1]
        host.answers.append(ActorReport(0, (), 1, progress=EnvProgress(1, [{"level": 3}])))
        host.die()
        local_actors.reports()

        assert world.of(1)[-1].setup.progress == [{"level": 3}]

    def test_a_run_that_goes_on_begins_with_what_was_saved(self, make: Any, world: World) -> None:
        saved = json.loads(
            json.dumps([EnvProgress(0, [{"level": 4}]), EnvProgress(1, [{"level": 5}])])
        )

        local_actors = make(run__mode="async", progress=saved)

        assert [host.setup.progress for host in world.hosts] == [[{"level": 4}], [{"level": 5}]]
        assert json.loads(json.dumps(local_actors.progress.state())) == saved

    def test_in_sync_the_next_incarnation_begins_anew(self, make: Any, world: World) -> None:
        local_actors = make()
        play(local_actors)
        world.hosts[1].die()
        play(local_actors)

        assert [host.setup.progress for host in world.hosts] == [None] * 3


class TestClosing:
    def test_all_actors_may_close_their_environments_except_those_that_never_reported(
        self, make: Any, world: World
    ) -> None:
        local_actors = make(run__mode="async")
        world.moods["actor-1"] = lambda host, order: None
        local_actors.start()
        local_actors.reports()
        local_actors.close()
        local_actors.rings.clear()

        assert all(isinstance(host.sent[-1], CloseRole) for host in world.hosts)
        assert [host.grace_s for host in world.hosts] == [local_group_module.CLOSE_S, 0.0]

    def test_an_actor_that_does_not_end_does_not_delay_the_others(
        self, make: Any, world: World
    ) -> None:
        local_actors = make()
        honest = world.hosts[0].stop

        def stubborn(grace_s: float = 0.0) -> int:
            honest(grace_s)
            raise TimeoutError("still there")

        world.hosts[0].stop = stubborn  # type: ignore[method-assign]
        with pytest.raises(TimeoutError):
            local_actors.close()
        local_actors.rings.clear()

        assert world.hosts[1].grace_s == 0.0
