"""Ratings of any table of results: the definition holds, and neither order nor anchor matters."""

from math import log

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from rookery.selfplay.rating import Results, cycles, expected, rate

NAMES = ("random", "a", "b", "c", "d")


def tables(players: int = 4):
    """Tables of any results among so many players, never-lost and never-met included."""
    pairs = players * (players - 1) // 2
    games = arrays.arrays(np.int64, pairs, elements=st.integers(0, 60))
    shares = arrays.arrays(np.float64, pairs, elements=st.floats(0.0, 1.0))
    return st.tuples(games, shares).map(lambda drawn: _table(players, *drawn))


def _table(players: int, games: np.ndarray, shares: np.ndarray) -> Results:
    above = np.triu_indices(players, 1)
    wins, played = np.zeros((players, players)), np.zeros((players, players))
    played[above] = games
    wins[above] = np.rint(2 * games * shares) / 2
    wins += np.tril((played - wins).T, -1)
    return Results(NAMES[:players], wins, played + played.T)


@given(tables())
def test_at_the_maximum_no_rating_gains_by_moving(table):
    """The definition: points - expected points = skill / prior², for everybody."""
    prior = 400.0
    elo = rate(table, prior=prior).elo
    residual = (table.wins - table.games * expected(elo[:, None] - elo)).sum(1)

    skill = elo - elo.mean()
    pull = skill * (log(10) / 400) / (prior * log(10) / 400) ** 2
    assert residual == pytest.approx(pull, abs=1e-5)


@given(tables(), st.permutations(range(4)))
def test_the_order_of_the_table_does_not_matter(table, order):
    at = np.array(order)
    names = tuple(table.names[i] for i in order)
    moved = rate(Results(names, table.wins[np.ix_(at, at)], table.games[np.ix_(at, at)]))

    still = rate(table)
    assert moved.elo == pytest.approx(still.elo[at], abs=1e-6)
    assert moved.deviation == pytest.approx(still.deviation[at], abs=1e-6)


@given(tables(), st.sampled_from(NAMES[:4]))
def test_another_anchor_shifts_all_ratings_equally(table, anchor):
    one, other = rate(table), rate(table, anchor=anchor)

    assert other.elo == pytest.approx(one.elo - one.elo[NAMES.index(anchor)], abs=1e-6)
    assert other.deviation[NAMES.index(anchor)] == 0.0


@given(tables(5))
def test_cycles_are_those_that_one_finds_by_looking(table):
    beats = table.wins > table.wins.T
    found = cycles(table)

    triples = [(i, j, k) for i in range(5) for j in range(i) for k in range(j)]
    either = beats | beats.T
    assert found.triples == sum(
        either[i, j] and either[j, k] and either[i, k] for i, j, k in triples
    )
    assert found.cyclic == sum(
        (beats[i, j] and beats[j, k] and beats[k, i])
        or (beats[j, i] and beats[k, j] and beats[i, k])
        for i, j, k in triples
    )
