"""RL algorithms, one per file: how they select actions, and their losses.

`config/algorithms.py` lists their names and settings.
"""

from dataclasses import replace

import torch

from rookery import seeding
from rookery.algorithms.algorithm import Acted, Algorithm
from rookery.config.algorithms import entry_of, load_class
from rookery.config.schema import Config, NetConfig
from rookery.errors import ConfigError
from rookery.seeding import Role
from rookery.types import EnvSpec


def build_algorithm(config: Config, spec: EnvSpec) -> Algorithm:
    """Builds the algorithm `algo.name` of a run; `run.seed` determines its initial weights."""
    algorithm_class = load_class(entry_of(config.algo.name).where)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seeding.integer(config.run.seed, Role.WEIGHTS))
            algorithm: Algorithm = algorithm_class(config.algo, config.net, config.env, spec)
    except (MemoryError, RuntimeError) as error:
        if not _is_out_of_memory(error):
            raise
        raise ConfigError(
            f"the networks need more memory than this process can allocate ({error}); "
            + smaller_network(config.net)
        ) from error
    return algorithm


def outline_algorithm(config: Config, spec: EnvSpec) -> Algorithm | None:
    """Builds the algorithm of a run without memory for its weights, to measure its networks.

    All tensors are on torch's device `meta`: they have shapes, but no values. Returns None if the
    algorithm cannot be built so, such as a custom network that computes with its initial weights.
    """
    try:
        with torch.device("meta"):
            return build_algorithm(config, spec)
    except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError):
        return None  # wrong settings are reported where the algorithm is built with values


def smaller_network(net: NetConfig) -> str:
    """Returns the advice to make the network smaller, which names its setting."""
    if net.custom is not None:
        return f"use a smaller network than net.custom ({net.custom})"
    return f"lower net.hidden ({list(net.hidden)})"


def _is_out_of_memory(error: Exception) -> bool:
    """Returns whether torch or Python could not allocate memory; torch has no class for it."""
    said = str(error)
    return isinstance(error, MemoryError) or "allocate memory" in said or "overflowed" in said


def row_spec(spec: EnvSpec, algorithm: Algorithm) -> EnvSpec:
    """Returns the spec of replay rows (stored env steps): the env's spec plus extra columns.

    The extra columns are values that the algorithm stores with each step, such as log-probabilities
    or recurrent states.
    """
    known = {extra.name for extra in algorithm.extras}
    rest = (extra for extra in spec.extras if extra.name not in known)
    return replace(spec, extras=(*algorithm.extras, *rest))


__all__ = [
    "Acted",
    "Algorithm",
    "build_algorithm",
    "outline_algorithm",
    "row_spec",
    "smaller_network",
]
