"""Ratings: skills of players on the Elo scale, from the results of a tournament.

    ratings = rate(Results(names, wins, games))         # random is 0
    ratings.elo, ratings.deviation                      # [K], [K]

The model is that of Bradley and Terry 1952: i wins a point against j with probability
1 / (1 + exp(s_j - s_i)). A Gaussian prior on the skills s keeps the skill of an undefeated player
finite and gives every player a deviation. As in TrueSkill (Herbrich et al. 2006) the prior is twice
as wide as a single performance. On the scale of Elo 1978, odds of ten to one are 400. Old and
new results count the same, since the players do not change.
"""

from collections.abc import Iterable
from math import log, nan
from typing import NamedTuple

import numpy as np

from rookery.errors import ConfigError
from rookery.types import Array, Bools, Floats

ELO = 400 / log(10)  # Elo of one unit of skill
PRIOR = 400.0  # Elo: standard deviation of skills before any game
STEPS, HALVES = 1_000, 40  # most steps of Newton's method; most halvings of a step
CLOSE, SLACK = 1e-10, 1e-12  # step size of convergence; tolerance for rounding errors


class Results(NamedTuple):
    """Results of a tournament: points and games of every pair of players."""

    names: tuple[str, ...]  # K players
    wins: Floats  # [K, K] points of i against j; a draw is half a point for both
    games: Floats  # [K, K] between i and j

    @property
    def share(self) -> Floats:
        """Share of the points that player i won against player j, [K, K]; nan without games."""
        shares: Floats = np.divide(
            self.wins, self.games, out=np.full(self.wins.shape, nan), where=self.games > 0
        )
        return shares


class Ratings(NamedTuple):
    """Ratings of K players on the Elo scale; a reference player, the anchor, has 0."""

    names: tuple[str, ...]
    elo: Floats  # [K]
    deviation: Floats  # [K] standard error of the difference to the anchor


class Cycles(NamedTuple):
    """Number of intransitive triples of players, and of all triples whose pairs each have a winner.

    A triple is intransitive if i beats j, j beats k and k beats i.
    """

    cyclic: int
    triples: int  # triples in which every pair has a winner

    @property
    def share(self) -> float:
        """Share of the triples that are intransitive: 1/4 for random results, 0 without triples."""
        return self.cyclic / self.triples if self.triples else 0.0


def rate(results: Results, anchor: str = "random", *, prior: float = PRIOR) -> Ratings:
    """Rates players on the Elo scale from the results of a tournament; the player `anchor` gets 0.

    Ratings are maximum a posteriori skills of the Bradley-Terry model, deviations are by Laplace's
    approximation. `prior` is the standard deviation of skills around their common mean, in Elo.
    Raises ConfigError if the results are inconsistent.
    """
    _check_request(results, anchor)
    skill, covariance = _posterior(results, (ELO / prior) ** 2)
    at = results.names.index(anchor)
    spread = np.diag(covariance) + covariance[at, at] - 2 * covariance[at]
    return Ratings(results.names, ELO * (skill - skill[at]), ELO * np.sqrt(np.maximum(spread, 0.0)))


def expected(difference: Floats | float) -> Floats:
    """Returns the expected share of points of a player for its lead in Elo over the opponent."""
    return np.asarray(1 / (1 + 10 ** (-np.asarray(difference) / 400)))


def spearman(numbers: Iterable[float], ratings: Iterable[float]) -> float:
    """Returns Spearman's rank correlation of two lists of numbers.

    It is nan for fewer than two numbers, or if all numbers of one list are equal.
    """
    one, other = _ranks(numbers), _ranks(ratings)
    if len(one) < 2 or not one.std() or not other.std():
        return nan
    return float(np.corrcoef(one, other)[0, 1])


def cycles(results: Results, *, sure: float = 0.0) -> Cycles:
    """Counts intransitive triples of players: i beats j, j beats k, k beats i.

    Of two players, the one with more points beats the other. With `sure`, it must be ahead of half
    of the points by at least this many standard deviations (of the points between equally strong
    players); otherwise neither beats the other.
    """
    beats = _beats(results, sure).astype(np.int64)
    decided = beats | beats.T
    return Cycles(
        int(np.trace(beats @ beats @ beats))
        // 3,  # each circle is counted from each of its players
        int(np.trace(decided @ decided @ decided)) // 6,
    )


def _beats(results: Results, sure: float) -> Bools:
    """Returns a [K, K] boolean matrix of K players, True where player i beats player j.

    The winner must have more than half of the points, by `sure` standard deviations of the points
    between equally strong players.
    """
    ahead = results.wins - results.games / 2
    beats: Bools = (ahead > 0) & (ahead >= sure * np.sqrt(results.games) / 2 - 1e-9)
    return beats


def _posterior(results: Results, pull: float) -> tuple[Floats, Floats]:
    """Returns the maximum a posteriori skills of K players, [K], and their covariance, [K, K].

    Uses Newton's method with step halving; the log-posterior is concave. `pull` is the precision
    (inverse variance) of the prior.
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
    """Returns gradient [K] and negative Hessian [K, K] of the log-posterior.

    The log-posterior is a function of the `skill` of K players.
    """
    chance = 1 / (1 + np.exp(skill - skill[:, None]))  # [K, K] probability that i beats j
    slope = (results.wins - results.games * chance).sum(1) - pull * skill
    weight = results.games * chance * (1 - chance)
    return slope, np.diag(weight.sum(1) + pull) - weight


def _shortened(results: Results, skill: Floats, step: Floats, pull: float) -> Floats:
    """Halves a Newton step until it does not decrease the log-posterior; returns the step.

    Returns a step of zeros if that does not succeed.
    """
    before = _log_posterior(results, skill, pull)
    before -= SLACK * (1 + abs(before))  # tolerance for rounding, since the last steps are tiny
    for _ in range(HALVES):
        if _log_posterior(results, skill + step, pull) >= before:
            return step
        step = step / 2
    return np.zeros_like(step)


def _log_posterior(results: Results, skill: Floats, pull: float) -> float:
    likely = -(results.wins * np.logaddexp(0.0, skill - skill[:, None])).sum()
    return float(likely - pull * (skill**2).sum() / 2)


def _ranks(values: Iterable[float]) -> Floats:
    """Returns the ranks of n values, [n], from 0; equal values get their mean rank."""
    given = np.asarray(list(values), dtype=np.float64)
    _, which, count = np.unique(given, return_inverse=True, return_counts=True)
    last: Array = np.cumsum(count)
    ranks: Floats = (last - (count + 1) / 2)[which]
    return ranks


def _check_request(results: Results, anchor: str) -> None:
    names, wins, games = results
    if len(set(names)) < len(names):
        raise ConfigError(f"the players are {', '.join(names)}; names must differ; rename some")
    if anchor not in names:
        raise ConfigError(
            f"the anchor is {anchor!r}; it must be one of the players {', '.join(names)}"
        )
    square = (len(names), len(names))
    if wins.shape != square or games.shape != square or not _adds_up(wins, games):
        raise ConfigError(
            "the results are inconsistent: wins and games must be [K, K], the points of i and j "
            "must sum to their games, and the diagonal must be 0; count a win as 1 point and a "
            "draw as half a point for both"
        )


def _adds_up(wins: Floats, games: Floats) -> bool:
    both = np.isclose(wins + wins.T, games).all() and np.array_equal(games, games.T)
    return bool(both and (wins >= 0).all() and not np.diag(games).any())
