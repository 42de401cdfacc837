"""What the machine itself has to give: actors that share nothing, each in a process of its own.

    python benchmarks/collect/rookery_apart.py --processes 2

Every process runs the loop of `rookery_actor.py` with its own replay. All have warmed up before
any clock starts, and their clocks start together. The last line on stdout is
`{"value": env steps per second, of all processes together}`.
"""

import argparse
import json
import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from threading import Barrier

from rookery_actor import collect

WARMUP_S = 0.5
START_S = 120.0
_gate: Barrier  # a process is handed it once, when it starts: it cannot be sent with its work


def stand_at(gate: Barrier) -> None:
    global _gate
    _gate = gate


def rate(seed: int, seconds: float) -> float:
    """Returns env steps per second of one process, from when all are ready."""
    work = collect(seed)
    deadline = time.perf_counter() + WARMUP_S
    while time.perf_counter() < deadline:
        work()
    _gate.wait(START_S)
    steps, began = 0, time.perf_counter()
    while (spent := time.perf_counter() - began) < seconds:
        steps += work()
    return steps / spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=2.0)
    args = parser.parse_args()
    spawn, many = multiprocessing.get_context("spawn"), args.processes
    with ProcessPoolExecutor(many, spawn, stand_at, (spawn.Barrier(many),)) as pool:
        rates = pool.map(rate, range(args.seed, args.seed + many), [args.seconds] * many)
        print(json.dumps({"value": sum(rates)}))


if __name__ == "__main__":
    main()
