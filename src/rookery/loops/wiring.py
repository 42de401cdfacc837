"""Wiring: the one function that builds a run's roles from its config.

Loops, benchmarks and tests all get their parts here, so that they run the same thing.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from rookery import seeding
from rookery.actor import Actor
from rookery.algos import ALGOS, Algorithm
from rookery.board import Board
from rookery.config.schema import Config, Storage
from rookery.envs.make import make
from rookery.event import Counters
from rookery.learner import Learner, pick_device
from rookery.nets.arrays import load_arrays
from rookery.replay.limiter import Limiter
from rookery.replay.pool import Pool
from rookery.schedule import Schedule
from rookery.seeding import Role
from rookery.types import Array, EnvSpec

Factory = Callable[..., Any]


@dataclass
class Parts:
    """A run's roles, and how far it is. Whoever holds them between two events may look inside."""

    config: Config
    spec: EnvSpec
    actor: Actor
    learner: Learner
    pool: Pool
    limiter: Limiter
    board: Board
    epsilon: Schedule
    counters: Counters = field(default_factory=Counters)

    @property
    def share(self) -> float:
        """How much of the run is over, 0 to 1."""
        return min(1.0, self.counters.env_steps / self.config.run.env_steps)

    @property
    def beta(self) -> float:
        replay = self.config.replay
        return replay.beta + (replay.beta_end - replay.beta) * self.share

    def close(self) -> None:
        self.actor.close()
        self.pool.close()
        self.board.close()


def wire(
    config: Config,
    *,
    factory: Factory | None = None,
    run_dir: Path | None = None,
    weights: dict[str, Array] | None = None,
    approve: Callable[[EnvSpec, Learner], None] | None = None,
) -> Parts:
    """Builds every role.

    `weights` are loaded into all of them (`--init-from`). `approve` may refuse what would not fit,
    before the replay takes its memory.
    """
    device = pick_device(config.learner.device)
    torch.set_num_threads(config.learner.threads)
    envs = make(config.env, config.actor.envs, factory=factory)
    learner = Learner(build_algorithm(config, envs.spec), config.learner, config.env, device)
    if weights is not None:
        load_arrays(learner.algorithm.acting, weights)
    learner.algorithm.settle(0)
    if approve is not None:
        approve(envs.spec, learner)
    actor = Actor(
        envs,
        build_algorithm(config, envs.spec),
        config.actor,
        config.env,
        seed=config.run.seed,
        info_keys=config.report.info_keys,
    )
    board = Board(learner.weights())
    board.publish(learner.weights())
    actor.pull(board)
    pool = Pool(
        envs.spec,
        config.replay,
        config.algo,
        rng=seeding.generator(config.run.seed, Role.REPLAY),
        transports=[actor.ring],
        envs=envs.num,
        directory=_replay_directory(config, run_dir),
    )
    return Parts(
        config=config,
        spec=envs.spec,
        actor=actor,
        learner=learner,
        pool=pool,
        limiter=build_limiter(config),
        board=board,
        epsilon=Schedule(
            config.actor.epsilon, config.actor.epsilon_end, config.actor.epsilon_decay
        ),
    )


def build_algorithm(config: Config, spec: EnvSpec) -> Algorithm:
    """Builds networks whose first weights depend on the seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seeding.integer(config.run.seed, Role.WEIGHTS))
        return ALGOS[config.algo.name](config.algo, config.net, config.env, spec)


def build_limiter(config: Config) -> Limiter:
    """Allows two chunks of slack between actors and learner."""
    return Limiter(
        warmup=config.replay.warmup,
        batch=config.replay.batch,
        samples_per_insert=config.replay.samples_per_insert,
        slack=2 * (config.actor.chunk + config.actor.envs),
    )


def _replay_directory(config: Config, run_dir: Path | None) -> Path | None:
    return run_dir if config.replay.storage is Storage.DISK else None
