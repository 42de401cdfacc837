"""A privacy ledger that is killed at each of its requests to the kernel, alone or under a server.

    python tests/support/killed_ledger.py FOLDER alone     # rounds are charged and shown
    python tests/support/killed_ledger.py FOLDER served    # by a private server, to two clients

Prints one line of JSON for every n: what was shown before a kill -9 at the n-th request, what a
power cut at those moments would have left of the ledger, and what the next one to open it finds.
The last life ends by itself.
"""

import hashlib
import io
import json
import os
import shutil
import signal
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from rookery.server.federated import FederatedParameterServer
from rookery.server.privacy.privacy_budget import Ledger

BEFORE, LIFE = 2, 3  # rounds of the first owner, and of the one that is killed
CALLS = ("open", "fsync", "fdatasync", "replace", "pwrite", "unlink", "ftruncate", "mkdir")
NAME = "ledger.json"


class Disk:
    """What a power cut would leave: contents that were synced, under names that were."""

    def __init__(self, path: Path):
        self._path, self._synced = path, dict[int, bytes]()
        self._left = path.read_bytes()

    def sync(self, fd: int) -> None:
        """Stands in for fsync, and remembers it."""
        synced = os.fstat(fd)
        if synced.st_ino == self._path.parent.stat().st_ino:
            self._left = self._synced.get(self._path.stat().st_ino, self._left)
        elif not stat.S_ISDIR(synced.st_mode):  # a server has a folder of its own beside it
            self._synced[synced.st_ino] = Path(f"/proc/self/fd/{fd}").read_bytes()

    @property
    def rounds(self) -> int:
        return sum(rounds for *_, rounds in json.loads(self._left)["spent"])


class Fuse:
    """Lets so many requests through; the next one is the death of the process."""

    def __init__(self, calls: int, disk: Disk):
        self._left = calls
        os.fsync = os.fdatasync = disk.sync
        for name in CALLS:
            setattr(os, name, self._around(getattr(os, name)))
        self._write = self._around(lambda file, data: io.FileIO.write(file, data))
        os.fdopen = self._open

    def _around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def fused(*given: Any, **more: Any) -> Any:
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            self._left -= 1
            return call(*given, **more)

        return fused

    def _open(self, fd: int, mode: str) -> io.BufferedWriter:
        write = self._write

        class Halting(io.FileIO):
            """Takes half of what it is given, as a kernel may."""

            def write(self, data: Any) -> int:
                return int(write(self, bytes(data)[: max(1, len(data) // 2)]))

        return io.BufferedWriter(Halting(fd, mode))


def owned(folder: Path) -> Ledger:
    return Ledger(50.0, 1e-3, noise_multiplier=1.0, sample_rate=1.0, clients=2, path=folder / NAME)


def alone(folder: Path, rounds: int) -> Iterator[list[Any]]:
    """Yields what is shown of each round: its number, from 1 on."""
    book = owned(folder)
    for _ in range(rounds):
        book.charge()
        yield [book.rounds, ""]
    book.close()


def served(folder: Path, rounds: int) -> Iterator[list[Any]]:
    """The same, by a server; a version, and what was seen under it."""
    server = FederatedParameterServer(
        {"w": np.zeros(50, np.float32)},
        differential_privacy=True,
        ledger=owned(folder),
        save_frequency=2,
        checkpoint_path=folder / "served",
    )
    yield _shown(server)
    for worker in ("a", "b"):
        server.register_worker(worker)
    until = server.version + rounds
    while server.version < until:
        for worker in ("a", "b"):
            server.push_gradients(worker, {"w": np.ones(50, np.float32)})
        yield _shown(server)
    assert server.ledger is not None
    server.ledger.close()
    server.close()


def _shown(server: FederatedParameterServer) -> list[Any]:
    parameters = server.get_parameters()
    assert parameters is not None
    return [parameters.version, hashlib.sha256(parameters.arrays["w"].tobytes()).hexdigest()]


WAYS: dict[str, Callable[[Path, int], Iterator[list[Any]]]] = {"alone": alone, "served": served}


def short_life(folder: Path, way: str, calls: int) -> tuple[int, list[list[Any]]]:
    """Returns how a life ended, and [version, what it looked like, rounds on the disk] by then."""
    reads, writes = os.pipe()
    pid = os.fork()
    if pid == 0:
        disk = Disk(folder / NAME)
        Fuse(calls, disk)
        for shown in WAYS[way](folder, LIFE):
            os.write(writes, (json.dumps([*shown, disk.rounds]) + "\n").encode())
        os._exit(0)
    os.close(writes)
    with os.fdopen(reads) as pipe:
        heard = [json.loads(line) for line in pipe]
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), heard


def found(folder: Path, way: str) -> dict[str, Any]:
    """Says what the next owner finds, before and after a round of its own."""
    with_names = sorted(path.name for path in folder.iterdir())
    book = owned(folder)
    rounds = book.rounds
    book.close()
    shown = list(WAYS[way](folder, 1))
    book = owned(folder)
    after = book.rounds
    book.close()
    return {"rounds": rounds, "first": shown[0], "after": after, "left": with_names}


def main(folder: Path, way: str) -> None:
    base, copy = folder / "base", folder / "copy"
    os.fsync = os.fdatasync = lambda fd: None  # a kill takes nothing from the kernel
    list(WAYS[way](base, BEFORE))
    for calls in range(10_000):
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(base, copy)
        status, shown = short_life(copy, way, calls)
        print(json.dumps({"status": status, "shown": shown, **found(copy, way)}), flush=True)
        if status == 0:
            return


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
