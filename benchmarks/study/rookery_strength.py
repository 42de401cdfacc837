"""How strong is it? A run of a game judged in fresh matches against random and scripted players.

    python benchmarks/study/rookery_strength.py connect-four --seeds 0-2 --games 2000

Matches begin with two random plies, in both seats equally often; ties are broken at random. The
player is the run's best model. `--set` changes settings of the scenario.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

import numpy as np

from rookery.config.load import load_run
from rookery.selfplay.match import MatchResult, play
from rookery.selfplay.snapshot_ladder import anchors, games_of
from rookery.selfplay.snapshot_players import PlayerFactory, saved
from rookery.terminal.arguments import seeds

TABLES = 128


def train(scenario: str, seed: int, out: Path, changes: list[str]) -> Path:
    run_dir = out / f"{scenario}-{seed}"
    if not (run_dir / "result.json").exists():
        words = ["train", scenario, "--seed", str(seed), "--run-dir", str(run_dir), "--quiet"]
        settings = [word for change in changes for word in ("--set", change)]
        command = [sys.executable, "-m", "rookery", *words, *settings]
        subprocess.run(command, check=True, capture_output=True)
    return run_dir


def outcomes(run_dir: Path, games: int) -> dict[str, MatchResult]:
    """Plays matches of the best model against everybody who is always there."""
    config = load_run(run_dir)
    player = PlayerFactory(config).player(saved(run_dir, "best").read())
    return {
        name: play(
            games_of(config, TABLES), (player, other), count=games, rng=np.random.default_rng(7)
        )
        for name, other in anchors(config).items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("scenario")
    parser.add_argument("--out", type=Path, default=Path("runs/strength"))
    parser.add_argument("--seeds", type=seeds, default=[0])
    parser.add_argument("--games", type=int, default=2000)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    given = parser.parse_args()
    print("| seed | env steps | seconds | against | wins | draws | losses |")
    print("|---|---|---|---|---|---|---|")
    for seed in given.seeds:
        run_dir = train(given.scenario, seed, given.out, given.set)
        result = json.loads((run_dir / "result.json").read_text())
        for name, found in outcomes(run_dir, given.games).items():
            shares = (part.sum() / given.games for part in (found.wins, found.draws, found.losses))
            print(f"| {seed} | {result['env_steps']} | {result['train_s']:.0f} | {name} | ", end="")
            print(" | ".join(f"{share:.1%}" for share in shares) + " |", flush=True)


if __name__ == "__main__":
    main()
