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
    """Returns the spec of the rows that this algorithm's actors write in this environment."""
    known = {extra.name for extra in algorithm.extras}
    rest = (extra for extra in spec.extras if extra.name not in known)
    return replace(spec, extras=(*algorithm.extras, *rest))


__all__ = ["Acted", "Algorithm", "build_algorithm", "written"]
