"""Rookery's actor, in the parts of the single loop: act, step, write rows, drain them into replay.

Actions are random, as those of the raw environments are, so that episodes are equally long on
both sides; the network is asked all the same. Steps that only reset an environment do not count.
"""

from collections.abc import Callable

from rookery.config.schema import ActorConfig, Config, NetConfig, RunConfig
from rookery.training import steps
from rookery.training.build import build_parts

ENVS, TURNS = 64, 16  # environments, and their steps in a chunk
FOR_EVER = 10**12  # env steps


def collect(seed: int) -> Callable[[], int]:
    actor = ActorConfig(envs=ENVS, chunk=ENVS * TURNS, epsilon=1.0, epsilon_end=1.0)
    run, net = RunConfig(seed=seed, env_steps=FOR_EVER), NetConfig(hidden=(64, 64))
    parts = build_parts(Config(run=run, net=net, actor=actor))

    def work() -> int:
        before = parts.counters.env_steps
        steps.collect(parts)
        return parts.counters.env_steps - before

    return work
