"""A worker of asynchronous training: plays, computes gradients, and takes no step itself.

It has its own environments and its own copy of the networks. Parameters come over a board, a
gradient leaves through a ring in shared memory with room for one: it waits there until the server
has it, so that the next one is computed with parameters that know of it (Mnih et al. 2016).
"""

import time
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from rookery import seeding
from rookery.actor import Actor
from rookery.algos import build_algorithm, written
from rookery.board import Board
from rookery.components.gradient import Apart, still
from rookery.components.guest import answer
from rookery.config.schema import Config, EnvConfig
from rookery.envs.entry import name_of
from rookery.envs.make import make, make_one
from rookery.event import Episode
from rookery.learner import pick_device
from rookery.loops.player import Ended, Report
from rookery.loops.shard import build_shard
from rookery.loops.wiring import build_limiter
from rookery.nets.arrays import load_arrays
from rookery.nets.flat import Flat
from rookery.replay.limiter import Limiter
from rookery.replay.pool import Pool
from rookery.replay.ring import Column, Ring, Schema
from rookery.replay.rollouts import Epochs, Rollouts
from rookery.schedule import Schedule
from rookery.seeding import Role
from rookery.types import Array

NAP_S = 0.0005  # between two looks at what the server does
NEWS_S = 0.05  # between two reports
BATCH = 32  # steps of a batch, of an agent that does not say


def schema_for(parameters: Mapping[str, Array]) -> Schema:
    """Returns what a gradient's row holds."""
    size = sum(array.size for array in parameters.values())
    return (
        Column("gradient", (size,), "float32"),
        Column("version", (), "int64"),
    )


class Setup(NamedTuple):
    """What a worker is built from."""

    hand: Any  # `Run` or `Own`
    parameters: dict[str, Array]  # their names and shapes, in the order of a gradient
    ring_fd: int
    board_fd: int


class Run(NamedTuple):
    """A worker that is a small run of its own: any algorithm, with the replay that it needs."""

    config: Config
    factory: Any


class Own(NamedTuple):
    """A worker with a copy of a user's agent."""

    agent: Any
    env_factory: Any
    seed: int


class Found(NamedTuple):
    """A gradient."""

    arrays: Mapping[str, Array]


class Hand(Protocol):
    """What does a worker's work."""

    env_steps: int  # since they were last asked for
    ended: list[Episode]

    def load(self, parameters: dict[str, Array], steps: int) -> None:
        """Takes over parameters that were stepped so many times; 0: the first ones."""

    def step(self) -> Found | None:
        """Plays a little, or computes a gradient."""

    def close(self) -> None: ...


class Worker:
    """The role: roams as long as its gate is open."""

    roaming = True

    def __init__(self, setup: Setup):
        self.ring = Ring.from_fd(setup.ring_fd)
        self.board = Board(setup.parameters, fd=setup.board_fd)
        self.names = list(setup.parameters)
        self.hand: Hand = HANDS[type(setup.hand)](setup.hand)
        self.version, self._told = 0, 0.0

    def do(self, order: Any) -> Any:
        """Nothing is ordered: its gate says whether to go on."""

    def roam(self) -> Report | None:
        self.ring.beat()
        if self.ring.waiting or not self.ring.gate:
            time.sleep(NAP_S)
        else:
            self._work()
        return self._news()

    def _work(self) -> None:
        if (newer := self.board.latest(self.version)) is not None:
            steps = newer.version - self.version if self.version else 0
            self.hand.load(newer.arrays, steps)
            self.version = newer.version
        if (found := self.hand.step()) is not None:
            flat = np.concatenate([np.ravel(found.arrays[name]) for name in self.names])
            row = {"gradient": flat, "version": self.version}
            self.ring.put(1, row)

    def _news(self) -> Report | None:
        if time.monotonic() - self._told < NEWS_S:
            return None
        hand, self._told = self.hand, time.monotonic()
        report = Report(hand.env_steps, Ended(hand.ended), 0.0, self.version)
        hand.env_steps, hand.ended = 0, []
        return report

    def close(self) -> None:
        try:
            self.hand.close()
        finally:
            self.board.close()
            self.ring.close()


