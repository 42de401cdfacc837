"""Players that need no learning."""

import warnings

import numpy as np
import pytest

from plain_ludo import ONE, Luck, Table, laid
from rookery import plugins
from rookery.errors import ConfigError, EnvError
from rookery.games.connect_four import ConnectFour
from rookery.games.ludo import Ludo
from rookery.games.plugin import PLUGIN
from rookery.games.scripted_players import (
    LudoScript,
    Minimax,
    Perfect,
    Random,
    outcome,
    worths,
)
from rookery.games.tictactoe import TicTacToe

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # it imports games it has deprecated
    from pettingzoo.classic import connect_four_v3, tictactoe_v3

AWAY = [-1, -1, -1, -1]


def match(games, players, rng):
    """Plays all tables to the end; returns what the first player earned at each.

    It has seat 0 at even tables and seat 1 at odd ones.
    """
    tables = np.arange(games.num)
    games.reset(tables, rng)
    while not games.over.all():
        action = np.zeros((games.num, 2), dtype=np.int64)
        for seat in range(2):
            for number, player in enumerate(players):
                due = np.flatnonzero(games.due[:, seat] & (tables % 2 == (seat ^ number)))
                if due.size:
                    action[due, seat] = player.act(games.look(due, np.full(due.size, seat)), rng)
        going = np.flatnonzero(~games.over)
        games.play(going, action[going])
    return games.reward[tables, tables % 2]


def position(kind, actions, count=1):
    """Returns what the seat that is due sees after some actions, `count` times."""
    games = kind(1)
    games.reset(ONE, np.random.default_rng(0))
    for action in actions:
        games.play(ONE, np.full((1, 2), action))
    seen = games.look(ONE, np.flatnonzero(games.due[0]))
    return {name: part.repeat(count, axis=0) for name, part in seen.items()}


def choices(player, obs):
    return set(player.act(obs, np.random.default_rng(0)).tolist())


def ludo(mine, dice, theirs=AWAY, seat=0):
    places = [list(mine), list(theirs)] if seat == 0 else [list(theirs), list(mine)]
    games = laid(Table(Luck(0), seat=seat, places=places, dice=list(dice)))
    seen = games.look(ONE, np.array([seat]))
    return {name: part.repeat(200, axis=0) for name, part in seen.items()}


def test_random_draws_allowed_actions_alike():
    mask = np.tile(np.array([0, 1, 0, 1, 1], dtype=np.int8), (6000, 1))
    drawn = Random().act({"action_mask": mask}, np.random.default_rng(0))

    shares = np.bincount(drawn, minlength=5) / len(drawn)
    np.testing.assert_allclose(shares, [0, 1 / 3, 0, 1 / 3, 1 / 3], atol=0.03)


def test_nothing_to_choose_from_is_an_error():
    mask = np.array([[1, 0], [0, 0]], dtype=np.int8)
    with pytest.raises(EnvError, match="row 1"):
        Random().act({"action_mask": mask}, np.random.default_rng(0))


@pytest.mark.parametrize("seat", [0, 1])
@pytest.mark.parametrize(
    ("mine", "dice", "theirs", "wanted"),
    [
        pytest.param([50, 10, -1, -1], [6], [42, -1, -1, -1], {0}, id="home before a capture"),
        pytest.param([1, -1, -1, -1], [6], [33, -1, -1, -1], {0}, id="a capture before leaving"),
        pytest.param([48, -1, 4, -1], [6], AWAY, {1, 3}, id="leaving before anything else"),
        pytest.param([33, 40, -1, -1], [2], [1, -1, -1, -1], {0}, id="away from danger"),
        pytest.param([6, 22, -1, -1], [2], AWAY, {0}, id="to a safe square"),
        pytest.param([1, 22, 30, 9], [2], AWAY, {2}, id="the one that is furthest"),
        pytest.param([9, 9, -1, -1], [2], AWAY, {0, 1}, id="either of two that are alike"),
        pytest.param([1, -1, -1, -1], [6, 2], [29, -1, -1, -1], {4}, id="by the die that captures"),
    ],
)
def test_the_script_of_ludo_prefers(mine, dice, theirs, wanted, seat):
    assert choices(LudoScript(), ludo(mine, dice, theirs, seat)) == wanted


