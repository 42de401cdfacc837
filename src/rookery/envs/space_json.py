"""Gymnasium spaces as JSON, for exported policies that have no environment.

outline(spaces.Discrete(3))     # {"space": "Discrete", "n": 3, "start": 0}
restore(outline(space)) == space
"""

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
from gymnasium import spaces

from rookery.envs.nested import Space
from rookery.envs.spaces import Codes
from rookery.errors import CheckpointError
from rookery.types import Array

Outline: TypeAlias = dict[str, Any]  # JSON, without infinities

KINDS: dict[str, type[Space]] = {
    kind.__name__: kind
    for kind in (
        Codes,  # before Box, its base class
        spaces.Box,
        spaces.Discrete,
        spaces.MultiDiscrete,
        spaces.MultiBinary,
        spaces.Dict,
        spaces.Tuple,
    )
}


def outline(space: Space) -> Outline:
    """Converts a Gymnasium space to JSON; it must be one that `SpaceCodec` supports."""
    name = next((name for name, kind in KINDS.items() if isinstance(space, kind)), "")
    found: Outline = {"space": name}
    match space:
        case spaces.Box():
            found |= {"shape": list(space.shape), "dtype": str(space.dtype)}
            return found | {"low": _bounds(space.low), "high": _bounds(space.high)}
        case spaces.Discrete():
            return found | {"n": int(space.n), "start": int(space.start)}
        case spaces.MultiDiscrete():
            found |= {"nvec": space.nvec.tolist(), "start": space.start.tolist()}
            return found | {"dtype": str(space.dtype)}
        case spaces.MultiBinary():
            return found | {"n": space.n if isinstance(space.n, int) else list(space.shape)}
        case spaces.Dict():
            entries = [[str(key), outline(child)] for key, child in space.spaces.items()]
            return found | {"spaces": entries}
        case spaces.Tuple():
            return found | {"spaces": [outline(child) for child in space.spaces]}
    raise AssertionError(f"SpaceCodec does not support {space}")


def restore(given: Mapping[str, Any]) -> Space:
    """Converts JSON from `outline` back to a Gymnasium space.

    Raises `CheckpointError` for any other JSON.
    """
    try:
        return _restored(given)
    except CheckpointError:
        raise
    except Exception as error:  # gymnasium may raise anything for a broken file
        raise CheckpointError(
            f"{str(given)[:80]!r} describes no space ({type(error).__name__}: {error}); allowed: "
            f"{', '.join(KINDS)}; export the policy again"
        ) from error


def _restored(given: Mapping[str, Any]) -> Space:
    match given["space"]:
        case "Box" | "Codes" as name:
            shape, dtype = tuple(given["shape"]), np.dtype(given["dtype"])
            low, high = (_bounded(given[end], shape, dtype) for end in ("low", "high"))
            return (Codes if name == "Codes" else spaces.Box)(low, high, shape, dtype.type)
        case "Discrete":
            return spaces.Discrete(given["n"], start=given["start"])
        case "MultiDiscrete":
            kind: Any = np.dtype(given["dtype"]).type
            start = np.array(given["start"])
            return spaces.MultiDiscrete(np.array(given["nvec"]), kind, start=start)
        case "MultiBinary":
            return spaces.MultiBinary(given["n"])
        case "Dict":
            return spaces.Dict([(key, restore(child)) for key, child in given["spaces"]])
        case "Tuple":
            return spaces.Tuple([restore(child) for child in given["spaces"]])
    raise KeyError(given["space"])


def _bounds(bounds: Array) -> Any:
    """Returns the bounds of a Box as a list, or as one number if all are equal, as in images.

    Infinite bounds become strings, since JSON has no infinity.
    """
    flat = [bound if np.isfinite(bound) else str(bound) for bound in bounds.ravel().tolist()]
    return flat[0] if flat and len(set(flat)) == 1 else flat


def _bounded(given: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    flat = given if isinstance(given, list) else [given]
    bounds = np.array([float(one) if isinstance(one, str) else one for one in flat], dtype)
    return bounds.reshape(shape) if isinstance(given, list) else np.full(shape, bounds[0], dtype)
