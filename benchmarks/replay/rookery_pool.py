"""Rookery's pool: prioritised draws, folded and reranked; rows from arrays into replay.

`append` is the whole way: columns written into an actor's transport ring, drained into replay,
joined to their chains and ready to be drawn.
"""

import itertools
from collections.abc import Callable

import numpy as np

import rows
from rookery.config.algorithms import DqnConfig
from rookery.config.schema import Draw, ReplayConfig
from rookery.replay.buffer import LocalReplay
from rookery.replay.ring import Ring, schema_of
from rookery.types import ActionSpec, End, EnvSpec, Leaf, LeafKind

SPEC = EnvSpec(
    name="rows", obs=(Leaf("", (8,), "float32", LeafKind.VECTOR),), action=ActionSpec(n=4)
)


def pool(seed: int, draw: Draw, *, transport: int, envs: int) -> LocalReplay:
    """Returns an empty replay with one actor's transport ring of `transport` rows."""
    config = ReplayConfig(capacity=rows.CAPACITY, sampling=draw, alpha=rows.ALPHA)
    ring = Ring.create(schema_of(SPEC), transport)
    rng = np.random.default_rng(seed)
    return LocalReplay(SPEC, config, DqnConfig(), rng=rng, transports=[ring], envs=envs)


def columns(given: rows.Rows, envs: int) -> dict[str, np.ndarray]:
    n = len(given.reward)
    return {
        "obs": given.obs,
        "action": given.action,
        "reward": given.reward,
        "end": np.where(given.terminated, End.TERMINATED, End.RUNNING).astype(np.uint8),
        "env": np.arange(n, dtype=np.int32) % envs,
        "t": np.arange(n, dtype=np.int32) // envs,
    }


def draw(seed: int) -> Callable[[], int]:
    rng = np.random.default_rng(seed)
    replay = pool(seed, Draw.PRIORITIZED, transport=rows.FILLED, envs=1)
    replay.transports[0].append(columns(rows.make(rows.FILLED, rng), envs=1))
    replay.insert()
    replay.update_priorities(
        np.arange(rows.FILLED), rng.exponential(size=rows.FILLED).astype(np.float32)
    )
    fresh = itertools.cycle(rows.errors(rng))

    def work() -> int:
        batch = replay.sample(rows.BATCH, beta=rows.BETA)
        replay.update_priorities(batch.rows, next(fresh))
        return 1

    return work


def append(seed: int) -> Callable[[], int]:
    replay = pool(seed, Draw.UNIFORM, transport=4 * rows.CHUNK, envs=rows.CHUNK)
    given = columns(rows.make(rows.CHUNK, np.random.default_rng(seed)), envs=rows.CHUNK)
    transport = replay.transports[0]

    def work() -> int:
        transport.put(rows.CHUNK, given)  # as actors do
        replay.insert()
        return rows.CHUNK

    return work
