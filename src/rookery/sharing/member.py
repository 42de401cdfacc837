"""A member: a run of ours in a pool. Its replay rings are lent, and its batches hold loans.

    member = Member(config, spec, run_id)
    ring = member.ring(place, schema, capacity)      # for each shard of its replay
    batch = member.draw(pool, 64, beta)              # instead of pool.draw
    member.rerank(pool, batch.rows, td_error)        # instead of pool.rerank

Own rows come as they would without a pool. Rows of the pool are drawn uniformly within their
strategy, are never reranked (row -1), and get the mean weight of the batch's own rows.
"""

import re
import secrets
from typing import Any, Protocol

import numpy as np

from rookery import seeding
from rookery.config.schema import Config
from rookery.errors import EmptyReplayError
from rookery.replay.batches import joined
from rookery.replay.loans import Lender, Loan
from rookery.replay.reader import Reader
from rookery.replay.ring import Ring, Schema, obs_column, schema_of
from rookery.seeding import Role
from rookery.sharing.borrower import Borrower
from rookery.sharing.registry import create_distributed_registry
from rookery.sharing.terms import terms_of
from rookery.types import Array, Batch, EnvSpec, Rows

NOBODYS = -1  # the row of a loan: it is never reranked


class Replay(Protocol):
    """A run's own replay, however it is kept."""

    def draw(self, batch: int, *, beta: float = ...) -> Batch: ...
    def rerank(self, rows: Rows, td_error: Array) -> None: ...


class Member:
    """One run's part in a pool."""

    def __init__(self, config: Config, spec: EnvSpec, run_id: str, sequence: int = 0):
        self.config, self.spec, self.sequence = config, spec, sequence
        assert config.sharing.pool is not None, "a run without a pool has no member"
        self.registry = create_distributed_registry(
            max_buffer_size=max(1_000_000, config.replay.capacity), path=config.sharing.pool
        )
        self._run_id = re.sub(r"[^A-Za-z0-9_.-]", "_", run_id)[:80].lstrip("._-") or "run"
        self._family = secrets.token_hex(8)
        self._lent: dict[str, Ring] = {}
        self._borrower: Borrower | None = None
        self._rng = seeding.generator(config.run.seed, Role.SHARING)

    def ring(self, place: int, schema: Schema, capacity: int) -> Ring:
        """Makes the ring of one shard, which others may map from now on."""
        name = self._run_id if place == 0 else f"{self._run_id}.{place}"
        buffer_id = self.registry.register_buffer(
            run_id=name,
            algorithm=self.config.algo.name.upper(),
            reward_tag=self.config.sharing.reward_tag,
            env=self.config.env.id,
            family=self._family,
        )
        ring = self.registry.attach(buffer_id, self._terms(), schema, capacity)
        self.registry.claim(ring, buffer_id)
        self._lent[buffer_id] = ring
        return ring

    def _terms(self) -> dict[str, Any]:
        env = self.config.env
        reward = {
            "scale": env.reward_scale,
            "clip": env.reward_clip,
            "tag": self.config.sharing.reward_tag,
        }
        return terms_of(schema_of(self.spec), self.spec.action, reward=reward, env=env.id)

    @property
    def borrower(self) -> Borrower:
        """Begins to look around once there are own rings."""
        if self._borrower is None:
            columns = {column.name: column for column in schema_of(self.spec)}
            self._borrower = Borrower(
                self.registry,
                next(iter(self._lent)),
                [Lender(name, ring) for name, ring in self._lent.items()],
                [columns[obs_column(leaf.name)] for leaf in self.spec.obs],
                columns["action"],
                strategy=self.config.sharing.strategy,
                ratio=self.config.sharing.cross_sample_ratio,
                seed=int(self._rng.integers(1 << 62)),
            )
        return self._borrower

    def beat(self) -> None:
        """Tells the others that rows have come."""
        for ring in self._lent.values():
            ring.beat()

    def draw(self, pool: Replay, batch: int, beta: float) -> Batch:
        """Draws a batch of own rows and of the pool's."""
        loan = self._borrow(batch)
        if loan is None:
            return pool.draw(batch, beta=beta)
        missing = batch - loan.rows.size
        if missing == 0:
            return loan
        own = pool.draw(missing, beta=beta)
        loan.weight[:] = own.weight.mean()
        return joined([own, loan])

    def rerank(self, pool: Replay, rows: Rows, td_error: Array) -> None:
        """Hands on the TD errors of own rows."""
        own = rows != NOBODYS
        if not own.all():
            rows, td_error = rows[own], td_error[own]
        if rows.size:
            pool.rerank(rows, td_error)
        self.borrower.observe(td_error)

    def _borrow(self, batch: int) -> Batch | None:
        if self.spec.frame_stack > 1 or self.sequence:
            return self._read(batch)
        algo = self.config.algo
        loan = self.borrower.borrow(batch, n_step=algo.n_step, gamma=algo.gamma)
        return _batch(self.spec, loan) if loan is not None and loan.filled else None

    def _read(self, batch: int) -> Batch | None:
        """Borrows stacks of frames or sequences, which takes a reader for each lender."""
        parts = []
        algo = self.config.algo
        for lender, rows in self.borrower.deal(batch, self._rng):
            reader = Reader(
                lender.ring,
                self.spec,
                n_step=algo.n_step,
                gamma=algo.gamma,
                sequence=self.sequence,
                newest=self.borrower.newest,
            )
            try:
                part = reader.draw(rows, self._rng)
            except EmptyReplayError:
                self.borrower.miss(rows)
                continue
            self.borrower.count(lender, rows)
            parts.append(part._replace(rows=np.full(rows, NOBODYS)))
        return joined(parts) if parts else None

    def stats(self) -> dict[str, float]:
        """Returns what was borrowed so far, for a run's metrics."""
        stats = self.borrower.stats()
        return {
            "sharing/local_rows": float(stats["local_samples"]),
            "sharing/foreign_rows": float(stats["distributed_samples"]),
            "sharing/foreign_share": stats["distributed_ratio"],
            "sharing/short_rows": float(stats["short_samples"]),
            "sharing/peers": float(stats["num_shared_buffers"]),
            "sharing/refused": float(len(stats["refused"])),
        }

    def close(self) -> None:
        """Leaves the pool. The rings themselves belong to the replay that was built on them."""
        if self._borrower is not None:
            self._borrower.close()
        self.registry.stop()


def _batch(spec: EnvSpec, loan: Loan) -> Batch:
    upto = slice(loan.filled)
    return Batch(
        obs=spec.pack({name: leaf[upto] for name, leaf in loan.obs.items()}),
        action=loan.action[upto],
        reward=loan.reward[upto],
        discount=loan.discount[upto],
        next_obs=spec.pack({name: leaf[upto] for name, leaf in loan.next_obs.items()}),
        weight=np.ones(loan.filled, dtype=np.float32),
        rows=np.full(loan.filled, NOBODYS),
    )
