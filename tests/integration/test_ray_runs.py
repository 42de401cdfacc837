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
from nodes import Nodes, two_nodes
from rookery.actor import CHUNKS
from rookery.config.load import RUN_FILE
from rookery.manage import checkpoint
from running import ALONE, SMALL, Nursery, Started, clock, record, shared, words

pytest.importorskip("ray")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

UP_S = 90.0  # for a run to be on its way, on a busy machine
END_S = 120.0
WITHIN_S = 10.0  # for the end of one that was told to
GONE_S = 30.0  # for what one has left that was killed, or told to end while its Ray started
CODES = {SIGINT: 130, SIGTERM: 143}
SYNC = ("--mode", "sync", "--actors", "2")
ASYNC = ("--mode", "async", "--actors", "2")
FOR_EVER = 10_000_000
PLAIN = {"report.tensorboard": "false"}


class Place:
    """Where runs are started: all that is theirs has a mark, or is in one folder."""

    def __init__(self, nursery: Nursery, cwd: Path, temporary: Path):
        self.nursery, self.cwd, self.temporary = nursery, cwd, temporary
        self.mark = uuid.uuid4().hex
        self.before = shared()

    def rookery(self, *argv: str, settings: dict[str, Any] | None = None) -> Started:
        env = {"TMPDIR": str(self.temporary), "ROOKERY_TEST": self.mark}
        return self.nursery.start([*argv, *words(settings or {})], self.cwd, env)

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
def place(_nursery: Nursery, tmp_path: Path) -> Iterator[Place]:
    temporary = Path(tempfile.mkdtemp(prefix="t-", dir="/tmp"))  # short: Ray's sockets are in it
    yield Place(_nursery, tmp_path, temporary)
    _nursery.end_all()
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

ALIKE: dict[str, tuple[int, dict[str, Any]]] = {
    "one shard": (
        1,
        {"replay.draw": "prioritized", "algo.n_step": 3, "env.normalize_obs": "true"},
    ),
    "two shards": (2, {"actor.chunk_episodes": 2}),
    "goals in hindsight": (
        1,
        {
            "env.id": "rookery.envs.bitflip:BitFlip",
            "env.kwargs": "{bits: 6}",
            "replay.hindsight": 0.8,
            "algo.n_step": 1,
        },
    ),
}


@pytest.mark.parametrize("case", ALIKE)
def test_sync_gives_the_weights_of_inline_bit_for_bit_and_leaves_nothing(case, place):
    shards, settings = ALIKE[case]
    common = ("corridor", *SYNC, "--shards", str(shards))
    settings = SMALL | {"run.env_steps": 1_500} | settings
    inline = place.answer(*common, "--engine", "inline", "--run-dir", "inline", settings=settings)

    ray = place.answer(*common, "--engine", "ray", "--run-dir", "ray", settings=settings)

    assert ray["weights_sha256"] == inline["weights_sha256"]
    assert ray["learner_steps"] == inline["learner_steps"] > 0
    assert place.nothing_left(), place.left()


def test_a_killed_sync_run_is_resumed_exactly_on_ray_and_inline(place):
    """SIGKILL of its process; what is left of its Ray is gone soon."""
    common = ("corridor", *SYNC, "--shards", "2")
    whole = place.answer(*common, "--engine", "inline", "--run-dir", "whole", settings=SMALL)
    run = place.train(*common, "--engine", "ray", "--run-dir", "run", settings=SMALL)
    assert eventually(lambda: saved(place.cwd / "run"), UP_S), run.said

    run.send(SIGKILL)
    assert run.wait() == -SIGKILL
    assert place.nothing_left(GONE_S), place.left()
    shutil.copytree(place.cwd / "run", place.cwd / "copy")

    again = place.answer("--resume", "run", "--exact")
    elsewhere = place.answer("--resume", "copy", "--exact", "--engine", "inline")

    assert again["weights_sha256"] == whole["weights_sha256"]
    assert elsewhere["weights_sha256"] == whole["weights_sha256"]


