"""A member: a run of ours in the pool of its host. Its rings are lent, its batches hold loans.

    member = Member(config, spec, run_id)
    ring = member.ring(place, schema, capacity)      # for each shard of its replay
    batch = member.draw(pool, 64, beta)              # instead of pool.draw
    member.rerank(pool, batch.rows, td_error)        # instead of pool.rerank

On a cluster a run is a member on each of its hosts, and what is borrowed there the learner says:
`fetch` instead of `draw`.
"""

import re
import secrets
from typing import Any, NamedTuple

import numpy as np

from rookery import seeding
from rookery.config.schema import Config
from rookery.errors import EmptyReplayError
from rookery.replay.batches import joined
from rookery.replay.loans import Lender, Loan
from rookery.replay.reader import Reader
from rookery.replay.ring import Ring, Schema, obs_column, schema_of
from rookery.seeding import Role
from rookery.sharing.appetite import Told
from rookery.sharing.blend import NOBODYS, Blend, Counts
from rookery.sharing.borrower import Borrower
from rookery.sharing.guard import Guard
from rookery.sharing.registry import create_distributed_registry
from rookery.sharing.terms import terms_of
from rookery.types import Array, Batch, Bools, EnvSpec, Extra


class Lent(NamedTuple):
    """Rows out of the pool."""

    batch: Batch
    foreign: Bools  # [B] the rest are a run's own, which may be in its pool too
    greedy: Array | None = None  # [B] as in a `Loan`


class Member(Blend):
    """One run's part in a pool."""

    def __init__(
        self,
        config: Config,
        spec: EnvSpec,
        run_id: str,
        *,
        family: str | None = None,
        index: int = 0,
    ):
        """Members of one `family` are parts of one run, each with random numbers of its own."""
        self.config, self.spec, self.sequence = config, spec, config.algo.sequence
        assert config.sharing.pool is not None, "a run without a pool has no member"
        self.registry = create_distributed_registry(
            max_buffer_size=max(1_000_000, config.replay.capacity), path=config.sharing.pool
        )
        self._run_id = re.sub(r"[^A-Za-z0-9_.-]", "_", run_id)[:80].lstrip("._-") or "run"
        self._family = family or secrets.token_hex(8)
        self._lent: dict[str, Ring] = {}
        self._borrower: Borrower | None = None
        self._rng = seeding.generator(config.run.seed, Role.SHARING, index=index)
        self.guard: Guard | None = None  # weighs loans, where the settings ask for it

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
                chained=self.spec.frame_stack > 1 or self.sequence > 0,
            )
        return self._borrower

    def beat(self) -> None:
        for ring in self._lent.values():
            ring.beat()

    def borrow(self, batch: int) -> Batch | None:
        lent = self._take(batch)
        if lent is None or self.guard is None or lent.greedy is None:
            return lent.batch if lent is not None else None
        weight = self.guard.weigh(lent.batch.obs, lent.batch.action, lent.greedy)
        return lent.batch._replace(weight=weight)

    def fetch(self, rows: int, told: Told) -> Lent | None:
        """Borrows so many rows, as told; without any it only looks around."""
        if rows == 0:
            self.borrower.look()
            return None
        self.borrower.follow(told)
        return self._take(rows)

    def observe(self, td_error: Array) -> None:
        self.borrower.observe(td_error)

    def _take(self, batch: int) -> Lent | None:
        if self.spec.frame_stack > 1 or self.sequence:
            return self._read(batch)
        algo = self.config.algo
        loan = self.borrower.borrow(batch, n_step=algo.n_step, gamma=algo.gamma)
        if loan is None or not loan.filled:
            return None
        foreign = loan.lender[: loan.filled] >= len(self.borrower.own)
        greedy = loan.greedy[: loan.filled] if loan.greedy is not None else None
        return Lent(_batch(self.spec, loan), foreign, greedy)

    def _read(self, batch: int) -> Lent | None:
        """Borrows stacks of frames or sequences, which takes a reader for each lender."""
        parts, foreign = [], list[bool]()
        algo = self.config.algo
        for lender, rows in self.borrower.deal(batch, self._rng):
            reader = Reader(
                lender.ring,
                self.spec,
                n_step=algo.n_step,
                gamma=algo.gamma,
                sequence=self.sequence,
                burn_in=algo.burn_in,
                newest=self.borrower.newest,
            )
            try:
                part = reader.draw(rows, self._rng)
            except EmptyReplayError:
                self.borrower.miss(rows)
                continue
            self.borrower.count(lender, rows)
            strange = lender.name not in self._lent
            parts.append(_lent(part, self.spec.extras if strange else ()))
            foreign += [strange] * rows
        return Lent(joined(parts), np.array(foreign)) if parts else None

    def counts(self) -> Counts:
        stats = self.borrower.stats()
        return Counts(
            local=stats["local_samples"],
            foreign=stats["distributed_samples"],
            short=stats["short_samples"],
            peers=stats["num_shared_buffers"],
            refused=len(stats["refused"]),
        )

    def close(self) -> None:
        """Leaves the pool. The rings themselves belong to the replay that was built on them."""
        if self._borrower is not None:
            self._borrower.close()
        self.registry.stop()


def _lent(part: Batch, extras: tuple[Extra, ...]) -> Batch:
    """Returns what a reader drew as a loan, without what only its own policy understands."""
    for extra in extras:
        if extra.own:
            part.extras[extra.name][:] = 0
    return part._replace(rows=np.full(part.rows.size, NOBODYS))


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
        extras=_strange(spec, loan.filled) if spec.extras else None,
    )


def _strange(spec: EnvSpec, count: int) -> dict[str, Array]:
    """Returns extras that say nothing: a compiled loan has none."""
    return {extra.name: np.zeros((count, *extra.shape), dtype=extra.dtype) for extra in spec.extras}
