"""RL algorithms, one per file: how they select actions, and their losses.

`config/algorithms.py` lists their names and settings.
"""

from dataclasses import replace

import torch

from rookery import seeding
from rookery.algorithms.algorithm import Acted, Algorithm
from rookery.config.algorithms import entry_of, load_class
from rookery.config.schema import Config
from rookery.seeding import Role
from rookery.types import EnvSpec


def build_algorithm(config: Config, spec: EnvSpec) -> Algorithm:
    """Builds the algorithm `algo.name` of a run; `run.seed` determines its initial weights."""
    algorithm_class = load_class(entry_of(config.algo.name).where)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seeding.integer(config.run.seed, Role.WEIGHTS))
        algorithm: Algorithm = algorithm_class(config.algo, config.net, config.env, spec)
    return algorithm


def row_spec(spec: EnvSpec, algorithm: Algorithm) -> EnvSpec:
    """Returns the spec of replay rows (stored env steps): the env's spec plus extra columns.

    The extra columns are values that the algorithm stores with each step, such as log-probabilities
    or recurrent states.
    """
    known = {extra.name for extra in algorithm.extras}
    rest = (extra for extra in spec.extras if extra.name not in known)
    return replace(spec, extras=(*algorithm.extras, *rest))


__all__ = ["Acted", "Algorithm", "build_algorithm", "row_spec"]
