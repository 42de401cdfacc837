"""The settings of a parameter server: aggregation, rounds, staleness, optimizer, limits."""

import inspect
import math
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any, TypedDict, TypeVar

import numpy as np
from beartype import BeartypeConf, beartype

from rookery.config.checks import Count, CountOr0, Limit, check_arguments, read
from rookery.errors import ConfigError, RefusedError
from rookery.server.aggregate import ROBUST, Aggregation, Liars, least
from rookery.server.optimizer_step import Maker
from rookery.types import Floats

checked = beartype(conf=BeartypeConf(is_pep484_tower=True))  # 1 will do for a float
T = TypeVar("T")


def checked_methods(kind: type[T]) -> type[T]:
    """Class decorator: checks types and limits of the arguments of all public methods."""
    for name, method in list(vars(kind).items()):
        if inspect.isfunction(method) and (name == "__init__" or not name.startswith("_")):
            setattr(kind, name, checked(check_arguments(method)))
    return kind


class Staleness(StrEnum):
    """The treatment of an update of an older version, outside of rounds."""

    DROP = "drop"  # older than max_staleness: dropped; all others count in full
    DISCOUNT = "discount"  # the same, and the others are divided by 1 + age
    KEEP = "keep"  # all count in full


SCALES: Mapping[str, Callable[[int, int], float | None]] = {  # of (age, max_staleness)
    Staleness.DROP: lambda age, most: 1.0 if age <= most else None,
    # after Zhang et al. 2016, whose learning rate is divided by the age
    Staleness.DISCOUNT: lambda age, most: 1.0 / (1 + age) if age <= most else None,
    Staleness.KEEP: lambda age, most: 1.0,
}
FINITE: Mapping[str, float] = {"exclusiveMinimum": 0, "maximum": sys.float_info.max}
FINITE_OR_0: Mapping[str, float] = {"minimum": 0, "maximum": sys.float_info.max}
Finite = Annotated[float, Limit("must be finite and above 0", FINITE)]
FiniteOr0 = Annotated[float, Limit("must be finite and at least 0", FINITE_OR_0)]
Trim = Annotated[
    float,
    Limit("must be at least 0 and below 0.5", {"minimum": 0, "maximum": math.nextafter(0.5, 0)}),
]


class ServerOptions(TypedDict, total=False):
    """The settings of `Rules` that a server's constructor takes by keyword."""

    optimizer: str | Maker
    lr: float
    optimizer_kwargs: Mapping[str, Any]
    synchronous: bool
    quorum: int | None
    deadline_s: float
    staleness: str
    max_staleness: int
    max_weight: float
    max_norm: float | None
    quarantine_after: int
    trim: float
    byzantine: int
    clock: Callable[[], float]


@checked_methods
@dataclass(frozen=True, kw_only=True)
class Rules:
    """The settings by which a parameter server accepts and applies updates."""

    aggregation: Aggregation = Aggregation.AVERAGE
    update_frequency: Count = 10  # pushes, outside of rounds
    save_frequency: Count = 100  # versions
    optimizer: str | Maker = "sgd"  # the name of one of torch's, or called with parameters and lr
    lr: float = 0.001
    optimizer_kwargs: Mapping[str, Any] = field(default_factory=dict)
    synchronous: bool = False
    quorum: Count | None = None  # workers; None: all that are registered
    deadline_s: Finite = 30.0  # of a round, from its first push
    staleness: str = Staleness.DISCOUNT
    max_staleness: CountOr0 = 16  # versions
    max_weight: Finite = 1e6
    max_norm: Finite | None = None  # L2 norm of an update; None: any
    quarantine_after: Count = 3  # pushes in a row that are not finite, or would overflow
    trim: Trim = 0.1  # see Liars
    byzantine: CountOr0 = 0
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        """Raises ConfigError for too few updates for a robust rule, which compares them."""
        read(Staleness, self.staleness, "staleness")
        name, flag = ("quorum", "--quorum") if self.synchronous else ("update_frequency", "--every")
        wanted = getattr(self, name)
        if wanted is not None and wanted < self.least:
            raise ConfigError(
                f"{self.aggregation} with byzantine={self.byzantine} (--byzantine) needs updates "
                f"of {self.least} workers, {name} is {wanted} ({flag}); raise it to {self.least} "
                "or more, or choose average (--aggregation)"
            )

    @property
    def liars(self) -> Liars:
        return Liars(self.trim, self.byzantine)

    @property
    def least(self) -> int:
        """Returns how many different workers the aggregation needs."""
        return least(self.aggregation, self.byzantine)

    @property
    def robust(self) -> bool:
        return self.aggregation in ROBUST

    def too_long(self, update: Floats) -> bool:
        """Returns whether the L2 norm of an update is above `max_norm`."""
        most = self.max_norm
        return most is not None and bool(np.einsum("i,i", update, update, dtype=float) > most**2)

    def scale(self, age: int) -> float | None:
        """Returns the factor of an update that is `age` versions old; None: it is dropped.

        In rounds an update of an earlier one is always dropped. A version that is still to come
        was another server's.
        """
        if age < 0 or (self.synchronous and age > 0):
            return None
        return SCALES[self.staleness](age, self.max_staleness)


def refuse_weight(weight: float) -> None:
    """Raises RefusedError for a weight that is negative or not finite."""
    if not math.isfinite(weight) or weight < 0:
        raise RefusedError(
            f"a weight must be finite and 0 or more, got {weight}; give the number of samples "
            "or steps that the update is made of",
            "weight",
        )
