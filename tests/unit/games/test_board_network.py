"""The network for board games."""

import pytest
import torch

from rookery.errors import ConfigError
from rookery.games.board_network import BoardNetwork
from rookery.types import ActionSpec, EnvSpec, Leaf, LeafKind

MASK = Leaf("action_mask", (7,), "int8", LeafKind.MASK)
FOUR = EnvSpec(
    "four", (MASK, Leaf("observation", (6, 7, 2), "float32", LeafKind.VECTOR)), ActionSpec(n=7)
)


def test_a_pattern_is_seen_wherever_it_lies():
    net = BoardNetwork(FOUR, 7, kernel=4, channels=3)
    board = torch.zeros(2, 6, 7, 2)
    board[0, 1, 0:4, 0] = 1.0  # four in a row, and the same one square down and to the right
    board[1, 2, 1:5, 0] = 1.0
    seen = net.look(board.permute(0, 3, 1, 2))  # [B, channels, 3, 4]

    torch.testing.assert_close(seen[0, :, :2, :3], seen[1, :, 1:, 1:])


def test_boards_by_themselves_and_beside_a_mask_give_as_many_values_as_asked_for():
    alone = EnvSpec("alone", (Leaf("", (3, 3, 2), "float32", LeafKind.VECTOR),), ActionSpec(n=9))
    board, mask = torch.zeros(5, 6, 7, 2), torch.ones(5, 7, dtype=torch.int8)

    assert BoardNetwork(FOUR, 8)({"observation": board, "action_mask": mask}).shape == (5, 8)
    assert BoardNetwork(alone, 9, hidden=(4, 4))(board[:, :3, :3]).shape == (5, 9)


def test_a_kernel_larger_than_the_board_is_refused():
    with pytest.raises(ConfigError, match=r"is 7, .* 6 x 7 squares; give a kernel from 1 to 6"):
        BoardNetwork(FOUR, 7, kernel=7)


def test_what_is_not_a_board_is_refused():
    flat = EnvSpec("flat", (Leaf("", (4,), "float32", LeafKind.VECTOR),), ActionSpec(n=2))

    with pytest.raises(ConfigError, match=r"reads one board .* but flat has observation \(4,\)"):
        BoardNetwork(flat, 2)
