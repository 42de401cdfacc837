"""Return at equal env steps: one, two and eight actors, shared epsilon against the ladder.

    python benchmarks/study/rookery_actors.py cartpole --seeds 0-9 --env-steps 10000

Sixteen environments in all runs, divided among the actors, so that only the number of policies at
play and the way they explore differ. Sync mode, inline: the result is a function of the seed.
Every run is judged greedily at four marks. Prints a table (interquartile mean over seeds and its
95 % bootstrap interval), then the same as one JSON object.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch

from rookery.algorithms import build_algorithm
from rookery.config.load import load
from rookery.config.schema import Config
from rookery.envs.make import make
from rookery.evaluation.evaluator import Evaluator
from rookery.event import IterationEnded
from rookery.networks.named_arrays import load_arrays
from rookery.report.statistics.bootstrap import estimate, iqms, pooled, redraw
from rookery.report.statistics.comparison_tables import ranged
from rookery.terminal.arguments import seeds
from rookery.training.build import Parts, build_parts
from rookery.training.loops import sync

ENVS, MARKS, EPISODES = 16, 4, 20


class Arm(NamedTuple):
    """One way of exploring."""

    actors: int
    exploration: str

    @property
    def name(self) -> str:
        return "1 actor" if self.actors == 1 else f"{self.actors} actors, {self.exploration}"


ARMS = (
    Arm(1, "shared"),
    Arm(2, "shared"),
    Arm(2, "ladder"),
    Arm(8, "shared"),
    Arm(8, "ladder"),
)


def config(scenario: str, arm: Arm, seed: int, env_steps: int) -> Config:
    return load(
        scenario,
        changes={
            "run.mode": "sync",
            "run.engine": "inline",
            "run.seed": seed,
            "run.env_steps": env_steps,
            "actor.num": arm.actors,
            "actor.envs": ENVS // arm.actors,
            "actor.chunk": 64 // arm.actors,
            "actor.pull_period": 64 // arm.actors,
            "actor.exploration": arm.exploration,
        },
    )


def curve(chosen: Config) -> Iterator[float]:
    """Yields the greedy mean return at each mark."""
    parts = build_parts(chosen)
    judge = Evaluator(
        lambda num: make(chosen.env, num), build_algorithm(chosen, parts.spec), episodes=EPISODES
    )
    period, passed = chosen.run.env_steps // MARKS, 0
    try:
        for event in sync(parts):
            if isinstance(event, IterationEnded) and parts.counters.env_steps // period > passed:
                passed += 1
                yield score(judge, parts, passed)
                if passed == MARKS:
                    return
    finally:
        judge.close()
        parts.close()


def score(judge: Evaluator, parts: Parts, mark: int) -> float:
    load_arrays(judge.algorithm.acting, parts.learner.weights())
    returns = judge.run(seed=1_000 * parts.config.run.seed + mark).returns
    return sum(returns) / len(returns)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("scenario", nargs="?", default="cartpole")
    parser.add_argument("--seeds", type=seeds, default=seeds("0-9"))
    parser.add_argument("--env-steps", type=int, default=10_000)
    args = parser.parse_args()
    torch.set_num_threads(1)
    answer: dict[str, object] = {"scenario": args.scenario, "seeds": args.seeds}
    for arm in ARMS:
        found = np.array(
            [list(curve(config(args.scenario, arm, s, args.env_steps))) for s in args.seeds]
        )  # [seeds, marks]
        rng = np.random.default_rng(0)
        cells = [estimate([c], redraw([c], 2_000, rng), pooled(iqms)) for c in found.T]
        said = "  ".join(ranged(cell, "{:.1f}".format) for cell in cells)
        print(f"{arm.name:<18} {said}", file=sys.stderr, flush=True)
        answer[arm.name] = found.tolist()
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
