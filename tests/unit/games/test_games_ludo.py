"""Ludo's rules, one by one; all positions at once are in tests/property."""

import numpy as np
import pytest

from plain_ludo import ONE, Luck, Table, laid, taken
from rookery.errors import CheckpointError, ConfigError, EnvError, ProtocolError
from rookery.games.ludo import SAFE, Ludo

AWAY = [-1, -1, -1, -1]


def at(mine, dice, theirs=AWAY, seat=0, **more):
    """A game in which `seat` has tokens at `mine`, the other at `theirs`, and dice to use."""
    places = [list(mine), list(theirs)] if seat == 0 else [list(theirs), list(mine)]
    table = Table(Luck(7), seat=seat, places=places, dice=list(dice), owed=more.pop("owed", 0))
    return laid(table, **more)


def allowed(games):
    return np.flatnonzero(games.tables["mask"][0]).tolist()


def places(games, seat):
    return games.tables["place"][0, seat].tolist()


def fresh(num=1, seed=0, **settings):
    games = Ludo(num, **settings)
    games.reset(np.arange(num), np.random.default_rng(seed))
    return games


def test_a_six_brings_a_token_from_the_base_to_its_start():
    games = at(AWAY, [6, 2])
    assert allowed(games) == [0, 1, 2, 3]

    taken(games, 2)

    assert places(games, 0) == [-1, -1, 0, -1]


def test_no_other_die_leaves_the_base():
    assert allowed(at([-1, 10, -1, -1], [5])) == [1]


def test_a_token_may_not_go_beyond_home():
    assert allowed(at([53, 54, 56, 55], [4])) == []
    assert allowed(at([53, 52, 56, 55], [4])) == [1]


def test_an_action_is_a_die_and_a_token_and_later_dice_move_up():
    games = at([10, 20, -1, -1], [6, 6, 2])
    taken(games, 2 * 4 + 1)  # the third die, the second token

    assert places(games, 0) == [10, 22, -1, -1]
    assert games.tables["dice"][0].tolist() == [6, 6, 0]


@pytest.mark.parametrize("seat", [0, 1])
def test_a_capture_sends_all_tokens_there_back_and_earns_a_roll(seat):
    games = at([3, -1, -1, -1], [6, 2], theirs=[5 + 26, 5 + 26, 6 + 26, -1], seat=seat)
    taken(games, 1 * 4 + 0)

    assert places(games, seat)[0] == 5
    assert places(games, 1 - seat) == [-1, -1, 6 + 26, -1]
    assert games.tables["extra"][0] == 1


@pytest.mark.parametrize("square", np.flatnonzero(SAFE[:51]).tolist())
def test_no_token_is_captured_on_a_safe_square(square):
    start, die = (square - 2, 2) if square >= 2 else (-1, 6)
    theirs = (square + 26) % 52
    games = at([start, -1, -1, -1], [die], theirs=[theirs if theirs <= 50 else -1, 1, -1, -1])
    before = places(games, 1)
    taken(games, 0)

    assert places(games, 0)[0] == square
    assert places(games, 1) == before


def test_safe_squares_of_the_ring_are_the_same_from_both_sides():
    ring = set(np.flatnonzero(SAFE[:51]).tolist())

    shared = {square for square in ring if (square + 26) % 52 <= 50}
    assert shared == {(square + 26) % 52 for square in shared}
    assert ring - shared == {25}  # which only one of the two ever visits


def test_home_columns_are_private():
    games = at([50, -1, -1, -1], [3], theirs=[27, 53, -1, -1])  # 53 + 26 would be 27
    taken(games, 0)

    assert places(games, 0)[0] == 53
    assert places(games, 1) == [27, 53, -1, -1]


def test_arriving_at_home_earns_a_roll_when_the_dice_are_used_up():
    games = at([50, 10, -1, -1], [6, 1])
    taken(games, 0)
    assert games.tables["extra"][0] == 1
    taken(games, 1)

    assert games.due[0].tolist() == [True, False]
    assert games.tables["extra"][0] == 0


