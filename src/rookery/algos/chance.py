"""Chance in acting: actions drawn with the actor's own generator, in numpy."""

import numpy as np

from rookery.types import Array, Floats


def normal(shape: tuple[int, ...], rng: np.random.Generator) -> Floats:
    """Returns float32 normal numbers."""
    return rng.standard_normal(shape, dtype=np.float32)


def some_random(action: Floats, epsilon: float, rng: np.random.Generator) -> Floats:
    """Puts uniform actions in the place of a share of [E, A] continuous ones, in place."""
    if epsilon > 0:
        who = np.flatnonzero(rng.random(len(action)) < epsilon)
        action[who] = rng.uniform(-1.0, 1.0, size=(len(who), *action.shape[1:]))
    return action


def some_other(action: Array, choices: int, epsilon: float, rng: np.random.Generator) -> Array:
    """Puts uniform choices in the place of a share of [E] discrete ones, in place."""
    if epsilon > 0:
        chance = rng.random(len(action))
        explore = np.flatnonzero(chance < epsilon)  # below it, `chance` is still uniform
        action[explore] = chance[explore] / epsilon * choices
    return action


def drawn(logits: Floats, rng: np.random.Generator) -> Array:
    """Draws from [E, A] unnormalised log-probabilities: the largest after Gumbel noise, [E]."""
    noise = -np.log(-np.log(rng.random(logits.shape)))
    action: Array = np.argmax(logits + noise, axis=1)
    return action
