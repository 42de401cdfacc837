"""Multi-player games, whose players (seats) move in turn or simultaneously.

`game` (the interface of games), `compiled_game` (parallel games with compiled rules), `pettingzoo`
(PettingZoo environments as games), `tables` (parallel games as a vector environment), `opponents`
(the interface of opponents in self-play).
"""
