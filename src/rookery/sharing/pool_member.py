"""Pool member: a run that shares its replay buffer with other runs and samples from theirs.

    member = PoolMember(config, spec, run_id)
    ring = member.ring(place, schema, capacity)             # for each shard of its replay
    batch = member.sample(replay, 64, beta)                 # instead of replay.sample
    member.update_priorities(replay, batch.rows, td_error)  # instead of replay.update_priorities

A pool is the set of replay buffers that the runs on one host share. A shard is a part of a run's
replay buffer. On a cluster, the run's worker process on each host is a pool member. It samples for
the learner, with `fetch` instead of `sample`, by buffer weights that the learner sends.
"""

import secrets
from typing import Any, NamedTuple

import numpy as np

from rookery import seeding
from rookery.config.schema import Config
from rookery.replay.batches import joined
from rookery.replay.fold import Horizon
from rookery.replay.ring import Ring, Schema, obs_column, schema_of
from rookery.seeding import Role
from rookery.sharing.borrowed_rows import BorrowedRows, Lender, Returns
from rookery.sharing.borrower import Borrower
from rookery.sharing.compatibility import terms_of
from rookery.sharing.mixed_batches import BORROWED, MixedBatches
from rookery.sharing.registry import open_pool, run_id_of
from rookery.sharing.ring_reader import RingReader
from rookery.sharing.strategies import AssignedWeights
from rookery.types import ArrayBatch, Batch, Bools, EnvSpec, Extra


class BorrowedBatch(NamedTuple):
    """Env steps sampled from shared replay buffers, and a mask of those that are of other runs."""

    batch: ArrayBatch
    foreign: Bools  # [B] rows of other runs; the rest are the run's own


