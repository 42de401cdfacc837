"""Rookery's board: from the start of `publish` to a verified copy in a polling process.

    python benchmarks/weights/rookery_board.py --seconds 2

1 MB of weights in four arrays; the reader is a process of its own that looks again at once. Both
sides read the system's monotonic clock. The last line on stdout is
`{"value": median ms, "p99", "worst", "publications"}`.
"""

import argparse
import json
import os
import subprocess
import sys
import time

import numpy as np

from rookery.learner.weight_store import WeightStore

LAYERS = {f"layer{k}": np.zeros((256, 256), dtype=np.float32) for k in range(4)}
PAUSE_S = 0.002  # between two publications, so that each finds the reader polling


def read(fd: int) -> None:
    """Answers every new version with its number and the time at which the copy was verified."""
    board, version, parent = WeightStore(LAYERS, fd=fd), 0, os.getppid()
    while os.getppid() == parent:  # nobody may be left polling after a killed parent
        if (weights := board.latest(version)) is None:
            continue
        seen_ns, version = time.monotonic_ns(), weights.version
        if not all((array == version).all() for array in weights.arrays.values()):
            sys.exit(f"version {version} arrived torn")
        print(version, seen_ns, flush=True)


def publish(board: WeightStore, reader: "subprocess.Popen[str]", version: int) -> float:
    """Returns the milliseconds that one version took to arrive."""
    arrays = {name: np.full_like(array, version) for name, array in LAYERS.items()}
    time.sleep(PAUSE_S)
    begun_ns = time.monotonic_ns()
    board.publish(arrays)
    seen, _, seen_ns = reader.stdout.readline().partition(" ")
    if seen != str(version):
        sys.exit(f"the reader answered {seen!r} where version {version} was published")
    return (int(seen_ns) - begun_ns) / 1e6


def measure(seconds: float) -> list[float]:
    board = WeightStore(LAYERS)
    command = [sys.executable, __file__, "--reader", str(board.fd)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, pass_fds=(board.fd,)
    ) as reader:
        try:
            first = [publish(board, reader, version) for version in range(1, 11)]
            found, until = [], time.monotonic() + seconds
            while time.monotonic() < until:
                found.append(publish(board, reader, len(first) + len(found) + 1))
        finally:
            reader.kill()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, help="ignored: nothing here is random")
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--reader", type=int, metavar="FD", help="polls the board behind FD")
    args = parser.parse_args()
    if args.reader is not None:
        read(args.reader)
        return
    found = measure(args.seconds)
    middle, late = np.percentile(found, [50, 99])
    answer = {"value": middle, "p99": late, "worst": max(found), "publications": len(found)}
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
