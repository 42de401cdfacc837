"""Whose row follows whose: what must hold for the rows of actors that come and go."""

from typing import Any

import numpy as np

from rookery.replay.ring import Ring

WHOSE = ("actor", "incarnation", "env", "episode")


def rows_of(ring: Ring) -> dict[str, Any]:
    """Returns the columns of everything a ring holds, oldest row first."""
    slots = ring.slots(ring.oldest, ring.committed - ring.oldest)
    return {name: np.array(column[slots]) for name, column in ring.columns.items()}


def counts(ring: Ring) -> dict[tuple[int, int], int]:
    """Returns how many rows there are of each (actor, incarnation)."""
    slots = ring.slots(ring.oldest, ring.committed - ring.oldest)
    actor, incarnation = (ring.columns[name][slots] for name in ("actor", "incarnation"))
    pairs, times = np.unique(np.stack([actor, incarnation]), axis=1, return_counts=True)
    return {(int(a), int(i)): int(n) for (a, i), n in zip(pairs.T, times, strict=True)}


def check(ring: Ring) -> None:
    """No row twice, none of an actor after those of its successor, no chain between two lives."""
    rows = rows_of(ring)
    assert ring.oldest == 0, "rows were overwritten: nothing can be said of them"
    whose = np.stack([rows[name] for name in WHOSE], axis=1)
    own = np.column_stack([whose, rows["t"]])
    assert len(np.unique(own, axis=0)) == len(own), "a row came twice"
    for actor in np.unique(rows["actor"]):
        lives = rows["incarnation"][rows["actor"] == actor]
        assert (np.diff(lives) >= 0).all(), f"a late row of actor {actor}"
    (linked,) = np.nonzero(rows["next"])
    after = linked + rows["next"][linked]
    assert (whose[linked] == whose[after]).all(), "an episode was joined to another one's"
    assert (rows["t"][linked] + 1 == rows["t"][after]).all()
    assert (rows["end"][linked] == 0).all()
    assert (rows["prev"][after] == rows["next"][linked]).all()
