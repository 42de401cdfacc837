"""The network for Ludo sees what its choices lead to, by the rules of the game."""

import numpy as np
import pytest
import torch

from rookery.errors import ConfigError
from rookery.games.ludo import BASE, HOME, TOKENS, Ludo
from rookery.games.ludo_network import PLACES, Afterstates
from rookery.types import ActionSpec, EnvSpec

EVERY = np.arange(64)


@pytest.fixture(scope="module")
def games():
    played, rng = Ludo(len(EVERY)), np.random.default_rng(3)
    played.reset(EVERY, rng)
    return played


def net():
    return Afterstates(EnvSpec("ludo", (), ActionSpec(n=12)), 12, width=8)


def board(seen):
    return np.round(seen[:, : 2 * TOKENS] * (HOME + 1)).astype(int) + BASE


def test_the_boards_it_values_are_those_that_the_game_then_has(games):
    """Over many plies: own tokens, and those of the other that were sent back."""
    rng, own_net = np.random.default_rng(0), net()
    for _ in range(200):
        playing = EVERY[~games.over]
        seat = games.due[playing].argmax(1)
        obs = games.look(playing, seat)
        action = (obs["action_mask"] * rng.random(obs["action_mask"].shape)).argmax(1)
        seen = torch.from_numpy(obs["observation"])
        after = own_net._after(seen, torch.from_numpy(action)).numpy()
        games.play(playing, np.stack([action, action], 1))

        now = board(games.look(playing, seat)["observation"])
        np.testing.assert_array_equal(after[:, :TOKENS] + BASE, now[:, :TOKENS])
        others = after[:, TOKENS : 2 * TOKENS] - PLACES + BASE
        stays = games.due[playing, seat]  # where the turn has passed, the other may have moved on
        np.testing.assert_array_equal(others[stays], now[stays, TOKENS:])


def test_only_allowed_choices_are_valued():
    mask = torch.zeros(2, 12, dtype=torch.int8)
    mask[0, 3] = mask[1, 0] = mask[1, 5] = 1
    out = net()({"observation": torch.rand(2, 12), "action_mask": mask})

    assert (out != 0).nonzero().tolist() == [[0, 3], [1, 0], [1, 5]]


def test_tokens_of_a_side_are_alike():
    seen = torch.tensor([[3, 9, 0, 0, 5, 7, 0, 0]]) / 57.0
    dice = torch.tensor([[2, 0, 0, 1]]) / torch.tensor([6, 6, 6, 1])
    swapped = seen[:, [1, 0, 2, 3, 5, 4, 7, 6]]
    mask = torch.zeros(1, 12, dtype=torch.int8)
    mask[0, :2] = 1
    own_net = net()
    first = own_net({"observation": torch.cat([seen, dice], 1), "action_mask": mask})
    second = own_net({"observation": torch.cat([swapped, dice], 1), "action_mask": mask})

    torch.testing.assert_close(first[0, [0, 1]], second[0, [1, 0]])


def test_it_is_for_ludo_alone():
    with pytest.raises(ConfigError, match="values 12 actions of Ludo, got 7 outputs"):
        Afterstates(EnvSpec("connect_four", (), ActionSpec(n=7)), 7)
