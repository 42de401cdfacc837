"""Algorithms: one readable file each. The table that names them is `config/algorithms.py`."""

from dataclasses import replace

import torch

from rookery import seeding
from rookery.algos.interface import Acted, Algorithm
from rookery.config.algorithms import entry_of, load_class
from rookery.config.schema import Config
from rookery.seeding import Role
from rookery.types import EnvSpec


def build_algorithm(config: Config, spec: EnvSpec) -> Algorithm:
    """Builds networks whose first weights depend on the seed alone."""
    made_by = load_class(entry_of(config.algo.name).where)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seeding.integer(config.run.seed, Role.WEIGHTS))
        algorithm: Algorithm = made_by(config.algo, config.net, config.env, spec)
    return algorithm


def written(spec: EnvSpec, algorithm: Algorithm) -> EnvSpec:
    """Returns the spec of the rows that this algorithm's actors write."""
    return replace(spec, extras=algorithm.extras)


__all__ = ["Acted", "Algorithm", "build_algorithm", "written"]
