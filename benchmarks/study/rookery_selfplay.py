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
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from rookery.cli.arguments import seeds

ARMS = {"pfsp": "{latest: 0.3, prioritized: 0.7}", "newest": "{latest: 1.0}"}
SETTINGS = (
    "run.mode=single",
    "eval.period=100000000",
    "eval.target=null",
    "checkpoint.replay=false",
    "checkpoint.period=100000000",
    "selfplay.snapshot_period=1500",
    "selfplay.keep=12",
)


class Job(NamedTuple):
    """One run and its ladder."""

    arm: str
    seed: int


def train(job: Job, out: Path, scenario: str, env_steps: int) -> None:
    run_dir = out / f"{job.arm}-{job.seed}"
    if (run_dir / "result.json").exists():
        return
    settings = [*SETTINGS, f"selfplay.opponents={ARMS[job.arm]}", f"run.env_steps={env_steps}"]
    command = ["train", scenario, "--seed", str(job.seed), "--run-dir", str(run_dir), "--quiet"]
    _rookery(*command, *(word for each in settings for word in ("--set", each)))


def ladder(job: Job, out: Path, games: int) -> dict[str, Any]:
    run_dir = out / f"{job.arm}-{job.seed}"
    picture = out / f"{job.arm}-{job.seed}.svg"
    said = _rookery("ladder", str(run_dir), "--games", str(games), "--json", "--out", str(picture))
    answer: dict[str, Any] = json.loads(said)
    (out / f"{job.arm}-{job.seed}.json").write_text(json.dumps(answer, indent=1))
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
    with ThreadPoolExecutor(given.workers) as workers:
        list(workers.map(lambda j: train(j, given.out, given.scenario, given.env_steps), jobs))
        answers = list(workers.map(lambda job: ladder(job, given.out, given.games), jobs))
    print("| arm | seed | Spearman | newest, Elo | against random | scripted | circles | sure |")
    print("|---|---|---|---|---|---|---|---|")
    for job, answer in sorted(zip(jobs, answers, strict=True), key=lambda pair: pair[0]):
        print(row(job, answer))


if __name__ == "__main__":
    main()
