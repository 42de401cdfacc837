"""Exploration: random actions and noise, sampled with an actor's own random generator in numpy.

In central inference (as in SEED RL) one forward pass computes the actions of several actors, whose
observations are in one batch. A `BatchedGenerators` then replaces the generator: each actor's part
of the batch uses that actor's generator, so that an actor's actions do not depend on the others.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numba import njit

from rookery.errors import ProtocolError
from rookery.types import Array, Bools, Floats

SMALLEST = 2.0**-54  # smaller than any uniform number except 0, whose logarithm is not finite


class ActorSlice(NamedTuple):
    """The part of one actor in a batch with the observations of several actors.

    It holds the indices (`rows`) in the batch, the actor's random generator and its epsilon.
    """

    rows: slice
    rng: np.random.Generator
    epsilon: float  # probability of a random action of this actor


class BatchedGenerators:
    """The random generators of several actors whose observations are in one batch.

    It replaces a numpy generator in the functions of `rookery.algorithms.exploration`. Any other
    use raises `ProtocolError`.
    """

    def __init__(self, slices: Sequence[ActorSlice]):
        self.slices = slices

    def __getattr__(self, name: str) -> Any:
        raise ProtocolError(
            f"an algorithm samples with rng.{name}, but one that serves several actors in one call "
            "may only use the functions of rookery.algorithms.exploration; use them, or set "
            "`batches_actors = False` in your class"
        )


def normal(shape: tuple[int, ...], rng: np.random.Generator) -> Floats:
    """Samples an array of standard normal float32 numbers.

    If `rng` is a `BatchedGenerators`, the first axis is a batch of several actors, and each actor's
    part is sampled with that actor's generator.
    """
    if isinstance(rng, BatchedGenerators):
        return np.concatenate([normal(_own_shape(shape, own), own.rng) for own in rng.slices])
    return rng.standard_normal(shape, dtype=np.float32)


def uniform(shape: tuple[int, ...], rng: np.random.Generator) -> Floats:
    """Samples an array of uniform numbers in [0, 1).

    If `rng` is a `BatchedGenerators`, the first axis is a batch of several actors, and each actor's
    part is sampled with that actor's generator.
    """
    if isinstance(rng, BatchedGenerators):
        return np.concatenate([uniform(_own_shape(shape, own), own.rng) for own in rng.slices])
    return rng.random(shape)


def _own_shape(shape: tuple[int, ...], own: ActorSlice) -> tuple[int, ...]:
    return (own.rows.stop - own.rows.start, *shape[1:])


def explore_continuous(action: Floats, epsilon: float, rng: np.random.Generator) -> Floats:
    """Replaces continuous actions by random ones with probability `epsilon`, in place.

    `action` is [E, A]: E environments, A components. Random actions are uniform in [-1, 1].
    """
    if isinstance(rng, BatchedGenerators):
        for rows, own_rng, own_epsilon in rng.slices:
            explore_continuous(action[rows], own_epsilon, own_rng)
    elif epsilon > 0:
        who = np.flatnonzero(rng.random(len(action)) < epsilon)
        action[who] = rng.uniform(-1.0, 1.0, size=(len(who), *action.shape[1:]))
    return action


def explore_discrete(
    action: Array,
    choices: int,
    epsilon: float,
    rng: np.random.Generator,
    mask: Bools | None = None,
) -> Array:
    """Replaces discrete actions by uniformly random ones with probability `epsilon`, in place.

    `action` is [E], one for each environment. With an action mask [E, choices], random actions are
    sampled among the allowed actions.
    """
    if isinstance(rng, BatchedGenerators):
        for rows, own_rng, own_epsilon in rng.slices:
            own_mask = None if mask is None else mask[rows]
            explore_discrete(action[rows], choices, own_epsilon, own_rng, own_mask)
    elif epsilon > 0:
        chance = rng.random(len(action))
        explore = np.flatnonzero(chance < epsilon)
        share = chance[explore] / epsilon  # uniform, since `chance` is below epsilon
        action[explore] = share * choices if mask is None else _nth_allowed(share, mask[explore])
    return action


def _nth_allowed(share: Floats, mask: Bools) -> Array:
    """Returns a random allowed action for each of K masks, given uniform numbers `share` [K].

    If n actions are allowed, the number x in [0, 1) selects allowed action number floor(n * x),
    counted from 0.
    """
    count = mask.sum(1)
    rank = np.minimum((share * count).astype(np.int64), count - 1)
    chosen: Array = (mask.cumsum(1) > rank[:, None]).argmax(1)
    return chosen


def greedy_or_random(
    scores: Floats, mask: Array, epsilon: float, rng: np.random.Generator
) -> Array:
    """Returns epsilon-greedy actions [E] for E environments with n discrete actions each.

    `scores` are action scores [E, n], `mask` are action masks [E, n] of 0 and 1. Selects the same
    actions as argmax and `explore_discrete`, but in one function compiled with numba. For few
    environments, the numpy calls would take longer than the network's forward pass.
    """
    chance = rng.random(len(scores)) if epsilon > 0 else _NEVER
    return _greedy_or_random(scores, mask, chance, epsilon)  # type: ignore[no-any-return]


_NEVER = np.empty(0)


@njit(cache=True, nogil=True)
def _greedy_or_random(scores, mask, chance, epsilon):  # type: ignore[no-untyped-def]
    chosen = np.empty(len(scores), dtype=np.int64)
    for row in range(len(scores)):
        count = 0
        for action in range(mask.shape[1]):
            count += mask[row, action] != 0
        free = count == 0  # a mask of zeros allows every action
        count = mask.shape[1] if free else count
        if row < len(chance) and chance[row] < epsilon:
            rank = min(np.int64(chance[row] / epsilon * count), count - 1)
            chosen[row] = _ranked(mask[row], free, rank)
        else:
            chosen[row] = _best(scores[row], mask[row], free)
    return chosen


@njit(cache=True, nogil=True)
def _ranked(mask, free, rank):  # type: ignore[no-untyped-def]
    """Returns the `rank`-th allowed action of one environment, counted from 0.

    With `free`, `mask` is ignored and every action is allowed.
    """
    for action in range(mask.size):
        if free or mask[action] != 0:
            if rank == 0:
                return action
            rank -= 1
    return mask.size - 1


@njit(cache=True, nogil=True)
def _best(scores, mask, free):  # type: ignore[no-untyped-def]
    """Returns the first allowed action with the largest score; nan counts as largest, as in numpy.

    With `free`, `mask` is ignored and every action is allowed.
    """
    best, top = -1, scores[0]
    for action in range(mask.size):
        score = scores[action]
        if (free or mask[action] != 0) and (best < 0 or not (score <= top or top != top)):
            best, top = action, score
    return best


def explore_multi_discrete(
    action: Array, sizes: Sequence[int], epsilon: float, rng: np.random.Generator
) -> Array:
    """Replaces multi-discrete actions by uniformly random ones with probability `epsilon`.

    Works in place. `action` is [E, k]: E environments, k components with `sizes` choices each.
    """
    if isinstance(rng, BatchedGenerators):
        for rows, own_rng, own_epsilon in rng.slices:
            explore_multi_discrete(action[rows], sizes, own_epsilon, own_rng)
    elif epsilon > 0:
        who = np.flatnonzero(rng.random(len(action)) < epsilon)
        action[who] = rng.integers(sizes, size=(len(who), len(sizes)))
    return action


def explore_agents(
    action: Array, choices: int, epsilon: float, every: int, rng: np.random.Generator
) -> Array:
    """Replaces actions of several agents by uniformly random ones with probability `epsilon`.

    Works in place. `action` is [E, N]: E environments with N agents each. In environment e, only
    agents i with (i + e) % min(`every`, N) = 0 explore. All other agents keep their actions, so
    that few agents act at random at the same time.
    """
    if isinstance(rng, BatchedGenerators):
        for rows, own_rng, own_epsilon in rng.slices:
            explore_agents(action[rows], choices, own_epsilon, every, own_rng)
    elif epsilon > 0:
        worlds, agents = action.shape
        explores = (np.arange(agents) + np.arange(worlds)[:, None]) % min(every, agents) == 0
        chance = rng.random(action.shape)
        random = explores & (chance < epsilon)
        share = chance[random] / epsilon  # uniform, since `chance` is below epsilon
        action[random] = share * choices
    return action


def sample_categorical(logits: Floats, rng: np.random.Generator) -> Array:
    """Samples discrete actions from logits, by the Gumbel-max trick.

    The last axis of `logits` is that of the actions; the first is the batch.
    """
    chance = np.maximum(uniform(logits.shape, rng), SMALLEST)
    noise = -np.log(-np.log(chance))  # finite, so that forbidden actions stay the lowest
    action: Array = np.argmax(logits + noise, axis=-1)
    return action
