"""Conversion of observations and actions to the form in which replay stores them.

An observation is stored as one array, or several arrays for a Dict or Tuple; each is called a leaf
and has a `LeafKind` (VECTOR, IMAGE, ...). Supported observation spaces, for n actions and k
components:

| space | stored as |
|---|---|
| Box of floats | VECTOR float32, same shape |
| Box of uint8 from 0 to 255, two or three axes | IMAGE uint8 [C, H, W] |
| other Box of integers | VECTOR float32 |
| Codes (subclass of Box, defined here) | CODES of its own type, same shape |
| Discrete, any start | DISCRETE int64 [1], from 0 |
| MultiDiscrete, any start | DISCRETE int64 [k], from 0 |
| MultiBinary | BINARY int8 [k] |
| Dict or Tuple of these, nested or not | one leaf for each, names or indices joined with "/" |
| entry `action_mask` of a Dict, with n Discrete actions | MASK int8 [n], 1: allowed |

If actions are not Discrete, `action_mask` is stored like any other entry. Supported action spaces:

| action space | stored as |
|---|---|
| Discrete, any start | int64, from 0 |
| MultiDiscrete, any start | int64 [k], from 0 |
| MultiBinary | int64 [k], k choices of 2 |
| bounded Box of floats | float32 in [-1, 1], same shape |
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import singledispatch
from math import prod
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from rookery.envs.env_fault import Fault
from rookery.envs.nested import NESTED, Place, Space, assembled, leaf_spaces, part
from rookery.errors import ConfigError, ProtocolError
from rookery.types import MASK, ActionSpec, Array, EnvSpec, Leaf, LeafKind, Obs

CHANNELS = (1, 3, 4)  # grey, colour, colour with alpha (or four stacked greys)
HWC, CHW = (2, 0, 1), (0, 1, 2)  # how the axes of an image become [C, H, W]
CODED = ("uint8", "int8", "int16", "int32", "int64")  # dtypes of codes: integers that torch has

OBS_HELP: dict[type[Space], str] = {
    spaces.Text: "turn the text into numbers with a wrapper of your own in env.wrappers",
    spaces.Graph: "turn the graph into arrays of one size with a wrapper of your own",
    spaces.Sequence: "pad the sequence to one length with a wrapper of your own",
    spaces.OneOf: "offer all its parts side by side in a Dict",
}
ACTION_HELP: dict[type[Space], str] = {
    spaces.Dict: "flatten its parts into one bounded Box with a wrapper of your own",
    spaces.Tuple: "flatten its parts into one bounded Box with a wrapper of your own",
}
OBS_ALLOWED = (
    "observations may be Box, Discrete, MultiDiscrete, MultiBinary, or a Dict or Tuple of these"
)
ACTION_ALLOWED = "actions may be Discrete, MultiDiscrete, MultiBinary or a bounded Box of floats"
WRAP = "change it with a wrapper in env.wrappers"


class Codes(spaces.Box):
    """Observation space: a Box of integers that are codes, not quantities, stored unconverted.

    For example, each bit of an integer has its own meaning, or an algorithm compares and counts the
    integers. Any other Box of integers is stored as float32 or as an image.
    """


def spec_of(
    name: str, observation_space: Space, action_space: Space, frame_stack: int = 1
) -> EnvSpec:
    """Returns the `EnvSpec` of an environment: its spaces in the form that replay stores.

    Raises `ConfigError` for unsupported spaces.
    """
    codec = SpaceCodec(observation_space, action_space)
    return EnvSpec(name, codec.leaves, codec.action, frame_stack)


class SpaceCodec:
    """Converts observations and actions between the environment's form and that of replay.

    The form in which replay stores them is called the stored form.

    codec = SpaceCodec(env.observation_space, env.action_space)
    codec.check(obs)                         # an observation that one environment returned
    stored = codec.encode(batch, num)        # observations of `num` environments, to stored form
    batch = codec.decode(stored)             # back to the environment's form
    env_action = codec.decode_action(action) # from stored form to that of the environment's step
    action = codec.encode_action(env_action) # back to stored form; raises outside the space
    """

    def __init__(self, observation_space: Space, action_space: Space) -> None:
        self.observation_space, self.action_space = observation_space, action_space
        parts = tuple(part_of(space, path) for path, space in leaf_spaces(observation_space))
        _refuse_odd_names(observation_space, [part.leaf.name for part in parts])
        self._single = None if isinstance(observation_space, NESTED) else parts[0]
        self._actions = action_codec(action_space)
        self.action = self._actions.spec
        self._parts = _with_mask(parts, observation_space, self.action)
        self.leaves = tuple(part.leaf for part in self._parts)

    def encode(self, obs: Any, num: int) -> Obs:
        """Converts a batch of `num` observations to new C-contiguous arrays, as replay stores them.

        Raises `Fault` for a wrong shape, dtype or value.
        """
        if self._single is not None:
            return self._single.encode(obs, num)
        return {part.leaf.name: part.encode(_get(obs, part.path), num) for part in self._parts}

    def encode_one(self, obs: Any) -> Obs:
        """Converts one observation to the form that replay stores, with a leading axis of size 1.

        Raises `Fault` for a wrong shape, dtype or value.
        """
        if self._single is not None:
            return self._single.encode(np.asarray(obs)[None], 1)
        return {
            part.leaf.name: part.encode(np.asarray(_get(obs, part.path))[None], 1)
            for part in self._parts
        }

    def decode(self, obs: Obs) -> Any:
        """Converts a batch of observations as replay stores them to the environment's form.

        If the observation space is a Dict or Tuple, returns a dict or tuple of batches, nested like
        the space.
        """
        if self._single is not None:
            assert not isinstance(obs, dict), "a single leaf is one array"
            return self._single.decode(obs)
        assert isinstance(obs, dict), "several leaves come by name"
        return assembled(self.observation_space, iter(self.decode_leaves(obs).values()))

    def decode_one(self, obs: Obs) -> Any:
        """Converts one observation, with a leading axis of size 1, to the environment's form."""
        return part(self.decode(obs), 0)

    def encode_leaves(self, leaves: Mapping[str, Any], num: int) -> dict[str, Array]:
        """Converts observations as `encode` does; they are given as arrays by leaf name."""
        return {part.leaf.name: part.encode(leaves[part.leaf.name], num) for part in self._parts}

    def decode_leaves(self, leaves: Mapping[str, Array]) -> dict[str, Array]:
        """Converts observations as `decode` does, but returns arrays by leaf name."""
        return {part.leaf.name: part.decode(leaves[part.leaf.name]) for part in self._parts}

    def check(self, obs: Any) -> None:
        """Raises `Fault` if an observation of one environment does not fit the observation space.

        Checks only the shape and the kind of dtype (float or integer), which is cheap enough for
        every step. `encode` also checks the values.
        """
        for own in self._parts:
            own.check(np.asarray(_get(obs, own.path)), own.shape)

    def decode_action(self, action: Array) -> Array:
        """Converts actions as replay stores them to those that the environment's `step` takes."""
        return self._actions.decode(action)

    def encode_action(self, action: Any) -> Array:
        """Converts the environment's actions to those that replay stores.

        Raises `ConfigError` for actions outside the action space.
        """
        return self._actions.encode(np.asarray(action))


