"""Nested observations: arrays in dicts and tuples, as Dict and Tuple spaces have them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from gymnasium import spaces

from rookery.types import Array, Rows

Space: TypeAlias = spaces.Space[Any]
Place: TypeAlias = tuple[Any, ...]  # keys of Dicts and indices of Tuples

NESTED = (spaces.Dict, spaces.Tuple)


def mapped(change: Callable[..., Any], nested: Any, *others: Any) -> Any:
    """Returns a nested observation with `change` applied to every array.

    `others` are observations of the same form; `change` gets the arrays of all at one place.
    """
    if isinstance(nested, Mapping):
        return {key: mapped(change, own, *(o[key] for o in others)) for key, own in nested.items()}
    if isinstance(nested, tuple):
        return tuple(mapped(change, *parts) for parts in zip(nested, *others, strict=True))
    return change(nested, *others)


def part(obs: Any, which: Rows | slice | int) -> Any:
    """Returns the observations at the indices `which` of a batch."""
    return mapped(lambda leaf: leaf[which], obs)


def stacked(seen: Sequence[Any]) -> Any:
    """Stacks a list of observations to a batch."""
    return mapped(lambda *leaves: np.stack([np.asarray(leaf) for leaf in leaves]), *seen)


def put(into: Any, where: Rows, obs: Any) -> None:
    """Writes K observations into the batch `into` at the indices `where` [K], in place."""

    def write(leaf: Array, new: Array) -> None:
        leaf[where] = new

    mapped(write, into, obs)


def count(obs: Any) -> int:
    """Returns the number of observations in a batch."""
    while isinstance(obs, Mapping | tuple):
        obs = next(iter(obs.values() if isinstance(obs, Mapping) else obs))
    return len(obs)


def leaf_spaces(space: Space, path: Place = ()) -> Iterator[tuple[Place, Space]]:
    """Yields, for every array of an observation, where it is and its space."""
    if not isinstance(space, NESTED):
        yield path, space
        return
    entries = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
    for key, child in entries:
        yield from leaf_spaces(child, (*path, key))


def assembled(space: Space, leaves: Iterator[Any]) -> Any:
    """Returns an observation of the form of `space`; `leaves` are its arrays in order."""
    if isinstance(space, spaces.Dict):
        return {key: assembled(child, leaves) for key, child in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(assembled(child, leaves) for child in space.spaces)
    return next(leaves)


def zeros(space: Space) -> Any:
    """Returns an observation of zeros; a Discrete entry has its smallest value."""
    leaves = (leaf for _, leaf in leaf_spaces(space))
    return assembled(space, map(_zero, leaves))


def _zero(space: Space) -> Any:
    if isinstance(space, spaces.Discrete):
        return space.start
    return np.zeros(space.shape or (), dtype=space.dtype)
