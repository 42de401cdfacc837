"""Runs of ours in a pool, with rows that tell their numbers."""

from pathlib import Path

import numpy as np

import small_replays as replaying
from rookery.config.algorithms import DqnConfig
from rookery.config.schema import Config, Draw, ReplayConfig, SharingConfig
from rookery.replay.buffer import LocalReplay
from rookery.replay.ring import Ring, schema_of
from rookery.sharing.pool_member import PoolMember
from rookery.types import EnvSpec
from sample_experience import VECTOR, Move, play

MOVES = [(0, k % 2, Move.TERMINATE if k % 11 > 8 else Move.RUN) for k in range(400)]


def member(folder: Path, name: str, spec: EnvSpec = VECTOR, ratio: float = 0.25) -> PoolMember:
    sharing = SharingConfig(pool=str(folder / "pool"), cross_sample_ratio=ratio)
    return PoolMember(Config(algo=DqnConfig(gamma=0.5), sharing=sharing), spec, name)


def pool(part: PoolMember, draw: Draw = Draw.PRIORITIZED) -> LocalReplay:
    """Returns a replay that is lent, with rows whose observations tell their numbers."""
    replay = LocalReplay(
        part.spec,
        ReplayConfig(capacity=300, learning_starts=1, batch_size=1, sampling=draw),
        DqnConfig(gamma=0.5),
        rng=np.random.default_rng(0),
        transports=[Ring.create(schema_of(part.spec), 600)],
        envs=2,
        ring=part.ring(0, schema_of(part.spec), 300),
    )
    replaying.write(replay, play(MOVES))
    replay.insert()
    return replay
