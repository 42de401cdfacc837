"""Chance in acting: actions drawn with the actor's own generator, in numpy.

Where one network answers several actors at once, a `Choir` takes the generator's place: each of
them draws for its own rows, so that nobody's actions depend on who else was asking.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numba import njit

from rookery.errors import ProtocolError
from rookery.types import Array, Bools, Floats

SMALLEST = 2.0**-54  # less than any number that is drawn but 0, whose logarithm is none


class Voice(NamedTuple):
    """One actor's part of a batch."""

    rows: slice
    rng: np.random.Generator
    epsilon: float  # its own share of random actions


class Choir:
    """Several actors' generators. It has no numbers of its own: only this module can draw."""

    def __init__(self, voices: Sequence[Voice]):
        self.voices = voices

    def __getattr__(self, name: str) -> Any:
        raise ProtocolError(
            f"an algorithm draws with rng.{name}, but one that answers several actors at once may "
            "draw with the functions of rookery.algos.chance only; use them, or set "
            "`together = False` in your class"
        )


def normal(shape: tuple[int, ...], rng: np.random.Generator) -> Floats:
    """Returns float32 normal numbers."""
    if isinstance(rng, Choir):
        return np.concatenate([normal(_own(shape, voice), voice.rng) for voice in rng.voices])
    return rng.standard_normal(shape, dtype=np.float32)


def uniform(shape: tuple[int, ...], rng: np.random.Generator) -> Floats:
    """Returns numbers from 0 to 1."""
    if isinstance(rng, Choir):
        return np.concatenate([uniform(_own(shape, voice), voice.rng) for voice in rng.voices])
    return rng.random(shape)


def _own(shape: tuple[int, ...], voice: Voice) -> tuple[int, ...]:
    return (voice.rows.stop - voice.rows.start, *shape[1:])


def some_random(action: Floats, epsilon: float, rng: np.random.Generator) -> Floats:
    """Puts uniform actions in the place of a share of [E, A] continuous ones, in place."""
    if isinstance(rng, Choir):
        for rows, own, its_epsilon in rng.voices:
            some_random(action[rows], its_epsilon, own)
    elif epsilon > 0:
        who = np.flatnonzero(rng.random(len(action)) < epsilon)
        action[who] = rng.uniform(-1.0, 1.0, size=(len(who), *action.shape[1:]))
    return action


def some_other(
    action: Array,
    choices: int,
    epsilon: float,
    rng: np.random.Generator,
    mask: Bools | None = None,
) -> Array:
    """Puts uniform choices in the place of a share of [E] discrete ones, in place.

    With a mask [E, choices] each is drawn from those that it allows.
    """
    if isinstance(rng, Choir):
        for rows, own, its_epsilon in rng.voices:
            its_mask = None if mask is None else mask[rows]
            some_other(action[rows], choices, its_epsilon, own, its_mask)
    elif epsilon > 0:
        chance = rng.random(len(action))
        explore = np.flatnonzero(chance < epsilon)
        share = chance[explore] / epsilon  # below it, `chance` is still uniform
        action[explore] = share * choices if mask is None else _at(share, mask[explore])
    return action


def _at(share: Floats, mask: Bools) -> Array:
    """Returns the allowed choices that lie at shares from 0 to 1 of them all, [K]."""
    count = mask.sum(1)
    rank = np.minimum((share * count).astype(np.int64), count - 1)
    chosen: Array = (mask.cumsum(1) > rank[:, None]).argmax(1)
    return chosen


def best_or_other(scores: Floats, mask: Array, epsilon: float, rng: np.random.Generator) -> Array:
    """Chooses the best of [E, n] actions that a mask of 0 and 1 allows, or any of these, [E].

    The same as `some_other` makes of the best, with the same numbers drawn, in one compiled call:
    where few environments are asked about, numpy's calls would take longer than the network.
    """
    chance = rng.random(len(scores)) if epsilon > 0 else _NEVER
    return _best_or_other(scores, mask, chance, epsilon)  # type: ignore[no-any-return]


_NEVER = np.empty(0)


@njit(cache=True, nogil=True)
def _best_or_other(scores, mask, chance, epsilon):  # type: ignore[no-untyped-def]
    chosen = np.empty(len(scores), dtype=np.int64)
    for row in range(len(scores)):
        count = 0
        for action in range(mask.shape[1]):
            count += mask[row, action] != 0
        free = count == 0  # a mask that allows nothing restricts nothing
        count = mask.shape[1] if free else count
        if row < len(chance) and chance[row] < epsilon:
            rank = min(np.int64(chance[row] / epsilon * count), count - 1)
            chosen[row] = _ranked(mask[row], free, rank)
        else:
            chosen[row] = _best(scores[row], mask[row], free)
    return chosen


@njit(cache=True, nogil=True)
def _ranked(mask, free, rank):  # type: ignore[no-untyped-def]
    """Returns the allowed action that so many others come before."""
    for action in range(mask.size):
        if free or mask[action] != 0:
            if rank == 0:
                return action
            rank -= 1
    return mask.size - 1


@njit(cache=True, nogil=True)
def _best(scores, mask, free):  # type: ignore[no-untyped-def]
    """Returns the first of the best; like numpy's, one that is not a number is better than all."""
    best, top = -1, scores[0]
    for action in range(mask.size):
        score = scores[action]
        if (free or mask[action] != 0) and (best < 0 or not (score <= top or top != top)):
            best, top = action, score
    return best


def some_others(
    action: Array, sizes: Sequence[int], epsilon: float, rng: np.random.Generator
) -> Array:
    """Puts uniform choices in the place of a share of [E, k] times k discrete ones, in place."""
    if isinstance(rng, Choir):
        for rows, own, its_epsilon in rng.voices:
            some_others(action[rows], sizes, its_epsilon, own)
    elif epsilon > 0:
        who = np.flatnonzero(rng.random(len(action)) < epsilon)
        action[who] = rng.integers(sizes, size=(len(who), len(sizes)))
    return action


def some_explorers(
    action: Array, choices: int, epsilon: float, every: int, rng: np.random.Generator
) -> Array:
    """Puts uniform choices in the place of a share of [E, N] discrete ones of N agents, in place.

    In environment e only agents i with (i + e) % `every` = 0 explore. The others do their best, so
    that a world in which some explore can still be learned from.
    """
    if isinstance(rng, Choir):
        for rows, own, its_epsilon in rng.voices:
            some_explorers(action[rows], choices, its_epsilon, every, own)
    elif epsilon > 0:
        worlds, agents = action.shape
        explores = (np.arange(agents) + np.arange(worlds)[:, None]) % min(every, agents) == 0
        chance = rng.random(action.shape)
        random = explores & (chance < epsilon)
        action[random] = chance[random] / epsilon * choices  # below it, `chance` is still uniform
    return action


def drawn(logits: Floats, rng: np.random.Generator) -> Array:
    """Draws from [E, ..., A] unnormalised log-probabilities, [E, ...].

    What is drawn is the largest after Gumbel noise.
    """
    chance = np.maximum(uniform(logits.shape, rng), SMALLEST)
    noise = -np.log(-np.log(chance))  # finite: what a mask forbids must stay the lowest
    action: Array = np.argmax(logits + noise, axis=-1)
    return action
