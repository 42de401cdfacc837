"""Whole runs on real Rays: the weights of inline, resumed anywhere, and nothing left behind."""

import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from signal import SIGINT, SIGKILL, SIGTERM, Signals
from typing import Any

import psutil
import pytest

from eventually import eventually
from rookery.checkpoints import checkpoint
from rookery.config.load import RUN_FILE
from run_processes import ALONE, SMALL, CommandForker, Started, clock, record, shared, words

pytest.importorskip("ray")
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

UP_S = 90.0  # for a run to be on its way, on a busy machine
END_S = 120.0
WITHIN_S = 10.0  # for the end of one that was told to
GONE_S = 30.0  # for what one has left that was killed, or told to end while its Ray started
CODES = {SIGINT: 130, SIGTERM: 143}
SYNC = ("--mode", "sync", "--actors", "2")
ASYNC = ("--mode", "async", "--actors", "2")
FOR_EVER = 10_000_000
SHORT = SMALL | {"run.env_steps": 1_500, "checkpoint.period": 500}
PLAIN = {"report.tensorboard": "false"}


class Place:
    """Where runs are started: all that is theirs has a mark, or is in one folder."""

    def __init__(self, forker: CommandForker, cwd: Path, temporary: Path):
        self.forker, self.cwd, self.temporary = forker, cwd, temporary
        self.mark = uuid.uuid4().hex
        self.before = shared()

    def rookery(self, *argv: str, settings: dict[str, Any] | None = None) -> Started:
        env = {"TMPDIR": str(self.temporary), "ROOKERY_TEST": self.mark}
        return self.forker.start([*argv, *words(settings or {})], self.cwd, env)

    def train(self, *argv: str, settings: dict[str, Any] | None = None) -> Started:
        return self.rookery("train", *argv, "--json", "--quiet", settings=settings)

    def answer(self, *argv: str, settings: dict[str, Any] | None = None) -> dict[str, Any]:
        """Returns the answer of a run that comes to its end."""
        run = self.train(*argv, settings=settings)
        assert run.wait(END_S) == 0, run.said
        return run.answer

    def processes(self) -> list[psutil.Process]:
        """Returns what lives of the runs here. Ray's own overwrite their environment."""
        return [process for process in psutil.process_iter() if self._ours(process)]

    def _ours(self, process: psutil.Process) -> bool:
        try:
            if process.status() == psutil.STATUS_ZOMBIE:
                return False
            if process.environ().get("ROOKERY_TEST") == self.mark:
                return True
            files = process.open_files() if process.name().startswith("ray::") else ()
            return any(file.path.startswith(str(self.temporary)) for file in files)
        except (psutil.Error, OSError):
            return False

    def named(self, name: str) -> bool:
        """Is one of our processes called so?"""
        return any(_name(p) == name and self._ours(p) for p in psutil.process_iter())

    def left(self) -> tuple[list[str], list[str], set[str]]:
        """Returns processes, temporary files, and what has a name in shared memory."""
        there = [f"{_name(process)} {process.pid}" for process in self.processes()]
        return there, [path.name for path in self.temporary.iterdir()], shared() - self.before

    def nothing_left(self, within_s: float = 2.0) -> bool:
        return eventually(lambda: self.left() == ([], [], set()), within_s)


def _name(process: psutil.Process) -> str:
    try:
        return str(process.name())
    except psutil.Error:
        return "gone"


@pytest.fixture
def place(_forker: CommandForker, tmp_path: Path) -> Iterator[Place]:
    temporary = Path(tempfile.mkdtemp(prefix="t-", dir="/tmp"))  # short: Ray's sockets are in it
    yield Place(_forker, tmp_path, temporary)
    _forker.end_all()
    shutil.rmtree(temporary)


def saved(run_dir: Path, env_steps: int = 0) -> bool:
    found = checkpoint.folders(run_dir / "checkpoints")
    return any(int(folder.name.split("-")[1]) >= env_steps for folder in found)


def stop(run: Started, number: Signals) -> None:
    """Sends a signal as a terminal would: the run ends in time and says so."""
    began = clock()
    os.killpg(run.pid, number)
    assert run.wait() == CODES[number], run.said
    assert clock() - began < WITHIN_S
    assert "Traceback" not in run.said


# Sync.

PRIORITIZED = {
    "replay.sampling": "prioritized",
    "algo.n_step": 3,
    "env.normalize_obs": "true",
    "actor.chunk_episodes": 2,
}