@dataclass(frozen=True)
class _Part:
    """One array (leaf) of an observation, with the functions that convert and check it."""

    leaf: Leaf
    path: Place  # where it is in a nested observation
    shape: tuple[int, ...]  # in the environment
    kinds: str  # numpy kinds of numbers that may be cast to it
    convert: Callable[[Array], Array]  # the environment's values → those stored, always a copy
    revert: Callable[[Array], Array]  # the inverse of `convert`, always a copy
    good: Callable[[Array], Array] | None  # stored values → which are allowed; None: all
    allowed: str  # description of allowed values, for errors

    def encode(self, raw: Any, num: int) -> Array:
        array = np.asarray(raw)
        self.check(array, (num, *self.shape))
        stored = self.convert(array).reshape(num, *self.leaf.shape)
        if self.good is None:
            return stored
        good = self.good(stored)
        if np.count_nonzero(good) != good.size:  # a third of the time of good.all()
            raise self._bad_value(array, good)
        return stored

    def decode(self, stored: Array) -> Array:
        return self.revert(stored).reshape(-1, *self.shape)

    def check(self, array: Array, shape: tuple[int, ...]) -> None:
        if array.shape != shape:
            raise Fault(
                f"{self._title} has shape {array.shape}; its space says {shape}; "
                "return the same shape from every reset and step"
            )
        if array.dtype.kind not in self.kinds:
            raise Fault(
                f"{self._title} is {array.dtype} ({_brief(array)}); its space allows "
                f"{self.allowed}; cast it in the environment, or correct the space"
            )

    @property
    def _title(self) -> str:
        return f"observation {self.leaf.name!r}" if self.leaf.name else "observation"

    def _bad_value(self, array: Array, good: Array) -> Fault:
        flat = good.reshape(len(good), -1)
        index, place = (int(at[0]) for at in np.nonzero(~flat))
        value = array.reshape(len(array), -1)[index, place]
        at = list(map(int, np.unravel_index(place, self.shape))) if self.shape else ""
        return Fault(
            f"{self._title}{at} is {value}; allowed there: {self.allowed}; "
            "look at what the environment computes, or clip it with a wrapper in env.wrappers",
            index,
        )