class PoolMember(MixedBatches):
    """Shares a run's replay buffer with the other runs on its host, and samples from theirs."""

    def __init__(
        self,
        config: Config,
        spec: EnvSpec,
        run_id: str,
        *,
        family: str | None = None,
        index: int = 0,
    ):
        """Joins the pool (set of shared replay buffers) that the setting `sharing.pool` names.

        Members with the same `family` are parts of one run and do not sample from each other;
        `index` makes their random numbers differ.
        """
        self.config, self.spec, self.algo = config, spec, config.algo
        horizon = Horizon(self.algo.n_step, self.algo.gamma, self.algo.sequence)
        self._reader = RingReader(spec, horizon, self.algo.burn_in)
        self.registry = open_pool(config)
        self._run_id = run_id_of(run_id)
        self._family = family or secrets.token_hex(8)
        self._rings: dict[str, Ring] = {}
        self._borrower: Borrower | None = None
        self._rng = seeding.generator(config.run.seed, Role.SHARING, index=index)

    def ring(self, place: int, schema: Schema, capacity: int) -> Ring:
        """Creates the ring buffer of replay shard (part of the run's replay buffer) number `place`.

        Other runs may map and read it from now on.
        """
        name = self._run_id if place == 0 else f"{self._run_id}.{place}"
        buffer_id = self.registry.register_buffer(
            run_id=name,
            algorithm=self.config.algo.name.upper(),
            reward_tag=self.config.sharing.reward_tag,
            env=self.config.env.id,
            family=self._family,
        )
        env = self.config.env
        terms = terms_of(
            schema_of(self.spec),
            self.spec.action,
            reward={
                "scale": env.reward_scale,
                "clip": env.reward_clip,
                "tag": self.config.sharing.reward_tag,
            },
            env=env.id,
        )
        ring = self.registry.attach(buffer_id, terms, schema, capacity)
        self.registry.claim(ring, buffer_id)
        self._rings[buffer_id] = ring
        return ring

    @property
    def _chained(self) -> bool:
        """True if the rows before or after a row are read with it: frame stacks and sequences."""
        return self.spec.frame_stack > 1 or self.algo.sequence > 0

    @property
    def borrower(self) -> Borrower:
        """The object that samples env steps from other runs' replay buffers.

        It is created at the first use, which must come after this run's own replay ring buffer is
        created.
        """
        if self._borrower is None:
            columns = {column.name: column for column in schema_of(self.spec)}
            self._borrower = Borrower(
                self.registry,
                next(iter(self._rings)),
                [Lender(name, ring) for name, ring in self._rings.items()],
                [columns[obs_column(leaf.name)] for leaf in self.spec.obs],
                columns["action"],
                strategy=self.config.sharing.strategy,
                ratio=self.config.sharing.cross_sample_ratio,
                seed=int(self._rng.integers(1 << 62)),
                chained=self._chained,
            )
        return self._borrower

    def beat(self) -> None:
        for ring in self._rings.values():
            ring.beat()

    def borrow(self, batch: int) -> ArrayBatch | None:
        borrowed = self._take(batch)
        return borrowed.batch if borrowed is not None else None

    def fetch(self, rows: int, assigned: AssignedWeights) -> BorrowedBatch | None:
        """Samples `rows` env steps of shared replay buffers, by weights that the learner has sent.

        Returns None if no step was found. If `rows` is 0, only updates the list of shared buffers
        and returns None.
        """
        if rows == 0:
            self.borrower.refresh_if_due()
            return None
        self.borrower.assign(assigned)
        return self._take(rows)

    def _take(self, batch: int) -> BorrowedBatch | None:
        if self._chained:
            return self._read_chains(batch)
        borrowed = self.borrower.borrow(batch, Returns(self.algo.n_step, self.algo.gamma))
        if borrowed is None or not borrowed.filled:
            return None
        foreign = borrowed.lender[: borrowed.filled] >= len(self.borrower.own)
        return BorrowedBatch(_batch(self.spec, borrowed), foreign)

    def _read_chains(self, batch: int) -> BorrowedBatch | None:
        """Samples transitions with frame stacks, or sequences, from the shared replay buffers.

        Returns None if no buffer had enough env steps.
        """
        parts, foreign = [], list[bool]()
        for part, is_foreign in self.borrower.borrow_by(self._reader, batch, self._rng):
            parts.append(_as_borrowed(part, self.spec.extras if is_foreign else ()))
            foreign += [is_foreign] * part.rows.size
        return BorrowedBatch(joined(parts), np.array(foreign)) if parts else None

    def statistics(self) -> dict[str, Any]:
        return self.borrower.counts.stats()

    def close(self) -> None:
        """Ends sharing of this run's replay; the ring buffers stay open for the run's own use."""
        if self._borrower is not None:
            self._borrower.close()
        self.registry.stop()


def _as_borrowed(part: ArrayBatch, extras: tuple[Extra, ...]) -> ArrayBatch:
    """Gives all rows (env steps) of a batch the row number `BORROWED`.

    The priorities of such rows are never updated. Zeroes those of the columns `extras` that only
    the policy that wrote them can use, such as recurrent state.
    """
    for extra in extras:
        if extra.own:
            assert part.extras is not None  # the spec has extra columns
            part.extras[extra.name][:] = 0
    return part._replace(rows=np.full(part.rows.size, BORROWED))


def _batch(spec: EnvSpec, borrowed: BorrowedRows) -> ArrayBatch:
    """Returns the sampled part of a batch; `RowCopier` copies no algorithm-specific columns."""
    count = borrowed.filled
    extras = {
        extra.name: np.zeros((count, *extra.shape), dtype=extra.dtype) for extra in spec.extras
    }
    return Batch(
        obs=spec.pack({name: leaf[:count] for name, leaf in borrowed.obs.items()}),
        action=borrowed.action[:count],
        reward=borrowed.reward[:count],
        discount=borrowed.discount[:count],
        next_obs=spec.pack({name: leaf[:count] for name, leaf in borrowed.next_obs.items()}),
        weight=np.ones(count, dtype=np.float32),
        rows=np.full(count, BORROWED),
        extras=extras or None,
    )
