"""Private memory over time: an async run with eight actors, after its replay has filled.

    python benchmarks/soak/rookery_memory.py --minutes 10

Adds up RssAnon of every process of the run, once a minute, and says how much replay the processes
map: it must be there once. The last line on stdout is
`{"value": megabytes grown since steady state, "samples": [...], "replay_mb": ...,
"shared_mb": ...}`.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path

import psutil

from rookery.config.load import load
from rookery.training.launch import RunRequest, session

CAPACITY = 50_000


def field(pid: int, name: str) -> int:
    """Returns a memory figure of a process, in kB; 0 where it is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(name)), 0)


def total_mb(name: str) -> float:
    me = psutil.Process()
    family = [me.pid, *(child.pid for child in me.children(recursive=True))]
    return sum(field(pid, name) for pid in family) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--actors", type=int, default=8)
    parser.add_argument("--settle", type=float, default=2.0, help="minutes before steady state")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rookery-soak-") as folder:
        print(json.dumps(soak(args, str(Path(folder) / "run"))))


def soak(args: argparse.Namespace, run_dir: str) -> dict[str, object]:
    config = load(
        "cartpole",
        changes={
            "run.mode": "async",
            "run.run_dir": run_dir,
            "run.env_steps": 10**12,
            "run.minutes": args.minutes + args.settle,
            "eval.target": None,
            "eval.period": 50_000,
            "actor.num": args.actors,
            "replay.capacity": CAPACITY,
            "replay.samples_per_insert": 4.0,
            "checkpoint.period": 100_000,
            "report.log_period": 20_000,
        },
    )
    samples: list[tuple[float, float]] = []
    with session(config, RunRequest()) as driver:
        replay_mb = os.fstat(driver.parts.replay.ring.fd).st_size / 2**20
        began = time.monotonic()
        due, shared = args.settle * 60, 0.0
        for _ in driver.events():
            now = time.monotonic() - began
            if now >= due:
                due += 60
                shared = total_mb("RssShmem")
                samples.append((round(now / 60, 2), round(total_mb("RssAnon"), 1)))
                print(samples[-1], round(shared, 1), file=sys.stderr, flush=True)
    grown = samples[-1][1] - samples[0][1]
    return {"value": grown, "samples": samples, "replay_mb": replay_mb, "shared_mb": shared}


if __name__ == "__main__":
    main()
