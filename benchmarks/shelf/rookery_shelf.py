"""The shelf's table: every algorithm on its task, beside SB3 with its zoo's settings.

    python benchmarks/shelf/rookery_shelf.py --out runs/shelf --seeds 0-4     # trains
    python benchmarks/shelf/rookery_shelf.py --defaults --seeds 100-104       # both with defaults
    python benchmarks/shelf/rookery_shelf.py --report runs/shelf             # the table

Every learner is on the CPU with one thread. A training of ours gets two cores, for its evaluator or
its actors; one of SB3's, which evaluates in turn and off the clock, needs one. Both sides stop at
the first mark whose greedy episodes reach the target, and the policy of that moment plays 100 fresh
episodes: its score. What is there already is not trained again.
"""

import argparse
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from tasks import DEFAULTS, EVERY, ROWS, Marks, Row

from rookery.config.load import load
from rookery.report.statistics.bootstrap import estimate, iqms, pooled, redraw
from rookery.terminal.arguments import seeds

HERE = Path(__file__).parent
OURS, ASYNC, SB3 = "rookery", "rookery async", "sb3"
MODES: dict[str, tuple[str, ...]] = {OURS: (), ASYNC: ("--mode", "async", "--actors", "2")}
CPU = ("--device", "cpu")
LAST = ("--episodes", "100", "--seed", "10000")
DEADLINE_S = 1_500.0
REPS = 5_000


class Job(NamedTuple):
    """One training."""

    row: str
    side: str
    seed: int

    @property
    def name(self) -> str:
        return f"{self.row}.{self.side.replace(' ', '-')}.{self.seed}.json"


def jobs(rows: list[str], chosen: list[int], sides: list[str]) -> Iterator[Job]:
    """Yields trainings, all of one seed before the next: what is cut short is complete so far."""
    for seed in chosen:
        for name in rows:
            row = EVERY[name]
            there = {OURS: True, ASYNC: row.asynchronous, SB3: row.zoo is not None}
            yield from (Job(name, side, seed) for side in sides if there[side])


def run(job: Job, cores: list[int]) -> dict[str, Any]:
    """Returns what a training came to, on these cores."""
    row = EVERY[job.row]
    if job.side == SB3:
        marks = row.marks or Marks(*_marks(row.scenario))
        words = ("--target", marks.target, "--period", marks.period, "--episodes", marks.episodes)
        return _ask(cores, str(HERE / "sb3_run.py"), job.row, "--seed", job.seed, *words)
    with tempfile.TemporaryDirectory(prefix="rookery-shelf-") as folder:
        where = ("--seed", job.seed, "--run-dir", f"{folder}/run", "--json", "--quiet", *CPU)
        trained = _ask(cores, "-m", "rookery", "train", *_what(row), *MODES[job.side], *where)
        played = _ask(cores, "-m", "rookery", "evaluate", f"{folder}/run", *LAST, "--json")
    return {
        "solved": trained["solved"],
        "env_steps": trained["env_steps"],
        "seconds": trained["train_s"],
        "score": played["mean_return"],
    }


def _marks(scenario: str | None) -> tuple[float, int, int]:
    evaluated = load(scenario).eval
    assert evaluated.target is not None
    return evaluated.target, evaluated.period, evaluated.episodes


def _what(row: Row) -> tuple[Any, ...]:
    """Returns what `rookery train` is given: a scenario, or an algorithm and its task alone."""
    if row.marks is None or row.zoo is None:
        return (row.scenario,)
    stops = {f"eval.{name}": value for name, value in row.marks._asdict().items()}
    sets = [word for key, value in stops.items() for word in ("--set", f"{key}={value}")]
    steps = ("--env-steps", row.zoo.env_steps)
    return ("--algo", row.algorithm.lower(), "--env", row.env, *steps, *sets)


