"""What each algorithm learns in two minutes with its defaults, beside its untrained policy.

    python benchmarks/learning/rookery_defaults.py --out runs/learning.jsonl --seeds 0-2

A case is `rookery train --algo NAME --env ID --seed N --minutes 2`, with nothing else. The policy
at the end plays 20 fresh episodes; it has learned if their mean return reaches the bar of the task.
The control is the policy of the first env step, which must miss that bar. Each two cores run one
case. One JSON object per case and line; cases that the file has are not run again.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from rookery.terminal.arguments import seeds

BARS = {"CartPole-v1": 195.0, "Acrobot-v1": -150.0, "Pendulum-v1": -400.0}
FITTING = {
    "dqn": ("CartPole-v1", "Acrobot-v1"),
    "r2d2": ("CartPole-v1",),
    "sac": ("Pendulum-v1", "CartPole-v1"),
    "tqc": ("Pendulum-v1",),
    "td3": ("Pendulum-v1",),
    "ddpg": ("Pendulum-v1",),
    "ppo": ("CartPole-v1", "Acrobot-v1"),
    "a2c": ("CartPole-v1",),
    "impala": ("CartPole-v1",),
}
EPISODES = ("--episodes", "20", "--seed", "10000", "--checkpoint", "last")
DEADLINE_S = 300.0


class Case(NamedTuple):
    """One training."""

    algo: str
    env: str
    seed: int


def measured(case: Case) -> dict[str, Any]:
    """Returns what the trained and the untrained policy of a case score."""
    with tempfile.TemporaryDirectory(prefix="rookery-learning-") as folder:
        trained, score = _scored(case, f"{folder}/trained", "--minutes", "2")
        _, untrained = _scored(case, f"{folder}/untrained", "--env-steps", "1")
    bar = BARS[case.env]
    counts = {key: trained[key] for key in ("env_steps", "learner_steps", "wall_s")}
    return {
        **case._asdict(),
        **counts,
        "score": score,
        "untrained": untrained,
        "bar": bar,
        "learned": untrained < bar <= score,
    }


def _scored(case: Case, run_dir: str, *until: str) -> tuple[dict[str, Any], float]:
    what = ("--algo", case.algo, "--env", case.env, "--seed", case.seed)
    trained = _ask("train", *what, *until, "--run-dir", run_dir, "--quiet")
    return trained, _ask("evaluate", run_dir, *EPISODES)["mean_return"]


def _ask(*words: Any) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "rookery", *map(str, words), "--json"],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    if done.returncode:
        raise RuntimeError(f"{words} ended with {done.returncode}: {done.stderr[-500:]}")
    answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return answer


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("runs/learning.jsonl"))
    parser.add_argument("--seeds", type=seeds, default=[0, 1, 2])
    parser.add_argument("--algo", nargs="+", choices=FITTING, default=list(FITTING))
    args = parser.parse_args()
    args.out.parent.mkdir(parents=True, exist_ok=True)
    lines = args.out.read_text().splitlines() if args.out.exists() else []
    there = {Case(row["algo"], row["env"], row["seed"]) for row in map(json.loads, lines)}
    cases = [
        Case(algo, env, seed) for seed in args.seeds for algo in args.algo for env in FITTING[algo]
    ]
    began, missed = time.monotonic(), 0
    with ThreadPoolExecutor(max(1, len(os.sched_getaffinity(0)) // 2)) as threads:
        for row in threads.map(measured, [case for case in cases if case not in there]):
            missed += not row["learned"]
            with args.out.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(f"{time.monotonic() - began:6.0f} s  {row}", file=sys.stderr, flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