def sixes():
    """Returns where the luck is before three sixes in a row."""
    for word in range(10_000):
        luck = Luck(word)
        if [luck.die() for _ in range(3)] == [6, 6, 6]:
            return word
    raise AssertionError("no sixes")


def test_three_sixes_void_the_turn_and_all_that_it_has_earned():
    games = at([10, 11, -1, -1], [2], theirs=[1, 2, 3, 4], owed=2)
    games.tables["luck"][0] = sixes()
    taken(games, 0)

    assert games.due[0].tolist() == [False, True]
    assert games.tables["extra"][0] == 0
    assert places(games, 0) == [12, 11, -1, -1]


def test_the_turn_passes_when_the_dice_are_used_up():
    games = at([10, -1, -1, -1], [2], theirs=[1, 2, 3, 4])
    taken(games, 0)

    assert games.due[0].tolist() == [False, True]
    assert 1 <= games.tables["dice"][0, 0] <= 6


def test_dice_that_move_no_token_are_lost():
    games = at([50, 56, 56, 56], [6, 5], theirs=[1, 2, 3, 30])
    taken(games, 4)  # the five; the six would be too much now
    assert games.due[0].tolist() == [False, True]


def test_four_tokens_at_home_win():
    games = at([56, 56, 54, 56], [2], theirs=[1, 2, 3, 4])
    taken(games, 2)

    assert games.over[0]
    assert games.ended[0].all()
    assert not games.truncated.any()
    assert not games.due.any()
    assert games.reward[0].tolist() == [1.0, -1.0]


def test_the_second_seat_wins_too():
    games = at([56, 56, 54, 56], [2], theirs=[1, 2, 3, 4], seat=1)
    taken(games, 2)

    assert games.reward[0].tolist() == [-1.0, 1.0]


def test_a_limit_truncates_and_pays_no_seat():
    games = fresh(limit=3)
    for _ in range(3):
        taken(games, allowed(games)[0])

    assert games.over[0]
    assert games.ended[0].all()
    assert games.truncated[0].all()
    assert games.reward[0].tolist() == [0.0, 0.0]


def test_a_win_at_the_limit_is_a_win():
    games = at([56, 56, 54, 56], [2], theirs=[1, 2, 3, 4])
    games.limit = 1
    taken(games, 2)

    assert not games.truncated.any()
    assert games.reward[0].tolist() == [1.0, -1.0]


def test_step_cost_is_for_the_acting_seat():
    games = at([10, -1, -1, -1], [2], step_cost=0.25)
    taken(games, 0)

    assert games.reward[0].tolist() == [-0.25, 0.0]


@pytest.mark.parametrize("seat", [0, 1])
def test_a_seat_sees_its_own_tokens_first_the_dice_and_whether_it_is_due(seat):
    games = at([10, 20, -1, 56], [6, 3], theirs=[0, 1, 2, 3], seat=seat)
    seen = games.look(np.array([0, 0]), np.array([seat, 1 - seat]))

    first, second = seen["observation"].astype(np.float64)
    mine, theirs = np.array([11, 21, 0, 57]) / 57, np.array([1, 2, 3, 4]) / 57
    np.testing.assert_allclose(first, [*mine, *theirs, 1, 0.5, 0, 1], rtol=1e-6)
    np.testing.assert_allclose(second, [*theirs, *mine, 1, 0.5, 0, 0], rtol=1e-6)
    assert seen["observation"].dtype == np.float32
    assert seen["action_mask"].dtype == np.int8
    assert seen["action_mask"][0].nonzero()[0].tolist() == allowed(games)
    assert not seen["action_mask"][1].any()


