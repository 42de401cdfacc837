"""A process that writes a ring as fast as it can, and may be killed at any moment.

    python tests/support/ring_writer_process.py FD        # an inherited ring

For each line on standard input it forks a writer, prints its pid, waits until it has been killed
and prints how it ended. Everything in a row follows from the row's number, so that a reader can
tell whether a row is whole. Three environments take turns; an episode has five rows.
"""

import os
import signal
import sys

import numpy as np

from rookery.replay.fold import Chains
from rookery.replay.ring import Ring, schema_of
from rookery.types import ActionSpec, Array, End, EnvSpec, Leaf, LeafKind

LANES, LENGTH, STACK = 3, 5, 3
WIDTH = 48
SPEC = EnvSpec(
    "numbers", (Leaf("", (WIDTH,), "int64", LeafKind.DISCRETE),), ActionSpec(n=7), frame_stack=STACK
)
PIECE = 24  # rows written at once, at most
FINAL = np.array([End.TERMINATED, End.TRUNCATED])  # episodes end in turns


def rows(number: Array) -> dict[str, Array]:
    """Returns the columns of rows with these numbers."""
    turn = number // LANES
    last = turn % LENGTH == LENGTH - 1
    return {
        "obs": obs(number),
        "action": number % 7,
        "reward": reward(number),
        "end": np.where(last, FINAL[turn // LENGTH % 2], End.RUNNING),
        "env": number % LANES,
        "episode": turn // LENGTH,
        "t": turn % LENGTH,
        "version": number,
    }


def obs(number: Array) -> Array:
    """Returns one frame of each row: [*number.shape, WIDTH]."""
    return number[..., None] * 1000 + np.arange(WIDTH)


def reward(number: Array) -> Array:
    return (number % 97 - 48) / 8


def write_by_kernel(ring: Ring, chains: Chains, transport: Ring, count: int) -> None:
    """Writes as a pool does."""
    first = ring.reserved
    transport.append(rows(np.arange(first, first + count)))
    ring.drain_from(transport)
    chains.link(ring, first, count)


def write_by_column(ring: Ring, chains: Chains, transport: Ring, count: int) -> None:
    """Writes the same slowly, so that most kills come when a row is half there."""
    columns = rows(np.arange(ring.reserved, ring.reserved + count))
    first = ring.reserve(count)
    for name, column in ring.columns.items():
        for k, value in enumerate(columns.get(name, np.zeros(count))):
            column[(first + k) % ring.capacity] = value
    chains.link(ring, first, count)


WRITE = (write_by_kernel, write_by_column)


def write(fd: int, incarnation: int, until: int | None = None) -> None:
    """Takes the ring over and writes until it is killed."""
    ring, transport = Ring.from_fd(os.dup(fd)), Ring.create(schema_of(SPEC), 4 * PIECE)
    chains = Chains(LANES, LANES, window=3, stride=1, capacity=ring.capacity)
    ring.adopt()
    parent, count = os.getppid(), 0
    while os.getppid() == parent and (until is None or ring.committed < until):
        count = count % PIECE + 1
        WRITE[incarnation % 2](ring, chains, transport, count)


def main(fd: int) -> None:
    ring = Ring.from_fd(fd)
    for incarnation in (0, 1):  # compiled code is loaded before there is anybody to kill
        write(fd, incarnation, until=ring.committed + 1)
    for incarnation, _ in enumerate(sys.stdin):
        if (pid := os.fork()) == 0:
            write(fd, incarnation)
            os._exit(0)
        print(pid, flush=True)
        print(signal.Signals(-os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])).name, flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
