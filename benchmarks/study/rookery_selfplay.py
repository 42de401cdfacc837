"""Does the past help? Runs that meet their past by PFSP, beside runs that meet their newest self.

    python benchmarks/study/rookery_selfplay.py --out runs/selfplay --workers 2

Both arms have the same seeds, settings and number of learner steps, and no scripted opponent. Each
run's snapshots play each other and the two anchors (`rookery ladder`); what counts is whether newer
ones rate higher, how strong the newest is, and whether snapshots beat each other in circles.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from rookery.terminal.arguments import seeds

ARMS = {"pfsp": "{latest: 0.3, prioritized: 0.7}", "newest": "{latest: 1.0}"}
SETTINGS = (
    "run.mode=single",
    "eval.period=100000000",
    "eval.target=null",
    "checkpoint.replay=false",
    "checkpoint.period=100000000",
)
PACE = ("selfplay.snapshot_period=1500", "selfplay.keep=12")
SNAPSHOTS = 12  # on a ladder


class Job(NamedTuple):
    """One run and its ladder."""

    arm: str
    seed: int

    @property
    def name(self) -> str:
        return f"{self.arm}-{self.seed}"


def train(job: Job, out: Path, game: Sequence[str], settings: Sequence[str]) -> None:
    run_dir = out / job.name
    if (run_dir / "result.json").exists():
        return
    command = ["train", *game, "--seed", str(job.seed), "--run-dir", str(run_dir), "--quiet"]
    _rookery(*command, *(word for each in (*SETTINGS, *settings) for word in ("--set", each)))


def ladder(job: Job, out: Path, games: int, snapshots: int = SNAPSHOTS) -> dict[str, Any]:
    words = [str(out / job.name), "--games", str(games), "--snapshots", str(snapshots), "--json"]
    said = _rookery("ladder", *words, "--out", str(out / f"{job.name}.html"))
    answer: dict[str, Any] = json.loads(said)
    (out / f"{job.name}.json").write_text(json.dumps(answer, indent=1))
    return answer


def _rookery(*words: str) -> str:
    command = [sys.executable, "-m", "rookery", *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def row(job: Job, answer: dict[str, Any]) -> str:
    learned = [player for player in answer["players"] if player["version"] is not None]
    newest = max(learned, key=lambda player: player["version"])
    cells = [
        job.arm,
        str(job.seed),
        f"{answer['spearman']:.2f}",
        f"{newest['elo']:.0f} ± {newest['deviation']:.0f}",
        f"{newest['against_random']:.2f}",
        f"{newest['against_scripted']:.2f}",
        f"{answer['cycles']['cyclic']} of {answer['cycles']['triples']}",
        f"{answer['sure_cycles']['cyclic']} of {answer['sure_cycles']['triples']}",
    ]
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, default=Path("runs/selfplay"))
    parser.add_argument("--scenario", default="connect-four")
    parser.add_argument("--seeds", type=seeds, default=list(range(5)))
    parser.add_argument("--env-steps", type=int, default=400_000)
    parser.add_argument("--games", type=int, default=100)
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    jobs = [Job(arm, seed) for seed in given.seeds for arm in ARMS]

    def learn(job: Job) -> None:
        settings = [f"selfplay.opponents={ARMS[job.arm]}", f"run.env_steps={given.env_steps}"]
        train(job, given.out, [given.scenario], [*PACE, *settings])

    with ThreadPoolExecutor(given.workers) as workers:
        list(workers.map(learn, jobs))
        answers = list(workers.map(lambda job: ladder(job, given.out, given.games), jobs))
    print("| arm | seed | Spearman | newest, Elo | against random | scripted | circles | sure |")
    print("|---|---|---|---|---|---|---|---|")
    for job, answer in sorted(zip(jobs, answers, strict=True), key=lambda pair: pair[0]):
        print(row(job, answer))


if __name__ == "__main__":
    main()