def _get(obs: Any, path: Place) -> Any:
    for key in path:
        try:
            obs = obs[key]
        except (KeyError, TypeError, IndexError) as error:
            raise Fault(
                f"the observation has no {_name(path)!r}: {_brief(obs)}; its space has it; "
                "return every entry from every reset and step"
            ) from error
    return obs


def _brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


@singledispatch
def part_of(space: Any, path: Place) -> _Part:
    """Returns the `_Part` of a space that is one array; ConfigError if the space is unsupported."""
    raise ConfigError(f"{_where(path)} is {space}; {OBS_ALLOWED}; {_help(space, OBS_HELP)}")


def _name(path: Place) -> str:
    return "/".join(map(str, path))


def _where(path: Place) -> str:
    return f"the observation space's {_name(path)!r}" if path else "the observation space"


def _help(space: Space, table: dict[type[Space], str]) -> str:
    return next((text for kind, text in table.items() if isinstance(space, kind)), WRAP)


def _refuse_odd_names(space: Space, names: list[str]) -> None:
    """Raises `ConfigError` for a Dict or Tuple without entries, or with an unusable name.

    Names must not be empty, and must differ after those of nested spaces are joined with "/".
    """
    if not names:
        raise ConfigError(
            f"the observation space is {space}; a {type(space).__name__} needs at least one entry"
        )
    if isinstance(space, NESTED) and ("" in names or len(set(names)) < len(names)):
        raise ConfigError(
            f"the observation space has the names {names}; they must not be empty, and must "
            "differ when nested names are joined with '/'; rename the keys"
        )


@part_of.register(spaces.Box)
def _box(space: spaces.Box, path: Place) -> _Part:
    if not prod(space.shape):
        raise ConfigError(f"{_where(path)} is {space}; it is empty; drop it with a wrapper")
    if space.dtype == np.uint8 and np.all(space.low == 0) and np.all(space.high == 255):
        if len(space.shape) in (2, 3):
            return _image(space, path)
        if len(space.shape) > 3:
            raise ConfigError(
                f"{_where(path)} is {space}; images may have two or three axes; "
                "to stack frames set env.frame_stack instead of wrapping the environment"
            )
    return _vector(space, path)


def _vector(space: spaces.Box, path: Place) -> _Part:
    def revert(stored: Array) -> Array:
        return stored.astype(space.dtype)

    leaf = Leaf(_name(path), space.shape or (1,), "float32", LeafKind.VECTOR)
    if space.dtype.kind != "f":
        return _Part(leaf, path, space.shape, "iub", narrowed, revert, None, "integers")
    allowed = "finite 32-bit floats"
    return _Part(leaf, path, space.shape, "fiub", narrowed, revert, np.isfinite, allowed)


@part_of.register(Codes)
def _codes(space: Codes, path: Place) -> _Part:
    if space.dtype.name not in CODED or not prod(space.shape):
        raise ConfigError(
            f"{_where(path)} is {space}; codes may be {', '.join(CODED)}, and at least one; give "
            "the space one of these types, or make it a Box"
        )

    def convert(array: Array) -> Array:
        return array.astype(space.dtype, order="C")

    leaf = Leaf(_name(path), space.shape or (1,), space.dtype.name, LeafKind.CODES)
    return _Part(leaf, path, space.shape, space.dtype.kind, convert, np.array, None, leaf.dtype)


def narrowed(array: Array) -> Array:
    """Returns a C-contiguous float32 copy of an array; values that are too large become inf."""
    if array.dtype.itemsize <= 4:
        return array.astype(np.float32, order="C")
    with np.errstate(over="ignore"):
        return array.astype(np.float32, order="C")


def _image(space: spaces.Box, path: Place) -> _Part:
    full = (*space.shape, 1)[:3]  # a grey image has no axis of channels
    axes = channel_axes(full)
    batched = (0, *(axis + 1 for axis in axes))

    def convert(array: Array) -> Array:
        return np.array(array.reshape(-1, *full).transpose(batched), dtype=np.uint8, order="C")

    def revert(stored: Array) -> Array:
        return stored.transpose(np.argsort(batched)).copy()

    leaf = Leaf(_name(path), tuple(full[axis] for axis in axes), "uint8", LeafKind.IMAGE)
    return _Part(leaf, path, space.shape, "u", convert, revert, None, "uint8")


