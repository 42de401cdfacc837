"""Algorithms: one readable file each, and the table that names them."""

from collections.abc import Callable

from rookery.algos.dqn import Dqn
from rookery.algos.interface import Algorithm
from rookery.config.schema import AlgoConfig, EnvConfig, NetConfig
from rookery.types import EnvSpec

ALGOS: dict[str, Callable[[AlgoConfig, NetConfig, EnvConfig, EnvSpec], Algorithm]] = {
    "dqn": Dqn,
}

__all__ = ["ALGOS", "Algorithm"]
