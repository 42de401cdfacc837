"""Algorithms: one readable file each, and the table that names them."""

from collections.abc import Callable

import torch

from rookery import seeding
from rookery.algos.dqn import Dqn
from rookery.algos.interface import Acted, Algorithm
from rookery.config.schema import AlgoConfig, Config, EnvConfig, NetConfig
from rookery.seeding import Role
from rookery.types import EnvSpec

ALGOS: dict[str, Callable[[AlgoConfig, NetConfig, EnvConfig, EnvSpec], Algorithm]] = {
    "dqn": Dqn,
}


def build_algorithm(config: Config, spec: EnvSpec) -> Algorithm:
    """Builds networks whose first weights depend on the seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seeding.integer(config.run.seed, Role.WEIGHTS))
        return ALGOS[config.algo.name](config.algo, config.net, config.env, spec)


__all__ = ["ALGOS", "Acted", "Algorithm", "build_algorithm"]
