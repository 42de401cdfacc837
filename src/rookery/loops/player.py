"""The player: an actor as an engine keeps it.

In single and sync mode it plays what it is told to. In async it roams: it plays chunk after chunk,
waits where the limiter holds it up or its ring is full, and says now and then how it went.
"""

import contextlib
import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch

from rookery.actor import Actor, Played
from rookery.algos import Algorithm, build_algorithm
from rookery.board import Board
from rookery.config.schema import ActorConfig, Config
from rookery.envs.make import Envs, make
from rookery.errors import ConfigError, EnvError
from rookery.event import Activity, Counters, Episode, Traced
from rookery.learner import pick_device
from rookery.loops.caller import Caller, Line
from rookery.loops.company import Company, seat
from rookery.loops.progress import Standing
from rookery.nets.arrays import arrays_of
from rookery.replay.ring import Ring
from rookery.report.trace import Trace
from rookery.selfplay.gallery import Gallery
from rookery.selfplay.opponents import blank
from rookery.types import Array, EnvSpec, Floats

NAP_S, LONG_NAP_S = 0.0005, 0.004  # between two looks at a closed gate: the longer, the longer
NEWS_S = 0.05  # between two reports while roaming
TRACE_S = 0.5  # between two traces
PROGRESS_S = 1.0  # between two standings


class Setup(NamedTuple):
    """What a player is built from."""

    config: Config
    factory: Any  # the user's environment, where it was given from Python
    actor: int
    incarnation: int
    ring_fd: int  # its transport ring
    board_fd: int | None  # None: an oracle has the weights
    envs: Envs | None = None  # made already: only where it lives in the process that made them
    line: Line | None = None  # to the oracle
    gallery: Gallery | None = None  # where the opponents' snapshots are
    progress: list[Any] | None = None  # that its environments begin with


class Play(NamedTuple):
    """An order: play at least so many env steps, or until so many episodes have ended."""

    env_steps: int
    episodes: int | None
    epsilon: float


class Roam(NamedTuple):
    """An order: play by yourself from now on."""


class Cut(NamedTuple):
    """An order: end all episodes here, as `Actor.cut` does."""


class Save(NamedTuple):
    """An order: give your state for a checkpoint."""


class Restore(NamedTuple):
    """An order: go on from this state."""

    numbers: dict[str, Any]
    arrays: dict[str, Array]


class Ended(tuple[Episode, ...]):
    """Episodes that travel to another process as columns, and arrive there as `Packed`.

    A quick actor ends thousands in a second: as objects they would hold up whoever unpickles them.
    """

    __slots__ = ()

    def __reduce__(self) -> tuple[Any, ...]:
        scores, lengths, infos = zip(*self, strict=True) if self else ((), (), ())
        info = {i: own for i, own in enumerate(infos) if own} if any(infos) else {}
        return Packed, (np.array(scores, np.float64), np.array(lengths, np.int32), info)


class Packed(Collection[Episode]):
    """Episodes as columns; iterating makes `Episode`s of them, in their order."""

    def __init__(self, score: Floats, length: Array, info: Mapping[int, Mapping[str, float]]):
        self.score, self.length, self.info = score, length, info  # info: only where there is any

    def __len__(self) -> int:
        return len(self.score)

    def __iter__(self) -> Iterator[Episode]:
        infos: list[Mapping[str, float]] = [{} for _ in range(len(self))]
        for i, info in self.info.items():
            infos[i] = info
        columns = zip(self.score.tolist(), self.length.tolist(), infos, strict=True)
        return map(Episode._make, columns)

    def __contains__(self, episode: object) -> bool:
        return any(episode == own for own in self)


class Report(NamedTuple):
    """News: what was played since the last one."""

    env_steps: int
    ended: Collection[Episode]  # `Ended` here, `Packed` where it comes from another process
    epsilon: float
    version: int  # of the weights that played last
    left: int = 0  # episodes that did not fit into the ring any more
    traced: Traced | None = None
    progress: Standing | None = None  # while roaming, now and then


class Done(NamedTuple):
    """The answer to orders that have no other."""


class Saved(NamedTuple):
    """The answer to `Save`. `exact` says whether the environments' own state is in it."""

    numbers: dict[str, Any]
    arrays: dict[str, Array]
    exact: bool


