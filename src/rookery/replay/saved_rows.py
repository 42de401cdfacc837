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


@dataclass(frozen=True)
class SavedReplay:
    """State of a replay buffer as read from a checkpoint, with all its saved rows (env steps)."""

    numbers: SavedState
    arrays: Arrays
    segments: Sequence[Segments]  # by shard: the saved rows

    @property
    def rng(self) -> np.random.Generator:
        """The saved random generator, to continue its random sequence."""
        return seeding.with_state(self.numbers["rng"])

    @property
    def states(self) -> list[tuple[SavedState, Arrays]]:
        """JSON data and arrays of each shard; that of a `LocalReplay` is the state of one shard."""
        if "shards" not in self.numbers:
            return [(self.numbers, self.arrays)]
        return [(n, below(f"{i}.", self.arrays)) for i, n in enumerate(self.numbers["shards"])]

    def rows(self) -> Iterator[dict[str, Array]]:
        """Yields the rows (env steps) that all replay shards saved, as columns.

        Skips rows that replay had overwritten before the checkpoint was made, and lost ones.
        """
        for (numbers, _), own in zip(self.states, self.segments, strict=True):
            oldest, last = int(numbers["first"]), int(numbers["committed"])
            for first, columns in own:
                if not are_lost(columns):
                    skip = max(0, oldest - first)
                    yield {name: column[skip : last - first] for name, column in columns.items()}

    def redistributed(self, places: int) -> Iterator[list[dict[str, Array]]]:
        """Yields the saved rows (env steps), divided among `places` replay shards.

        The shard of a row is its actor's number modulo `places`.
        """
        for columns in self.rows():
            owner = columns["actor"] % places
            yield [
                {name: column[owner == place] for name, column in columns.items()}
                for place in range(places)
            ]


def combined(shards: Sequence[ReplayState], rng: np.random.Generator) -> ReplayState:
    """Joins the states of all shards (parts) of a replay buffer into one state for a checkpoint."""
    return ReplayState(
        numbers={"rng": seeding.state_of(rng), "shards": [state.numbers for state in shards]},
        arrays={f"{i}.{n}": a for i, state in enumerate(shards) for n, a in state.arrays.items()},
        unsaved=[block for state in shards for block in state.unsaved],
    )


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
