"""Small algorithms, and batches for them as a replay buffer on the host gives them."""

from typing import Any, NamedTuple

import numpy as np
import torch

from rookery.algorithms import build_algorithm
from rookery.algorithms.algorithm import Algorithm
from rookery.config.load import load
from rookery.config.schema import Config
from rookery.types import ActionSpec, Array, Batch, EnvSpec, Leaf, LeafKind

WIDTH, ACTIONS = 5, 3
DISCRETE = ActionSpec(n=ACTIONS)
CONTINUOUS = ActionSpec(shape=(2,), low=(-1.0, -1.0), high=(1.0, 1.0))


class Case(NamedTuple):
    """An algorithm by its settings, and whether its actions are discrete."""

    settings: tuple[str, ...]
    action: ActionSpec = DISCRETE


CASES: dict[str, Case] = {
    "dqn": Case(("algo=dqn", "algo.target_period=4")),
    "double dueling": Case(("algo=dqn", "algo.dueling=true", "algo.target_tau=0.01")),
    "C51": Case(("algo=dqn", "algo.values=categorical", "algo.atoms=11")),
    "QR-DQN": Case(("algo=dqn", "algo.values=quantiles", "algo.quantiles=8")),
    "IQN": Case(("algo=dqn", "algo.values=implicit", "algo.quantiles=8")),
    "noisy": Case(("algo=dqn", "algo.noisy=true")),
    "munchausen": Case(("algo=dqn", "algo.munchausen=true")),
    "discrete SAC": Case(("algo=sac",)),
    "SAC": Case(("algo=sac",), CONTINUOUS),
    "TQC": Case(("algo=tqc",), CONTINUOUS),
    "TD3": Case(("algo=td3",), CONTINUOUS),
    "DDPG": Case(("algo=ddpg",), CONTINUOUS),
}


def spec_for(case: Case, width: int = WIDTH) -> EnvSpec:
    return EnvSpec("case", (Leaf("", (width,), "float32", LeafKind.VECTOR),), case.action)


def config_for(case: Case, *settings: str) -> Config:
    return load(overrides=["net.hidden=[16,16]", *case.settings, *settings])


def algorithm_for(case: Case, *settings: str) -> Algorithm:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        made = build_algorithm(config_for(case, *settings), spec_for(case))
    made.update_targets(0)
    return made


def host_batch(case: Case, seed: int, size: int = 32, **changes: Any) -> Batch:
    rng = np.random.default_rng(seed)

    def normal(*shape: int) -> Array:
        return rng.normal(size=shape).astype(np.float32)

    action = (
        rng.integers(0, case.action.n, size)
        if case.action.discrete
        else np.tanh(normal(size, *case.action.shape))
    )
    return Batch(
        obs=normal(size, WIDTH),
        action=action,
        reward=normal(size),
        discount=np.full(size, 0.9, np.float32),
        next_obs=normal(size, WIDTH),
        weight=rng.uniform(0.2, 1.0, size).astype(np.float32),
        rows=np.arange(size),
    )._replace(**changes)
