"""Skills from results, against answers that are known exactly."""

from math import log, log10, sqrt

import numpy as np
import pytest

from rookery.errors import ConfigError
from rookery.selfplay.rating import Results, cycles, expected, rate, spearman

WEAK = 1e6  # a prior so wide that it says nothing
NAMES = ("random", "a", "b", "c", "d")


def results(points: list[list[float]], games: float = 100.0) -> Results:
    """A table in which every pair played so many games; `points` is read above the diagonal."""
    given = np.array(points, dtype=np.float64)
    wins = np.triu(given, 1)
    wins += np.tril(games - wins.T, -1)
    played = games * (1 - np.eye(len(given)))
    return Results(NAMES[: len(given)], wins, played)


def pair(wins: float, games: float = 100.0) -> Results:
    """Somebody who took so many points of the anchor."""
    return results([[0.0, games - wins], [0.0, 0.0]], games)


def test_three_quarters_of_the_points_are_190_8_elo():
    ratings = rate(pair(75.0), prior=WEAK)

    assert ratings.elo == pytest.approx([0.0, 400 * log10(3)])
    assert ratings.elo[1] == pytest.approx(190.8, abs=0.05)


def test_the_deviation_of_two_players_is_that_of_a_logit():
    """The variance of a logit is 1 / (n p (1 - p))."""
    ratings = rate(pair(75.0), prior=WEAK)

    assert ratings.deviation[0] == 0.0
    assert ratings.deviation[1] == pytest.approx(400 / log(10) / sqrt(100 * 0.75 * 0.25), rel=1e-4)


def test_differences_along_a_chain_add_up():
    """Whoever is met only by a neighbour is as far from it as their games say."""
    wins, games = np.zeros((4, 4)), np.zeros((4, 4))
    for i, won in enumerate((60.0, 75.0, 90.0)):
        games[i, i + 1] = games[i + 1, i] = 100.0
        wins[i + 1, i], wins[i, i + 1] = won, 100.0 - won
    ratings = rate(Results(NAMES[:4], wins, games), prior=WEAK)

    steps = [400 * log10(share / (1 - share)) for share in (0.6, 0.75, 0.9)]
    assert np.diff(ratings.elo) == pytest.approx(steps, rel=1e-5)
    assert ratings.deviation[1] < ratings.deviation[2] < ratings.deviation[3]


def test_a_player_who_never_lost_has_a_finite_rating_that_grows_with_its_games():
    few, many = rate(pair(10.0, 10.0)), rate(pair(1000.0, 1000.0))

    assert 200 < few.elo[1] < many.elo[1] < 2500
    assert few.deviation[1] > 100


def test_the_prior_hardly_moves_what_a_hundred_games_say():
    assert rate(pair(75.0)).elo[1] == pytest.approx(400 * log10(3), rel=0.02)


def test_skills_are_found_where_whole_steps_of_newton_would_run_away():
    """A few games contradict very many. At the answer skills pull as hard as results surprise."""
    above = {(0, 1): (0, 1e5), (0, 2): (0, 1), (0, 4): (10, 10), (1, 2): (0, 1e5)}
    above |= {(1, 3): (1e4, 1e4), (2, 3): (100, 100), (2, 4): (0, 1), (3, 4): (0, 1e5)}
    wins, games = np.zeros((5, 5)), np.zeros((5, 5))
    for (i, j), (points, count) in above.items():
        wins[i, j], wins[j, i], games[i, j], games[j, i] = points, count - points, count, count

    elo = rate(Results(NAMES, wins, games), prior=2000.0).elo

    residual = (wins - games * expected(elo[:, None] - elo)).sum(1)
    pull = (elo - elo.mean()) * 400 / log(10) / 2000.0**2
    assert residual == pytest.approx(pull, abs=1e-5)
    assert abs(elo).max() < 10_000


def test_a_player_without_games_has_the_prior_mean_and_a_large_deviation():
    table = Results(("random", "a"), np.zeros((2, 2)), np.zeros((2, 2)))

    ratings = rate(table, prior=400.0)

    assert ratings.elo.tolist() == [0.0, 0.0]
    assert ratings.deviation[1] == pytest.approx(400 * sqrt(2))


