"""Replay state in a checkpoint, and redistribution of its rows to another number of shards.

A row is one stored env step. A shard is a part of a run's replay buffer.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from rookery import seeding
from rookery.types import Array, Arrays, End, JsonObject, SavedState, below

INCARNATIONS = 1 << 20  # more than an actor ever has

Segments = Iterable[tuple[int, Arrays]]  # of one shard: first row, columns


class RowRange(NamedTuple):
    """Range [oldest, committed) of the row (env step) numbers that a replay shard holds."""

    oldest: int
    committed: int


class RowBlock(NamedTuple):
    """Consecutive replay rows (env steps) as arrays by column, and the first row's number."""

    first: int
    columns: Mapping[str, Array]


@dataclass(frozen=True)
class ReplayState:
    """State of a replay buffer to be written to a checkpoint.

    It includes only the rows (env steps) that no file of an earlier checkpoint holds.
    """

    numbers: JsonObject
    arrays: Arrays
    unsaved: Sequence[RowBlock]  # by shard: rows that no segment holds yet
    extents: Sequence[RowRange]  # by shard


@dataclass(frozen=True)
class SavedReplay:
    """State of a replay buffer as read from a checkpoint, with all its saved rows (env steps)."""

    numbers: JsonObject
    arrays: Arrays
    segments: Sequence[Segments]  # by shard: the saved rows


def combined(shards: Sequence[ReplayState], rng: np.random.Generator) -> ReplayState:
    """Joins the states of all shards (parts) of a replay buffer into one state for a checkpoint."""
    return ReplayState(
        numbers={"rng": seeding.state_of(rng), "shards": [state.numbers for state in shards]},
        arrays={f"{i}.{n}": a for i, state in enumerate(shards) for n, a in state.arrays.items()},
        unsaved=[block for state in shards for block in state.unsaved],
        extents=[extent for state in shards for extent in state.extents],
    )


def rng_of(numbers: SavedState) -> np.random.Generator:
    """Returns the random generator of a saved replay state, to continue its random sequence."""
    return seeding.with_state(numbers["rng"])


def apart(
    numbers: SavedState, arrays: Mapping[str, Array]
) -> list[tuple[SavedState, dict[str, Array]]]:
    """Splits a saved replay state into the states of its shards (parts of the replay buffer).

    The state of a `LocalReplay` is that of one shard.
    """
    if "shards" not in numbers:
        return [(dict(numbers), dict(arrays))]
    return [(own, below(f"{i}.", arrays)) for i, own in enumerate(numbers["shards"])]


def lost_rows(count: int) -> dict[str, Array]:
    """Returns columns of `count` rows (env steps) in place of rows whose file was damaged.

    They belong to no episode, so that no row is linked to them and they are never sampled.
    """
    return {
        "end": np.full(count, End.TRUNCATED, dtype=np.uint8),
        "episode": np.full(count, -1, dtype=np.int64),
        "actor": np.zeros(count, dtype=np.int32),
    }


def are_lost(columns: Mapping[str, Array]) -> bool:
    """Returns whether these are rows of `lost_rows`."""
    return "incarnation" not in columns


def kept_apart(columns: Mapping[str, Array], gaps: int) -> dict[str, Array]:
    """Returns rows (env steps) after which `gaps` files of rows were lost.

    Rows of one episode are linked within one incarnation of their actor. These get a number that
    no actor has, so that they are not linked to rows after a gap.
    """
    apart = columns["incarnation"] - np.int32(gaps * INCARNATIONS)
    return {**columns, "incarnation": apart}


def remembered(
    states: Sequence[tuple[SavedState, dict[str, Array]]],
    segments: Sequence[Segments],
) -> Iterator[dict[str, Array]]:
    """Yields the rows (env steps) that all replay shards saved in a checkpoint, as columns.

    Skips rows that replay had overwritten before the checkpoint was made, and lost ones.
    """
    for (numbers, _), own in zip(states, segments, strict=True):
        oldest, last = int(numbers["first"]), int(numbers["committed"])
        for first, columns in own:
            if are_lost(columns):
                continue
            skip = max(0, oldest - first)
            yield {name: column[skip : last - first] for name, column in columns.items()}


def of_place(columns: Mapping[str, Array], place: int, places: int) -> dict[str, Array]:
    """Returns those of the given rows (env steps) that belong to replay shard number `place`.

    The run has `places` shards. The shard of a row is its actor's number modulo `places`.
    """
    own = np.flatnonzero(columns["actor"] % places == place)
    return {name: column[own] for name, column in columns.items()}
