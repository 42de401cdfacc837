"""Rookery's Ctrl+C with 4 GB of replay: seconds until the run is over and all of it on the disk.

    python benchmarks/checkpoint/rookery_interrupt.py --seed 0

A run fills its replay with rows as large as an Atari frame, faster than a disk takes them, so
that as much as may ever be waiting for the disk is waiting when the signal comes. Nothing was
saved before but what a run writes early by itself. The clock stops when the process is gone; then
every byte of its checkpoint is verified. TMPDIR says on which disk. The last line on stdout is
`{"value": seconds, "replay": GB in the checkpoint, "filled": seconds to fill it}`.
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

from rookery.checkpoints import checkpoint
from rookery.checkpoints.saver import CHECKPOINTS
from rookery.event import Collected, Event

FLOATS = 1764  # 84 x 84 bytes
ROWS = 565_000
NEVER = 10**9  # env steps
DEADLINE_S = 120.0  # for filling, and for leaving
INTERRUPTED = 130
FULL = "replay is full"
SETTINGS = (
    "env.imports=[flood]",
    f"env.kwargs={{width: {FLOATS}}}",
    f"run.env_steps={NEVER}",
    "run.callbacks=[rookery_interrupt:announce]",
    f"replay.capacity={ROWS}",
    "replay.samples_per_insert=0.1",
    "actor.envs=256",
    "actor.chunk=1024",
    "net.hidden=[16]",
    f"eval.period={NEVER}",
    f"checkpoint.period={NEVER}",
)


def announce(event: Event) -> None:
    """The run's callback: says once that its replay is full."""
    if isinstance(event, Collected) and 0 <= event.counters.env_steps - ROWS < 1024:
        print(FULL, flush=True)


def start(seed: int, run_dir: Path) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "rookery", "train", "--env", "Flood-v0", "--quiet"]
    command += ["--seed", str(seed), "--run-dir", str(run_dir)]
    for setting in SETTINGS:
        command += ["--set", setting]
    path = f"{Path(__file__).parent}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    return subprocess.Popen(
        command, env=os.environ | {"PYTHONPATH": path}, stdout=subprocess.PIPE, text=True
    )


def interrupt(run: "subprocess.Popen[str]") -> float:
    """Waits for a full replay, sends the signal, and returns the seconds until the run is gone."""
    if run.stdout.readline().strip() != FULL:
        raise SystemExit("the run ended before its replay was full")
    begun = time.perf_counter()
    run.send_signal(signal.SIGINT)
    run.wait(DEADLINE_S)
    return time.perf_counter() - begun


def measure(seed: int, run_dir: Path) -> dict[str, float]:
    begun = time.perf_counter()
    with start(seed, run_dir) as run:
        try:
            value = interrupt(run)
        finally:
            run.kill()
    filled = time.perf_counter() - begun - value
    found, broken, _ = checkpoint.newest(run_dir / CHECKPOINTS)
    if run.returncode != INTERRUPTED or found is None:
        raise SystemExit(f"no checkpoint after exit code {run.returncode} {broken}")
    saved = sum(segment.digest.size for segment in found.segments())
    return {"value": value, "replay": round(saved / 1e9, 2), "filled": round(filled, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", help="ignored: an end takes as long as it takes")
    seed = parser.parse_args().seed
    with tempfile.TemporaryDirectory(prefix="rookery-bench-") as folder:
        print(json.dumps(measure(seed, Path(folder) / "run")))


if __name__ == "__main__":
    main()
