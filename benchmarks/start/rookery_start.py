"""Rookery's start: seconds from `rookery train cartpole` to its first environment steps.

    python benchmarks/start/rookery_start.py warm --seed 0

The clock starts before the process does and stops when the first chunk has been played (4 steps
in each of 8 environments). `cold` finds an empty NUMBA_CACHE_DIR, as the first run ever does;
`warm` finds what a start before it has compiled. The last line on stdout is
`{"value": seconds, "cpu", "ready": all roles are up, "learned": the first learner step is over}`;
`cpu` is what the process itself had worked by then, which a busy machine changes less.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rookery.event import Collected, Event, Learned, Started

NAMES = {Started: "ready", Collected: "value", Learned: "learned"}  # in the order of a run
LEAVE_S = 30.0  # for the run to end
MARK = "bench"  # begins a line of ours; the others are the console's


def tell(event: Event) -> None:
    """The run's callback: prints when something happened for the first time."""
    if name := NAMES.pop(type(event), None):
        # in one piece: the console is another process and writes where it likes
        words = MARK, name, time.monotonic_ns(), time.process_time()
        os.write(1, ("\n" + " ".join(map(str, words)) + "\n").encode())


def start(seed: int, folder: Path) -> dict[str, float]:
    """Starts a run, returns its times, and ends it."""
    command = [sys.executable, "-m", "rookery", "train", "cartpole", "--seed", str(seed)]
    command += ["--run-dir", str(folder / "run"), "--set", "run.callbacks=[rookery_start:tell]"]
    path = f"{Path(__file__).parent}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    begun_ns = time.monotonic_ns()
    with subprocess.Popen(
        command, env=os.environ | {"PYTHONPATH": path}, stdout=subprocess.PIPE, text=True
    ) as run:
        try:
            times = _times(run, begun_ns)
            run.send_signal(signal.SIGINT)
            run.communicate(timeout=LEAVE_S)
        finally:
            run.kill()
    return times


def _times(run: "subprocess.Popen[str]", begun_ns: int) -> dict[str, float]:
    found: dict[str, float] = {}
    while "learned" not in found and (line := run.stdout.readline()):
        mark, _, rest = line.partition(" ")
        if mark == MARK:
            name, at_ns, cpu_s = rest.split()
            found[name] = round((int(at_ns) - begun_ns) / 1e9, 3)
            if name == "value":
                found["cpu"] = round(float(cpu_s), 3)
    if "learned" not in found:
        raise SystemExit(f"the run ended before it had learned; it got as far as {found}")
    return found


def warm(seed: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="rookery-bench-") as folder:
        start(seed, Path(folder) / "before")
        return start(seed, Path(folder))


def cold(seed: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="rookery-bench-") as folder:
        os.environ["NUMBA_CACHE_DIR"] = f"{folder}/numba"
        return start(seed, Path(folder))


CACHES: dict[str, Any] = {"warm": warm, "cold": cold}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("cache", choices=CACHES)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", help="ignored: a start takes as long as it takes")
    args = parser.parse_args()
    print(json.dumps(CACHES[args.cache](args.seed)))


if __name__ == "__main__":
    main()
