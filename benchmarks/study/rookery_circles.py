"""Does it go in circles? A game without a strongest player, with the past and without it.

    python benchmarks/study/rookery_circles.py --out runs/circles --workers 2

PettingZoo's rock, paper, scissors, lizard, Spock: 15 rounds at once, and a seat sees what the other
chose last. Whoever is greedy can be beaten in every round by somebody who knows it, so nobody is
strong here; but who learned against many loses to few. All arms have the same seeds, settings and
numbers of rows and learner steps. Each run's snapshots play each other (`rookery ladder`); then the
newest snapshots of all runs do.
"""

import argparse
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from rookery_selfplay import Job, ladder, train

from rookery.config.load import load_run
from rookery.report.statistics.bootstrap import estimate, means, pooled, redraw
from rookery.report.statistics.comparison_tables import ranged
from rookery.selfplay.match import table
from rookery.selfplay.snapshot_ladder import games_of
from rookery.selfplay.snapshot_players import PlayerFactory, taken
from rookery.terminal.arguments import seeds
from rookery.types import Floats

ARMS = {
    "newest": "{latest: 1.0}",
    "past": "{latest: 0.3, past: 0.7}",
    "pfsp": "{latest: 0.3, prioritized: 0.7}",
}
GAME = ("--env", "pettingzoo.classic.rps.rps:parallel_env")
SNAPSHOTS = 16
SETTINGS = (
    "env={kwargs: {num_actions: 5}, check: false}",
    "run.env_steps=40000",
    f"selfplay={{learn_from_both_seats: true, snapshot_period: 150, keep: {SNAPSHOTS}}}",
    "algo={gamma: 0.9, n_step: 1}",
    "net.hidden=[32]",
    "replay={capacity: 2000, learning_starts: 500, batch_size: 64, samples_per_insert: 4.0}",
    "actor={envs: 16, chunk: 64, pull_period: 64, epsilon: 0.2, epsilon_end: 0.2}",
    "learner={lr: 0.003, publish_period: 50}",
)
REPS = 5_000  # draws of a bootstrap


class Verdict(NamedTuple):
    """What a run's ladder says."""

    spearman: float  # of snapshots' numbers and ratings
    circles: float  # share of all triples of snapshots that surely beat each other in a circle
    decided: float  # share of pairs that are surely decided
    past: float  # points of the later half of the snapshots against all that are older
    worst: float  # and against the one of these that does best against it


def verdict(answer: dict[str, Any]) -> Verdict:
    payoff, games = in_order(answer), answer["games"]
    count = len(payoff)
    later = [payoff[i, :i] for i in range(count // 2, count)]
    sure = abs(payoff - 0.5) * np.sqrt(games) >= 1 - 1e-9  # two deviations of fair games
    return Verdict(
        spearman=answer["spearman"],
        circles=answer["sure_cycles"]["cyclic"] / (count * (count - 1) * (count - 2) / 6),
        decided=float(sure[~np.eye(count, dtype=np.bool_)].mean()),
        past=float(np.mean([row.mean() for row in later])),
        worst=float(np.mean([row.min() for row in later])),
    )


def in_order(answer: dict[str, Any]) -> Floats:
    """Returns [K, K]: the pay-off among a run's snapshots, oldest first; nan on the diagonal."""
    versions = [player["version"] for player in answer["players"]]
    learned = [i for i, version in enumerate(versions) if version is not None]
    order = sorted(learned, key=lambda i: versions[i])
    payoff: Floats = np.array(answer["payoff"], dtype=np.float64)[np.ix_(order, order)]
    return payoff


def meeting(jobs: Sequence[Job], out: Path, games: int) -> Floats:
    """Lets the newest snapshots of all runs play each other: [K, K], nan on the diagonal."""
    config = load_run(out / jobs[0].name)
    seats, tables = PlayerFactory(config), games_of(config, games)
    newest = {job.name: seats.player(taken(out / job.name)[-1].read()) for job in jobs}
    share: Floats = table(tables, newest, games, np.random.default_rng(0)).share
    tables.close()
    return share


def said(values: Sequence[float]) -> str:
    """Writes a mean over seeds with its interval."""
    found = np.array(values)
    draws = redraw([found], REPS, np.random.default_rng(0))
    return ranged(estimate([found], draws, pooled(means)), "{:.2f}".format)


def tell_ladders(verdicts: dict[Job, Verdict]) -> None:
    print("| arm | " + " | ".join(Verdict._fields) + " |")
    print("|---" * (1 + len(Verdict._fields)) + "|")
    for arm in ARMS:
        own = [found for job, found in verdicts.items() if job.arm == arm]
        print(f"| {arm} | " + " | ".join(map(said, zip(*own, strict=True))) + " |")


def tell_meeting(jobs: Sequence[Job], share: Floats) -> None:
    """Prints how many points each arm takes from each."""
    arms = np.array([job.arm for job in jobs])
    print("| newest snapshots of | " + " | ".join(f"against {arm}" for arm in ARMS) + " | all |")
    print("|---" * (2 + len(ARMS)) + "|")
    for arm in ARMS:
        rows = share[arms == arm]
        cells = [said(np.nanmean(rows[:, arms == other], axis=1)) for other in ARMS]
        print(f"| {arm} | " + " | ".join([*cells, said(np.nanmean(rows, axis=1))]) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, default=Path("runs/circles"))
    parser.add_argument("--seeds", type=seeds, default=list(range(2, 8)))
    parser.add_argument("--games", type=int, default=40)
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    if len(given.seeds) < 2:
        parser.error(f"--seeds are {given.seeds}; an interval needs two or more; name another")
    jobs = [Job(arm, seed) for seed in given.seeds for arm in ARMS]

    def judged(job: Job) -> Verdict:
        train(job, given.out, GAME, [*SETTINGS, f"selfplay.opponents={ARMS[job.arm]}"])
        return verdict(ladder(job, given.out, given.games, SNAPSHOTS))

    with ThreadPoolExecutor(given.workers) as workers:
        verdicts = dict(zip(jobs, workers.map(judged, jobs), strict=True))
    for job, found in sorted(verdicts.items()):
        print(job.name, " ".join(f"{k} {v:.2f}" for k, v in found._asdict().items()))
    tell_ladders(verdicts)
    tell_meeting(jobs, meeting(jobs, given.out, given.games))


if __name__ == "__main__":
    main()
