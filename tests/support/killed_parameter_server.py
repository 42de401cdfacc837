"""A parameter server that is pushed to and may be killed at any moment.

    python killed_parameter_server.py FOLDER MODE          # MODE: asynchronous or synchronous
    python killed_parameter_server.py FOLDER MODE fused    # dies by itself, at each of its calls

Push n of a worker is the same vector in every life, with the id n. Each line `LIFE N N N` on
standard input begins a life, from those numbers of the three workers: `born PID`, then `seen
VERSION` once it has recovered, and `ack WORKER NUMBER VERSION` after each acknowledgement, until it
is killed: `dead`. The second way prints JSON: for every n, what was found after a death at the n-th
request to the kernel.
"""

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from rookery.server.parameter_server import ParameterServer
from rookery.types import Array

WORKERS = ("a", "b", "c")
SIZES = {"w": 1_000, "b": 3}
SETTINGS: dict[str, dict[str, Any]] = {
    "asynchronous": {"update_frequency": 2, "staleness": "keep"},
    "synchronous": {"synchronous": True, "deadline_s": 1e6},
}
CALLS = ("pwrite", "fdatasync", "fsync", "replace", "unlink", "ftruncate", "open")
DIED = 9


def start(life: int) -> dict[str, Array]:
    """Parameters that nobody must see but those of the first life, 0."""
    return {name: np.full(size, 100.0 * life, np.float32) for name, size in SIZES.items()}


def update(worker: str, number: int) -> dict[str, Array]:
    """Small whole numbers: sums of them are exact in any order."""
    rng = np.random.default_rng([WORKERS.index(worker), number])
    return {name: rng.integers(-8, 9, n).astype(np.float32) for name, n in SIZES.items()}


def serve(folder: Path, mode: str, life: int) -> ParameterServer:
    settings = {"save_frequency": 3, "checkpoint_path": folder, "lr": 1.0, **SETTINGS[mode]}
    return ParameterServer(start(life), "sum", **settings)


def truth(numbers: dict[str, list[int]]) -> dict[str, Array]:
    """Returns the parameters after these pushes, each applied once."""
    found = start(0)
    for worker, pushed in numbers.items():
        for number in pushed:
            for name, array in update(worker, number).items():
                found[name] -= array
    return found


def settled(server: ParameterServer) -> dict[str, Array]:
    """Returns the parameters as they will be with what is pending."""
    parameters, pending = server.get_parameters(), server.aggregate_gradients()
    assert parameters is not None
    if pending is None:
        return parameters.arrays
    return {name: array - pending[name] for name, array in parameters.arrays.items()}


def say(line: str) -> None:
    """Writes a line at once: `print` may be killed between its parts where output is unbuffered."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def live(folder: Path, mode: str, life: int, numbers: dict[str, int], parent: int) -> None:
    server = serve(folder, mode, life)
    say(f"seen {server.version}")
    for worker in WORKERS:
        server.register_worker(worker)
    while os.getppid() == parent:  # nobody may be left pushing after a killed parent
        for worker in WORKERS:
            number = numbers[worker]
            receipt = server.push_gradients(worker, update(worker, number), push_id=str(number))
            if receipt.accepted:
                say(f"ack {worker} {number} {receipt.version}")
                numbers[worker] += 1


def lives(folder: Path, mode: str) -> None:
    """Lets one process after another live, each a fork: imports take longer than lives do."""
    fill(folder.with_name("warm"), mode, 1)  # an optimizer's first step imports too
    parent = os.getpid()
    for line in sys.stdin:
        life, *numbers = map(int, line.split())
        pid = os.fork()
        if pid == 0:
            live(folder, mode, life, dict(zip(WORKERS, numbers, strict=True)), parent)
            os._exit(0)
        say(f"born {pid}")
        os.waitpid(pid, 0)
        say("dead")


class Fuse:
    """Counts requests to the kernel; the last one is not made."""

    def __init__(self, calls: int):
        self.left = calls
        for name in CALLS:
            setattr(os, name, self.around(getattr(os, name)))
        write = os.pwrite
        os.pwrite = lambda fd, data, at: write(fd, data[: max(999, len(data) // 2)], at)

    def around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def fused(*given: Any, **more: Any) -> Any:
            if self.left == 0:
                os._exit(DIED)
            self.left -= 1
            return call(*given, **more)

        return fused


def fused(folder: Path, mode: str) -> None:
    """Nine pushes from one base, killed at the n-th request, for every n."""
    base, copy = folder / "base", folder / "copy"
    os.fsync = os.fdatasync = lambda fd: None  # a kill takes nothing from the kernel
    fill(base, mode, 4)
    for calls in range(10_000):
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(base, copy)
        status, acks = _short_life(copy, mode, calls)
        print(json.dumps({"status": status, "acks": acks, **_found(copy, mode)}), flush=True)
        if status == 0:
            return


def fill(folder: Path, mode: str, count: int) -> None:
    """Pushes so many updates of each worker to a first server."""
    server = serve(folder, mode, 0)
    for worker in WORKERS:
        server.register_worker(worker)
    for number in range(count):
        for worker in WORKERS:
            server.push_gradients(worker, update(worker, number), push_id=str(number))
    server.close()


def _short_life(folder: Path, mode: str, calls: int) -> tuple[int, list[list[Any]]]:
    reads, writes = os.pipe()
    pid = os.fork()
    if pid == 0:
        Fuse(calls)
        server = serve(folder, mode, 1)
        for number in range(4, 7):
            for worker in WORKERS:
                receipt = server.push_gradients(worker, update(worker, number), push_id=str(number))
                os.write(writes, f"{worker} {number} {receipt.version}\n".encode())
        os._exit(0)
    os.close(writes)
    with os.fdopen(reads) as pipe:
        acks = [[w, int(n), int(v)] for w, n, v in map(str.split, pipe)]
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), acks


def _found(folder: Path, mode: str) -> dict[str, Any]:
    """Says which pushes the next server has, and whether its parameters are those of them."""
    server = serve(folder, mode, 2)
    version = server.version
    has = {
        worker: [n for n in range(7) if str(n) in known.applied]
        for worker, known in server._machine.roster.workers.items()
    }
    expected, found = truth(has), settled(server)
    right = all(np.array_equal(expected[name], found[name]) for name in SIZES)
    left = sorted(path.name for path in folder.iterdir())
    server.close()
    return {"version": version, "has": has, "right": right, "left": left}


if __name__ == "__main__":
    (fused if sys.argv[3:] else lives)(Path(sys.argv[1]), sys.argv[2])
