"""PettingZoo's view of our games, and their pictures."""

import importlib
import sys
import warnings
from itertools import pairwise

import numpy as np
import pytest

from plain_ludo import Luck, Table, laid
from rookery.errors import ConfigError, EnvError
from rookery.games import pettingzoo_face
from rookery.games.connect_four import ConnectFour
from rookery.games.pettingzoo_face import AecGame, connect_four_env, ludo_env, tictactoe_env
from rookery.games.plugin import PLUGIN
from rookery.games.text_board import connect_four, ludo, tictactoe
from rookery.games.tictactoe import TicTacToe

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # it imports games it has deprecated
    from pettingzoo.test import api_test, seed_test

ENVS = {"ludo": ludo_env, "connect_four": connect_four_env, "tictactoe": tictactoe_env}
ONE = np.array([0])


# said of every observation with a mask, and of every empty board, but for PettingZoo's own games
@pytest.mark.filterwarnings("ignore:Observation is not a NumPy array:UserWarning")
@pytest.mark.filterwarnings("ignore:Observation space for each agent probably should:UserWarning")
@pytest.mark.filterwarnings("ignore:Observation numpy array is all zeros:UserWarning")
@pytest.mark.parametrize("name", ENVS)
def test_pettingzoos_own_test_of_the_interface_passes(name):
    api_test(ENVS[name](), num_cycles=60)


@pytest.mark.parametrize("name", ENVS)
def test_pettingzoos_own_test_of_seeds_passes(name):
    seed_test(ENVS[name], num_cycles=60)


def chosen(env, rng):
    return int(rng.choice(np.flatnonzero(env.observe(env.agent_selection)["action_mask"])))


def test_the_agent_that_is_due_is_selected_several_times_in_a_row_if_need_be():
    env, rng = ludo_env(limit=60), np.random.default_rng(0)
    env.reset(seed=3)
    order = []
    while not any(env.truncations.values()):
        order.append(env.agent_selection)
        env.step(chosen(env, rng))

    assert set(order) == {"player_0", "player_1"}
    assert any(one == two for one, two in pairwise(order))
    assert not any(env.terminations.values())


def test_rewards_add_up_until_an_agent_acts_again():
    env, rng = ludo_env(step_cost=0.5), np.random.default_rng(0)
    env.reset(seed=3)
    first = env.agent_selection
    turns = 0
    while env.agent_selection == first:
        env.step(chosen(env, rng))
        turns += 1

    assert env.unwrapped._cumulative_rewards[first] == -0.5  # of its latest action alone
    assert env.last()[1] == 0.0


def test_a_forbidden_action_loses_and_without_wrappers_it_is_an_error():
    env = tictactoe_env()
    env.reset()
    env.step(4)
    env.step(4)
    assert env.rewards == {"player_0": 0, "player_1": -1}

    bare = AecGame(TicTacToe(1), None)
    bare.reset()
    bare.step(4)
    with pytest.raises(EnvError, match="may do"):
        bare.step(4)


def test_without_a_seed_the_next_game_is_another_one():
    env = ludo_env()
    seen = []
    for seed in (1, None, 1):
        env.reset(seed=seed)
        seen.append(env.observe("player_0")["observation"].tolist())
    assert seen[0] == seen[2]
    dice = [tuple(part[8:]) for part in seen]
    for _ in range(20):  # a throw may come twice; not this often
        env.reset()
        dice.append(tuple(env.observe("player_0")["observation"][8:].tolist()))
    assert len(set(dice)) > 3


def test_a_picture_is_returned_printed_or_neither(capsys):
    for mode in ("ansi", "human", None):
        env = tictactoe_env(render_mode=mode)
        env.reset()
        env.step(4)
        text = env.render()
        shown = capsys.readouterr().out
        assert (text is not None) == (mode == "ansi")
        assert bool(shown) == (mode == "human")


def test_an_unknown_way_to_render_is_refused():
    with pytest.raises(ConfigError, match="human or ansi"):
        ludo_env(render_mode="rgb_array")


def test_without_pettingzoo_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "pettingzoo", None)
    with pytest.raises(ConfigError, match=r"rookery\[pettingzoo\]"):
        importlib.reload(pettingzoo_face)


def test_every_game_has_a_face_a_picture_and_a_script():
    also = {"connect_four_v3", "tictactoe_v3"}  # PettingZoo's names
    assert set(PLUGIN.games) == set(ENVS)
    assert set(PLUGIN.text_boards) == set(PLUGIN.scripted_players) == {*PLUGIN.games, *also}


@pytest.mark.parametrize("seat", [0, 1])
def test_stones_have_the_same_marks_for_both_seats(seat):
    games = TicTacToe(1)
    games.reset(ONE, np.random.default_rng(0))
    for action in (4, 0):
        games.play(ONE, np.full((1, 2), action))
    seen = {name: part[0] for name, part in games.look(ONE, np.array([seat])).items()}

    assert tictactoe(seen, seat) == "O 1 2\n3 X 5\n6 7 8"


def test_columns_are_numbered_below_the_board():
    games = ConnectFour(1)
    games.reset(ONE, np.random.default_rng(0))
    for action in (3, 3, 0):
        games.play(ONE, np.full((1, 2), action))
    seen = {name: part[0] for name, part in games.look(ONE, np.array([1])).items()}

    assert connect_four(seen, 1).splitlines()[4:] == [
        ". . . O . . .",
        "X . . X . . .",
        "0 1 2 3 4 5 6",
    ]


LUDO = """\
            . . .
            .   *
            *   .
            .   .
            .   .
            .   .
C a+. . . .       . . . * . .
. . . c . .       . . . . B .
. . * . . .       . . . . * .
            .   .
            .   .
            .   D
            .   *
            *   .
            . . .
base d  home -  a 0  b 0  c 53
base -  home A  B 51  C 25  D 7
dice 6 2
"""
MAY = {
    0: """\
 0: a by 6, from 0 to 6
 1: b by 6, from 0 to 6
 3: d by 6, from the base to 0
 4: a by 2, from 0 to 2
 5: b by 2, from 0 to 2
 6: c by 2, from 53 to 55""",
    1: """\
 2: C by 6, from 25 to 31
 3: D by 6, from 7 to 13
 5: B by 2, from 51 to 53
 6: C by 2, from 25 to 27
 7: D by 2, from 7 to 9""",
}


@pytest.mark.parametrize("seat", [0, 1])
def test_ludo_is_drawn_as_a_cross_with_what_may_be_done(seat):
    places = [[0, 0, 53, -1], [56, 51, 25, 7]]
    games = laid(Table(Luck(1), seat=seat, places=places, dice=[6, 2]))
    seen = {name: part[0] for name, part in games.look(ONE, np.array([seat])).items()}

    assert ludo(seen, seat) == LUDO + MAY[seat]
