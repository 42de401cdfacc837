"""Buffers of a pool with rows in them, for tests of sharing."""

from pathlib import Path

import numpy as np

from rookery.config.schema import Strategy
from rookery.replay.ring import Column, Ring, paired_schema
from rookery.sharing.borrowed_rows import Lender
from rookery.sharing.borrower import Borrower
from rookery.sharing.compatibility import Terms, terms_of
from rookery.sharing.registry import Registry, create_distributed_registry
from rookery.types import ActionSpec

SCHEMA = paired_schema({"": ((3,), "float32")}, ((1,), "float32"))
OBS = next(column for column in SCHEMA if column.name == "obs")
ACTION = next(column for column in SCHEMA if column.name == "action")
MOTION = ActionSpec(shape=(1,), low=(-2.0,), high=(2.0,))
TERMS = terms_of(SCHEMA, MOTION, reward={"scale": 1.0, "clip": None, "tag": None})


def pool(folder: Path, **settings: float) -> Registry:
    return create_distributed_registry(10_000, path=folder / "pool", **settings)


def join(
    registry: Registry, run_id: str, capacity: int = 1000, terms: Terms = TERMS
) -> tuple[str, Ring]:
    """Registers a buffer and attaches a ring to it; the caller writes it."""
    buffer_id = registry.register_buffer(run_id=run_id, algorithm="SAC")
    return buffer_id, registry.attach(buffer_id, terms, SCHEMA, capacity)


def fill(ring: Ring, count: int, mark: float = 0.0) -> None:
    """Appends rows whose action is `mark` and whose reward is their row's number."""
    first = ring.committed
    ring.append(
        {
            "obs": np.full((count, 3), mark),
            "next_obs": np.full((count, 3), mark + 0.5),
            "action": np.full((count, 1), mark),
            "reward": np.arange(first, first + count),
            "done": np.zeros(count),
            "timeout": np.zeros(count),
        }
    )
    ring.beat()


def borrower(
    registry: Registry,
    buffer_id: str,
    ring: Ring,
    strategy: Strategy = Strategy.SELF_HEAVY,
    ratio: float = 0.2,
    seed: int = 3,
    leaves: tuple[Column, ...] = (OBS,),
    chained: bool = False,
) -> Borrower:
    return Borrower(
        registry,
        buffer_id,
        [Lender(buffer_id, ring)],
        leaves,
        ACTION,
        strategy=strategy,
        ratio=ratio,
        seed=seed,
        chained=chained,
    )
