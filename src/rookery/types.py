"""Data types of the whole library: specs of environments, batches, results, weights.

Axes, the same in the whole library: B batch, T time, E environments, A actions. An observation is
one array, or a dict of arrays for a Dict space; both are `Obs`. A row is one env step in replay.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Never, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from torch import Tensor

Floats: TypeAlias = npt.NDArray[np.floating[Any]]
Rows: TypeAlias = npt.NDArray[np.int64]  # row numbers, which increase over the whole run
Bools: TypeAlias = npt.NDArray[np.bool_]
Array: TypeAlias = npt.NDArray[Any]
Obs: TypeAlias = Array | dict[str, Array]  # [E, *leaf] each
Json: TypeAlias = "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None"
JsonObject: TypeAlias = Mapping[str, Json]
Arrays: TypeAlias = Mapping[str, Array]
# JSON data that was read from a checkpoint: only the class that wrote it knows its keys.
SavedState: TypeAlias = Mapping[str, Any]
Slots: TypeAlias = "slice[int, int, int] | Rows"  # indices of rows in a ring

ObsT = TypeVar("ObsT", covariant=True)
ValueT = TypeVar("ValueT", covariant=True)
AbsentT = TypeVar("AbsentT", covariant=True)


class End(IntEnum):
    """Kinds of rows in replay: a step of an episode, or the final observation of an episode.

    A RUNNING row is a step, with its action. A TERMINATED or TRUNCATED row follows the last step
    and holds the final observation.
    """

    RUNNING = 0
    TERMINATED = 1
    TRUNCATED = 2


class LeafKind(StrEnum):
    """Kinds of observation arrays, which differ in their conversion to network input."""

    VECTOR = "vector"  # floats, as they are
    IMAGE = "image"  # uint8 [C, H, W], divided by 255
    DISCRETE = "discrete"  # ints [k], one-hot with `sizes` classes each
    BINARY = "binary"  # 0/1 [k]
    CODES = "codes"  # ints that some algorithms decode; others use them as floats
    MASK = "mask"  # 0/1 [n]: which of n actions are allowed; not a network input


MASK = "action_mask"  # leaf of an observation: which actions are allowed
OBSERVATION = "observation"  # name of the other leaf, where the observation has no Dict


@dataclass(frozen=True)
class Leaf:
    """Spec (name, shape, dtype) of one array of an observation in replay.

    An observation has one such array, or, for a Dict space, one for each entry.
    """

    name: str  # "" when the observation is not a Dict
    shape: tuple[int, ...]  # as stored, one environment, one frame
    dtype: str
    kind: LeafKind
    sizes: tuple[int, ...] = ()  # DISCRETE only: number of classes for each entry


@dataclass(frozen=True)
class ActionSpec:
    """Action space: discrete (`n`), multi-discrete (`sizes`) or continuous (`low` to `high`).

    In replay, discrete actions start at 0, even if the environment's numbers start elsewhere.
    Continuous actions are stored in [-1, 1] and rescaled before the environment's `step`.
    """

    n: int = 0  # discrete: number of actions
    start: int = 0  # discrete: the environment's first action
    shape: tuple[int, ...] = ()  # as stored; (k,) for k discrete actions at once
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    sizes: tuple[int, ...] = ()  # multi-discrete: number of options of each action

    @property
    def discrete(self) -> bool:
        return self.n > 0

    @property
    def several(self) -> bool:
        return bool(self.sizes)

    @property
    def continuous(self) -> bool:
        return not (self.discrete or self.several)

    @cached_property  # read for every batch
    def dtype(self) -> str:
        return "float32" if self.continuous else "int64"


AHEAD = "ahead"  # extra column: the actor's value estimate of the state after a rollout
ADVANTAGE, RETURN = "advantage", "return"  # extra columns, computed when a rollout is complete


@dataclass(frozen=True)
class Extra:
    """Spec of an extra value that actors store with each env step, such as a value estimate."""

    name: str
    shape: tuple[int, ...] = ()
    dtype: str = "float32"
    each: bool = True  # sampled for each step of a sequence; False: for its first step only
    own: bool = False  # useless to other runs' networks: they get zeros


@dataclass(frozen=True)
class EnvSpec:
    """Observation and action spaces of an environment, in the form in which replay stores them."""

    name: str
    obs: tuple[Leaf, ...]
    action: ActionSpec
    frame_stack: int = 1
    extras: tuple[Extra, ...] = ()  # further columns that the algorithm's actors write

    @cached_property  # read for every batch
    def is_dict(self) -> bool:
        return self.obs[0].name != ""

    @cached_property  # read at every step
    def masked(self) -> bool:
        """Whether observations have an entry `action_mask`, a mask of the allowed actions."""
        return any(leaf.kind is LeafKind.MASK for leaf in self.obs)

    def pack(self, leaves: Mapping[str, Any]) -> Any:
        """Converts a dict of arrays by name to an observation.

        For a Dict space that is the dict; for any other space it is the only array, named "".
        """
        return dict(leaves) if self.is_dict else leaves[""]

    def unpack(self, obs: Any) -> dict[str, Any]:
        """Converts an observation to a dict of arrays by name; a single array gets the name ""."""
        return obs if self.is_dict else {"": obs}


def prefixed(prefix: str, arrays: Arrays) -> dict[str, Array]:
    """Returns the arrays with `prefix` before their names, to store them with others."""
    return {f"{prefix}{name}": array for name, array in arrays.items()}


def below(prefix: str, arrays: Arrays) -> dict[str, Array]:
    """Returns the arrays whose names begin with `prefix`, without it: the inverse of `prefixed`."""
    return {n.removeprefix(prefix): a for n, a in arrays.items() if n.startswith(prefix)}


class Batch(NamedTuple, Generic[ObsT, ValueT, AbsentT]):
    """A batch of B transitions with n-step returns.

    The value target is reward + discount * value(next_obs); `discount` is 0 after termination. In a
    batch of B sequences of T steps, arrays are [B, T, ...], but `obs` has T + 1 observations,
    `next_obs` is absent, and `weight` and `rows` stay [B].

    The aliases `ArrayBatch`, `TensorBatch` and `DeviceBatch` give the types of the fields. A field
    that the algorithm does not use holds a value of the type `AbsentT` instead, such as None.
    """

    obs: ObsT
    action: ValueT  # [B] int64 or [B, *action] float32 in [-1, 1]
    reward: ValueT  # [B] n-step sum
    discount: ValueT | AbsentT  # [B] gamma**n, 0 after termination
    next_obs: ObsT | AbsentT  # like obs
    weight: ValueT  # [B] importance weights, the largest is 1
    rows: Rows  # [B] numbers of the rows in replay, for `Replay.update_priorities`
    # [B, T] sequences only: 0 after the episode's end
    mask: ValueT | AbsentT = None  # type: ignore[assignment]
    # name → [B, ...] or [B, T, ...]: extra columns
    extras: dict[str, ValueT] | AbsentT = None  # type: ignore[assignment]


# As replay on a host samples it, with None in place of absent fields.
ArrayBatch: TypeAlias = Batch[Obs, Array, None]
# As an algorithm gets it: its settings decide which fields there are, and it reads no others.
TensorBatch: TypeAlias = "Batch[Tensor | dict[str, Tensor], Tensor, Never]"
# As replay on a device samples it: a tuple of tensors that only its algorithm reads, as `obs`.
DeviceBatch: TypeAlias = "Batch[tuple[object, ...], None, Tensor | None]"
SampledBatch: TypeAlias = "ArrayBatch | DeviceBatch"


class LearnResult(NamedTuple):
    """Result of one learner (gradient) step: the TD error of each batch element, and metrics.

    Both may be tensors on the GPU, since copying them to the CPU would wait for the GPU.
    """

    td_error: "Array | Tensor | None"  # [B], detached; None: the step was skipped
    metrics: "Mapping[str, Tensor | float]"  # name → scalar, a tensor detached


class Weights(NamedTuple):
    """Network weights that the learner has published to the actors, with their version number."""

    version: int
    arrays: dict[str, Array]