def channel_axes(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the permutation of an image's axes to [C, H, W], guessing the channel axis C.

    C is the last axis if its size is 1, 3 or 4, else the first axis if its size is 1, 3 or 4. If
    neither is, C is the smaller of the two, or the first if they are equal.
    """
    if shape[-1] in CHANNELS:
        return HWC
    if shape[0] in CHANNELS:
        return CHW
    return HWC if shape[-1] < shape[0] else CHW


@part_of.register(spaces.Discrete)
@part_of.register(spaces.MultiDiscrete)
def _classes(space: Any, path: Place) -> _Part:
    sizes = np.ravel(space.n if isinstance(space, spaces.Discrete) else space.nvec).astype(np.int64)
    start = np.ravel(space.start).astype(np.int64)

    def convert(array: Array) -> Array:
        wide = array.reshape(len(array), len(sizes)).astype(np.int64, order="C")
        shifted: Array = wide - start
        return shifted

    def revert(stored: Array) -> Array:
        back: Array = stored + start
        return back

    def good(stored: Array) -> Array:
        within: Array = (stored >= 0) & (stored < sizes)
        return within

    leaf = Leaf(_name(path), (len(sizes),), "int64", LeafKind.DISCRETE, tuple(map(int, sizes)))
    allowed = f"integers from {start.tolist()} to {(start + sizes - 1).tolist()}"
    return _Part(leaf, path, space.shape, "iub", convert, revert, good, allowed)


@part_of.register(spaces.MultiBinary)
def _binary(space: spaces.MultiBinary, path: Place) -> _Part:
    def convert(array: Array) -> Array:
        wide = array.astype(np.int64, order="C")
        return np.clip(wide, -1, 2).astype(np.int8)  # 256 must not become a 0

    leaf = Leaf(_name(path), (prod(space.shape),), "int8", LeafKind.BINARY)
    return _Part(leaf, path, space.shape, "iub", convert, np.array, _is_bit, "only 0 and 1")


def _is_bit(stored: Array) -> Array:
    lower: Array = (stored & -2) == 0  # only 0 and 1 have no other bit
    return lower


def _with_mask(parts: tuple[_Part, ...], space: Space, action: ActionSpec) -> tuple[_Part, ...]:
    """Returns `parts`, in which the entry `action_mask` is converted as an action mask.

    Each of `parts` converts one array of an observation. If observations have no such entry, or
    actions are not Discrete, `parts` is returned unchanged. Raises `ConfigError` for a wrong mask,
    or if the mask is the only entry.
    """
    found = space.spaces.get(MASK) if isinstance(space, spaces.Dict) else None
    if found is None or not action.discrete:
        return parts
    mask = _mask(found, action)
    rest = [part for part in parts if part.path[0] != MASK]
    if not rest:
        raise ConfigError(
            f"the observation space is {space}; it has only a mask, which is no network input; add "
            "what actions depend on, or one constant number"
        )
    return tuple(mask if part.path == (MASK,) else part for part in parts)


def _mask(space: Space, action: ActionSpec) -> _Part:
    """Returns the `_Part` that converts and checks an action mask in observations.

    Raises `ConfigError` unless the mask has one entry for each of the n discrete actions.
    """
    if not isinstance(space, spaces.Box | spaces.MultiBinary) or space.shape != (action.n,):
        raise ConfigError(
            f"{_where((MASK,))} is {space}; with {action.n} discrete actions it must be a Box of "
            f"integers or a MultiBinary of shape ({action.n},); correct it, or rename it"
        )

    def convert(array: Array) -> Array:
        if array.dtype == np.int8:
            return array.copy()
        other = np.where(array == 0, np.int8(0), np.int8(-1))  # 256 and 0.5 must not become a 0
        return np.where(array == 1, np.int8(1), other)

    def revert(stored: Array) -> Array:
        return stored.astype(space.dtype)

    leaf = Leaf(MASK, space.shape, "int8", LeafKind.MASK)
    return _Part(leaf, (MASK,), space.shape, "fiub", convert, revert, _is_bit, "only 0 and 1")


class _ActionCodec(NamedTuple):
    """Functions that convert batches of actions of one action space, and its `ActionSpec`.

    `encode` converts from the environment's form to that of replay, `decode` back.
    """

    spec: ActionSpec
    decode: Callable[[Array], Array]
    encode: Callable[[Array], Array]


@singledispatch
def action_codec(space: Any) -> _ActionCodec:
    raise ConfigError(f"the action space is {space}; {ACTION_ALLOWED}; {_help(space, ACTION_HELP)}")


@action_codec.register(spaces.Discrete)
def _discrete_actions(space: spaces.Discrete[Any]) -> _ActionCodec:
    start, n = int(space.start), int(space.n)

    def decode(action: Array) -> Array:
        return action + start if start else action

    def encode(action: Array) -> Array:
        _refuse_odd_actions(action, (), "iub", start, start + n - 1)
        stored: Array = action.astype(np.int64) - start
        return stored

    return _ActionCodec(ActionSpec(n=n, start=start), decode, encode)


@action_codec.register(spaces.MultiDiscrete)
@action_codec.register(spaces.MultiBinary)
def _several_actions(space: Any) -> _ActionCodec:
    """Returns the codec of MultiDiscrete or MultiBinary actions.

    A batch of B actions with k components each is stored as [B, k] integers.
    """
    bits = isinstance(space, spaces.MultiBinary)
    shape, nvec = space.shape, np.full(space.shape, 2) if bits else space.nvec
    start = np.zeros(shape, dtype=np.int64) if bits else space.start.astype(np.int64)
    if not nvec.size:
        raise ConfigError(f"the action space is {space}; it is empty; widen it")

    def decode(action: Array) -> Array:
        return (action.reshape(-1, *shape) + start).astype(space.dtype)

    def encode(action: Array) -> Array:
        _refuse_odd_actions(action, shape, "iub", start, start + nvec - 1)
        stored: Array = (action.astype(np.int64) - start).reshape(len(action), -1)
        return stored

    sizes = tuple(map(int, nvec.ravel()))
    return _ActionCodec(ActionSpec(shape=(len(sizes),), sizes=sizes), decode, encode)


@action_codec.register(spaces.Box)
def _continuous_actions(space: spaces.Box) -> _ActionCodec:
    _refuse_odd_bounds(space)
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)

    def decode(action: Array) -> Array:
        if not np.isfinite(action).all():
            raise ProtocolError(
                f"the policy gave the action {_brief(action)}; every value must be finite; "
                "the weights have probably diverged: lower learner.lr or learner.max_grad_norm"
            )
        scaled = low + (action.astype(np.float64) + 1.0) * 0.5 * (high - low)
        return np.clip(scaled.astype(space.dtype), space.low, space.high)

    def encode(action: Array) -> Array:
        _refuse_odd_actions(action, space.shape, "fiub", space.low, space.high)
        width = np.where(high > low, high - low, 1.0)
        stored = (action.astype(np.float64) - low) * 2.0 / width - (high > low)
        return stored.astype(np.float32)

    lows, highs = tuple(low.ravel().tolist()), tuple(high.ravel().tolist())
    return _ActionCodec(ActionSpec(shape=space.shape, low=lows, high=highs), decode, encode)


def _refuse_odd_actions(
    action: Array, shape: tuple[int, ...], kinds: str, low: Any, high: Any
) -> None:
    """Raises `ConfigError` if an action of a batch is outside the environment's action space.

    Also raises if the batch's shape or dtype does not fit.
    """
    fits = action.dtype.kind in kinds and action.shape[1:] == shape and action.ndim > 0
    if fits and ((action >= low) & (action <= high)).all():
        return
    numbers = "numbers" if "f" in kinds else "whole numbers"
    between = action.dtype.kind in "fiub" and action.size > 0
    given = f", from {action.min()} to {action.max()}" if between else ""
    raise ConfigError(
        f"actions here are {numbers} from {_plain(low)} to {_plain(high)}, of shape {shape} for "
        f"each step; got {action.dtype} of shape {action.shape}{given}; give them as the "
        "environment's step takes them"
    )


def _plain(bound: Any) -> Any:
    return np.asarray(bound).tolist()


def _refuse_odd_bounds(space: spaces.Box) -> None:
    if space.dtype.kind != "f":
        raise ConfigError(
            f"the action space is {space}; {ACTION_ALLOWED}; "
            "offer whole numbers as a Discrete with a wrapper of your own"
        )
    if not prod(space.shape):
        raise ConfigError(f"the action space is {space}; it is empty; widen it")
    if not (np.isfinite(space.low).all() and np.isfinite(space.high).all()):
        raise ConfigError(
            f"the action space is {space}; {ACTION_ALLOWED}, and this one has no bounds; give the "
            "Box a finite low and high. RescaleAction needs them too, and ClipAction removes them: "
            "drop it, Rookery keeps actions inside the bounds"
        )
