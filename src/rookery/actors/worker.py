"""The worker that runs one actor: handles control messages; in async mode plays continuously.

A chunk is the env steps (or episodes) that an actor plays without interruption. In sync mode the
worker plays one chunk per control message from the learner process. In async mode it plays chunk
after chunk and sends the learner process a report every 50 ms. It pauses while the rate limiter
(samples per insert) halts the actors, and while the ring buffer from which the learner reads the
actor's env steps is full. In single mode the worker only builds, saves and restores the actor;
`SingleActor` makes it play.
"""

import contextlib
import math
import time
from collections.abc import Iterator
from dataclasses import replace

import torch

from rookery.actors.actor import Actor, Played
from rookery.actors.env_progress import EnvProgress
from rookery.actors.inference.inference_client import InferenceClient
from rookery.actors.messages import (
    ActorAnswer,
    ActorDone,
    ActorOrder,
    ActorReport,
    ActorSetup,
    ActorState,
    CutEpisodes,
    EndedEpisodes,
    PlayChunk,
    PlayFreely,
    RestoreActor,
    SaveActor,
)
from rookery.algorithms import Algorithm, build_algorithm
from rookery.config.schema import ActorConfig, Config
from rookery.envs.env_calls import EnvCalls
from rookery.envs.make import Envs, make
from rookery.envs.turn_based.opponents import OpponentSeats, opponents_builder
from rookery.errors import ConfigError, EnvError
from rookery.event import Activity, Counters, Episode, Traced
from rookery.learner.weight_store import WeightStore
from rookery.networks.device import pick_device
from rookery.networks.named_arrays import arrays_of
from rookery.replay.ring import Ring
from rookery.report.metrics.trace import Trace
from rookery.types import EnvSpec

NAP_S, LONG_NAP_S = 0.0005, 0.004  # first and longest pause while the rate limiter halts the actor
NEWS_S = 0.05  # between two reports while playing freely
TRACE_S = 0.5  # between two traces
PROGRESS_S = 1.0  # between two reports of the environments' progress