# Async.

WARMUP = 200  # env steps that ask for no learning
CORRIDOR = {"actor.chunk": 64, "actor.envs": 8, "replay.warmup": WARMUP}
# What may lie in the actors' rings when a gate is closed, the limiter's slack, and as much again:
# what stations were allowed because the learner was learning, if it stops doing so.
AHEAD = 2 * CHUNKS * (64 + 2 * 8) + 2 * (2 * 2 * (64 + 8))


def _ahead(entry: dict[str, Any], ratio: float) -> float:
    """Returns how many env steps the learner is behind."""
    inserted = entry["env_steps"] - WARMUP
    return float(inserted * (1 - entry["metrics"]["replay/samples_per_insert"] / ratio))


def test_async_learns_keeps_its_ratio_and_goes_on_with_other_shards(place):
    settings = SMALL | CORRIDOR
    settings |= {
        "run.env_steps": 12_000,
        "replay.capacity": 20_000,
        "checkpoint.period": 4_000,
        "eval.period": 6_000,
        "report.log_period": 1_000,
    }
    first = place.answer(
        "corridor",
        *ASYNC,
        "--engine",
        "ray",
        "--shards",
        "2",
        "--run-dir",
        "run",
        settings=settings,
    )
    assert first["best_score"] > 0.9
    assert place.nothing_left(), place.left()

    on = {"run.env_steps": 16_000}
    second = place.answer("--resume", "run", "--shards", "1", settings=on)

    assert second["env_steps"] >= 16_000 > first["env_steps"]
    assert second["learner_steps"] > first["learner_steps"]
    logged = record(place.cwd / "run", "logged")
    for counter in ("env_steps", "learner_steps", "episodes", "wall_s"):
        values = [entry[counter] for entry in logged]
        assert values == sorted(values)
    metrics = [entry["metrics"] for entry in logged]
    assert metrics[-1]["replay/samples_per_insert"] == pytest.approx(4.0, rel=0.05)
    assert all(m["replay/samples_per_insert"] <= 4.0 for m in metrics)  # never more
    assert max(_ahead(entry, 4.0) for entry in logged) <= AHEAD
    fresh = [m for m in metrics if m.get("actors/fresh_ms_p50") is not None]
    assert fresh
    assert all(0 < m["actors/fresh_ms_p50"] <= m["actors/fresh_ms_p99"] for m in fresh)
    assert metrics[-1]["cluster/stations"] == 1.0
    assert {m["cluster/lost_rows"] for m in metrics} == {0.0}
    search = checkpoint.newest(place.cwd / "run" / "checkpoints")
    assert search.broken == []
    assert search.found is not None
    assert {segment.shard for segment in search.found.segments()} <= {0}


def test_runs_on_rays_of_their_own_learn_from_each_other_and_leave_no_pool(place):
    settings = SMALL | {"run.env_steps": FOR_EVER, "checkpoint.period": FOR_EVER}
    settings |= {"sharing.pool": place.temporary / "pool", "sharing.cross_sample_ratio": 0.25}
    flags = ("corridor", "--mode", "async", "--actors", "1", "--engine", "ray")
    runs = [place.train(*flags, "--run-dir", f"run-{i}", settings=settings) for i in range(2)]

    def foreign(number: int) -> float:
        path = place.cwd / f"run-{number}"
        logged = record(path, "logged") if (path / "metrics.jsonl").exists() else []
        return float(logged[-1]["metrics"]["sharing/foreign_rows"]) if logged else 0.0

    assert eventually(lambda: foreign(0) > 500 and foreign(1) > 500, UP_S), runs[0].said
    for run in runs:
        run.send(SIGTERM)
    ended = [run.wait() for run in runs]

    assert ended == [CODES[SIGTERM]] * 2, runs[0].said
    assert eventually(lambda: place.left()[:2] == ([], []), GONE_S), place.left()


# Ends.


