"""Scripts without a main guard: children never import the user's main module.

The same lines are run as a file, as Python runs standard input, and as the cells of a notebook.
They define an environment class, leave a mark where they are run, and train with two actors in
processes of their own.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from run_processes import ALONE, CommandForker, Started

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

DEADLINE_S = 120.0

CLASS = """
import gymnasium as gym
import numpy as np
import rookery

with open("imported.txt", "a") as mark:
    mark.write("once\\n")


class Coin(gym.Env):
    \"\"\"Guess what is shown, eight times.\"\"\"

    def __init__(self):
        self.observation_space = gym.spaces.Box(0.0, 1.0, (2,), np.float32)
        self.action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.toss(), {}

    def step(self, action):
        reward = float(action == self.side)
        self.steps += 1
        return self.toss(), reward, self.steps == 8, False, {}

    def toss(self):
        self.side = int(self.np_random.integers(2))
        return np.eye(2, dtype=np.float32)[self.side]
"""

TRAIN = """
run = rookery.train(
    env=Coin,
    seed=1,
    run_dir="run",
    overrides=[
        "run={mode: sync, engine: processes, env_steps: 300}",
        "actor={num: 2, envs: 2, chunk: 20}",
        "net.hidden=[8]",
        "replay={capacity: 1000, learning_starts: 64, samples_per_insert: 4}",
        "eval={period: 150, episodes: 2}",
        "report.tensorboard=false",
    ],
)
assert run.answer["env_steps"] >= 300 and run.answer["learner_steps"] > 0, run.answer
print("trained", run.answer["weights_sha256"])
"""

TRAIN_DQN = """
agent = rookery.train_dqn(
    n_episodes=16,
    num_workers=2,
    episodes_per_batch=2,
    batch_size=16,
    hidden=(8,),
    env=Coin,
    seed=1,
)
assert len(agent.returns) == 16 and agent.learner_steps == 16
print("trained", agent.weights_sha256)
"""

NOTEBOOK = """
import sys
import nbclient, nbformat

cells = [nbformat.v4.new_code_cell(source) for source in sys.argv[1:]]
notebook = nbformat.v4.new_notebook(cells=cells)
client = nbclient.NotebookClient(notebook, timeout=100, kernel_name="python3")
client.execute()
for cell in notebook.cells:
    for output in cell.outputs:
        print(output.get("text", ""), end="")
"""


def _as_a_file(forker: CommandForker, cells: list[str], folder: Path) -> str:
    path, script = folder / "script.py", "\n".join(cells)
    path.write_text(script)
    return _ended(forker.start([], folder, script=script, path=path))


def _from_standard_input(forker: CommandForker, cells: list[str], folder: Path) -> str:
    return _ended(forker.start([], folder, script="\n".join(cells)))


def _ended(run: Started) -> str:
    assert run.wait(DEADLINE_S) == 0, run.said
    return run.stdout.read_text()


def _in_a_notebook(forker: CommandForker, cells: list[str], folder: Path) -> str:
    """Its kernel and all of its children are interpreters of their own."""
    return _ran([sys.executable, "-c", NOTEBOOK, *cells], folder)


WAYS: list[Callable[[CommandForker, list[str], Path], str]] = [
    _as_a_file,
    _from_standard_input,
    _in_a_notebook,
]


def _ran(command: list[str], folder: Path) -> str:
    """Returns what a program prints, in an environment that knows nothing of these tests."""
    home = {name: str(folder / "home") for name in ("HOME", "IPYTHONDIR", "JUPYTER_CONFIG_DIR")}
    environ = {k: v for k, v in os.environ.items() if k not in ("PYTEST_CURRENT_TEST",)}
    done = subprocess.run(
        command,
        cwd=folder,
        env=environ | home | ALONE | {"JUPYTER_PLATFORM_DIRS": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_script_without_a_guard_is_run_once_and_trains_the_same_way_wherever_it_is(
    forker, tmp_path
):
    trained = []
    for way in WAYS:
        folder = tmp_path / way.__name__
        folder.mkdir()
        printed = way(forker, [CLASS, TRAIN, TRAIN_DQN], folder)

        trained.append([line for line in printed.splitlines() if line.startswith("trained ")])
        assert (folder / "imported.txt").read_text() == "once\n", way.__name__
    first, *others = trained
    assert len(first) == 2
    assert others == [first, first]