def test_looks_are_the_callers_to_keep():
    games = fresh()
    before = games.look(ONE, ONE)
    kept = {name: part.copy() for name, part in before.items()}
    games.play_out(ONE)
    games.look(ONE, ONE)

    for name, part in before.items():
        np.testing.assert_array_equal(part, kept[name])


def test_an_action_that_the_mask_forbids_is_refused_before_anything_is_played():
    games = fresh(4)
    saved = games.export_state()
    action = games.tables["mask"].argmax(1)
    action[2] = games.tables["mask"][2].argmin()

    with pytest.raises(EnvError, match=r"table 2 of ludo may do \[.*\], got"):
        games.play(np.arange(4), np.stack([action, action], axis=1))
    assert games.export_state() == saved


@pytest.mark.parametrize("action", [-1, 12, 10**12])
def test_numbers_that_are_no_actions_are_refused(action):
    games = fresh()
    with pytest.raises(EnvError, match="action_mask"):
        taken(games, action)


def test_actions_of_another_form_are_refused():
    games = fresh()
    with pytest.raises(EnvError, match="whole numbers"):
        games.play(ONE, np.zeros((1, 2)))
    with pytest.raises(EnvError, match=r"\[1, 2\]"):
        games.play(ONE, np.zeros(1, dtype=np.int64))


def test_what_a_seat_that_is_not_due_chooses_is_not_looked_at():
    games = at([10, -1, -1, -1], [2])
    games.play(ONE, np.array([[0, 999]]))

    assert places(games, 0)[0] == 12


@pytest.mark.parametrize("table", [-1, 2])
def test_tables_that_there_are_not_are_refused(table):
    games, beyond = fresh(2), np.array([table])
    for call in (
        lambda: games.reset(beyond, np.random.default_rng(0)),
        lambda: games.look(beyond, ONE),
        lambda: games.play(beyond, np.zeros((1, 2), dtype=np.int64)),
        lambda: games.play_out(beyond),
    ):
        with pytest.raises(ProtocolError, match="tables 0 to 1"):
            call()


def test_seats_that_there_are_not_are_refused():
    with pytest.raises(ProtocolError, match="seats 0 to 1"):
        fresh().look(ONE, np.array([2]))


def test_a_game_that_is_over_cannot_be_played():
    games = fresh()
    games.play_out(ONE)
    with pytest.raises(ProtocolError, match="reset"):
        taken(games, 0)


def test_a_game_that_never_began_cannot_be_played():
    with pytest.raises(ProtocolError, match="reset"):
        taken(Ludo(1), 0)


def test_seeds_name_games():
    one, two, other = fresh(6, seed=1), fresh(6, seed=1), fresh(6, seed=2)
    for games in (one, two, other):
        games.play_out(np.arange(6))

    assert one.tables.tobytes() == two.tables.tobytes()
    assert one.tables.tobytes() != other.tables.tobytes()


def test_dice_are_fair():
    """Second dice of 60,000 first throws; a fair die is outside less than once in a million."""
    dice = fresh(60_000).tables["dice"]
    shares = np.bincount(dice[:, 1], minlength=7) / len(dice)

    assert (dice[:, 0] == 6).all()  # nothing else leaves the base
    # of 36 pairs of later dice the one with two sixes is void
    np.testing.assert_allclose(shares, [0, *[6 / 35] * 5, 5 / 35], atol=0.008)


def test_an_empty_batch_is_nothing():
    games, none = fresh(), np.zeros(0, dtype=np.int64)
    games.play(none, np.zeros((0, 2), dtype=np.int64))
    assert games.look(none, none)["observation"].shape == (0, 12)


def test_a_state_of_other_tables_is_refused():
    with pytest.raises(CheckpointError, match="as many tables"):
        fresh(2).restore_state(fresh(3).export_state())


@pytest.mark.parametrize("wrong", [{"num": 0}, {"num": 1, "limit": 0}])
def test_impossible_games_are_refused(wrong):
    with pytest.raises(ConfigError, match="give a larger"):
        Ludo(**wrong)
