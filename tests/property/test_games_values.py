"""What searching players think of positions, against trying everything in plain Python."""

from functools import cache

import numpy as np
import pytest

from paired_games import ONE, drawn
from rookery.games.connect_four import ConnectFour
from rookery.games.scripted_players import Minimax, outcome, worths

LINES = [(0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6)]


def lost(board):
    """Says whether -1, who moved last, has three in a row."""
    return any(all(board[cell] == -1 for cell in line) for line in LINES)


def replies(board):
    """Yields the cells that are empty and the positions after a move there, seen by the other."""
    for cell in range(9):
        if board[cell] == 0:
            after = (*board[:cell], 1, *board[cell + 1 :])
            yield cell, tuple(-mark for mark in after)


@cache
def value(board):
    """Returns how tic-tac-toe ends for 1, who is to move."""
    if lost(board):
        return -1
    return max((-value(after) for _, after in replies(board)), default=0)


def reachable():
    """Returns every position that can come up while the game goes on, or at its end."""
    found, ahead = set(), [(0,) * 9]
    while ahead:
        board = ahead.pop()
        if board not in found:
            found.add(board)
            ahead += [] if lost(board) else [after for _, after in replies(board)]
    return sorted(found)


def seen(boards):
    planes = [np.array(boards) == mark for mark in (1, -1)]
    return {"observation": np.stack(planes, axis=-1).reshape(-1, 3, 3, 2).astype(np.int8)}


def test_tic_tac_toe_is_solved_in_every_position_that_can_come_up():
    boards = reachable()

    assert len(boards) == 5478
    assert outcome(seen(boards)).tolist() == [value(board) for board in boards]


def test_every_move_of_tic_tac_toe_is_worth_what_comes_of_it():
    going = [board for board in reachable() if not lost(board) and 0 in board]
    found = np.sign(worths(seen(going)))

    for board, worth in zip(going, found, strict=True):
        assert all(worth[cell] == -value(after) for cell, after in replies(board))


def four(board, row, column):
    """Says whether a stone at a cell is one of four in a row of its kind."""
    for down, across in ((0, 1), (1, 0), (1, 1), (1, -1)):
        run = 1
        for way in (1, -1):
            r, c = row + way * down, column + way * across
            while 0 <= r < 6 and 0 <= c < 7 and board[r, c] == board[row, column]:
                run, r, c = run + 1, r + way * down, c + way * across
        if run >= 4:
            return True
    return False


def columns(board, mark, depth):
    """Returns the worth of each open column for `mark`: sooner lines are worth more."""
    worth = {}
    for column in np.flatnonzero(board[0] == 0).tolist():
        after, row = board.copy(), int(np.flatnonzero(board[:, column] == 0).max())
        after[row, column] = mark
        worth[column] = depth if four(after, row, column) else 0
        if not worth[column] and depth > 1:
            worth[column] = -max(columns(after, -mark, depth - 1).values(), default=0)
    return worth


def choose(games, depth, rng):
    """Returns the columns that minimax chooses for whoever is due, and those that are best."""
    obs = games.look(ONE, np.flatnonzero(games.due[0]))
    board = obs["observation"][0, ..., 0].astype(int) - obs["observation"][0, ..., 1]
    worth = columns(board, 1, depth)
    many = {name: part.repeat(200, axis=0) for name, part in obs.items()}
    best = {column for column in worth if worth[column] == max(worth.values())}
    return set(Minimax(depth).act(many, rng).tolist()), best


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("seed", range(4))
def test_minimax_chooses_among_the_best_columns_and_any_of_them(seed, depth):
    rng = np.random.default_rng(seed)
    games = ConnectFour(1)
    games.reset(ONE, rng)
    for ply in range(30):
        if ply % 5 == 4:
            chosen, best = choose(games, depth, rng)
            assert chosen == best
        games.play(ONE, np.full((1, 2), rng.choice(np.flatnonzero(games.tables["mask"][0]))))
        if games.over[0]:
            break


@pytest.mark.parametrize("seed", range(4))
def test_minimax_knows_that_a_full_board_is_nothing(seed):
    rng = np.random.default_rng(seed)
    games = ConnectFour(1)
    games.reset(ONE, rng)
    for ply, action in enumerate(drawn(rng)):
        if ply >= 36:
            chosen, best = choose(games, 6, rng)
            assert chosen == best
        games.play(ONE, np.full((1, 2), action))

    assert games.over[0]
