"""A flock: several runs at once, each a command of its own that ends with us.

    with Flock(jobs) as flock:
        while flock.busy:
            for member in flock.look(): ...        # those that have ended since
        flock.stop(signal.SIGINT)

Needs no torch: everything that is known of a run is in its folder.
"""

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from rookery.errors import LostError
from rookery.report.follow import Follower
from rookery.report.standings import Standing, State

LOG = "log.txt"  # in each run folder: all that the run has printed
SHOWN = 40  # of its last lines, where it failed
GRACE_S = 7.5  # from asking the members to end to killing them
END_S = 1.0  # for the kernel to do that
SIGNALLED = tuple(s for n in (signal.SIGINT, signal.SIGTERM) for s in (128 + n, -n))


class Job(NamedTuple):
    """One run to start."""

    name: str
    scenario: str
    seed: int
    gpu: int | None
    run_dir: Path
    env_steps: int
    shares: bool
    command: tuple[str, ...]


class Member:
    """A run on its way, watched from outside. `leash` is to be its standard input."""

    def __init__(self, job: Job, leash: int):
        self.job, self.log = job, job.run_dir / LOG
        self.standing = Standing(job.name, job.seed, job.env_steps, job.shares)
        self.ended = False  # has that been told?
        self._record = Follower(job.run_dir)
        self._process = _start(job.command, self.log, leash)

    @property
    def exit_code(self) -> int | None:
        return self._process.poll()

    @property
    def failed(self) -> bool:
        return self.exit_code not in (None, 0, *SIGNALLED)

    def look(self) -> None:
        """Brings its standing up to date."""
        code = self.exit_code  # first: what it wrote before its end is then there
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
        """Returns the last JSON object that it printed; nothing where it did not get so far."""
        for line in reversed(tail(self.log, SHOWN)):
            with contextlib.suppress(ValueError):
                answer = json.loads(line)
                if isinstance(answer, dict):
                    return answer
        return {}

    def send(self, number: int) -> None:
        """Signals it and what is in its group, unless it is over."""
        if self.exit_code is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    def wait(self, timeout_s: float) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(max(0.0, timeout_s))


class Flock:
    """All members. Leaving it ends those that are still there.

    They read from a pipe that nobody writes to and only we hold open: it ends when we do.
    """

    def __init__(self, jobs: Sequence[Job]):
        self._jobs = jobs
        self._hold = -1
        self.members: list[Member] = []

    def __enter__(self) -> "Flock":
        leash, self._hold = os.pipe()
        try:
            for job in self._jobs:
                self.members.append(Member(job, leash))
        except OSError as error:
            self._kill()
            os.close(self._hold)
            raise LostError(
                f"run {len(self.members) + 1} of {len(self._jobs)} could not be started: {error}; "
                "start fewer with --n-parallel"
            ) from error
        finally:
            os.close(leash)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.busy:
            self.stop(signal.SIGTERM)
        os.close(self._hold)

    @property
    def busy(self) -> bool:
        return any(member.exit_code is None for member in self.members)

    @property
    def standings(self) -> list[Standing]:
        return [member.standing for member in self.members]

    def look(self) -> list[Member]:
        """Brings all standings up to date; returns the members that have ended since."""
        ended = []
        for member in self.members:
            if not member.ended:
                member.look()
                member.ended = member.exit_code is not None
                ended += [member] if member.ended else []
        return ended

    def stop(self, number: int) -> None:
        """Asks all to end, and kills those that have not in time."""
        deadline = time.monotonic() + GRACE_S
        for member in self.members:
            member.send(number)
        for member in self.members:
            member.wait(deadline - time.monotonic())
        self._kill()

    def _kill(self) -> None:
        for member in self.members:
            member.send(signal.SIGKILL)
        for member in self.members:
            member.wait(END_S)


def tail(path: Path, lines: int) -> list[str]:
    """Returns the last lines of a file that may be large."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - lines * 1_000))
            return file.read().decode("utf-8", "replace").splitlines()[-lines:]
    except FileNotFoundError:
        return []


def _start(command: Sequence[str], log: Path, leash: int) -> "subprocess.Popen[bytes]":
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        return subprocess.Popen(
            command,
            stdin=leash,
            stdout=output,
            stderr=subprocess.STDOUT,
            process_group=0,  # Ctrl+C reaches it through us, once
        )
