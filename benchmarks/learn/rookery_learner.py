"""Rookery's learner, in the parts and with the step of the single loop.

A step is sample, loss, backward, optimiser, update priorities, and publishing when due. The floor
has the same network, loss, clipping and optimiser and gets its batches for nothing.
"""

from collections.abc import Callable

from rookery.config.algorithms import AlgoConfig, DqnConfig, SacConfig
from rookery.config.schema import (
    Config,
    Draw,
    EnvConfig,
    LearnerConfig,
    NetConfig,
    ReplayConfig,
    RunConfig,
)
from rookery.training.build import build_parts
from rookery.training.steps import collect, learn

ROWS = 20_000  # in replay before the first step


def double(seed: int) -> Callable[[], int]:
    """Double DQN, uniform draws, no clipping."""
    return work(seed, DqnConfig(), ReplayConfig(), LearnerConfig(max_grad_norm=None))


def full(seed: int) -> Callable[[], int]:
    """Double dueling DQN, prioritised draws with weights, gradients clipped at 10."""
    algo, replay = DqnConfig(dueling=True), ReplayConfig(sampling=Draw.PRIORITIZED)
    return work(seed, algo, replay, LearnerConfig(max_grad_norm=10.0))


def sac(seed: int) -> Callable[[], int]:
    """SAC, batches of 256, uniform draws, no clipping."""
    replay, learner = ReplayConfig(batch_size=256), LearnerConfig(max_grad_norm=None)
    return work(seed, SacConfig(), replay, learner, EnvConfig(id="Pendulum-v1"))


def work(
    seed: int,
    algo: AlgoConfig,
    replay: ReplayConfig,
    learner: LearnerConfig,
    env: EnvConfig | None = None,
) -> Callable[[], int]:
    run, net, env = RunConfig(seed=seed), NetConfig(hidden=(256, 256)), env or EnvConfig()
    parts = build_parts(
        Config(run=run, env=env, algo=algo, net=net, replay=replay, learner=learner)
    )
    while parts.counters.env_steps < ROWS:
        collect(parts)

    def step() -> int:
        learn(parts)
        return 1

    return step
