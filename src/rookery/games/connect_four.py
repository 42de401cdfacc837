"""Parallel games of Connect Four in compiled code, with PettingZoo's rules (`connect_four_v3`)."""

from rookery.games.line_game import LineGame


class ConnectFour(LineGame):
    """Connect Four: four in a row on 6 x 7 cells; an action is a column.

    As in PettingZoo, after a win the loser's action mask still allows the columns that are not
    full, although no player is to move.
    """

    name = "connect_four"
    size, length, drops = (6, 7), 4, True
