"""Terms: what the buffers of a pool have in common, and how to say that one has not.

Rows are single steps, so gamma and n-step may differ. What must agree is what a row means: the
stored observation and action, the reward's scale and normalisation, the ring's format. What only
some libraries know (the environment's id, the bounds of its spaces) is compared where both know.
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
    """Returns the terms of a buffer with these columns. `reward`: scale, clip and tag."""
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
    """Returns the columns that only some algorithms have, such as what a policy remembers."""
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
    """Says, for each term that is not the same, what each side has."""
    return [
        f"{name}: this buffer has {mine!r}, the pool has {theirs!r}"
        for name, mine, theirs in _pairs(own, pool)
        if mine != theirs
    ]


def _pairs(own: Terms, pool: Terms) -> Iterator[tuple[str, Any, Any]]:
    for name in sorted(own.keys() | pool.keys()):
        mine, theirs = own.get(name), pool.get(name)
        if mine is None or theirs is None:
            continue  # one side does not know
        if isinstance(mine, dict) and isinstance(theirs, dict):
            for part in sorted(mine.keys() | theirs.keys()):
                yield f"{name} {part}", mine.get(part), theirs.get(part)
        else:
            yield name, mine, theirs
