"""Parallel games of tic-tac-toe in compiled code, with the rules of PettingZoo's `tictactoe_v3`."""

from rookery.games.line_game import LineGame


class TicTacToe(LineGame):
    """Tic-tac-toe: three in a row on 3 x 3 cells; an action is a cell, counted row by row.

    As in PettingZoo, after a win the loser's action mask still allows the empty cells, although no
    player is to move.
    """

    name = "tictactoe"
    size, length, drops = (3, 3), 3, False