class Player:
    """Obeys orders with one actor."""

    def __init__(self, setup: Setup):
        config, self.setup = setup.config, setup
        self.roaming = False
        envs = setup.envs or make(config.env, config.actor.envs, factory=setup.factory)
        try:
            with _memory(setup):
                self._begin(envs)
        except BaseException:  # whatever it was, nobody else has them
            with contextlib.suppress(EnvError):
                envs.close()
            raise
        self.trace = Trace(f"actor-{setup.actor}")
        self._played, self._ended, self._nap_s = 0, list[Episode](), NAP_S
        self._told = self._traced_at = self._idle_since = time.monotonic()
        self._grown, self._stood_at = False, -math.inf  # has an episode ended since?
        self._orders: dict[type, Callable[[Any], Any]] = {
            Play: self._play,
            Roam: self._roam,
            Cut: self._cut,
            Save: self._save,
            Restore: self._restore,
        }

    def _begin(self, envs: Envs) -> None:
        setup, config = self.setup, self.setup.config
        if setup.progress is not None:
            envs.restore_progress(setup.progress)
        ring = Ring.from_fd(setup.ring_fd)
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
            company=self._company(envs, algorithm),
        )
        envs.export_progress()  # one that cannot be told is a fault before anything is played
        self._pull()

    def _algorithm(self, spec: EnvSpec, ring: Ring) -> Algorithm:
        setup, config = self.setup, self.setup.config
        self.board: Board | None = None
        if setup.line is not None:
            return Caller(setup.line, beat=ring.beat)
        algorithm = build_algorithm(config, spec)
        said = blank(config.selfplay) if config.selfplay.on else {}
        self.board = Board(arrays_of(algorithm.acting) | said, fd=setup.board_fd)
        algorithm.networks.to(_device(config, setup.actor))
        return algorithm

    def _company(self, envs: Envs, algorithm: Algorithm) -> Company | None:
        """Fills the other seats; it has heard whom it may meet before the first game begins."""
        setup = self.setup
        company = seat(setup.config, envs, setup.gallery, algorithm)
        said = self.board.latest(0) if self.board is not None else None
        if company is not None and said is not None:
            company.hear(said.arrays)
        return company

    def _pull(self) -> None:
        if self.board is not None:
            self.actor.pull(self.board)

    def do(self, order: Any) -> Any:
        return self._orders[type(order)](order)

    def _play(self, order: Play) -> Report:
        if self.setup.envs is None:  # in a process of its own: it has waited for the others
            self.trace.note(Activity.WAIT, self._idle_since, time.monotonic())
        played = self._chunk(order)
        self._idle_since = time.monotonic()
        left = 0 if order.episodes is None else max(0, order.episodes - len(played.ended))
        return Report(
            played.env_steps,
            Ended(played.ended),
            order.epsilon,
            self.actor.version,
            left,
            self._traced(),
        )

    def _chunk(self, order: Play) -> Played:
        if self.actor.due():
            self._pull()
        began = time.monotonic()
        with _memory(self.setup):
            if order.episodes is None:
                played = self.actor.collect(order.env_steps, order.epsilon)
            else:
                played = self.actor.collect_episodes(order.episodes, order.epsilon)
        self.trace.note(Activity.PLAY, began, time.monotonic(), played.env_steps)
        return played

    def _roam(self, order: Roam) -> Report:
        self._pull()  # a resumed run's weights came after this was built
        self.roaming = True
        return self._report(0.0)

    def roam(self) -> Report | None:
        """Plays a chunk, or naps; returns a report when one is due."""
        ring, chunk = self.actor.ring, self.setup.config.actor.chunk
        if ring.gate and ring.free >= self.actor.room(chunk):
            self._nap_s = NAP_S
            played = self._chunk(Play(chunk, None, ring.epsilon))
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

    def _report(self, epsilon: float) -> Report:
        report = Report(
            self._played,
            Ended(self._ended),
            epsilon,
            self.actor.version,
            traced=self._traced(),
            progress=self._standing(),
        )
        self._played, self._ended, self._told = 0, [], time.monotonic()
        return report

    def _traced(self) -> Traced | None:
        """A trace now and then: a message for every chunk would be too many."""
        if time.monotonic() - self._traced_at < TRACE_S:
            return None
        self._traced_at = time.monotonic()
        return self.trace.take(Counters())

    def _standing(self) -> Standing | None:
        """How far the environments have come, now and then: it may be large."""
        self._grown = self._grown or bool(self._ended)
        if not self._grown or time.monotonic() - self._stood_at < PROGRESS_S:
            return None
        self._grown, self._stood_at = False, time.monotonic()
        envs = self.actor.envs.export_progress()
        return None if envs is None else Standing(self.setup.actor, envs)

    def _cut(self, order: Cut) -> Done:
        self.actor.cut()
        return Done()

    def _save(self, order: Save) -> Saved:
        numbers, arrays = self.actor.state()
        return Saved(numbers, arrays, numbers["envs"] is not None)

    def _restore(self, order: Restore) -> Done:
        self.actor.restore(order.numbers, order.arrays)
        return Done()

    def close(self) -> None:
        try:
            self.actor.close()
        finally:
            source = self.actor.algorithm if self.board is None else self.board
            if isinstance(source, Board | Caller):
                source.close()


@contextlib.contextmanager
def _memory(setup: Setup) -> Iterator[None]:
    """Where a GPU has no memory left, says so in a way that nobody tries again."""
    try:
        yield
    except RuntimeError as error:  # torch has several for it
        if "out of memory" not in str(error):
            raise
        raise ConfigError(
            f"GPU out of memory: actor.devices {list(setup.config.actor.devices)} have no room for "
            f"actor {setup.actor} of {setup.config.actor.num}; lower actor.num, name more devices "
            f"in actor.devices, or leave it out ({error})"
        ) from error


def _patience(config: Config) -> ActorConfig:
    """Rollouts are played with the newest weights: actors look for them before every chunk."""
    return replace(config.actor, pull_period=1) if config.algo.on_policy else config.actor


def _device(config: Config, index: int) -> torch.device:
    devices = config.actor.devices
    return pick_device(devices[index % len(devices)] if devices else "cpu", "actor.devices")
