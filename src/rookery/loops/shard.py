"""Building a shard: a whole replay, or one of several parts of it."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from rookery.config.schema import Config, Storage
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
    build: Callable[..., Pool] = Pool,
) -> Pool:
    """Builds one of so many shards, which drains these rings; a member's is lent to its pool."""
    capacity = config.capacity // shards
    return build(
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
    )


def _replay_directory(config: Config, run_dir: Path | None) -> Path | None:
    return run_dir if config.replay.storage is Storage.DISK else None
