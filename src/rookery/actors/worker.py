"""The worker that runs one actor, in a process of its own or, in single mode, in the learner's.

A chunk is the env steps (or episodes) that an actor plays without interruption. In sync mode the
worker plays one chunk per control message from the learner process. In async mode it plays chunk
after chunk and sends the learner process a report every 50 ms. It pauses while the rate limiter
(samples per insert) halts the actors, and while the ring buffer from which the learner reads the
actor's env steps is full.

In single mode `SingleActor` calls the worker in the learner's process, without an engine or a
message. An error of the environment is raised in the training loop, and a hung environment ends the
run: it cannot be restarted.
"""

import contextlib
import math
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from rookery.actors import messages
from rookery.actors.actor import Actor, Played, transport
from rookery.actors.actor_group import ActorGroup, ActorGroupState, refuse_other_actors
from rookery.actors.env_progress import EnvProgress, Progress
from rookery.actors.inference.inference_client import InferenceClient
from rookery.actors.start_errors import started
from rookery.algorithms import Algorithm, build_algorithm
from rookery.config.schema import Config, Inference
from rookery.engines.engine import copies
from rookery.envs.env_calls import EnvCalls
from rookery.envs.make import Envs, make
from rookery.envs.turn_based.opponents import OpponentSeats, opponents_builder
from rookery.errors import ConfigError, EnvError, StalledError
from rookery.event import Activity, Counters, Episode, Traced
from rookery.learner.weight_store import WeightStore
from rookery.networks.device import pick_device
from rookery.networks.named_arrays import arrays_of
from rookery.replay.ring import Ring
from rookery.report.metrics.trace import Trace
from rookery.runtime.watchdog import HangWatch, Heartbeat, Hung
from rookery.types import EnvSpec

NAP_S, LONG_NAP_S = 0.0005, 0.004  # first and longest pause while the rate limiter halts the actor
NEWS_S = 0.05  # between two reports while playing freely
TRACE_S = 0.5  # between two traces
PROGRESS_S = 1.0  # between two reports of the environments' progress
REMEDY = (
    "correct the environment, raise the limit, or use --mode sync or async with --engine "
    "processes, where a hung actor is replaced"
)


