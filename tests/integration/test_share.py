"""`rookery share` with real runs: what they share, what a failed one leaves, and how all end."""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from signal import SIGINT, SIGKILL

import pytest

from eventually import eventually
from rookery.config.load import load_run
from run_processes import SMALL, CommandForker, clock, members, record, words

START_S = 120.0  # for two runs to import torch on a busy machine, and to find each other
LONG = SMALL | {"run.env_steps": 10_000_000, "eval.period": 1_000_000}
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
FAILING = """\
name: failing
env: {id: "misbehaving_envs:Moody", kwargs: {at: 50, mood: raise}}
run: {env_steps: 4_000}
replay: {capacity: 2_000, learning_starts: 200}
"""


class Launched:
    """A launcher in a session of its own, as from a terminal."""

    def __init__(self, forker: CommandForker, argv: Sequence[str], cwd: Path):
        self.cwd = cwd
        self.process = forker.start(["share", "--json", "--run-dir", "runs", *argv], cwd)

    def wait(self, within_s: float = START_S) -> tuple[int, str]:
        """Returns the exit code and what it printed."""
        return self.process.wait(within_s), self.process.stdout.read_text()

    @property
    def complaints(self) -> str:
        return self.process.stderr.read_text()

    def shares(self, *names: str) -> bool:
        """Do all these runs learn from each other? Whatever is compiled is compiled then."""
        if self.process.poll() is not None:
            raise AssertionError(self.complaints)
        return all(borrowed(self.cwd / "runs" / name) for name in names)

    @property
    def over(self) -> bool:
        """Is nothing of it left?"""
        return not members(self.process.pid)


def borrowed(run_dir: Path) -> bool:
    path = run_dir / "metrics.jsonl"
    logged = record(run_dir, "logged") if path.exists() else []
    return any(entry["metrics"].get("sharing/foreign_rows", 0) > 0 for entry in logged)


def pools(cwd: Path) -> set[Path]:
    """Where the runs were told to share; others may be passing by in shared memory."""
    told = [load_run(path.parent).sharing.pool for path in cwd.glob("runs/*/config.yaml")]
    return {Path(pool) for pool in told if pool is not None}


@pytest.fixture
def share(_forker: CommandForker, tmp_path: Path) -> Iterator[Callable[..., Launched]]:
    """Starts launchers; nothing of them outlives the test, or is left in shared memory."""
    started: list[Launched] = []

    def start(*argv: str) -> Launched:
        started.append(Launched(_forker, argv, tmp_path))
        return started[-1]

    yield start
    left = [one for one in started if not eventually(lambda one=one: one.over, 10.0)]
    _forker.end_all()
    assert not left
    assert not any(pool.exists() for pool in pools(tmp_path))


def test_runs_learn_from_each_other_and_the_pool_is_gone_afterwards(share, tmp_path):
    launched = share("--scenario", "corridor", "--n-parallel", "2", *words(SMALL))

    code, out = launched.wait()

    assert code == 0, launched.complaints
    assert len(pools(tmp_path)) == 1
    *table, last = out.splitlines()
    assert any("corridor-seed43" in line and "done" in line for line in table)
    first, second = json.loads(last)["runs"]
    for run, seed in ((first, 42), (second, 43)):
        assert (run["seed"], run["exit_code"], run["shares"]) == (seed, 0, True)
        assert run["reason"] == "env_steps"
        assert Path(tmp_path / run["log"]).read_text().splitlines()[-1].startswith("{")
    assert first["weights_sha256"] != second["weights_sha256"]
    assert max(first["foreign_share"], second["foreign_share"]) > 0.05  # one may have been early
    assert "runs have" in launched.complaints  # few episodes: said when it is known


def test_a_failed_run_shows_its_last_lines_and_the_others_go_on(share, tmp_path):
    (tmp_path / "failing.yaml").write_text(FAILING)
    small = {key: value for key, value in SMALL.items() if key != "run.env_steps"}

    launched = share(
        "--scenarios", "corridor", "failing.yaml", "--strategy", "local_only", *words(small)
    )

    code, out = launched.wait()
    assert code == 3, launched.complaints
    good, bad = json.loads(out.splitlines()[-1])["runs"]
    assert (good["exit_code"], good["reason"]) == (0, "env_steps")
    assert bad["exit_code"] == 3
    assert "failing-seed43 failed with exit code 3; its last lines (runs/failing-seed43/" in out
    assert "rookery: error: misbehaving_envs:Moody" in out
    assert "weights_sha256" not in bad


def test_ctrl_c_ends_all_runs_in_time_and_leaves_nothing(share, tmp_path):
    launched = share("--scenario", "corridor", "--n-parallel", "2", *words(LONG))
    names = ("corridor-seed42", "corridor-seed43")
    assert eventually(lambda: launched.shares(*names), START_S), launched.complaints

    began = clock()
    os.kill(launched.process.pid, SIGINT)
    code, out = launched.wait()

    assert code == 130
    assert clock() - began < 10.0
    assert launched.over
    for name in names:
        (stopped,) = record(tmp_path / "runs" / name, "stopped")  # each ended by itself
        assert stopped["reason"] == "interrupted"
    codes = {run["exit_code"] for run in json.loads(out.splitlines()[-1])["runs"]}
    assert codes <= {130, -SIGKILL}  # on a busy machine it may be killed after its last word


def test_when_the_launcher_is_killed_its_runs_end_too(share):
    """By themselves, and out of the pool: the last one removes it."""
    launched = share("--scenario", "corridor", "--n-parallel", "2", *words(LONG))
    names = ("corridor-seed42", "corridor-seed43")
    assert eventually(lambda: launched.shares(*names), START_S), launched.complaints

    launched.process.send(SIGKILL)

    assert launched.wait()[0] == -SIGKILL
    assert eventually(lambda: launched.over, 10.0)
