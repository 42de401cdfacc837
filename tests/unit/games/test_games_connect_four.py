"""Stones in a line: Connect Four and tic-tac-toe, by example."""

import numpy as np
import pytest

from rookery.errors import EnvError, ProtocolError
from rookery.games.connect_four import ConnectFour
from rookery.games.line_game import bits, has_line, words
from rookery.games.tictactoe import TicTacToe

ONE = np.array([0])
WAYS = ((0, 1), (1, 0), (1, 1), (1, -1))


def begun(kind):
    games = kind(1)
    games.reset(ONE, np.random.default_rng(0))
    return games


def played(games, actions):
    for action in actions:
        games.play(ONE, np.full((1, 2), action))
    return games


def lines(size, length):
    """Yields the cells of every line there can be."""
    for row, column in np.ndindex(size):
        for down, across in WAYS:
            cells = [(row + i * down, column + i * across) for i in range(length)]
            if all(0 <= r < size[0] and 0 <= c < size[1] for r, c in cells):
                yield cells


def word(size, cells):
    board = np.zeros((1, *size, 2), dtype=np.int8)
    for row, column in cells:
        board[0, row, column, 0] = 1
    return words(board)[0, 0]


@pytest.mark.parametrize(("size", "length", "count"), [((6, 7), 4, 69), ((3, 3), 3, 8)])
def test_every_line_counts_and_none_that_lacks_a_stone(size, length, count):
    every = list(lines(size, length))

    assert len(every) == count
    for cells in every:
        assert has_line(word(size, cells), size[0], length)
        assert not any(has_line(word(size, set(cells) - {one}), size[0], length) for one in cells)


@pytest.mark.parametrize(("size", "length"), [((6, 7), 4), ((3, 3), 3)])
def test_stones_anywhere_have_a_line_when_they_cover_one(size, length):
    rng = np.random.default_rng(0)
    every = [word(size, cells) for cells in lines(size, length)]
    boards = words((rng.random((400, *size, 2)) < 0.4).astype(np.int8))[:, 0]

    for stones in boards:
        assert has_line(stones, size[0], length) == any(stones & line == line for line in every)


def test_bits_leave_the_one_above_each_column_empty():
    used = set(bits((6, 7)).tolist())
    assert len(used) == 42
    assert not used & {7 * column + 6 for column in range(7)}


def test_stones_fall_on_those_below_until_their_column_is_full():
    games = played(begun(ConnectFour), [2] * 6)
    seen = games.look(ONE, ONE)

    assert seen["observation"][0, :, 2].tolist() == [[0, 1], [1, 0]] * 3  # seat 0 is at the bottom
    assert seen["action_mask"][0].tolist() == [1, 1, 0, 1, 1, 1, 1]
    with pytest.raises(EnvError, match=r"may do \[0, 1, 3, 4, 5, 6\], got 2"):
        played(games, [2])


def test_four_in_a_row_earn_one_and_cost_one():
    games = played(begun(ConnectFour), [0, 6, 1, 6, 2, 6])
    assert not games.over[0]

    played(games, [3])

    assert games.over[0]
    assert not games.due.any()
    assert games.reward[0].tolist() == [1.0, -1.0]
    with pytest.raises(ProtocolError, match="reset"):
        played(games, [4])


def test_the_second_seat_wins_too():
    games = played(begun(ConnectFour), [0, 6, 1, 6, 2, 6, 0, 6])
    assert games.reward[0].tolist() == [-1.0, 1.0]


def test_a_full_board_without_a_line_ends_with_nothing():
    games = played(begun(TicTacToe), [0, 1, 2, 4, 3, 5, 7, 6, 8])

    assert games.over[0]
    assert games.reward[0].tolist() == [0.0, 0.0]
    assert not games.due.any()


def test_cells_are_counted_row_by_row():
    seen = played(begun(TicTacToe), [5]).look(np.array([0, 0]), np.array([0, 1]))

    assert seen["observation"][0, 1, 2].tolist() == [1, 0]
    assert seen["observation"][1, 1, 2].tolist() == [0, 1]
    assert seen["action_mask"].tolist() == [[0] * 9, [1, 1, 1, 1, 1, 0, 1, 1, 1]]


def test_a_new_game_forgets_the_old_one():
    games = played(begun(ConnectFour), [0, 6, 1, 6, 2, 6, 3])
    games.reset(ONE, np.random.default_rng(0))

    assert games.tables.tobytes() == begun(ConnectFour).tables.tobytes()
