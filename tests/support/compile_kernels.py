"""Compiles what many runs need, once, before tests start many processes that need it at once.

    python tests/support/compile_kernels.py

Numba keeps what it has compiled beside the source. In a new clone there is nothing, and processes
that start together would each compile the same functions: minutes of both processors, in which
nothing else of a test comes to its turn. One process compiles the replay, a second path finding.
Python's own bytecode comes first, for an environment that forbids to write it on import.
"""

import compileall
import subprocess
import sys
from pathlib import Path

import numpy as np

from short_trainings import CORRIDOR, train

BRIEF = CORRIDOR | {"run.env_steps": 600}
RANKED = {"replay.sampling": "prioritized", "replay.initial_priority": "actor"}
PATHFINDING = "pathfinding"
TREE = Path(__file__).parents[2]


def compile_replay() -> None:
    for settings in (BRIEF, BRIEF | RANKED):
        train(settings)


def compile_pathfinding() -> None:
    from rookery.pathfinding.planner.plan import plan
    from rookery.pathfinding.world.cases import generate

    plan(generate(1, agents=4, size=8, density=0.2, rng=np.random.default_rng(0)), steps=64)


if __name__ == "__main__":
    if PATHFINDING in sys.argv:
        compile_pathfinding()
    else:
        for folder in ("src", "tests/support"):
            compileall.compile_dir(TREE / folder, quiet=2)
        beside = subprocess.Popen([sys.executable, __file__, PATHFINDING])
        compile_replay()
        sys.exit(beside.wait())
