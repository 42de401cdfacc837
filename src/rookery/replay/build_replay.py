"""Builds the replay buffer of one host, or one of its shards (parts), from the config."""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import numpy as np

from rookery.config.schema import Config, Storage
from rookery.envs.goals import Goals
from rookery.envs.make import Factory
from rookery.replay.buffer import LocalReplay
from rookery.replay.hindsight import Hindsight
from rookery.replay.peers import LentRings
from rookery.replay.ring import Ring, schema_of
from rookery.types import EnvSpec

R = TypeVar("R", bound=LocalReplay)


def build_shard(  # type: ignore[explicit-any]  # `build` is a constructor of many arguments
    config: Config,
    spec: EnvSpec,
    rings: Sequence[Ring],
    rng: np.random.Generator,
    shards: int,
    build: Callable[..., R],
    run_dir: Path | None = None,
    lent: LentRings | None = None,
    place: int = 0,
    factory: Factory | None = None,
    actors: int = 0,
) -> R:
    """Builds one of the `shards` shards (parts) of a run's replay buffer, number `place`.

    `build` is the constructor of the shard. The shard takes new rows (env steps) from `rings`, one
    ring buffer in shared memory for each actor that writes to this shard. If `lent` is given, it
    creates the shard's own ring buffer, from which other runs can sample too. Actor numbers in the
    rows must be below the larger of `actors` and `actor.num`.
    """
    capacity = config.capacity // shards
    with contextlib.ExitStack() as stack:
        hindsight = _hindsight(config, factory)
        if hindsight is not None:
            stack.callback(hindsight.close)
        shard = build(
            spec,
            replace(config.replay, capacity=capacity),
            config.algo,
            rng=rng,
            transports=rings,
            envs=config.actor.envs,
            actors=max(config.actor.num, actors),
            directory=_replay_directory(config, run_dir),
            ring=lent.ring(place, schema_of(spec), capacity) if lent else None,
            sequence=config.algo.sequence,
            stride=config.algo.stride,
            hindsight=hindsight,
        )
        stack.pop_all()  # the shard closes it
    return shard


def _hindsight(config: Config, factory: Factory | None) -> Hindsight | None:
    if config.replay.hindsight == 0:
        return None
    return Hindsight(config.replay.hindsight, Goals(config.env, factory))


def _replay_directory(config: Config, run_dir: Path | None) -> Path | None:
    return run_dir if config.replay.storage is Storage.DISK else None
