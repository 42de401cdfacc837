"""Tic-tac-toe, compiled: many games at once, each as PettingZoo's `tictactoe_v3`."""

from rookery.envs.games.lines import Lines

SIZE, LENGTH = (3, 3), 3


class TicTacToe(Lines):
    """Three in a row on 3 x 3 cells; an action is a cell, counted row by row.

    As in PettingZoo the loser's mask shows the empty cells when the game has ended; nobody is due
    then.
    """

    name = "tictactoe"

    def __init__(self, num: int) -> None:
        super().__init__(num, size=SIZE, length=LENGTH, drops=False)
