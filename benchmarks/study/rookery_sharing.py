"""Does sharing help? Every strategy against runs that learn alone, on three tasks.

    python benchmarks/study/rookery_sharing.py --workers 16 --out study     # trains, in fours
    python benchmarks/study/rookery_sharing.py --report study --html study     # what came out

Runs of one strategy learn in groups of four that share a pool; `local_only` is the control. Eight
seeds are two such groups: runs of one group are not independent of each other, which the intervals
over runs do not know. All arms of a task have the same seeds, settings and marks.
"""

import argparse
import json
import queue
import secrets
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from rookery_pupil import ARMS, TASKS

from rookery.report.charts.options import Goal, lines, looks
from rookery.report.charts.page import Chart, Page
from rookery.report.statistics.bootstrap import (
    Estimate,
    Statistic,
    deviations,
    estimate,
    improvement,
    iqms,
    medians,
    pooled,
    redraw,
)
from rookery.report.statistics.learning_curve import curve, marks
from rookery.report.statistics.run_records import Metric, RunRecord, load
from rookery.sharing.registry import create_distributed_registry, shared_directory
from rookery.terminal.arguments import seeds

GROUP = 4
REPS = 5_000
DRAWN = ("local_only", "self_heavy 0.2", "self_heavy 0.5")


class Quad(NamedTuple):
    """Four runs that share a pool."""

    task: str
    arm: str
    seeds: tuple[int, ...]


def quads(tasks: list[str], arms: list[str], chosen: list[int]) -> list[Quad]:
    groups = [tuple(chosen[at : at + GROUP]) for at in range(0, len(chosen), GROUP)]
    return [Quad(task, arm, group) for task in tasks for group in groups for arm in arms]