class ActorWorker:
    """Runs one actor: builds it with its environments, and handles the learner's control messages.

    `do` handles one control message. `work` plays the next env steps in async mode.
    """

    def __init__(self, setup: messages.ActorSetup):
        self.setup, self.config = setup, setup.group.config
        config = self.config
        self.self_driven = False
        self._no_room = (
            f"actor.devices {list(config.actor.devices)} have no room for actor {setup.actor} of "
            f"{config.actor.num}; lower actor.num, name more devices in actor.devices, or leave it "
            "out"
        )
        self._builder = opponents_builder(config)
        ring = Ring.from_fd(setup.ring_fd)
        calls = setup.calls or EnvCalls(ring.beat)
        envs = setup.group.envs or make(
            config.env, config.actor.envs, factory=setup.group.factory, calls=calls
        )
        try:
            with full_gpu(self._no_room):
                self._begin(envs, ring)
        except BaseException:  # the environments have no other owner
            with contextlib.suppress(EnvError):
                envs.close()
            raise
        self.trace = Trace(f"actor-{setup.actor}")
        self._played, self._ended, self._nap_s = 0, list[Episode](), NAP_S
        self._told = self._idle_since = time.monotonic()
        self._grown, self._stood_at = False, -math.inf  # has an episode ended since?

    def _begin(self, envs: Envs, ring: Ring) -> None:
        setup, config = self.setup, self.config
        if setup.progress is not None:
            envs.restore_progress(setup.progress)
        algorithm = self._algorithm(envs.spec, ring)
        self.actor = Actor(
            envs,
            algorithm,
            replace(config.actor, pull_period=1) if config.algo.on_policy else config.actor,
            config.env,
            seed=config.run.seed,
            ring=ring,
            index=setup.actor,
            incarnation=setup.incarnation,
            info_keys=config.report.info_keys,
            values=config.wants_values,
            opponent_seats=self._opponent_seats(envs, algorithm),
        )
        envs.export_progress()  # an error in it should come before anything is played
        self._pull()

    def _algorithm(self, spec: EnvSpec, ring: Ring) -> Algorithm:
        setup, config = self.setup, self.config
        self.weight_store: WeightStore | None = None
        if config.actor.inference is Inference.CENTRAL:
            return InferenceClient(setup.group, setup.actor, setup.weights_fd, beat=ring.beat)
        algorithm = build_algorithm(config, spec)
        announced = {} if self._builder is None else self._builder.blank(config)
        self.weight_store = WeightStore(
            arrays_of(algorithm.acting) | announced, fd=setup.weights_fd
        )
        algorithm.networks.to(actor_device(config, setup.actor, "cpu"))
        return algorithm

    def _opponent_seats(self, envs: Envs, algorithm: Algorithm) -> OpponentSeats | None:
        """Builds the self-play opponents, which act for the other players of the actor's games.

        Before the first game begins, they read from the learner's published arrays which opponents
        to play. Returns None in runs without opponents.
        """
        if self._builder is None:
            return None
        opponents = self.setup.group.opponents
        opponent_seats = self._builder.seat(self.config, envs, opponents, algorithm)
        published = self.weight_store.latest(0) if self.weight_store is not None else None
        if published is not None:
            opponent_seats.hear(published.arrays)
        return opponent_seats

    def _pull(self) -> None:
        if self.weight_store is not None:
            self.actor.pull(self.weight_store)

    def do(self, order: messages.ActorOrder) -> messages.ActorAnswer:
        match order:
            case messages.PlayChunk():
                return self.play(*order)
            case messages.PlayFreely():
                self._pull()  # a resumed run's weights came after this was built
                self.self_driven = True
                return self._report()
            case messages.CutEpisodes():
                self.actor.cut()
                return messages.ActorDone()
            case messages.SaveActor():
                return self.save()
            case messages.RestoreActor():
                self.actor.restore(order.state.numbers, order.state.arrays)
                return messages.ActorDone()

    def play(self, env_steps: int, episodes: int | None, epsilon: float) -> messages.ActorReport:
        """Plays at least `env_steps` steps, or `episodes` episodes if given; returns a report.

        First loads the newest published weights if `actor.pull_period` env steps have passed since
        weights were loaded.
        """
        if self.setup.calls is None:  # in a process of its own: it has waited for the others
            self.trace.note(Activity.WAIT, self._idle_since, time.monotonic())
        played = self._chunk(env_steps, episodes, epsilon)
        self._idle_since = time.monotonic()
        left = 0 if episodes is None else max(0, episodes - len(played.ended))
        return messages.ActorReport(
            played.env_steps,
            messages.EndedEpisodes(played.ended),
            self.actor.version,
            left,
            self._traced(),
        )

    def _chunk(self, env_steps: int, episodes: int | None, epsilon: float) -> Played:
        if self.actor.due():
            self._pull()
        began = time.monotonic()
        with full_gpu(self._no_room):
            if episodes is None:
                played = self.actor.collect(env_steps, epsilon)
            else:
                played = self.actor.collect_episodes(episodes, epsilon)
        self.trace.note(Activity.PLAY, began, time.monotonic(), played.env_steps)
        return played

    def work(self) -> messages.ActorReport | None:
        """Plays `actor.chunk` env steps in async mode, or sleeps briefly if the actor may not play.

        It may not play while the rate limiter (samples per insert) halts the actors, or while its
        ring buffer to the learner is full. Returns a report if the last one is at least 50 ms old,
        otherwise None.
        """
        ring, chunk = self.actor.ring, self.config.actor.chunk
        if ring.may_write and ring.free >= self.actor.room(chunk):
            self._nap_s = NAP_S
            played = self._chunk(chunk, None, ring.epsilon)
            self._played += played.env_steps
            self._ended += played.ended
        else:
            self._nap()
        due = time.monotonic() - self._told >= NEWS_S
        return self._report() if due else None

    def _nap(self) -> None:
        began = time.monotonic()
        time.sleep(self._nap_s)
        self._nap_s = min(2 * self._nap_s, LONG_NAP_S)
        self.actor.ring.beat()
        self.trace.note(Activity.WAIT, began, time.monotonic())

    def _report(self) -> messages.ActorReport:
        report = messages.ActorReport(
            self._played,
            messages.EndedEpisodes(self._ended),
            self.actor.version,
            traced=self._traced(),
            progress=self._standing(),
        )
        self._played, self._ended, self._told = 0, [], time.monotonic()
        return report

    def _traced(self) -> Traced | None:
        """Returns a trace: the time spans in which the actor played or waited since the last trace.

        Returns None if the last trace is less than 0.5 s old.
        """
        return self.trace.take(Counters()) if self.trace.age_s >= TRACE_S else None

    def _standing(self) -> EnvProgress | None:
        """Returns the environments' progress (such as a curriculum level) for the next report.

        Returns None if it was reported less than a second ago, if no episode has ended since then,
        or if the environments have no progress.
        """
        self._grown = self._grown or bool(self._ended)
        if not self._grown or time.monotonic() - self._stood_at < PROGRESS_S:
            return None
        self._grown, self._stood_at = False, time.monotonic()
        envs = self.actor.envs.export_progress()
        return None if envs is None else EnvProgress(self.setup.actor, envs)

    def save(self) -> messages.ActorState:
        """Returns the actor's state for a checkpoint."""
        numbers, arrays = self.actor.state()
        return messages.ActorState(numbers, arrays, numbers["envs"] is not None)

    def close(self) -> None:
        try:
            self.actor.close()
        finally:
            source = self.actor.algorithm if self.weight_store is None else self.weight_store
            if isinstance(source, WeightStore | InferenceClient):
                source.close()


