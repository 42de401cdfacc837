"""Rookery's actors in processes of their own, and a learner that only takes their rows in.

    python benchmarks/collect/rookery_crew.py --actors 2 --engine ray

CartPole, 64 environments and a network 2x64 for each actor, random actions as in
`rookery_actor.py`. The clock starts once every actor has brought rows. Nothing is learned and
nobody is held up. The last line on stdout is `{"value": env steps per second,
"episodes_per_minute": ...}`; rows count when they have arrived in replay.
"""

import argparse
import json
import time

from rookery.actors.actor_group import epsilons_of
from rookery.actors.local_group import LocalActors
from rookery.config.schema import (
    ActorConfig,
    Config,
    Engine,
    Mode,
    NetConfig,
    ReplayConfig,
    RunConfig,
)
from rookery.training.build import Parts, build_parts
from rookery.training.loops import REPORTS_S

ENVS, TURNS = 64, 16  # environments of an actor, and their steps in a chunk
FOR_EVER = 10**12  # env steps
START_S = 120.0


def crew(
    actors: int,
    seed: int,
    engine: Engine = Engine.PROCESSES,
    envs: int = ENVS,
    chunk: int = ENVS * TURNS,
) -> Parts:
    return build_parts(
        Config(
            run=RunConfig(seed=seed, env_steps=FOR_EVER, mode=Mode.ASYNC, engine=engine),
            net=NetConfig(hidden=(64, 64)),
            actor=ActorConfig(num=actors, envs=envs, chunk=chunk, epsilon=1.0, epsilon_end=1.0),
            replay=ReplayConfig(capacity=200_000),
        )
    )


def gather(parts: Parts, seconds: float) -> tuple[int, int]:
    """Returns env steps and episodes that arrived within this time."""
    steps = episodes = 0
    began = heard = time.perf_counter()
    while (now := time.perf_counter()) - began < seconds:
        parts.actors.wait(0.01)
        steps += parts.replay.insert().steps
        if now - heard > REPORTS_S:
            heard = now
            episodes += sum(len(report.ended) for report in parts.actors.reports())
    return steps, episodes


def start(parts: Parts) -> None:
    """Waits until every actor has brought rows."""
    parts.actors.start()
    parts.actors.allow(True, epsilons_of(1.0, parts.config))
    deadline = time.perf_counter() + START_S
    while not all_play(parts):
        gather(parts, 0.1)
        if time.perf_counter() > deadline:
            raise TimeoutError(f"not every actor has begun within {START_S} s")


def all_play(parts: Parts) -> bool:
    if isinstance(parts.actors, LocalActors):
        return all(ring.consumed for ring in parts.actors.rings)
    return all(berth.acknowledged.committed for berth in parts.actors.handles)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--actors", type=int, default=1)
    parser.add_argument("--engine", type=Engine, default=Engine.PROCESSES)
    parser.add_argument("--envs", type=int, default=ENVS)
    parser.add_argument("--chunk", type=int, default=ENVS * TURNS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=2.0)
    args = parser.parse_args()
    parts = crew(args.actors, args.seed, args.engine, args.envs, args.chunk)
    try:
        start(parts)
        gather(parts, 0.5)
        began = time.perf_counter()
        steps, episodes = gather(parts, args.seconds)
        took = time.perf_counter() - began
    finally:
        parts.close()
    print(json.dumps({"value": steps / took, "episodes_per_minute": 60 * episodes / took}))


if __name__ == "__main__":
    main()