def test_a_killed_sync_run_is_resumed_exactly_on_ray_and_inline(place):
    """SIGKILL of its process; what is left of its Ray is gone soon.

    With hindsight, on one shard: tests/integration/test_host_workers.py.
    """
    common, settings = ("corridor", *SYNC, "--shards", "2"), SHORT | PRIORITIZED
    whole = place.answer(*common, "--engine", "inline", "--run-dir", "whole", settings=settings)
    run = place.train(*common, "--engine", "ray", "--run-dir", "run", settings=settings)
    assert eventually(lambda: saved(place.cwd / "run"), UP_S), run.said

    run.send(SIGKILL)
    assert run.wait() == -SIGKILL
    assert place.nothing_left(GONE_S), place.left()
    shutil.copytree(place.cwd / "run", place.cwd / "copy")

    again = place.answer("--resume", "run", "--exact")
    elsewhere = place.answer("--resume", "copy", "--exact", "--engine", "inline")

    assert again["weights_sha256"] == whole["weights_sha256"]
    assert again["learner_steps"] == whole["learner_steps"] > 0
    assert elsewhere["weights_sha256"] == whole["weights_sha256"]
    assert place.nothing_left(), place.left()


# Async.


def test_runs_on_rays_of_their_own_learn_from_each_other_and_leave_nothing(place):
    """Ctrl+C ends both soon, each with a checkpoint."""
    settings = SMALL | {"run.env_steps": FOR_EVER}
    settings |= {"sharing.pool": place.temporary / "pool", "sharing.cross_sample_ratio": 0.25}
    flags = ("corridor", "--mode", "async", "--actors", "1", "--engine", "ray")
    runs = [place.train(*flags, "--run-dir", f"run-{i}", settings=settings) for i in range(2)]
    paths = [place.cwd / f"run-{i}" for i in range(2)]

    def foreign(path: Path) -> float:
        logged = record(path, "logged") if (path / "metrics.jsonl").exists() else []
        return float(logged[-1]["metrics"]["sharing/foreign_rows"]) if logged else 0.0

    assert eventually(lambda: all(foreign(path) > 500 for path in paths), UP_S), runs[0].said
    for run in runs:
        stop(run, SIGINT)

    for run, path in zip(runs, paths, strict=True):
        found = checkpoint.newest(path / "checkpoints").found
        assert found is not None
        assert found.env_steps == run.answer["env_steps"]
    assert place.nothing_left(), place.left()


# Ends.


STAGES = {
    "Ray starts": (SIGINT, lambda place: any(place.temporary.glob("rk-*/r"))),
    "actors start": (SIGTERM, lambda place: place.named("rookery-actor-0")),
}


@pytest.mark.parametrize("stage", STAGES)
def test_a_signal_while_it_starts_ends_it_soon_and_leaves_nothing(stage, place):
    number, reached = STAGES[stage]
    flags = ("--mode", "async", "--actors", "1", "--engine", "ray", "--run-dir", "run")
    run = place.train("corridor", *flags, settings=SMALL | {"run.env_steps": FOR_EVER})
    assert eventually(lambda: bool(reached(place)), UP_S), run.said

    stop(run, number)

    assert place.nothing_left(GONE_S), place.left()


# Requests that cannot be met.

WRONG: dict[str, tuple[tuple[str, ...], str]] = {
    "replay on disk": (("--set", "replay.storage=disk"), "replay.storage"),
    "a learner elsewhere without a cluster": (("--learner-resources", "GPU=1"), "--address"),
    "more shards than actors": (("--shards", "3"), "every shard has actors of its own"),
    "no Ray at the address": (("--address", "127.0.0.1:1"), "cannot join the Ray cluster"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_request_is_refused_in_one_line(case, place):
    flags, message = WRONG[case]
    token = place.cwd / "token"
    token.touch(0o600)
    own = {"cluster.token_path": token}
    flags = ("corridor", *ASYNC, "--engine", "ray", "--run-dir", "run", *flags)
    run = place.train(*flags, settings=own)

    assert run.wait(UP_S) == 2, run.said
    lines = [line for line in run.stderr.read_text().splitlines() if message in line]
    assert len(lines) == 1, run.said
    assert "Traceback" not in run.said
    assert not (place.cwd / "run" / RUN_FILE).exists()


# Classes that only a script knows.

SCRIPT = """
import gymnasium as gym
import numpy as np
import rookery


class Coin(gym.Env):
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


run = rookery.train(
    env=Coin,
    run_dir="run",
    overrides=[
        "run={mode: sync, engine: ray, env_steps: 300}",
        "actor={num: 1, envs: 2, chunk: 20}",
        "net.hidden=[8]",
        "replay={capacity: 1000, learning_starts: 64, samples_per_insert: 4}",
        "eval={period: 150, episodes: 2}",
        "report.tensorboard=false",
    ],
)
assert run.answer["env_steps"] >= 300 and run.answer["learner_steps"] > 0, run.answer
print("trained")
"""


def test_a_class_of_a_script_on_standard_input_is_played_on_ray(tmp_path):
    done = subprocess.run(
        [sys.executable, "-"],
        input=SCRIPT,
        cwd=tmp_path,
        env=os.environ | ALONE,
        capture_output=True,
        text=True,
        timeout=END_S,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "trained"
