"""Matchmaking: how likely each opponent is, from the weights of the kinds of them.

A kind is a row of `MATCHES`: what it makes of the opponents there are. Prioritised fictitious
self-play, and its two weightings, are those of Vinyals et al. 2019.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from rookery.config.schema import Pick, SelfplayConfig, Weighting
from rookery.envs.games.interface import Who
from rookery.types import Floats


class Rival(NamedTuple):
    """A snapshot that may be played against."""

    who: int  # the version it was published as; another run's: its tag << 40 | version
    rate: float  # our win rate against it, draws count half


Shares = dict[int, float]  # who → how much of a kind's weight

WEIGHTINGS: dict[Weighting, Callable[[Floats], Floats]] = {
    Weighting.HARD: lambda rate: (1.0 - rate) ** 2,
    Weighting.EVEN: lambda rate: rate * (1.0 - rate),
}


def odds(config: SelfplayConfig, rivals: Sequence[Rival]) -> Shares:
    """Returns who may be met, and how likely; without a rival, whoever would be one is random."""
    total = sum(config.opponents.values())
    found: Shares = {}
    for pick, weight in config.opponents.items():
        for who, share in MATCHES[Pick(pick)](config, rivals).items():
            found[who] = found.get(who, 0.0) + weight / total * share
    return {who: share for who, share in found.items() if share > 0}


def _past(config: SelfplayConfig, rivals: Sequence[Rival]) -> Shares:
    return {rival.who: 1.0 / len(rivals) for rival in rivals} or {Who.RANDOM: 1.0}


def _prioritized(config: SelfplayConfig, rivals: Sequence[Rival]) -> Shares:
    rates = np.array([rival.rate for rival in rivals])
    worth = WEIGHTINGS[config.weighting](rates)
    if not worth.sum() > 0:  # we beat everybody: nobody is worth more than another
        return _past(config, rivals)
    shares = (worth / worth.sum()).tolist()
    return {rival.who: share for rival, share in zip(rivals, shares, strict=True)}


def _always(who: Who) -> Callable[[SelfplayConfig, Sequence[Rival]], Shares]:
    return lambda config, rivals: {int(who): 1.0}


MATCHES: Mapping[Pick, Callable[[SelfplayConfig, Sequence[Rival]], Shares]] = {
    Pick.RANDOM: _always(Who.RANDOM),
    Pick.SCRIPTED: _always(Who.SCRIPTED),
    Pick.LATEST: _always(Who.LATEST),
    Pick.PAST: _past,
    Pick.PRIORITIZED: _prioritized,
}
