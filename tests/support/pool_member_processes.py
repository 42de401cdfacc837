"""A process that forks members of a pool, each of which lives until it is killed.

    python tests/support/pool_member_processes.py

One request on a line, in JSON: {"role": "write", "pool": path, "group": 0, ...}. The member
answers itself once it has joined: {"pid": ..., "buffer_id": ...}. With a group it is put into that
process group, 0 for one of its own.

Everything in a row follows from the row's number, so that a reader can tell whether it is whole.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from eventually import eventually
from pool_buffers import MOTION, SCHEMA, TERMS, fill
from rookery.replay.ring import Ring, paired_schema
from rookery.sharing.compatibility import terms_of
from rookery.sharing.registry import Registry, create_distributed_registry
from rookery.types import Array

WIDTH, PIECE, CAPACITY = 64, 7, 200
WIDE = paired_schema({"": ((WIDTH,), "float32")}, ((1,), "float32"))
WIDE_TERMS = terms_of(WIDE, MOTION, reward={"scale": 1.0, "clip": None, "tag": None})


def rows(number: Array) -> dict[str, Array]:
    """Returns the columns of rows with these numbers."""
    wide = np.repeat(number[:, None] % 10_000, WIDTH, axis=1)
    return {
        "obs": wide,
        "next_obs": wide + 0.5,
        "action": number[:, None] % 10_000,
        "reward": number % 1_000,
        "done": np.zeros(number.size),
        "timeout": np.zeros(number.size),
    }


def _write(registry: Registry, buffer_id: str | None, told: Callable[[str], None]) -> None:
    """Writes an id's ring so slowly that most deaths come when a row is half there."""
    buffer_id = buffer_id or registry.register_buffer(
        run_id=f"writer{os.getpid()}", algorithm="SAC"
    )
    ring = registry.attach(buffer_id, WIDE_TERMS, WIDE, CAPACITY)
    registry.claim(ring, buffer_id)
    told(buffer_id)
    parent = os.getppid()
    while os.getppid() == parent:
        _put_slowly(ring)
        ring.beat()


def _put_slowly(ring: Ring) -> None:
    columns = rows(np.arange(ring.reserved, ring.reserved + PIECE))
    first = ring.reserve(PIECE)
    for name, values in columns.items():
        for k, value in enumerate(values):
            ring.columns[name][(first + k) % ring.capacity] = value
    ring.commit()


def _hold(registry: Registry, buffer_id: str | None, told: Callable[[str], None]) -> None:
    """Lends some rows and does nothing more."""
    buffer_id = buffer_id or registry.register_buffer(
        run_id=f"holder{os.getpid()}", algorithm="SAC"
    )
    ring = registry.attach(buffer_id, TERMS, SCHEMA, 1000)
    registry.claim(ring, buffer_id)
    fill(ring, 100, 1.0)
    told(buffer_id)
    parent = os.getppid()
    while os.getppid() == parent:
        signal.sigtimedwait([], 1.0)


ROLES = {"write": _write, "hold": _hold}


def _become(request: dict[str, Any]) -> None:
    if "group" in request:
        os.setpgid(0, request["group"])
    registry = create_distributed_registry(path=request["pool"])

    def told(buffer_id: str) -> None:
        print(json.dumps({"pid": os.getpid(), "buffer_id": buffer_id}), flush=True)

    ROLES[request["role"]](registry, request.get("buffer_id"), told)


def main() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the dead are gone at once
    for line in sys.stdin:
        if os.fork() == 0:
            try:
                _become(json.loads(line))
            finally:
                os._exit(1)


class Peer(NamedTuple):
    """A member of a pool, in a process of its own."""

    pid: int
    buffer_id: str

    def kill(self) -> None:
        """Kills it, and waits until the kernel has let go of all it held."""
        os.kill(self.pid, signal.SIGKILL)
        self.wait()

    def wait(self) -> None:
        assert eventually(lambda: not Path(f"/proc/{self.pid}").exists(), 10.0)


class Sharers:
    """Starts members of pools."""

    def __init__(self, process: "subprocess.Popen[str]"):
        self._process = process

    def start(self, role: str, pool: Path, **request: Any) -> Peer:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        line = json.dumps({"role": role, "pool": str(pool), **request})
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return Peer(**json.loads(self._process.stdout.readline()))


@contextmanager
def sharers() -> Iterator[Sharers]:
    with subprocess.Popen(
        [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield Sharers(process)
        finally:
            process.kill()  # members end when it is gone


if __name__ == "__main__":
    main()
