"""Building a shard: a whole replay, or one of several parts of it."""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from rookery.config.schema import Config, Storage
from rookery.envs.goals import Goals
from rookery.replay.hindsight import Hindsight
from rookery.replay.pool import Pool
from rookery.replay.ring import Ring, schema_of
from rookery.sharing.member import Member
from rookery.types import EnvSpec


def build_shard(
    config: Config,
    spec: EnvSpec,
    rings: Sequence[Ring],
    rng: np.random.Generator,
    shards: int,
    run_dir: Path | None = None,
    member: Member | None = None,
    place: int = 0,
    factory: Any = None,
    build: Callable[..., Pool] = Pool,
) -> Pool:
    """Builds one of so many shards, which drains these rings; a member's is lent to its pool."""
    capacity = config.capacity // shards
    with contextlib.ExitStack() as stack:
        hindsight = _hindsight(config, factory)
        if hindsight is not None:
            stack.callback(hindsight.close)
        pool = build(
            spec,
            replace(config.replay, capacity=capacity),
            config.algo,
            rng=rng,
            transports=rings,
            envs=config.actor.envs,
            actors=config.actor.num,
            directory=_replay_directory(config, run_dir),
            ring=member.ring(place, schema_of(spec), capacity) if member else None,
            sequence=config.algo.sequence,
            stride=config.algo.stride,
            hindsight=hindsight,
        )
        stack.pop_all()  # the pool closes it
    return pool


def _hindsight(config: Config, factory: Any) -> Hindsight | None:
    if config.replay.hindsight == 0:
        return None
    return Hindsight(config.replay.hindsight, Goals(config.env, factory))


def _replay_directory(config: Config, run_dir: Path | None) -> Path | None:
    return run_dir if config.replay.storage is Storage.DISK else None
