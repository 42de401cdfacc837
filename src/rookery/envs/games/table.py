"""Our own games by their names."""

from collections.abc import Callable

from rookery.envs.games.connect_four import ConnectFour
from rookery.envs.games.interface import Games
from rookery.envs.games.ludo import Ludo
from rookery.envs.games.tictactoe import TicTacToe

GAMES: dict[str, Callable[[int], Games]] = {
    "ludo": Ludo,
    "connect_four": ConnectFour,
    "tictactoe": TicTacToe,
}
