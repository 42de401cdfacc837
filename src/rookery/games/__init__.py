"""Games: Ludo, Connect Four, tic-tac-toe.

`ludo`, `connect_four` and `tictactoe` (rules; the last two share `line_game`), `scripted_players`,
`text_board` (games drawn as text), `pettingzoo_face` (the games as PettingZoo environments),
`board_network` and `ludo_network` (networks), `scenarios/` (settings of training runs), `plugin`
(registers the games with the library).
"""
