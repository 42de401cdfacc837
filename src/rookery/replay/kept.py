"""What a replay leaves in a checkpoint, and how another cut into shards takes it up."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from rookery import seeding
from rookery.types import Array

Segments = Iterable[tuple[int, Mapping[str, Array]]]  # of one shard: first row, columns


class Extent(NamedTuple):
    """The rows [oldest, committed) that a shard has."""

    oldest: int
    committed: int


class Stretch(NamedTuple):
    """Consecutive rows, as columns."""

    first: int
    columns: Mapping[str, Array]


class Kept(NamedTuple):
    """A replay as a checkpoint needs it."""

    numbers: dict[str, Any]  # JSON-ready
    arrays: dict[str, Array]
    unsaved: Sequence[Stretch]  # by shard: rows that no segment has yet
    extents: Sequence[Extent]  # by shard


def combined(shards: Sequence[Kept], rng: np.random.Generator) -> Kept:
    """Puts what shards keep into one, for a checkpoint."""
    return Kept(
        numbers={"rng": seeding.state_of(rng), "shards": [kept.numbers for kept in shards]},
        arrays={f"{i}.{n}": a for i, kept in enumerate(shards) for n, a in kept.arrays.items()},
        unsaved=[stretch for kept in shards for stretch in kept.unsaved],
        extents=[extent for kept in shards for extent in kept.extents],
    )


def apart(
    numbers: Mapping[str, Any], arrays: Mapping[str, Array]
) -> list[tuple[dict[str, Any], dict[str, Array]]]:
    """The reverse of `combined`; what a `Pool` saved is one shard."""
    if "shards" not in numbers:
        return [(dict(numbers), dict(arrays))]
    prefixes = [f"{i}." for i in range(len(numbers["shards"]))]
    return [
        (own, {n[len(p) :]: a for n, a in arrays.items() if n.startswith(p)})
        for own, p in zip(numbers["shards"], prefixes, strict=True)
    ]


def remembered(
    states: Sequence[tuple[dict[str, Any], dict[str, Array]]],
    segments: Sequence[Segments],
) -> Iterator[dict[str, Array]]:
    """Yields the rows that shards had, without those that had been overwritten."""
    for (numbers, _), own in zip(states, segments, strict=True):
        oldest, last = int(numbers["first"]), int(numbers["committed"])
        for first, columns in own:
            skip = max(0, oldest - first)
            yield {name: column[skip : last - first] for name, column in columns.items()}


def of_place(columns: Mapping[str, Array], place: int, places: int) -> dict[str, Array]:
    """Returns the rows that belong to one of so many places: an actor's stay together."""
    own = np.flatnonzero(columns["actor"] % places == place)
    return {name: column[own] for name, column in columns.items()}
