"""Learner steps per second in a whole run: alone, in the single loop, and beside actors.

    python benchmarks/learn/rookery_modes.py async --actors 2

CartPole, double dueling DQN 2x256, batch 64, prioritised. `alone` draws and learns from a full
replay and nobody plays. `single` and `async` are the loops themselves, without evaluations; the
clock starts after the warm-up. The last line on stdout is `{"value": learner steps per second,
"samples_per_insert": ..., "fresh_ms_p50": ...}`.
"""

import argparse
import json
import time
from collections.abc import Iterator

from rookery.config.algorithms import DqnConfig
from rookery.config.schema import (
    ActorConfig,
    Config,
    Draw,
    Mode,
    NetConfig,
    ReplayConfig,
    RunConfig,
)
from rookery.event import Learned
from rookery.training import LOOPS
from rookery.training.build import Parts, build_parts
from rookery.training.steps import collect, learn

FOR_EVER = 10**12  # env steps
ROWS = 20_000  # in replay before the first step
WARMUP_S = 1.0


def build(mode: Mode, actors: int, seed: int, samples_per_insert: float) -> Parts:
    return build_parts(
        Config(
            run=RunConfig(seed=seed, env_steps=FOR_EVER, mode=mode),
            algo=DqnConfig(dueling=True),
            net=NetConfig(hidden=(256, 256)),
            actor=ActorConfig(num=actors, envs=8, chunk=64),
            replay=ReplayConfig(
                sampling=Draw.PRIORITIZED,
                learning_starts=ROWS,
                samples_per_insert=samples_per_insert,
            ),
        )
    )


def alone(parts: Parts) -> Iterator[object]:
    while parts.counters.env_steps < ROWS:
        collect(parts)
    while True:
        yield learn(parts)


def spend(events: Iterator[object], seconds: float) -> float:
    """Returns learner steps per second."""
    steps, began = 0, time.perf_counter()
    while (spent := time.perf_counter() - began) < seconds:
        steps += isinstance(next(events), Learned)
    return steps / spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("mode", choices=["alone", "single", "async"])
    parser.add_argument("--actors", type=int, default=1)
    parser.add_argument("--samples-per-insert", type=float, default=8.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=2.0)
    args = parser.parse_args()
    mode = Mode.ASYNC if args.mode == "async" else Mode.SINGLE
    parts = build(mode, args.actors, args.seed, args.samples_per_insert)
    try:
        events = alone(parts) if args.mode == "alone" else LOOPS[mode](parts)
        while not isinstance(next(events), Learned):
            continue
        spend(events, WARMUP_S)
        value = spend(events, args.seconds)
        answer = {"value": value, "samples_per_insert": parts.limiter.ratio}
        print(json.dumps(answer | parts.freshness.metrics()))
    finally:
        parts.close()


if __name__ == "__main__":
    main()
