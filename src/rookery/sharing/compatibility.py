"""Compatibility of shared replay: properties in which all replay buffers of a pool must agree.

A pool is the set of replay buffers that several runs share. A stored row is a single env step, so
gamma and n-step may differ between runs. The stored observation and action, the reward's scale and
normalisation, and the file format of the ring buffers must agree. A property that only some
libraries provide (the environment's id, the bounds of its spaces) is compared only if both buffers
have it.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from rookery.replay.ring import BOOKKEEPING, FORMAT, TRANSITION, Schema
from rookery.types import ActionSpec

Terms = dict[str, Any]  # JSON-ready


def terms_of(
    schema: Schema,
    action: ActionSpec,
    *,
    reward: Mapping[str, Any],
    env: str | None = None,
    space: str | None = None,
) -> Terms:
    """Returns the properties in which all replay buffers that runs share must agree.

    `reward` holds the reward's scale, clip range and a tag that names its normalisation.
    """
    return {
        "ring format": FORMAT,
        "observation": {
            column.name: [list(column.shape), column.dtype]
            for column in schema
            if column.name.partition(".")[0] == "obs"
        },
        "action": _action(action),
        "written by policies": _extras(schema),
        "reward": dict(reward),
        "environment": env,
        "observation space": space,
    }


def _extras(schema: Schema) -> dict[str, Any]:
    """Returns shape and dtype of each algorithm-specific replay column, such as recurrent state."""
    after = [column.name for column in schema].index("action") + 1
    common = {*BOOKKEEPING, *TRANSITION}
    return {
        column.name: [list(column.shape), column.dtype]
        for column in schema[after:]
        if column not in common and not column.name.startswith("next_obs")
    }


def _action(action: ActionSpec) -> dict[str, Any]:
    if action.discrete:
        return {"choices": action.n}
    if action.several:
        return {"choices": list(action.sizes)}
    return {"shape": list(action.shape), "low": list(action.low), "high": list(action.high)}


def differences(own: Terms, pool: Terms) -> list[str]:
    """Returns one message for each property in which a replay buffer differs from its pool.

    The pool is the set of replay buffers that runs share. A property that is None or missing on one
    side is not compared. Returns an empty list if all agree.
    """
    return [
        f"{name}: this buffer has {mine!r}, the pool has {theirs!r}"
        for name, mine, theirs in _pairs(own, pool)
        if mine != theirs
    ]


def _pairs(own: Terms, pool: Terms) -> Iterator[tuple[str, Any, Any]]:
    for name in sorted(own.keys() | pool.keys()):
        mine, theirs = own.get(name), pool.get(name)
        if mine is None or theirs is None:
            continue  # unknown to one side
        if isinstance(mine, dict) and isinstance(theirs, dict):
            for part in sorted(mine.keys() | theirs.keys()):
                yield f"{name} {part}", mine.get(part), theirs.get(part)
        else:
            yield name, mine, theirs
