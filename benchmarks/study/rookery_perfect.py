"""Is it without a fault? A run of tic-tac-toe judged in every position, by minimax.

    python benchmarks/study/rookery_perfect.py --seeds 0-4 --out runs/perfect --workers 2

A policy that from no position which is not lost yet makes a move that loses it can never lose to
anybody from there. All 4,520 positions that a game can come to and in which somebody is to move are
asked, in one batch; ties are broken at random, so one answer each is asked for a hundred times.
"""

import argparse
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rookery.config.load import load_run
from rookery.envs.turn_based.game import MASK, OBSERVATION
from rookery.games.scripted_players import outcome, worths
from rookery.games.tictactoe import TicTacToe
from rookery.selfplay.snapshot_players import PlayerFactory, saved
from rookery.terminal.arguments import seeds
from rookery.types import Array

ASKED = 100  # times: what is tied is drawn


class Verdict(NamedTuple):
    """What a policy does in all positions."""

    positions: int  # in which the one to move has not lost yet
    lost: int  # of these: a move that loses
    missed: int  # won ones, in which the move is not a winning one


def positions() -> dict[str, Array]:
    """Returns what is seen in every position that a game can come to, by whoever is to move."""
    found: dict[bytes, dict[str, Array]] = {}
    games, rng, table = TicTacToe(1), np.random.default_rng(0), np.zeros(1, dtype=np.int64)

    def visit(line: tuple[int, ...]) -> None:
        games.reset(table, rng)
        for action in line:
            games.play(table, np.array([[action, action]]))
        if games.over[0]:
            return
        obs = games.look(table, games.due.argmax(1))
        key = obs[OBSERVATION].tobytes()
        if key not in found:
            found[key] = obs
            for action in np.flatnonzero(obs[MASK][0]).tolist():
                visit((*line, action))

    visit(())
    return {k: np.concatenate([obs[k] for obs in found.values()]) for k in (OBSERVATION, MASK)}


def verdict(run_dir: Path, seen: dict[str, Array], rng: np.random.Generator) -> Verdict:
    player = PlayerFactory(load_run(run_dir)).player(saved(run_dir, "latest").read())
    value, worth = outcome(seen), np.sign(worths(seen))
    lost = missed = np.zeros(len(value), dtype=np.bool_)
    for _ in range(ASKED):
        got = worth[np.arange(len(value)), player.act(seen, rng)]
        lost, missed = lost | ((value >= 0) & (got < 0)), missed | ((value > 0) & (got < 1))
    return Verdict(int((value >= 0).sum()), int(lost.sum()), int(missed.sum()))


def train(seed: int, out: Path) -> dict[str, Any]:
    run_dir = out / f"tictactoe-{seed}"
    if not (run_dir / "result.json").exists():
        words = ["train", "tictactoe", "--seed", str(seed), "--run-dir", str(run_dir), "--quiet"]
        command = [sys.executable, "-m", "rookery", *words]
        subprocess.run(command, check=True, capture_output=True)
    result: dict[str, Any] = json.loads((run_dir / "result.json").read_text())
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, default=Path("runs/perfect"))
    parser.add_argument("--seeds", type=seeds, default=list(range(5)))
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    with ThreadPoolExecutor(given.workers) as workers:
        results = list(workers.map(lambda seed: train(seed, given.out), given.seeds))
    seen, rng = positions(), np.random.default_rng(0)
    print("| seed | env steps | seconds | positions | lost by its move | wins missed |")
    print("|---|---|---|---|---|---|")
    for seed, result in zip(given.seeds, results, strict=True):
        found = verdict(given.out / f"tictactoe-{seed}", seen, rng)
        print(f"| {seed} | {result['env_steps']} | {result['train_s']:.0f} | ", end="")
        print(" | ".join(map(str, found)) + " |")


if __name__ == "__main__":
    main()