def _ask(cores: list[int], *words: Any) -> dict[str, Any]:
    command = [sys.executable, *map(str, words)]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        env=os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
        preexec_fn=lambda: os.sched_setaffinity(0, cores),
    )
    if done.returncode:
        raise RuntimeError(
            f"{' '.join(command)} ended with {done.returncode}: {done.stderr[-500:]}"
        )
    answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return answer


def train(todo: list[Job], out: Path) -> None:
    """Trains them, as many at a time as there are cores for; SB3's beside ours where there are."""
    ours, theirs = queue.Queue[Job](), queue.Queue[Job]()
    for job in todo:
        if not (out / job.name).exists():
            (theirs if job.side == SB3 else ours).put(job)
    available = sorted(os.sched_getaffinity(0))
    few = len(available) < 4
    alone = 0 if few else len(available) * 3 // 8
    lanes = [([core], theirs) for core in available[:alone]]
    pairs = range(alone, len(available) - 1, 2)
    lanes += [(available[at : at + 2], ours) for at in pairs] or [(available, ours)]
    began = time.monotonic()

    def serve(cores: list[int], waiting: queue.Queue[Job]) -> None:
        while True:
            try:
                job = waiting.get_nowait()
            except queue.Empty:
                return
            try:
                answer = run(job, cores)
            except (RuntimeError, subprocess.TimeoutExpired) as error:  # the others go on
                print(f"{job.name}: {error}", file=sys.stderr, flush=True)
                continue
            (out / job.name).write_text(json.dumps(job._asdict() | answer))
            spent = time.monotonic() - began
            print(f"{spent:6.0f} s  {job.name}  {answer}", file=sys.stderr, flush=True)

    threads = [threading.Thread(target=serve, args=lane) for lane in lanes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if few:
        serve(available, theirs)


def report(out: Path) -> Iterator[str]:
    """Yields the table, in Markdown."""
    found = [json.loads(path.read_text()) for path in sorted(out.glob("*.json"))]
    yield "| task | algorithm | by | solved | score, IQM of seeds [95 %] | env steps | seconds |"
    yield "|---|---|---|---|---|---|---|"
    for name, row in EVERY.items():
        for side in (OURS, ASYNC, SB3):
            runs = [run for run in found if (run["row"], run["side"]) == (name, side)]
            if runs:
                yield f"| {row.env} | {_algorithm(name, side)} | {side} | {_cells(runs)} |"


def _algorithm(name: str, side: str) -> str:
    row = EVERY[name]
    return row.zoo.algorithm if side == SB3 and row.zoo else row.algorithm


def _cells(runs: list[dict[str, Any]]) -> str:
    scores = np.array([run["score"] for run in runs])
    draws = redraw([scores], REPS, np.random.default_rng(0))
    value, low, high = estimate([scores], draws, pooled(iqms))
    interval = f" [{low:.1f}, {high:.1f}]" if low is not None else ""
    solved = sum(run["solved"] for run in runs)
    steps, spent = ([run[key] for run in runs] for key in ("env_steps", "seconds"))
    return (
        f"{solved} of {len(runs)} | {value:.1f}{interval} | {np.median(steps):,.0f} | "
        f"{np.median(spent):.1f} ({min(spent):.1f} to {max(spent):.1f})"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("runs/shelf"))
    parser.add_argument("--report", type=Path, help="prints the table of what is there")
    parser.add_argument("--seeds", type=seeds, default=[0, 1, 2, 3, 4])
    parser.add_argument("--rows", nargs="+", choices=list(EVERY))
    parser.add_argument("--defaults", action="store_true", help="rows without any settings")
    parser.add_argument("--sides", nargs="+", choices=(*MODES, SB3), default=[*MODES, SB3])
    args = parser.parse_args()
    if args.report is None:
        args.out.mkdir(parents=True, exist_ok=True)
        rows = args.rows or list(DEFAULTS if args.defaults else ROWS)
        train(list(jobs(rows, args.seeds, args.sides)), args.out)
    print(*report(args.report or args.out), sep="\n")


if __name__ == "__main__":
    main()