class Pupils:
    """Processes that learn one job after another."""

    def __init__(self, count: int):
        script = Path(__file__).with_name("rookery_pupil.py")
        self.all = [
            subprocess.Popen(
                [sys.executable, str(script)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for _ in range(count)
        ]
        for pupil in self.all:
            _expect(pupil, "ready")

    def learn(self, quad: Quad, out: Path) -> None:
        pool = shared_directory() / f"pool-{secrets.token_hex(4)}"
        registry = create_distributed_registry(path=pool)
        for pupil, seed in zip(self.all, quad.seeds, strict=False):
            name = f"{quad.task}-{quad.arm.replace(' ', '-')}-seed{seed}"
            job = {"task": quad.task, "arm": quad.arm, "seed": seed, "pool": str(pool)}
            assert pupil.stdin is not None
            print(json.dumps(job | {"run_dir": str(out / name)}), file=pupil.stdin, flush=True)
        for pupil, _ in zip(self.all, quad.seeds, strict=False):
            _expect(pupil, "done")
        registry.stop()

    def close(self) -> None:
        for pupil in self.all:
            assert pupil.stdin is not None
            pupil.stdin.close()
            pupil.wait(30)


def _expect(pupil: "subprocess.Popen[str]", word: str) -> None:
    assert pupil.stdout is not None
    line = pupil.stdout.readline().strip()
    while line and line != word:  # libraries may talk
        line = pupil.stdout.readline().strip()
    if line != word:
        raise SystemExit(f"a pupil ended with status {pupil.wait()} before it said {word!r}")


def train(todo: list[Quad], workers: int, out: Path) -> None:
    jobs: queue.Queue[Quad] = queue.Queue()
    for quad in todo:
        jobs.put(quad)
    began = time.monotonic()

    def serve() -> None:
        pupils = Pupils(GROUP)
        while True:
            try:
                quad = jobs.get_nowait()
            except queue.Empty:
                break
            pupils.learn(quad, out)  # a pupil that fails is named, and its four are missing
            wall_s = time.monotonic() - began
            print(f"{wall_s:6.0f} s  {quad.task} {quad.arm} {quad.seeds}", file=sys.stderr)
        pupils.close()

    threads = [threading.Thread(target=serve) for _ in range(max(1, workers // GROUP))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


# --- what came out


def report(folders: list[Path], html: Path | None) -> dict[str, Any]:
    """Prints a table for each task, and draws its curves; returns the numbers."""
    runs = load(folders, Metric.EVALUATION).runs
    answer: dict[str, Any] = {}
    for task in TASKS:
        own = [run for run in runs if run.folder.name.startswith(task)]
        if own:
            answer[task] = {arm: _row([r for r in own if r.group == arm], own) for arm in ARMS}
            _print(task, answer[task], own[0])
            if html is not None:
                (html / f"sharing-{task}.html").write_text(_drawn(task, own).html())
    return answer


def _drawn(task: str, runs: list[RunRecord]) -> Page:
    """Draws the arms that say most: alone, the default, and half of each batch."""
    arms = [arm for arm in DRAWN if any(run.group == arm for run in runs)]
    at, rng = marks(runs), np.random.default_rng(0)
    found = {}
    for arm in arms:
        group = [run for run in runs if run.group == arm]
        found[arm] = curve([group], at, redraw([np.zeros(len(group))], REPS, rng)).points
    target = runs[0].target
    goal = Goal(target, f"target {target:g}") if target is not None else None
    caption = f"Mean return over env steps, IQM of {len(group)} runs with 95 % intervals"
    drawn = lines(found, looks(arms), across="env steps", up="mean return, IQM", goal=goal)
    return Page(f"{task}: does sharing help?", [Chart(caption, drawn)])


def _row(runs: list[RunRecord], everybody: list[RunRecord]) -> dict[str, Any] | None:
    if not runs:
        return None
    rng = np.random.default_rng(0)
    control = [run for run in everybody if run.group == "local_only"]
    final = np.array([run.scores[-1] for run in runs])
    exams = [json.loads((run.folder / "study.json").read_text()) for run in runs]
    area = np.array([run.scores.mean() for run in runs])
    return {
        "runs": len(runs),
        "final_iqm": _found(final, pooled(iqms)),
        "area_iqm": _found(area, pooled(iqms)),
        "spread": _found(final, pooled(deviations)),
        "steps_to_target": _found(_reach(runs), pooled(medians)),
        "reached": int(sum((run.scores >= (run.target or np.inf)).any() for run in runs)),
        "perturbed_iqm": _found(np.array([e["perturbed"] for e in exams]), pooled(iqms)),
        "better_than_alone": _said(
            improvement([area], [np.array([r.scores.mean() for r in control or runs])], REPS, rng)
        ),
        "wall_s": float(np.mean([exam["wall_s"] for exam in exams])),
    }


def _reach(runs: list[RunRecord]) -> Any:
    """Env steps to the first mark at the target; a run that never got there counts as its end."""
    found = []
    for run in runs:
        good = np.flatnonzero(run.scores >= (run.target if run.target is not None else np.inf))
        found.append(run.steps[good[0]] if good.size else run.steps[-1] + run.period)
    return np.array(found)


def _found(values: Any, statistic: Statistic) -> list[float]:
    draws = redraw([values], REPS, np.random.default_rng(0))
    return _said(estimate([values], draws, statistic))


def _said(found: Estimate) -> list[float]:
    assert found.low is not None
    assert found.high is not None
    return [found.value, found.low, found.high]


def _print(task: str, rows: dict[str, Any], run: RunRecord) -> None:
    print(f"\n{task}: {run.task}, {run.budget} env steps, target {run.target}")
    heads = [
        "arm",
        "area under curve",
        "final",
        "spread",
        "steps to target",
        "perturbed",
        "P(>alone)",
    ]
    print("| " + " | ".join(heads) + " |")
    print("|---" * len(heads) + "|")
    keys = ["area_iqm", "final_iqm", "spread", "steps_to_target", "perturbed_iqm"]
    for arm, row in rows.items():
        if row is None:
            continue
        cells = [_cell(row[key]) for key in keys]
        cells[3] += f", {row['reached']} of {row['runs']}"
        print(f"| {arm} | " + " | ".join(cells) + f" | {_cell(row['better_than_alone'], 2)} |")


def _cell(found: list[float], digits: int = 0) -> str:
    value, low, high = (f"{number:,.{digits}f}" for number in found)
    return f"{value} [{low}, {high}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--arms", default=",".join(ARMS))
    parser.add_argument("--seeds", type=seeds, default=seeds("0-7"))
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--out", type=Path, help="folder for the runs; it must be new")
    parser.add_argument("--report", type=Path, nargs="+", help="folders of runs that are there")
    parser.add_argument("--html", type=Path, help="folder for the pages with curves")
    args = parser.parse_args()
    if args.report is None:
        out = args.out or Path("study")
        out.mkdir(parents=True)
        train(quads(args.tasks.split(","), args.arms.split(","), args.seeds), args.workers, out)
    print(json.dumps(report(args.report or [out], args.html)))


if __name__ == "__main__":
    main()