def test_ctrl_c_in_training_ends_it_soon_with_a_checkpoint_and_leaves_nothing(place):
    settings = SMALL | {"run.env_steps": FOR_EVER}
    run = place.train("corridor", *ASYNC, "--engine", "ray", "--run-dir", "run", settings=settings)
    assert eventually(lambda: saved(place.cwd / "run"), UP_S), run.said

    stop(run, SIGINT)

    found = checkpoint.newest(place.cwd / "run" / "checkpoints").found
    assert found is not None
    assert found.env_steps == run.answer["env_steps"]
    assert place.nothing_left(), place.left()


STAGES = {
    "Ray starts": (SIGINT, lambda place: any(place.temporary.glob("rk-*/r"))),
    "actors start": (SIGTERM, lambda place: place.named("rookery-actor-1")),
}


@pytest.mark.parametrize("stage", STAGES)
def test_a_signal_while_it_starts_ends_it_soon_and_leaves_nothing(stage, place):
    number, reached = STAGES[stage]
    settings = SMALL | {"run.env_steps": FOR_EVER}
    run = place.train("corridor", *ASYNC, "--engine", "ray", "--run-dir", "run", settings=settings)
    assert eventually(lambda: bool(reached(place)), UP_S), run.said

    stop(run, number)

    assert place.nothing_left(GONE_S), place.left()


# Requests that cannot be met.

WRONG: dict[str, tuple[tuple[str, ...], str]] = {
    "replay on disk": (("--set", "replay.storage=disk"), "replay.storage"),
    "a learner elsewhere without a cluster": (("--learner-resources", "GPU=1"), "--address"),
    "more shards than actors": (("--shards", "3"), "every shard has actors of its own"),
    "nobody at the address": (("--address", "127.0.0.1:1"), "cannot join the Ray cluster"),
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
        "actor={num: 2, envs: 2, chunk: 20}",
        "net.hidden=[8]",
        "replay={capacity: 1000, warmup: 64, samples_per_insert: 4, shards: 2}",
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


# A cluster of two nodes that is joined.


@pytest.fixture
def nodes(place: Place) -> Iterator[Nodes]:
    with two_nodes() as cluster:
        yield cluster


def test_a_run_on_two_nodes_goes_on_without_one_and_uses_a_new_one(nodes, place):
    """The cluster is there afterwards, without any of our actors."""
    settings = SMALL | {
        "run.env_steps": FOR_EVER,
        "replay.capacity": 600_000,
        "checkpoint.period": FOR_EVER,  # it waits for whoever is missing
        "cluster.token_path": nodes.token,
        "cluster.actors_per_node": 1,
    }
    run = place.train(
        *("corridor", "--mode", "async", "--engine", "ray", "--address", nodes.address),
        *("--run-dir", "run"),
        settings=settings,
    )

    def metrics() -> dict[str, float]:
        path = place.cwd / "run" / "metrics.jsonl"
        logged = record(place.cwd / "run", "logged") if path.exists() else []
        return logged[-1]["metrics"] if logged else {}

    def stations(count: int, restarts: int) -> bool:
        seen = metrics()
        return (seen.get("cluster/stations"), seen.get("cluster/restarts")) == (count, restarts)

    def goes_on() -> bool:
        steps = metrics()["train/n_updates"]
        return eventually(lambda: metrics()["train/n_updates"] > steps + 50, UP_S)

    assert eventually(lambda: stations(2, restarts=0), UP_S), run.said
    assert len(set(nodes.ask("where"))) == 2
    nodes.ask("remove")
    assert eventually(lambda: stations(2, restarts=1), UP_S), run.said
    assert len(set(nodes.ask("where"))) == 1
    assert goes_on()
    nodes.ask("add")
    assert eventually(lambda: stations(3, restarts=1), UP_S), run.said
    assert len(set(nodes.ask("where"))) == 2
    assert goes_on()

    stop(run, SIGTERM)

    assert eventually(lambda: nodes.ask("where") == [], GONE_S)
    assert nodes.ask("alive") == 2