class Sender(Apart):
    """A learner that somebody else takes the steps of: it has no optimizer."""

    def _optimizer(self, flat: Flat) -> torch.optim.Optimizer:
        return still()


class RunHand:
    """Plays and draws as a run does, with one actor in this process."""

    def __init__(self, given: Run):
        self.env_steps, self.ended = 0, list[Episode]()
        config = self.config = given.config
        envs = make(config.env, config.actor.envs, factory=given.factory)
        seed, device = config.run.seed, pick_device(config.learner.device)
        algorithm = build_algorithm(config, envs.spec)
        self.learner = Sender(algorithm, config.learner, config.env, device, seed=seed)
        self.actor = Actor(
            envs,
            build_algorithm(config, envs.spec),  # its own: one that is trained is slower to ask
            config.actor,
            config.env,
            seed=seed,
            values=config.wants_values,
        )
        self.pool = build_shard(
            config,
            written(envs.spec, algorithm),
            [self.actor.ring],
            seeding.generator(seed, Role.REPLAY),
            1,
            factory=given.factory,
            build=Rollouts if config.algo.on_policy else Pool,
        )
        self.limiter: Limiter | Epochs = (
            Epochs(self.pool) if isinstance(self.pool, Rollouts) else build_limiter(config)
        )
        random = config.randomness
        self._epsilon = Schedule(random.first, random.last, random.decay)
        self._played = 0

    def load(self, parameters: dict[str, Array], steps: int) -> None:
        self.learner.load(parameters, steps)
        load_arrays(self.actor.algorithm.acting, self.learner.weights())
        self.actor.version = self.pool.version = self.actor.version + max(1, steps)

    def step(self) -> Found | None:
        if not self.limiter.ready():
            self._play()
            return None
        config = self.config
        batch = self.pool.draw(config.replay.batch, beta=config.replay.beta)
        taken = batch.rows.size if config.algo.on_policy else config.replay.batch
        self.limiter.draw(taken * config.algo.learned)
        computed = self.learner.gradients(batch)
        if computed is None:
            return None
        if computed.td_error is not None:
            self.pool.rerank(batch.rows, computed.td_error)
        return Found(computed.arrays)

    def _play(self) -> None:
        epsilon = self._epsilon.at(self._played / self.config.randomness.steps)
        played = self.actor.collect(self.config.actor.chunk, epsilon)
        self.limiter.insert(self.pool.drain().steps)
        self._played += played.env_steps
        self.env_steps += played.env_steps
        self.ended += played.ended

    def close(self) -> None:
        try:
            self.actor.close()
        finally:
            self.pool.close()


class OwnHand:
    """Plays one environment with a user's agent, a batch at a time; keeps nothing."""

    def __init__(self, given: Own):
        self.agent, self.env_steps, self.ended = given.agent, 0, list[Episode]()
        factory = given.env_factory
        self.env = make_one(EnvConfig(id=name_of(factory)), factory)
        self._obs = self.env.reset(seed=given.seed)[0]
        self._score, self._length = 0.0, 0

    def load(self, parameters: dict[str, Array], steps: int) -> None:
        self.agent.set_policy_parameters(parameters)

    def step(self) -> Found | None:
        steps = [self._played() for _ in range(int(getattr(self.agent, "batch_size", BATCH)))]
        batch = {key: np.stack([step[key] for step in steps]) for key in steps[0]}
        gradients = self.agent.compute_gradients(batch)
        return Found(gradients) if gradients else None

    def _played(self) -> dict[str, Any]:
        obs, action = self._obs, answer(self.agent, self._obs)
        after, reward, terminated, truncated, _ = self.env.step(action)
        self._obs, self.env_steps = after, self.env_steps + 1
        self._score, self._length = self._score + float(reward), self._length + 1
        if terminated or truncated:
            self.ended.append(Episode(self._score, self._length))
            self._score, self._length, self._obs = 0.0, 0, self.env.reset()[0]
        return {
            "obs": np.asarray(obs),
            "action": np.asarray(action),
            "reward": np.float32(reward),
            "next_obs": np.asarray(after),
            "terminated": np.bool_(terminated),
            "truncated": np.bool_(truncated),
        }

    def close(self) -> None:
        self.env.close()


HANDS: dict[type, Any] = {Run: RunHand, Own: OwnHand}
