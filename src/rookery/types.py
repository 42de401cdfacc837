"""The types that data takes on its way: step → transition → batch → learned → weights.

Axes, the same in the whole library: B batch, T time, E environments, A actions.
An observation is one array, or a dict of arrays when the space is a Dict; both are `Obs`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.floating[Any]]
Rows: TypeAlias = npt.NDArray[np.int64]  # global row numbers, which only grow
Bools: TypeAlias = npt.NDArray[np.bool_]
Array: TypeAlias = npt.NDArray[Any]
Obs: TypeAlias = Array | dict[str, Array]  # [E, *leaf] each


class End(IntEnum):
    """What a row is. Only a RUNNING row has an action; the other two hold a final observation."""

    RUNNING = 0
    TERMINATED = 1
    TRUNCATED = 2


class Kind(StrEnum):
    """How a stored observation leaf is turned into network input."""

    VECTOR = "vector"  # floats, as they are
    IMAGE = "image"  # uint8 [C, H, W], divided by 255
    DISCRETE = "discrete"  # ints [k], one-hot with `sizes` classes each
    BINARY = "binary"  # 0/1 [k]
    CODES = "codes"  # ints that an algorithm can read; others take them for floats
    MASK = "mask"  # 0/1 [n]: which of n actions are allowed; no network input at all


MASK = "action_mask"  # the part of an observation that says which actions are allowed
OBSERVATION = "observation"  # and what is seen beside it, where that has no other name


@dataclass(frozen=True)
class Leaf:
    """One stored part of an observation."""

    name: str  # "" when the observation is not a Dict
    shape: tuple[int, ...]  # as stored, one environment, one frame
    dtype: str
    kind: Kind
    sizes: tuple[int, ...] = ()  # DISCRETE only: number of classes for each entry


@dataclass(frozen=True)
class ActionSpec:
    """What an agent may do: one choice (`n`), several at once (`sizes`), a motion (`low`/`high`).

    Choices are stored from 0 (the environment may start elsewhere); motions are stored in [-1, 1]
    and rescaled at the environment's door.
    """

    n: int = 0  # one choice of n
    start: int = 0  # of the one choice, in the environment
    shape: tuple[int, ...] = ()  # as stored; (k,) for k choices at once
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    sizes: tuple[int, ...] = ()  # k choices at once: number of options for each

    @property
    def discrete(self) -> bool:
        return self.n > 0

    @property
    def several(self) -> bool:
        return bool(self.sizes)

    @property
    def continuous(self) -> bool:
        return not (self.discrete or self.several)

    @property
    def dtype(self) -> str:
        return "float32" if self.continuous else "int64"


AHEAD = "ahead"  # the extra in which actors say what they expect where a rollout ends
ADVANTAGE, RETURN = "advantage", "return"  # extras that are estimated once a rollout is there


@dataclass(frozen=True)
class Extra:
    """A column that actors write for their own algorithm, beside the action."""

    name: str
    shape: tuple[int, ...] = ()
    dtype: str = "float32"
    each: bool = True  # drawn for each step of a sequence; False: for its first step alone
    own: bool = False  # means nothing to another run's networks: they find zeros


@dataclass(frozen=True)
class EnvSpec:
    """Everything a network, a ring or a peer must know of an environment."""

    name: str
    obs: tuple[Leaf, ...]
    action: ActionSpec
    frame_stack: int = 1
    extras: tuple[Extra, ...] = ()  # what the algorithm's actors write as well

    @property
    def is_dict(self) -> bool:
        return self.obs[0].name != ""

    @cached_property  # asked at every step
    def masked(self) -> bool:
        """Does the observation say, in its leaf `MASK`, which actions are allowed?"""
        return any(leaf.kind is Kind.MASK for leaf in self.obs)

    def pack(self, leaves: Mapping[str, Any]) -> Any:
        """Gives leaves keyed by name the shape users know: an array, or a dict of arrays."""
        return dict(leaves) if self.is_dict else leaves[""]

    def unpack(self, obs: Any) -> dict[str, Any]:
        """The inverse of `pack`."""
        return obs if self.is_dict else {"": obs}


class Batch(NamedTuple):
    """B transitions; `discount` already says whether, and how far, to bootstrap.

    For sequences every field but `weight` and `rows` has a time axis: [B, T, ...].
    """

    obs: Any  # Tensor [B, *obs] or dict of them
    action: Any  # [B] int64 or [B, *action] float32 in [-1, 1]
    reward: Any  # [B] n-step sum
    discount: Any  # [B] gamma**n, 0 after termination
    next_obs: Any  # like obs
    weight: Any  # [B] importance weights, the largest is 1
    rows: Rows  # [B] for `Pool.rerank`
    mask: Any = None  # [B, T] sequences only: 0 after the episode's end
    extras: Any = None  # name → [B, ...], or [B, T, ...]: what the actors wrote for the algorithm


class Learned(NamedTuple):
    """What one learner step found out. Tensors stay on their device: nobody waits for them here."""

    td_error: Any  # [B], detached
    metrics: dict[str, Any]  # name → scalar tensor, detached


class Weights(NamedTuple):
    """A published version of the networks."""

    version: int
    arrays: dict[str, Array]
