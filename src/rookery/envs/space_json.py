"""Gymnasium spaces as JSON, for exported policies that have no environment.

outline(spaces.Discrete(3))     # {"space": "Discrete", "n": 3, "start": 0}
restore(outline(space)) == space
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from gymnasium import spaces

from rookery.envs.spaces import Codes, Space
from rookery.errors import CheckpointError
from rookery.types import Array

Outline: TypeAlias = dict[str, Any]  # JSON, without infinities


class _Kind(NamedTuple):
    """Functions that convert one class of Gymnasium spaces to JSON (`outline`) and back."""

    cls: type[Space]
    outline: Callable[[Any], Outline]
    restore: Callable[[Mapping[str, Any]], Space]


def outline(space: Space) -> Outline:
    """Converts a Gymnasium space to JSON; it must be one that `SpaceCodec` supports."""
    for name, kind in KINDS.items():
        if isinstance(space, kind.cls):
            return {"space": name, **kind.outline(space)}
    raise AssertionError(f"SpaceCodec does not support {space}")


def restore(given: Mapping[str, Any]) -> Space:
    """Converts JSON from `outline` back to a Gymnasium space.

    Raises `CheckpointError` for any other JSON.
    """
    try:
        return KINDS[given["space"]].restore(given)
    except CheckpointError:
        raise
    except Exception as error:  # gymnasium may raise anything for a broken file
        raise CheckpointError(
            f"{str(given)[:80]!r} describes no space ({type(error).__name__}: {error}); allowed: "
            f"{', '.join(KINDS)}; export the policy again"
        ) from error


def _box(space: spaces.Box) -> Outline:
    return {
        "shape": list(space.shape),
        "dtype": str(space.dtype),
        "low": _bounds(space.low),
        "high": _bounds(space.high),
    }


def _as_box(given: Mapping[str, Any], box: type[spaces.Box] = spaces.Box) -> Space:
    shape, dtype = tuple(given["shape"]), np.dtype(given["dtype"])
    low, high = (_bounded(given[name], shape, dtype) for name in ("low", "high"))
    return box(low, high, shape, dtype.type)


def _bounds(bounds: Array) -> Any:
    """Returns the bounds of a Box as a list, or as one number if all are equal, as in images.

    Infinite bounds become strings, since JSON has no infinity.
    """
    flat = [_number(bound) for bound in bounds.ravel().tolist()]
    return flat[0] if flat and len(set(flat)) == 1 else flat


def _number(bound: float) -> float | str:
    return bound if np.isfinite(bound) else str(bound)  # "inf", which JSON lacks


def _bounded(given: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    if not isinstance(given, list):
        return np.full(shape, _bound(given), dtype)
    return np.array([_bound(bound) for bound in given], dtype).reshape(shape)


def _bound(given: Any) -> Any:
    return float(given) if isinstance(given, str) else given


def _switches(space: spaces.MultiBinary) -> Outline:
    return {"n": space.n if isinstance(space.n, int) else list(space.shape)}


def _choice(space: spaces.Discrete[Any]) -> Outline:
    return {"n": int(space.n), "start": int(space.start)}


def _choices(space: spaces.MultiDiscrete[Any]) -> Outline:
    return {
        "nvec": space.nvec.tolist(),
        "start": space.start.tolist(),
        "dtype": str(space.dtype),
    }


def _as_choices(given: Mapping[str, Any]) -> Space:
    dtype: Any = np.dtype(given["dtype"]).type
    return spaces.MultiDiscrete(np.array(given["nvec"]), dtype, start=np.array(given["start"]))


def _entries(space: spaces.Dict) -> Outline:
    return {"spaces": [[str(key), outline(child)] for key, child in space.spaces.items()]}


def _as_entries(given: Mapping[str, Any]) -> Space:
    return spaces.Dict([(key, restore(child)) for key, child in given["spaces"]])


KINDS: dict[str, _Kind] = {
    "Codes": _Kind(Codes, _box, lambda given: _as_box(given, Codes)),  # before Box, its base class
    "Box": _Kind(spaces.Box, _box, _as_box),
    "Discrete": _Kind(
        spaces.Discrete, _choice, lambda given: spaces.Discrete(given["n"], start=given["start"])
    ),
    "MultiDiscrete": _Kind(spaces.MultiDiscrete, _choices, _as_choices),
    "MultiBinary": _Kind(
        spaces.MultiBinary, _switches, lambda given: spaces.MultiBinary(given["n"])
    ),
    "Dict": _Kind(spaces.Dict, _entries, _as_entries),
}
