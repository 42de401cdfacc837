"""Runs as real processes: started, watched, killed, and looked after when a test is over."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from eventually import eventually

SUPPORT = Path(__file__).parent
TREE = SUPPORT.parents[1]
SHM = Path("/dev/shm")
ALONE = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
PATIENCE_S = 60.0  # for a run of a few seconds on a busy machine

# A corridor that never stops early and saves often; every part that has state is in use.
SMALL: dict[str, Any] = {
    "run.env_steps": 4_000,
    "eval.target": "null",
    "eval.period": 1_000,
    "eval.episodes": 4,
    "checkpoint.period": 1_000,
    "replay.capacity": 2_000,
    "replay.samples_per_insert": 4.0,
    "report.tensorboard": "false",
    "report.log_period": 500,
}


def words(settings: Mapping[str, Any]) -> list[str]:
    """Returns settings as `--set` takes them."""
    return [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]


@dataclass
class Started:
    """A command on its way, the leader of its own session."""

    pid: int
    cwd: Path
    stdout: Path
    stderr: Path
    forker: "CommandForker"
    status: int | None = None

    def poll(self) -> int | None:
        if self.status is None:
            self.status = self.forker.ask({"poll": self.pid})
        return self.status

    def wait(self, within_s: float = PATIENCE_S) -> int:
        """Returns the exit status, negative where a signal ended it."""
        if not eventually(lambda: self.poll() is not None, within_s, every_s=0.01):
            self.send(signal.SIGUSR1)
            eventually(lambda: "most recent call first" in self.said, 1.0)
            raise AssertionError(f"still there after {within_s} s: {self.said}")
        assert self.status is not None
        return self.status

    def send(self, number: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill_all(self) -> None:
        """Kills every process of the session, group by group."""
        for group in {os.getpgid(pid) for pid in members(self.pid)} | {self.pid}:
            try:
                os.killpg(group, signal.SIGKILL)
            except ProcessLookupError:
                continue

    @property
    def said(self) -> str:
        return self.stdout.read_text() + self.stderr.read_text()

    @property
    def answer(self) -> dict[str, Any]:
        """The JSON object on the last line of its output."""
        answer: dict[str, Any] = json.loads(self.stdout.read_text().splitlines()[-1])
        return answer


class CommandForker:
    """Starts commands without their seconds of imports, and ends all of them with the test."""

    def __init__(self) -> None:
        path = os.pathsep.join([str(SUPPORT), *filter(None, [os.environ.get("PYTHONPATH")])])
        self._process = subprocess.Popen(
            [sys.executable, str(SUPPORT / "command_forker.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": path, **ALONE},
            start_new_session=True,
        )
        self._started: list[Started] = []

    def ask(self, request: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def start(
        self,
        argv: Sequence[str],
        cwd: Path,
        env: Mapping[str, str] | None = None,
        *,
        script: str | None = None,
        path: Path | None = None,
        bare: bool = False,
        said: Path | None = None,
    ) -> Started:
        """Starts `rookery argv...`, or a script, in a session of its own.

        `bare`: see command_forker.py. `said`: a file for both streams, as they come.
        """
        number = len(list(cwd.glob("*.stdout"))) if said is None else 0
        stdout, stderr = said or cwd / f"{number}.stdout", said or cwd / f"{number}.stderr"
        request = {
            "start": list(argv),
            "cwd": str(cwd),
            "env": dict(env or {}),
            "script": script,
            "path": None if path is None else str(path),
            "bare": bare,
            "stdout": str(stdout),
            "stderr": str(stderr),
        }
        stdout.touch()  # whoever looks is not earlier than the command
        stderr.touch()
        started = Started(self.ask(request), cwd, stdout, stderr, self)
        self._started.append(started)
        return started

    def end_all(self) -> None:
        """Kills what a test has left, whatever state it is in."""
        for started in self._started:
            if started.poll() is None or members(started.pid):
                started.kill_all()
                started.wait(10.0)
        self._started.clear()

    def close(self) -> None:
        self.end_all()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(10.0)
        self._process.stdout.close()


@cache
def warm() -> CommandForker:
    """Returns the one forker of this process, which it makes at the first call."""
    return CommandForker()


def members(session: int) -> list[int]:
    """Returns the living processes of a session, zombies left out."""
    return [pid for pid, state, owner in _processes() if owner == session and state not in "ZX"]


def named(session: int, name: str) -> int | None:
    """Returns the process of a session with this name, as `ps` shows it."""
    for pid in members(session):
        try:
            if Path(f"/proc/{pid}/comm").read_text().strip() == name:
                return pid
        except OSError:
            continue
    return None


def _processes() -> Iterator[tuple[int, str, int]]:
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                fields = Path(f"/proc/{entry}/stat").read_text(errors="replace").rpartition(")")[2]
            except OSError:
                continue
            state, _, _, session = fields.split()[:4]
            yield int(entry), state, int(session)


def shared() -> set[str]:
    """Returns what has a name in shared memory, except the folder that holds a user's pools."""
    pools = SHM / f"rookery-{os.getuid()}"
    return {str(path) for path in SHM.rglob("*") if path != pools}


def nothing_new(before: set[str]) -> bool:
    """Is nothing in shared memory that was not there before? Others may be passing by."""
    return eventually(lambda: shared() <= before, 5.0)


def record(run_dir: Path, event: str) -> list[dict[str, Any]]:
    """Returns the lines of metrics.jsonl of one kind."""
    text = (run_dir / "metrics.jsonl").read_text()
    entries = [json.loads(line) for line in text.splitlines() if line.endswith("}")]
    return [entry for entry in entries if entry["event"] == event]


def reached(run_dir: Path, env_steps: int) -> bool:
    """Has the run written a log line from this env step on?"""
    path = run_dir / "metrics.jsonl"
    return path.exists() and any(e["env_steps"] >= env_steps for e in record(run_dir, "logged"))


def settled(session: int, within_s: float = 5.0) -> bool:
    """Are all processes of a session gone in time?"""
    return eventually(lambda: not members(session), within_s)


def clock() -> float:
    return time.monotonic()
