"""For all experience, however it is interleaved, cut and restarted: advantages are what the
definition says, and a row has one exactly when it is known how it went on."""

from contextlib import closing
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from experience_strategies import ACTORS, ENVS, EXPERIENCE, SIZES
from rookery.replay.fold import Chains
from rookery.replay.ring import Ring, schema_of
from rookery.replay.rollouts import advantages
from rookery.types import AHEAD, End, Extra
from sample_experience import VECTOR, Step, Told, columns

SPEC = replace(VECTOR, extras=(Extra("log_prob"), Extra(AHEAD)))
SHARES = st.sampled_from([0.0, 0.5, 0.9, 1.0])


def told_ahead(rows: Any) -> Any:
    """Returns what actors expect after these rows; some rows do not say."""
    return np.where(rows % 3 == 0, rows % 11 / 2, np.nan).astype(np.float32)


def expected_next(plain: Told, row: int, value: Any, ahead: Any) -> float | None:
    """Returns what follows a row is worth; None where nobody knows."""
    after = plain.after.get(row)
    if after is None:
        return None if np.isnan(ahead[row]) else float(ahead[row])
    return 0.0 if plain.steps[after].end is End.TERMINATED else float(value[after])


def advantage(
    plain: Told, row: int, value: Any, ahead: Any, gamma: float, share: float
) -> float | None:
    """Schulman et al. 2016, equation 16, summed from scratch for each row."""
    if expected_next(plain, row, value, ahead) is None:
        return None
    total, factor, at = 0.0, 1.0, row
    while at is not None and plain.steps[at].end is End.RUNNING:
        following = expected_next(plain, at, value, ahead)
        if following is None:
            break
        total += factor * (plain.steps[at].reward + gamma * following - float(value[at]))
        factor *= gamma * share
        at = plain.after.get(at)  # type: ignore[assignment]
    return total


@given(EXPERIENCE, SIZES, SHARES, SHARES)
def test_advantages_equal_the_definition(
    steps: list[Step], sizes: list[int], gamma: float, share: float
) -> None:
    count = max(1, len(steps))
    with closing(Ring.create(schema_of(SPEC), count)) as ring:
        chains = Chains(ACTORS * ENVS, ENVS, window=1, stride=1, capacity=count)
        at, pieces = 0, iter(sizes)
        while at < len(steps):
            piece = steps[at : at + next(pieces, count)]
            extra = {AHEAD: told_ahead(np.arange(at, at + len(piece)))}
            ring.append(columns(SPEC, piece, at) | extra)
            chains.link(ring, at, len(piece))
            at += len(piece)
        own = {name: column[: len(steps)].copy() for name, column in ring.columns.items()}

    found, known = advantages(
        own["reward"],
        own["best"],
        own[AHEAD],
        own["end"],
        own["next"],
        gamma=gamma,
        gae_lambda=share,
    )

    plain = Told(steps, count)
    wanted = [
        advantage(plain, row, own["best"], own[AHEAD], gamma, share)
        if step.end is End.RUNNING
        else None
        for row, step in enumerate(steps)
    ]
    assert known.tolist() == [one is not None for one in wanted]
    np.testing.assert_allclose(found, [one or 0.0 for one in wanted], rtol=1e-5, atol=1e-4)