class ActorWorker:
    """Runs one actor: builds it with its environments, and handles the learner's control messages.

    `do` handles one control message. `work` plays the next env steps in async mode.
    """

    def __init__(self, setup: ActorSetup):
        config, self.setup = setup.config, setup
        self.self_driven = False
        self._builder = opponents_builder(config)
        ring = Ring.from_fd(setup.ring_fd)
        calls = setup.calls or EnvCalls(ring.beat)
        envs = setup.envs or make(config.env, config.actor.envs, factory=setup.factory, calls=calls)
        try:
            with _memory(setup):
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
        setup, config = self.setup, self.setup.config
        if setup.progress is not None:
            envs.restore_progress(setup.progress)
        algorithm = self._algorithm(envs.spec, ring)
        self.actor = Actor(
            envs,
            algorithm,
            _patience(config),
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
        setup, config = self.setup, self.setup.config
        self.weight_store: WeightStore | None = None
        if setup.inference is not None:
            return InferenceClient(setup.inference, beat=ring.beat)
        algorithm = build_algorithm(config, spec)
        announced = {} if self._builder is None else self._builder.blank(config)
        self.weight_store = WeightStore(
            arrays_of(algorithm.acting) | announced, fd=setup.weights_fd
        )
        algorithm.networks.to(_device(config, setup.actor))
        return algorithm

    def _opponent_seats(self, envs: Envs, algorithm: Algorithm) -> OpponentSeats | None:
        """Builds the self-play opponents, which act for the other players of the actor's games.

        Before the first game begins, they read from the learner's published arrays which opponents
        to play. Returns None in runs without opponents.
        """
        if self._builder is None:
            return None
        opponent_seats = self._builder.seat(
            self.setup.config, envs, self.setup.opponents, algorithm
        )
        published = self.weight_store.latest(0) if self.weight_store is not None else None
        if published is not None:
            opponent_seats.hear(published.arrays)
        return opponent_seats

    def _pull(self) -> None:
        if self.weight_store is not None:
            self.actor.pull(self.weight_store)

    def do(self, order: ActorOrder) -> ActorAnswer:
        match order:
            case PlayChunk():
                return self.play(*order)
            case PlayFreely():
                return self.play_freely()
            case CutEpisodes():
                self.actor.cut()
                return ActorDone()
            case SaveActor():
                return self.save()
            case RestoreActor():
                self.restore(order.state)
                return ActorDone()

    def play(self, env_steps: int, episodes: int | None, epsilon: float) -> ActorReport:
        """Plays at least `env_steps` steps, or `episodes` episodes if given; returns a report.

        First loads the newest published weights if `actor.pull_period` env steps have passed since
        weights were loaded.
        """
        if self.setup.envs is None:  # in a process of its own: it has waited for the others
            self.trace.note(Activity.WAIT, self._idle_since, time.monotonic())
        played = self._chunk(env_steps, episodes, epsilon)
        self._idle_since = time.monotonic()
        left = 0 if episodes is None else max(0, episodes - len(played.ended))
        return ActorReport(
            played.env_steps,
            EndedEpisodes(played.ended),
            epsilon,
            self.actor.version,
            left,
            self._traced(),
        )

    def _chunk(self, env_steps: int, episodes: int | None, epsilon: float) -> Played:
        if self.actor.due():
            self._pull()
        began = time.monotonic()
        with _memory(self.setup):
            if episodes is None:
                played = self.actor.collect(env_steps, epsilon)
            else:
                played = self.actor.collect_episodes(episodes, epsilon)
        self.trace.note(Activity.PLAY, began, time.monotonic(), played.env_steps)
        return played

    def play_freely(self) -> ActorReport:
        """Switches the worker to async mode; returns a report without env steps.

        From now on each call of `work` plays a chunk (`actor.chunk` env steps).
        """
        self._pull()  # a resumed run's weights came after this was built
        self.self_driven = True
        return self._report(0.0)

    def work(self) -> ActorReport | None:
        """Plays `actor.chunk` env steps in async mode, or sleeps briefly if the actor may not play.

        It may not play while the rate limiter (samples per insert) halts the actors, or while its
        ring buffer to the learner is full. Returns a report if the last one is at least 50 ms old,
        otherwise None.
        """
        ring, chunk = self.actor.ring, self.setup.config.actor.chunk
        if ring.may_write and ring.free >= self.actor.room(chunk):
            self._nap_s = NAP_S
            played = self._chunk(chunk, None, ring.epsilon)
            self._played += played.env_steps
            self._ended += played.ended
        else:
            self._nap()
        due = time.monotonic() - self._told >= NEWS_S
        return self._report(ring.epsilon) if due else None

    def _nap(self) -> None:
        began = time.monotonic()
        time.sleep(self._nap_s)
        self._nap_s = min(2 * self._nap_s, LONG_NAP_S)
        self.actor.ring.beat()
        self.trace.note(Activity.WAIT, began, time.monotonic())

    def _report(self, epsilon: float) -> ActorReport:
        report = ActorReport(
            self._played,
            EndedEpisodes(self._ended),
            epsilon,
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

    def save(self) -> ActorState:
        """Returns the actor's state for a checkpoint."""
        numbers, arrays = self.actor.state()
        return ActorState(numbers, arrays, numbers["envs"] is not None)

    def restore(self, state: ActorState) -> None:
        """Restores the actor from the state that `save` returned."""
        self.actor.restore(state.numbers, state.arrays)

    def close(self) -> None:
        try:
            self.actor.close()
        finally:
            source = self.actor.algorithm if self.weight_store is None else self.weight_store
            if isinstance(source, WeightStore | InferenceClient):
                source.close()


@contextlib.contextmanager
def _memory(setup: ActorSetup) -> Iterator[None]:
    """Context manager that turns a GPU out-of-memory error into a ConfigError.

    An actor that fails with a ConfigError before its first message ends the run, without a restart.
    """
    try:
        yield
    except RuntimeError as error:  # torch has several for it
        refuse_full_gpu(setup.config, setup.actor, error)
        raise


def refuse_full_gpu(config: Config, actor: int, error: RuntimeError) -> None:
    """Raises ConfigError if `error`, an error of torch, says that a GPU is out of memory.

    The message names the actor and the settings of its device.
    """
    if "out of memory" in str(error):
        raise ConfigError(
            f"GPU out of memory: actor.devices {list(config.actor.devices)} have no room for "
            f"actor {actor} of {config.actor.num}; lower actor.num, name more devices "
            f"in actor.devices, or leave it out ({error})"
        ) from error


def _patience(config: Config) -> ActorConfig:
    """Returns the run's actor settings, with `pull_period` set to 1 for on-policy algorithms.

    An on-policy actor therefore checks for new weights before every chunk it plays.
    """
    return replace(config.actor, pull_period=1) if config.algo.on_policy else config.actor


def _device(config: Config, index: int) -> torch.device:
    devices = config.actor.devices
    return pick_device(devices[index % len(devices)] if devices else "cpu", "actor.devices")