def test_deviations_tell_how_far_ratings_are_off():
    """Of 400 standardised errors, whose share within one is 0.68, fewer than 0.55 or more than
    0.8 would be below one in 10,000 if the deviations were right and the errors independent."""
    rng, truth = np.random.default_rng(0), np.array([0.0, 150.0, 300.0, 250.0, 420.0])
    chance = expected(truth[:, None] - truth)
    above = np.triu_indices(5, 1)
    within = []
    for _ in range(100):
        wins = np.zeros((5, 5))
        wins[above] = rng.binomial(60, chance[above])
        ratings = rate(results(wins.tolist(), 60.0), prior=2000.0)
        within += (abs(ratings.elo - truth) < ratings.deviation)[1:].tolist()

    assert 0.55 < np.mean(within) < 0.8


def test_the_expected_score_is_elos():
    assert expected(0.0) == 0.5
    assert expected(400.0) == pytest.approx(10 / 11)
    assert expected(-400.0) == pytest.approx(1 / 11)


def test_spearman_is_the_correlation_of_ranks_and_knows_ties():
    assert spearman([1, 2, 3, 4], [10.0, 20.0, 21.0, 400.0]) == pytest.approx(1.0)
    assert spearman([1, 2, 3, 4], [4.0, 3.0, 2.0, 1.0]) == pytest.approx(-1.0)
    # ranks 1 2 3 4 5 against 2 1 4 3 5: 1 - 6 * 4 / (5 * 24)
    assert spearman([1, 2, 3, 4, 5], [2.0, 1.0, 4.0, 3.0, 5.0]) == pytest.approx(0.8)
    # ranks 1.5 1.5 3 against 1 2 3: cov 1.5, variances 1.5 and 2
    assert spearman([7, 7, 9], [1.0, 2.0, 3.0]) == pytest.approx(1.5 / sqrt(1.5 * 2))


@pytest.mark.parametrize("values", [[], [1.0], [2.0, 2.0, 2.0]])
def test_spearman_of_what_has_no_order_is_not_a_number(values):
    assert np.isnan(spearman(range(len(values)), values))


def test_rock_paper_scissors_is_one_cycle():
    found = cycles(results([[0, 100, 0], [0, 0, 100], [0, 0, 0]]))

    assert (found.cyclic, found.triples, found.share) == (1, 1, 1.0)


def test_a_ladder_has_no_cycles():
    found = cycles(results([[0, 1, 2, 3], [0, 0, 1, 2], [0, 0, 0, 1], [0, 0, 0, 0]]))

    assert (found.cyclic, found.triples, found.share) == (0, 4, 0.0)


def test_undecided_pairs_are_in_no_triple():
    found = cycles(results([[0, 100, 0], [0, 0, 50], [0, 0, 0]]))

    assert (found.cyclic, found.triples, found.share) == (0, 0, 0.0)


def test_what_chance_may_decide_can_be_left_out():
    """60 of 100 is two standard deviations of a fair coin, 59 is not."""
    table = [[0, 60, 40], [0, 0, 60], [0, 0, 0]]

    assert cycles(results(table), sure=2.0).cyclic == 1
    table[0][1] = 59
    assert cycles(results(table), sure=2.0).triples == 0
    assert cycles(results(table)).cyclic == 1


def test_an_anchor_that_is_not_there_is_refused():
    with pytest.raises(ConfigError, match=r"'nobody'.*random, a"):
        rate(pair(50.0), anchor="nobody")


@pytest.mark.parametrize(
    ("wins", "games"),
    [
        ([[0, 1], [1, 0]], [[0, 3], [3, 0]]),  # a point is missing
        ([[0, 2], [1, 0]], [[0, 3], [2, 0]]),  # not the same games
        ([[0, -1], [4, 0]], [[0, 3], [3, 0]]),
        ([[0.5, 1], [2, 0]], [[1, 3], [3, 0]]),  # against oneself
        ([[0, 1]], [[0, 1]]),
        ([[0, np.nan], [1, 0]], [[0, 3], [3, 0]]),
    ],
)
def test_a_table_that_does_not_add_up_is_refused(wins, games):
    with pytest.raises(ConfigError, match="results"):
        rate(Results(("random", "a"), np.array(wins, float), np.array(games, float)))


def test_two_players_of_one_name_are_refused():
    with pytest.raises(ConfigError, match="differ"):
        rate(pair(50.0)._replace(names=("random", "random")))
