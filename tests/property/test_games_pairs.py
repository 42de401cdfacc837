"""Connect Four and tic-tac-toe are PettingZoo's, to the last observation."""

import warnings
from collections import Counter

import numpy as np
import pytest

from paired_games import ONE, agree, drawn, paired
from rookery.games.connect_four import ConnectFour
from rookery.games.tictactoe import TicTacToe

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # it imports games it has deprecated
    from pettingzoo.classic import connect_four_v3, tictactoe_v3

PAIRS = {
    "connect_four": (ConnectFour, connect_four_v3, 240),
    "tictactoe": (TicTacToe, tictactoe_v3, 400),
}


@pytest.mark.parametrize("name", PAIRS)
def test_random_games_are_the_same_in_everything_that_can_be_seen(name):
    ours, theirs, count = PAIRS[name]
    games, env, rng = ours(1), theirs.env(), np.random.default_rng(0)

    ends = Counter(paired(games, env, rng) for _ in range(count))

    assert ends[1.0, -1.0] > 50
    assert ends[-1.0, 1.0] > 50
    assert sum(ends.values()) == count


def test_a_full_board_is_the_same_too():
    games, env, rng = ConnectFour(1), connect_four_v3.env(), np.random.default_rng(0)
    games.reset(ONE, rng)
    env.reset()

    for action in drawn(rng):
        games.play(ONE, np.full((1, 2), action))
        env.step(action)
        agree(games, env)

    assert games.over[0]
    assert not games.reward.any()


@pytest.mark.parametrize("name", PAIRS)
def test_the_spaces_are_the_same(name):
    ours, theirs, _ = PAIRS[name]
    games, env = ours(1), theirs.env()

    for agent in env.possible_agents:
        assert games.observation_space == env.observation_space(agent)
        assert games.action_space == env.action_space(agent)
