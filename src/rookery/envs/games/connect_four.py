"""Connect Four, compiled: many games at once, each as PettingZoo's `connect_four_v3`."""

from rookery.envs.games.lines import Lines

SIZE, LENGTH = (6, 7), 4


class ConnectFour(Lines):
    """Four in a row on 6 x 7 cells; an action is a column in which a stone falls.

    As in PettingZoo the loser's mask shows the columns that are not full when the game has ended;
    nobody is due then.
    """

    name = "connect_four"

    def __init__(self, num: int) -> None:
        super().__init__(num, size=SIZE, length=LENGTH, drops=True)
