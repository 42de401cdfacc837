"""Games of Ludo in a minute: a whole async run with its opponents, in processes of their own.

    python benchmarks/selfplay/rookery_games.py --actors 2 --learn

256 tables and a dueling network 2x256 for each actor; a quarter of the games against random play, a
quarter against the script, half against snapshots. With `--learn` there is one learner step of 64
rows for each game, else nothing is learned. The clock starts once every actor has ended games. The
last line on stdout is `{"value": games per minute, "learner_steps_per_game": ...}`.
"""

import argparse
import json
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from rookery.config.load import load
from rookery.event import Collected, Counters
from rookery.training.build import Parts, build_parts
from rookery.training.loops import asynchronous
from rookery.training.steps import keep_snapshot

BATCH = 64
ROWS = 68  # of a game: what one seat chooses from its beginning to its end
NEVER = 10**9
WARM_GAMES, SNAPSHOTS = 2_000, 5
SETTINGS: dict[str, Any] = {
    "env.id": "ludo",
    "run.mode": "async",
    "run.env_steps": NEVER,
    "selfplay.opponents": {"random": 0.25, "scripted": 0.25, "past": 0.5},
    "selfplay.snapshot_period": 500,
    "selfplay.newest": SNAPSHOTS,
    "selfplay.slips": 0.5,
    "algo.dueling": True,
    "net.hidden": [256, 256],
    "replay.capacity": 100_000,
    "replay.learning_starts": 1_000,
    "replay.batch_size": BATCH,
    "replay.samples_per_insert": BATCH / ROWS,
    "actor.envs": 256,
    "actor.chunk": 1_024,
    "actor.pull_period": 1_024,
    "actor.epsilon": 0.1,
    "actor.epsilon_end": 0.1,
    "learner.device": "cpu",
}


def played(parts: Parts, seconds: float, games: int = 0) -> Counters:
    """Lets a run go on for so long, and until so many games have ended; says what it did."""
    before, began = parts.counters, time.perf_counter()
    for event in asynchronous(parts):
        late = time.perf_counter() - began >= seconds
        if isinstance(event, Collected) and late and parts.counters.episodes >= games:
            break
    now = parts.counters
    return Counters(
        now.env_steps - before.env_steps,
        now.learner_steps - before.learner_steps,
        now.episodes - before.episodes,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--actors", type=int, default=2)
    parser.add_argument("--learn", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=10.0)
    args = parser.parse_args()
    changes = {"actor.num": args.actors, "run.seed": args.seed}
    if not args.learn:
        changes |= {"replay.samples_per_insert": 1e-6}
    with tempfile.TemporaryDirectory() as folder:
        parts = build_parts(load(changes=SETTINGS | changes), run_dir=Path(folder))
        with closing(parts):
            assert parts.opponents is not None, "the settings name some"
            for _ in range(SNAPSHOTS):  # somebody to play against from the start
                keep_snapshot(parts, parts.opponents)
            played(parts, 1.0, games=WARM_GAMES)
            began = time.perf_counter()
            did = played(parts, args.seconds)
            took = time.perf_counter() - began
    each = did.learner_steps / max(1, did.episodes)
    print(json.dumps({"value": 60 * did.episodes / took, "learner_steps_per_game": each}))


if __name__ == "__main__":
    main()
