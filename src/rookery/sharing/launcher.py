"""Starts several training runs at once, each as a process that ends when the launcher ends.

    with RunLauncher(jobs) as launcher:
        while launcher.busy:
            for run in launcher.poll(): ...        # runs that have ended since the last poll
        launcher.stop(signal.SIGINT)

The launcher process reads the state of a run from files in the run's folder. It does not import
torch.
"""

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rookery.errors import LostError
from rookery.report.console.runs_table import Standing, State
from rookery.report.trackers.jsonl import Follower

LOG = "log.txt"  # file in each run folder with the output of the run
SHOWN = 40  # last lines of the log to show for a failed run
GRACE_S = 7.5  # seconds between the signal to stop and the kill
END_S = 1.0  # seconds to wait for killed processes
SIGNALLED = tuple(s for n in (signal.SIGINT, signal.SIGTERM) for s in (128 + n, -n))


class Job(NamedTuple):
    """One training run to start: its name, seed, GPU, run folder and command line."""

    name: str
    scenario: str
    seed: int
    gpu: int | None
    run_dir: Path
    env_steps: int
    shares: bool
    command: tuple[str, ...]


class LaunchedRun:
    """A training run in a process of its own, observed through its run folder and exit code.

    `stdin_fd` becomes the standard input of the process.
    """

    def __init__(self, job: Job, stdin_fd: int):
        self.job, self.log = job, job.run_dir / LOG
        self.standing = Standing(job.name, job.seed, job.env_steps, job.shares)
        self.ended = False  # has `RunLauncher.poll` reported its end?
        self._record = Follower(job.run_dir)
        self._process = _start(job.command, self.log, stdin_fd)

    @property
    def exit_code(self) -> int | None:
        return self._process.poll()

    @property
    def failed(self) -> bool:
        return self.exit_code not in (None, 0, *SIGNALLED)

    def poll(self) -> None:
        """Reads new metrics from the run's folder, and its exit code if the run has ended.

        Updates `standing`, which holds the env steps played so far and the state of the run.
        """
        code = self.exit_code  # read first, so that the folder is complete if the run has ended
        for entry in self._record.fresh():
            self.standing.observe(entry)
        if code is not None:
            self.standing.state = self._end(code)

    def _end(self, code: int) -> State:
        if code != 0:
            return State.STOPPED if code in SIGNALLED else State.FAILED
        return State.SOLVED if self.answer.get("solved") else State.DONE

    @property
    def answer(self) -> dict[str, Any]:
        """The result that the run has printed: the last JSON object in the last lines of its log.

        Empty if these lines hold no JSON object.
        """
        for line in reversed(tail(self.log, SHOWN)):
            with contextlib.suppress(ValueError):
                answer = json.loads(line)
                if isinstance(answer, dict):
                    return answer
        return {}

    def send(self, number: int) -> None:
        """Sends a signal to the run's process group, unless the run has ended."""
        if self.exit_code is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    def wait(self, timeout_s: float) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(max(0.0, timeout_s))


class RunLauncher:
    """Context manager that starts training runs as processes, and stops them when it is left.

    The runs' standard input is a pipe that only this process holds open, so that the runs also end
    if this process is killed.
    """

    def __init__(self, jobs: Sequence[Job]):
        self._jobs = jobs
        self._pipe_fd = -1
        self.runs: list[LaunchedRun] = []

    def __enter__(self) -> "RunLauncher":
        stdin_fd, self._pipe_fd = os.pipe()
        try:
            for job in self._jobs:
                self.runs.append(LaunchedRun(job, stdin_fd))
        except OSError as error:
            self._kill()
            os.close(self._pipe_fd)
            raise LostError(
                f"run {len(self.runs) + 1} of {len(self._jobs)} could not be started: {error}; "
                "start fewer with --n-parallel"
            ) from error
        finally:
            os.close(stdin_fd)
        return self

    def __exit__(self, *error: object) -> None:
        if self.busy:
            self.stop(signal.SIGTERM)
        os.close(self._pipe_fd)

    @property
    def busy(self) -> bool:
        return any(run.exit_code is None for run in self.runs)

    @property
    def standings(self) -> list[Standing]:
        return [run.standing for run in self.runs]

    def poll(self) -> list[LaunchedRun]:
        """Reads the new metrics of all runs; returns the runs that ended since the last call."""
        ended = []
        for run in self.runs:
            if not run.ended:
                run.poll()
                run.ended = run.exit_code is not None
                ended += [run] if run.ended else []
        return ended

    def stop(self, number: int) -> None:
        """Sends all runs the signal `number`; kills those still running `GRACE_S` seconds later."""
        deadline = time.monotonic() + GRACE_S
        for run in self.runs:
            run.send(number)
        for run in self.runs:
            run.wait(deadline - time.monotonic())
        self._kill()

    def _kill(self) -> None:
        for run in self.runs:
            run.send(signal.SIGKILL)
        for run in self.runs:
            run.wait(END_S)


def tail(path: Path, lines: int) -> list[str]:
    """Returns the last lines of a file that may be large; an empty list if there is no file."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - lines * 1_000))
            return file.read().decode("utf-8", "replace").splitlines()[-lines:]
    except FileNotFoundError:
        return []


def _start(command: Sequence[str], log: Path, stdin_fd: int) -> "subprocess.Popen[bytes]":
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        return subprocess.Popen(
            command,
            stdin=stdin_fd,
            stdout=output,
            stderr=subprocess.STDOUT,
            process_group=0,  # Ctrl+C then reaches the run once, from the launcher
        )
