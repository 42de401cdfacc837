"""Ratings: how strong players are, from a table of who met whom and how it ended.

    ratings = rate(Results(names, wins, games))         # random is 0
    ratings.elo, ratings.deviation                      # [K], [K]

The model is that of Bradley and Terry 1952: i takes a point from j with probability
1 / (1 + exp(s_j - s_i)). A Gaussian prior on the skills s keeps those finite who never lost, and
gives everybody a deviation, as in TrueSkill (Herbrich et al. 2006), whose prior is also twice as
wide as a single performance. Skills are told on the scale of Elo 1978, on which ten to one are 400.
All results count the same, however old: these are players that do not change.
"""

from collections.abc import Iterable
from math import log, nan
from typing import NamedTuple

import numpy as np

from rookery.errors import ConfigError
from rookery.types import Array, Bools, Floats

ELO = 400 / log(10)  # of one unit of skill
PRIOR = 400.0  # Elo: deviation of skills before any game; of a performance Elo has 200
STEPS, HALVES = 1_000, 40  # of Newton's method; how often a step is halved
CLOSE, SLACK = 1e-10, 1e-12  # units of skill that end it; share of a sum that is rounding


class Results(NamedTuple):
    """Who took how many points from whom."""

    names: tuple[str, ...]  # K players
    wins: Floats  # [K, K] points of i against j; a draw is half a point for both
    games: Floats  # [K, K] between i and j

    @property
    def share(self) -> Floats:
        """[K, K] points of i against j for each of their games; nan where there was none."""
        shares: Floats = np.divide(
            self.wins, self.games, out=np.full(self.wins.shape, nan), where=self.games > 0
        )
        return shares


class Ratings(NamedTuple):
    """Skills on the Elo scale; the anchor has 0."""

    names: tuple[str, ...]
    elo: Floats  # [K]
    deviation: Floats  # [K] standard error of the difference to the anchor


class Cycles(NamedTuple):
    """How far a table is from an order: i beats j, j beats k, k beats i."""

    cyclic: int
    triples: int  # of players between whom every pair is decided

    @property
    def share(self) -> float:
        """A quarter, where every pair is decided by a coin."""
        return self.cyclic / self.triples if self.triples else 0.0


def rate(results: Results, anchor: str = "random", *, prior: float = PRIOR) -> Ratings:
    """Returns the most probable skills; their deviations are those of Laplace's approximation.

    `prior` is the deviation of skills around their common mean, in Elo.
    """
    _refuse_odd(results, anchor)
    skill, covariance = _posterior(results, (ELO / prior) ** 2)
    at = results.names.index(anchor)
    spread = np.diag(covariance) + covariance[at, at] - 2 * covariance[at]
    return Ratings(results.names, ELO * (skill - skill[at]), ELO * np.sqrt(np.maximum(spread, 0.0)))


def expected(difference: Floats | float) -> Floats:
    """Returns the share of points that so much more Elo takes."""
    return np.asarray(1 / (1 + 10 ** (-np.asarray(difference) / 400)))


def spearman(numbers: Iterable[float], ratings: Iterable[float]) -> float:
    """Returns the correlation of ranks, ties sharing theirs; nan where one side has no order."""
    one, other = _ranks(numbers), _ranks(ratings)
    if len(one) < 2 or not one.std() or not other.std():
        return nan
    return float(np.corrcoef(one, other)[0, 1])


def cycles(results: Results, *, sure: float = 0.0) -> Cycles:
    """Counts triples of players that beat each other in a circle.

    A pair is decided where one side took more points; with `sure`, where it is at least so many
    standard deviations of fair games more than half.
    """
    beats = _beats(results, sure).astype(np.int64)
    decided = beats | beats.T
    return Cycles(
        int(np.trace(beats @ beats @ beats)) // 3,  # each circle is walked from each of its three
        int(np.trace(decided @ decided @ decided)) // 6,
    )


def _beats(results: Results, sure: float) -> Bools:
    """Returns [K, K]: whether i beats j."""
    ahead = results.wins - results.games / 2
    beats: Bools = (ahead > 0) & (ahead >= sure * np.sqrt(results.games) / 2 - 1e-9)
    return beats


def _posterior(results: Results, pull: float) -> tuple[Floats, Floats]:
    """Returns the [K] most probable skills and their [K, K] covariance.

    Newton's method. The log-posterior is concave, so a step that does not overshoot goes up.
    """
    skill = np.zeros(len(results.names))
    for _ in range(STEPS):
        slope, curve = _derivatives(results, skill, pull)
        step = _shortened(results, skill, np.linalg.solve(curve, slope), pull)
        skill = skill + step
        if abs(step).max() < CLOSE:
            break
    return skill, np.linalg.inv(_derivatives(results, skill, pull)[1])


def _derivatives(results: Results, skill: Floats, pull: float) -> tuple[Floats, Floats]:
    """Returns the log-posterior's [K] gradient and its [K, K] curvature, sign turned."""
    chance = 1 / (1 + np.exp(skill - skill[:, None]))  # [K, K] that i takes a point from j
    slope = (results.wins - results.games * chance).sum(1) - pull * skill
    weight = results.games * chance * (1 - chance)
    return slope, np.diag(weight.sum(1) + pull) - weight


def _shortened(results: Results, skill: Floats, step: Floats, pull: float) -> Floats:
    """Halves a step until it does not go down: near certainty Newton's is too long."""
    before = _log_posterior(results, skill, pull)
    before -= SLACK * (1 + abs(before))  # what floats make of it: the last steps are tiny
    for _ in range(HALVES):
        if _log_posterior(results, skill + step, pull) >= before:
            return step
        step = step / 2
    return np.zeros_like(step)


def _log_posterior(results: Results, skill: Floats, pull: float) -> float:
    likely = -(results.wins * np.logaddexp(0.0, skill - skill[:, None])).sum()
    return float(likely - pull * (skill**2).sum() / 2)


def _ranks(values: Iterable[float]) -> Floats:
    """Returns [n] ranks from 0; equal values share the mean of theirs."""
    given = np.asarray(list(values), dtype=np.float64)
    _, which, count = np.unique(given, return_inverse=True, return_counts=True)
    last: Array = np.cumsum(count)
    ranks: Floats = (last - (count + 1) / 2)[which]
    return ranks


def _refuse_odd(results: Results, anchor: str) -> None:
    names, wins, games = results
    if len(set(names)) < len(names):
        raise ConfigError(f"the players are {', '.join(names)}; names must differ; rename some")
    if anchor not in names:
        raise ConfigError(
            f"the anchor is {anchor!r}; it must be one of {', '.join(names)}; take one of them"
        )
    square = (len(names), len(names))
    if wins.shape != square or games.shape != square or not _adds_up(wins, games):
        raise ConfigError(
            "the results do not add up: they are [K, K] each, i's points and j's make their games, "
            "and nobody plays against itself; count wins as 1 and draws as half a point"
        )


def _adds_up(wins: Floats, games: Floats) -> bool:
    both = np.isclose(wins + wins.T, games).all() and np.array_equal(games, games.T)
    return bool(both and (wins >= 0).all() and not np.diag(games).any())