@contextlib.contextmanager
def full_gpu(what: str) -> Iterator[None]:
    """Context that turns a GPU out-of-memory error of torch into a ConfigError, which says `what`.

    A process that fails with a ConfigError before its first message ends the run: a restart would
    fail in the same way.
    """
    try:
        yield
    except RuntimeError as error:  # torch has several for it
        if "out of memory" not in str(error):
            raise
        raise ConfigError(f"GPU out of memory: {what} ({error})") from error


def actor_device(config: Config, index: int, otherwise: str) -> torch.device:
    """Returns the device of `actor.devices` for actor number `index`; they take turns.

    Returns `otherwise` if `actor.devices` names none.
    """
    devices = config.actor.devices
    return pick_device(devices[index % len(devices)] if devices else otherwise, "actor.devices")


class InlineWatch(HangWatch):
    """Watchdog thread that checks the heartbeat of the actors that run in this process."""

    def __init__(self, setup: messages.ActorGroupSetup):
        calls = EnvCalls() if setup.envs is None else setup.envs.calls
        super().__init__(setup.spec.name, setup.config.actor.env_step_timeout_s, calls, REMEDY)

    @contextlib.contextmanager
    def watch(self, heartbeat: Heartbeat) -> Iterator[None]:
        """Does what the base class does, in a file that a step in single mode passes anyway."""
        heartbeat.beat()
        self.calls.beat, self.heartbeat = heartbeat.beat, heartbeat
        try:
            yield
        except Hung as hung:
            raise StalledError(str(hung)) from None
        finally:
            self.heartbeat = None


class SingleActor(ActorGroup):
    """The only actor of a run in single mode, in the learner's process."""

    def __init__(self, setup: messages.ActorGroupSetup):
        """Builds the actor; without environments in `setup` it makes its own."""
        config, incarnation = setup.config, setup.incarnation(0)
        with contextlib.ExitStack() as stack:
            self.ring = transport(setup.spec, config.actor, index=0, incarnation=incarnation)
            stack.callback(self.ring.close)
            self._hangs = InlineWatch(setup)
            stack.callback(self._hangs.close)
            with started("actor 0 of 1"), self._hangs.watch(self.ring):
                ring_fd, weights_fd = copies(self.ring.fd, setup.weights_fd)
                for fd in (ring_fd, weights_fd):
                    stack.callback(os.close, fd)
                progress = Progress(setup.progress).of(0)
                self._worker = ActorWorker(
                    messages.ActorSetup(
                        setup, 0, incarnation, ring_fd, weights_fd, progress, self._hangs.calls
                    )
                )
            stack.pop_all()
        self.actor, self.rings = self._worker.actor, [self.ring]  # what it writes for replay

    def warnings(self) -> Iterator[str]:
        """Yields nothing: the actor's errors are raised instead."""
        return iter(())

    def collect(
        self, env_steps: int, epsilons: Sequence[float], episodes: int | None = None
    ) -> Iterator[list[messages.ActorReport]]:
        (epsilon,) = epsilons
        while True:
            with self._hangs.watch(self.ring):
                report = self._worker.play(env_steps, episodes, epsilon)
            yield [report]
            if not report.left:
                return
            episodes = report.left

    def save(self) -> ActorGroupState:
        with self._hangs.watch(self.ring):
            return ActorGroupState([self._worker.setup.incarnation], [self._worker.save()])

    def restore(self, state: ActorGroupState) -> None:
        refuse_other_actors(state, 1)
        with self._hangs.watch(self.ring):
            self.actor.restore(state.actors[0].numbers, state.actors[0].arrays)

    def cut(self) -> None:
        with self._hangs.watch(self.ring):
            self.actor.cut()

    def close(self) -> None:
        with contextlib.ExitStack() as stack:
            stack.callback(self.ring.close)
            stack.callback(self._hangs.close)
            with self._hangs.watch(self.ring):
                self._worker.close()
