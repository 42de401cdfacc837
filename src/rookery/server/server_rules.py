"""The settings of a parameter server, and the arithmetic of ages and rounds."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from rookery.errors import ConfigError, RefusedError
from rookery.server.aggregate import ROBUST, Aggregation, Liars, least
from rookery.types import Floats


class Staleness(StrEnum):
    """What becomes of an update that was computed with an older version, where nobody waits."""

    DROP = "drop"  # older than max_staleness: dropped; all others count in full
    DISCOUNT = "discount"  # the same, and the others are divided by 1 + age
    KEEP = "keep"  # all count in full


@dataclass(frozen=True, kw_only=True)
class Rules:
    """How updates are taken and applied."""

    aggregation: Aggregation = Aggregation.AVERAGE
    update_frequency: int = 10  # pushes, where nobody waits
    save_frequency: int = 100  # versions
    synchronous: bool = False
    quorum: int | None = None  # workers; None: all that are registered
    deadline_s: float = 30.0  # of a round, from its first push
    staleness: Staleness = Staleness.DISCOUNT
    max_staleness: int = 16  # versions
    max_weight: float = 1e6
    max_norm: float | None = None  # L2 norm of an update; None: any
    quarantine_after: int = 3  # pushes in a row that are not finite, or would overflow
    liars: Liars = field(default_factory=Liars)

    def __post_init__(self) -> None:
        for name in ("update_frequency", "save_frequency", "quarantine_after"):
            _require(getattr(self, name) >= 1, name, getattr(self, name), "1 or more")
        _require(self.quorum is None or self.quorum >= 1, "quorum", self.quorum, "1 or more")
        _require(_positive(self.deadline_s), "deadline_s", self.deadline_s, "finite seconds > 0")
        _require(_positive(self.max_weight), "max_weight", self.max_weight, "finite and > 0")
        norm = self.max_norm
        _require(norm is None or _positive(norm), "max_norm", norm, "finite and > 0, or None")
        _require(self.max_staleness >= 0, "max_staleness", self.max_staleness, "0 or more")
        _require(0 <= self.liars.trim < 0.5, "trim", self.liars.trim, "at least 0 and below 0.5")
        _require(self.liars.byzantine >= 0, "byzantine", self.liars.byzantine, "0 or more")
        self._refuse_too_few()

    def _refuse_too_few(self) -> None:
        """A robust rule compares; with one update at a time it would take whatever comes."""
        wanted, name = (
            (self.quorum, "quorum")
            if self.synchronous
            else (self.update_frequency, "update_frequency")
        )
        if wanted is not None and wanted < self.least:
            raise ConfigError(
                f"{self.aggregation} needs updates of {self.least} workers to tell who lies "
                f"(byzantine={self.liars.byzantine}), {name} is {wanted}; raise it to {self.least}"
                " or more, or choose average"
            )

    @property
    def least(self) -> int:
        """Returns how many different workers the aggregation needs."""
        return least(self.aggregation, self.liars.byzantine)

    @property
    def robust(self) -> bool:
        return self.aggregation in ROBUST

    def too_long(self, update: Floats) -> bool:
        """Is the L2 norm of an update above the largest that is allowed?"""
        if self.max_norm is None:
            return False
        return bool(np.einsum("i,i->", update, update, dtype=np.float64) > self.max_norm**2)

    def scale(self, age: int) -> float | None:
        """Returns what an update of this age is multiplied by; None: it is dropped.

        In rounds an update of an earlier one is always dropped. A version that is still to come
        (of a server that is gone) is none of ours.
        """
        if age < 0 or (self.synchronous and age > 0):
            return None
        return SCALES[self.staleness](age, self.max_staleness)

    def enough(self, workers: int) -> int:
        """Returns how many of `workers` close a round before its deadline."""
        return max(self.least, workers if self.quorum is None else self.quorum)

    def bearable(self, workers: int) -> int:
        """Returns how many of `workers` will do at the deadline: the quorum, or more than half."""
        return max(self.least, workers // 2 + 1 if self.quorum is None else self.quorum)


def _drop(age: int, most: int) -> float | None:
    return 1.0 if age <= most else None


def _discount(age: int, most: int) -> float | None:
    """After Zhang et al. 2016, whose learning rate is divided by the age."""
    return 1.0 / (1 + age) if age <= most else None


def _keep(age: int, most: int) -> float | None:
    return 1.0


SCALES: Mapping[Staleness, Callable[[int, int], float | None]] = {
    Staleness.DROP: _drop,
    Staleness.DISCOUNT: _discount,
    Staleness.KEEP: _keep,
}


def refuse_weight(weight: float) -> None:
    """Refuses a weight that an update cannot have."""
    if not math.isfinite(weight) or weight < 0:
        raise RefusedError(
            f"a weight must be finite and 0 or more, got {weight}; give the number of samples "
            "or steps that the update is made of",
            "weight",
        )


def _positive(value: float) -> bool:
    return math.isfinite(value) and value > 0


def _require(fits: bool, name: str, given: object, allowed: str) -> None:
    if not fits:
        raise ConfigError(f"{name} must be {allowed}, got {given}; change it")


def choose(kind: type[StrEnum], word: str, name: str) -> StrEnum:
    """Returns the member of an enum that a word means."""
    try:
        return kind(word)
    except ValueError:
        words = ", ".join(member.value for member in kind)
        raise ConfigError(f"{name} {word!r} is unknown; choose one of {words}") from None
