"""Rookery's CartPole scenario: seconds until it is solved, as a user would run it.

    python benchmarks/train/rookery_train.py --seed 0

`train_s` of `rookery train cartpole` runs from the first env step and leaves out waiting for
evaluations. A run is solved if it reached its target and 100 episodes with fresh seeds confirm a
mean of at least 475. The last line on stdout is
`{"value": seconds, "solved", "env_steps", "score", "confirmed"}`.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from typing import Any

TARGET = 475.0
CONFIRM = ("--episodes", "100", "--seed", "10000")
DEADLINE_S = 600.0


def rookery(*words: str) -> dict[str, Any]:
    """Returns the JSON answer of one command."""
    command = [sys.executable, "-m", "rookery", *words, "--json"]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, check=True, timeout=DEADLINE_S
    )
    answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return answer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", help="ignored: a training takes as long as it takes")
    seed = parser.parse_args().seed
    with tempfile.TemporaryDirectory(prefix="rookery-bench-") as folder:
        run_dir = f"{folder}/run"
        trained = rookery("train", "cartpole", "--seed", str(seed), "--run-dir", run_dir)
        judged = rookery("evaluate", run_dir, *CONFIRM)
    answer = {
        "value": trained["train_s"],
        "solved": trained["solved"] and judged["mean_return"] >= TARGET,
        "env_steps": trained["env_steps"],
        "score": trained["best_score"],
        "confirmed": judged["mean_return"],
    }
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
