"""Matchmaking of self-play: the probability of each opponent, from `selfplay.opponents`.

This setting gives a share of the games to each kind of opponent: random, scripted, latest (the
run's newest policy), past and prioritized (both are weight snapshots of past policies). `MATCHES`
has a function for each kind, which divides the share of the kind among its opponents. Prioritised
fictitious self-play and its two weightings follow Vinyals et al. 2019.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from rookery.config.schema import Pick, SelfplayConfig, Weighting
from rookery.envs.turn_based.game import Who
from rookery.types import Floats


class Rival(NamedTuple):
    """A weight snapshot that may be chosen as opponent, with the run's win rate against it."""

    who: int  # its published version; for another run's snapshot: tag << 40 | version
    rate: float  # the run's win rate against it; a draw counts half


Shares = dict[int, float]  # who → share of a kind's weight

WEIGHTINGS: dict[Weighting, Callable[[Floats], Floats]] = {
    Weighting.HARD: lambda rate: (1.0 - rate) ** 2,
    Weighting.EVEN: lambda rate: rate * (1.0 - rate),
}


def odds(config: SelfplayConfig, rivals: Sequence[Rival]) -> Shares:
    """Returns the probability of each self-play opponent, by the opponent's id.

    `rivals` are the weight snapshots that may be chosen. While there are none, the random player
    gets the probability of all snapshots.
    """
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
    if not worth.sum() > 0:  # the run wins every game
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
