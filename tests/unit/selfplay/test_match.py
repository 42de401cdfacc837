"""Matches: both seats equally often, from random openings, and every game counted once."""

import numpy as np
import pytest

from heap_games import Always, Careful, Heaps, Pennies
from rookery.errors import ConfigError
from rookery.selfplay.match import MatchResult, RandomPlayer, play, table

CHANCE = RandomPlayer(Heaps(1).action_space)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


class Witness:
    """Notes the boards that it was asked about."""

    def __init__(self):
        self.seen: list[int] = []

    def act(self, obs, rng):
        self.seen += obs["observation"].argmax(1).tolist()
        return np.zeros(len(obs["observation"]), dtype=np.int64)


def test_the_second_seat_wins_from_twelve_stones_where_both_are_careful():
    """Without an opening twelve stones are lost for whoever begins."""
    found = play(Heaps(4), (Careful(), Careful()), count=10, rng=rng(), opening=0)

    assert found.wins.tolist() == [0, 5]
    assert found.losses.tolist() == [5, 0]
    assert found.draws.tolist() == [0, 0]
    assert found.points == 5.0
    assert found.games == 10


@pytest.mark.parametrize("num", [1, 3, 8, 64])
def test_every_game_is_counted_once_however_many_tables_there_are(num):
    found = play(Heaps(num), (Careful(), CHANCE), count=20, rng=rng())

    assert (found.wins + found.draws + found.losses).tolist() == [10, 10]
    assert len(found.lengths) == 20
    assert (found.lengths >= 4).all()  # twelve stones, three at a time


def test_a_careful_player_beats_chance():
    """It loses only where the opening leaves it no way out and chance finds the rest."""
    found = play(Heaps(32), (Careful(), CHANCE), count=200, rng=rng())

    assert found.points > 170


def test_the_first_player_s_points_are_those_that_the_other_did_not_get():
    one = play(Heaps(8), (Careful(), Always(0)), count=40, rng=rng(), opening=0)
    other = play(Heaps(8), (Always(0), Careful()), count=40, rng=rng(), opening=0)

    assert one.points + other.points == 40
    assert one.wins.tolist() == other.losses[::-1].tolist()


def test_openings_are_random_and_not_the_players():
    """After two plies of 1 to 3 stones each, 6 to 10 of twelve are left."""
    witness, other = Witness(), Witness()
    play(Heaps(16), (witness, other), count=64, rng=rng())

    first_boards = [left for left in witness.seen + other.seen if left > 5]
    assert max(first_boards) == 10
    assert {6, 7, 8, 9, 10} <= set(first_boards)


def test_both_players_begin_after_openings_equally_often():
    witness, other = Witness(), Witness()
    play(Heaps(16, stones=4), (witness, other), count=64, rng=rng(), opening=0)

    assert witness.seen.count(4) == other.seen.count(4) == 32


def test_an_opening_that_ends_the_game_is_drawn_anew():
    """Of four stones two plies may take all: such games begin again and are not counted."""
    games = Heaps(8, stones=4)
    found = play(games, (Careful(), Careful()), count=100, rng=rng())

    assert (found.lengths > 2).all()
    assert games.begun > 100


def test_an_opening_that_always_ends_the_game_is_refused():
    with pytest.raises(ConfigError, match="opening"):
        play(Heaps(2, stones=2), (Careful(), Careful()), count=2, rng=rng(), opening=2)


def test_a_game_that_comes_to_its_limit_is_drawn():
    found = play(
        Heaps(2, stones=40, limit=6), (Always(0), Always(0)), count=6, rng=rng(), opening=0
    )

    assert found.draws.tolist() == [3, 3]
    assert found.points == 3.0
    assert found.lengths.tolist() == [6] * 6


def test_all_seats_may_move_at_once():
    found = play(Pennies(4), (Always(1), Always(1)), count=10, rng=rng(), opening=0)

    assert found.wins.tolist() == [5, 0]  # equal sides are good for the first seat
    assert found.lengths.tolist() == [3] * 10


def test_rewards_of_a_whole_game_decide_it_and_not_those_of_its_last_ply():
    class Turning:
        """Shows 1, 1 and then 0."""

        def act(self, obs, rng):
            return (obs[:, 0] > 1).astype(np.int64)

    found = play(Pennies(2), (Turning(), Always(1)), count=4, rng=rng(), opening=0)

    assert found.wins.tolist() == [2, 0]


def test_the_same_generator_plays_the_same_match():
    one, other = (play(Heaps(5), (CHANCE, CHANCE), count=30, rng=rng(7)) for _ in range(2))
    third = play(Heaps(5), (CHANCE, CHANCE), count=30, rng=rng(8))

    assert one.lengths.tolist() == other.lengths.tolist()
    assert one.wins.tolist() == other.wins.tolist()
    assert one.lengths.tolist() != third.lengths.tolist()


def test_chance_takes_every_allowed_action_and_no_other():
    games = Heaps(600)
    games.reset(np.arange(600), rng())
    games.left[:] = np.arange(600) % 3 + 1

    took = CHANCE.act(games.look(np.arange(600), np.zeros(600, dtype=np.int64)), rng())

    for left in (1, 2, 3):
        assert set(took[games.left == left]) == set(range(left))


def test_chance_counts_actions_from_where_the_game_does():
    class Elsewhere(Pennies):
        def __init__(self, num):
            super().__init__(num)
            self.action_space = type(self.action_space)(2, start=5)

        def play(self, which, action):
            assert set(action.ravel().tolist()) <= {5, 6}
            super().play(which, action)

    play(Elsewhere(4), (Always(5), Always(6)), count=10, rng=rng(), opening=1)


@pytest.mark.parametrize("count", [0, 1, 7])
def test_a_match_has_an_even_number_of_games(count):
    with pytest.raises(ConfigError, match=f"{count} games"):
        play(Heaps(2), (Careful(), Careful()), count=count, rng=rng())


def test_a_match_is_between_two():
    with pytest.raises(ConfigError, match="two"):
        play(Heaps(2), (Careful(), Careful(), Careful()), count=2, rng=rng())
    crowded = Heaps(2)
    crowded.seats = 3
    with pytest.raises(ConfigError, match="3 seats"):
        play(crowded, (Careful(), Careful()), count=2, rng=rng())


def test_a_table_of_results_has_every_pair_and_adds_up():
    players = {"random": CHANCE, "careful": Careful(), "one": Always(0)}

    found = table(Heaps(8), players, count=20, rng=rng())

    assert found.names == ("random", "careful", "one")
    assert found.games.tolist() == [[0, 20, 20], [20, 0, 20], [20, 20, 0]]
    assert np.array_equal(found.wins + found.wins.T, found.games)
    assert found.wins[1, 0] > 15
    assert found.wins[1, 2] > 10


def test_a_pair_plays_the_same_games_whichever_others_are_rated():
    """A match's generator is its own: it depends on the places of its players, not on others."""
    few = table(Heaps(8), {"a": CHANCE, "b": Careful()}, count=20, rng=rng())
    many = table(Heaps(8), {"a": CHANCE, "b": Careful(), "c": CHANCE}, count=20, rng=rng())

    assert few.wins[0, 1] == many.wins[0, 1]


def test_points_are_wins_and_half_of_draws():
    counts = [np.array(pair) for pair in ([3, 1], [2, 2], [0, 2])]

    assert MatchResult(*counts, np.zeros(10, dtype=np.int64)).points == 6.0