def test_the_script_of_ludo_beats_chance():
    """It wins nine of ten; by luck 360 of 600 come less than once in a million."""
    games = Ludo(600)
    earned = match(games, (LudoScript(), Random()), np.random.default_rng(0))

    assert (earned > 0).mean() > 0.6


def test_minimax_wins_where_it_can():
    obs = position(ConnectFour, [0, 6, 1, 6, 2, 6], count=50)
    assert choices(Minimax(1), obs) == choices(Minimax(2), obs) == {3}


def test_minimax_blocks_with_two_plies_and_not_with_one():
    obs = position(ConnectFour, [0, 6, 1, 6, 2], count=200)

    assert choices(Minimax(2), obs) == {3}
    assert choices(Minimax(1), obs) == set(range(7))


def test_minimax_knows_nothing_beyond_its_depth():
    assert choices(Minimax(2), position(ConnectFour, [], count=200)) == set(range(7))


def test_minimax_sees_a_double_threat_three_plies_ahead():
    # two stones in the middle of an empty bottom row: a third one beside them cannot be stopped
    obs = position(ConnectFour, [2, 2, 3, 3], count=200)

    assert choices(Minimax(3), obs) == {1, 4}


def test_minimax_does_not_choose_full_columns():
    obs = position(ConnectFour, [0, 0, 0, 0, 0, 0], count=200)
    assert choices(Minimax(2), obs) == set(range(1, 7))


def test_minimax_of_no_depth_is_refused():
    with pytest.raises(ConfigError, match="depth"):
        Minimax(0)


def test_minimax_beats_chance():
    earned = match(ConnectFour(100), (Minimax(2), Random()), np.random.default_rng(0))
    assert (earned > 0).mean() > 0.75


def test_tic_tac_toe_is_a_draw_and_every_opening_holds_it():
    obs = position(TicTacToe, [])

    assert outcome(obs).tolist() == [0]
    assert outcome({"observation": obs["observation"][0]}) == 0  # one, not a batch
    assert worths(obs).tolist() == [[0] * 9]


def test_the_perfect_player_never_loses_and_beats_chance():
    earned = match(TicTacToe(400), (Perfect(), Random()), np.random.default_rng(0))

    assert earned.min() >= 0
    assert earned.mean() > 0.7


def test_perfect_players_draw():
    earned = match(TicTacToe(200), (Perfect(), Perfect()), np.random.default_rng(0))
    assert not earned.any()


def test_the_perfect_player_takes_the_win_at_hand_before_others():
    obs = position(TicTacToe, [0, 1, 4, 5], count=50)

    assert (worths(obs)[0] > 0).sum() > 1
    assert choices(Perfect(), obs) == {8}


@pytest.mark.parametrize("game", [connect_four_v3, tictactoe_v3])
def test_scripts_play_pettingzoos_games(game):
    env, rng = game.env(), np.random.default_rng(0)
    player = plugins.load(PLUGIN.scripted_players[env.metadata["name"]])()
    env.reset()
    while not any(env.terminations.values()):
        obs = env.observe(env.agent_selection)
        env.step(int(player.act({name: part[None] for name, part in obs.items()}, rng)[0]))

    assert set(env.rewards.values()) <= {-1, 0, 1}


@pytest.mark.parametrize("name", PLUGIN.games)
def test_scripts_choose_what_is_allowed_at_every_table(name):
    games, rng = plugins.load(PLUGIN.games[name])(50), np.random.default_rng(1)
    script = plugins.load(PLUGIN.scripted_players[name])
    match(games, (script(), script()), rng)  # a forbidden one would be an EnvError

    assert games.over.all()
