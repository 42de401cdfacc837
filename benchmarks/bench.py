"""What a benchmark is: contenders that do the same work, and how their values are compared."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple, TypeAlias

Answer: TypeAlias = dict[str, Any]  # what a script printed; "value" is always in it
Runs: TypeAlias = dict[str, list[Answer]]  # contender → its answers, in the order of the rounds

ROOKERY = "rookery"  # the contender that the others of its group are compared with


class Better(StrEnum):
    """Which values are better."""

    HIGHER = "higher"
    LOWER = "lower"


@dataclass(frozen=True, kw_only=True)
class Contender:
    """A library, or a plain loop, that does the work of a benchmark."""

    name: str  # "contender", or "group:contender" where a benchmark compares several things
    command: tuple[str, ...]  # script in the benchmarks folder, and its arguments
    package: str = ""  # of a peer; peers take part only with --peers
    bar: float | None = None  # that its ratio has to reach; its value, where it has no ratio
    baseline: str = ""  # its ratio is this one / baseline; without a baseline, Rookery / this one
    better: Better | None = None  # where it is not as in the rest of its benchmark

    @property
    def reference(self) -> str:
        """The name of the contender that this one is compared with."""
        if self.baseline:
            return self.baseline
        group, colon, _ = self.name.rpartition(":")
        return group + colon + ROOKERY


class Ratio(NamedTuple):
    """One more ratio of two medians: above / (below * times)."""

    above: str  # contender
    below: str
    times: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Bench:
    """One benchmark."""

    about: str
    unit: str
    better: Better = Better.HIGHER
    contenders: tuple[Contender, ...]
    ratios: Mapping[str, Ratio] = field(default_factory=dict)  # besides those of contenders
    rounds: int = 3
    deadline_s: float = 180.0  # for one trial
    needs: str = ""  # a package without which there is nothing to measure
