"""Plugin that registers games, scripted players and text boards with the library.

Scripted players and text boards (games drawn as text) are also registered for PettingZoo's
`connect_four_v3` and `tictactoe_v3`.
"""

from rookery.plugins import Plugin

PLUGIN = Plugin(
    games={
        "ludo": "rookery.games.ludo:Ludo",
        "connect_four": "rookery.games.connect_four:ConnectFour",
        "tictactoe": "rookery.games.tictactoe:TicTacToe",
    },
    scripted_players={
        "ludo": "rookery.games.scripted_players:LudoScript",
        "connect_four": "rookery.games.scripted_players:Minimax",
        "connect_four_v3": "rookery.games.scripted_players:Minimax",
        "tictactoe": "rookery.games.scripted_players:Perfect",
        "tictactoe_v3": "rookery.games.scripted_players:Perfect",
    },
    text_boards={
        "ludo": "rookery.games.text_board:ludo",
        "connect_four": "rookery.games.text_board:connect_four",
        "connect_four_v3": "rookery.games.text_board:connect_four",
        "tictactoe": "rookery.games.text_board:tictactoe",
        "tictactoe_v3": "rookery.games.text_board:tictactoe",
    },
    scenarios="rookery.games.scenarios",
)
