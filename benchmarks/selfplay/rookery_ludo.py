"""Ludo on one core: whole games of two random players, 256 at a time.

A piece of work is one game at each table, from the first throw to the end: the masks, a uniform
choice among what they allow, and the move, a ply after the other. Nobody looks at observations.
"""

from collections.abc import Callable

import numpy as np

from rookery.games.ludo import Ludo

TABLES = 256
MINUTE = 60  # what is timed is per second


def play(seed: int) -> Callable[[], int]:
    games, rng = Ludo(TABLES), np.random.default_rng(seed)
    everybody = np.arange(TABLES)

    def work() -> int:
        games.reset(everybody, rng)
        games.play_out(everybody)
        return MINUTE * TABLES

    return work
