"""Members join, leave and die in any order: a pool is what a plain model says it is.

Runs are processes of an imagined world in this one: `Owner` is told who acts and who is alive, the
files and their locks are real. Whoever crashes loses its descriptors, as the kernel would have it,
and cleans up nothing.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pool_buffers import SCHEMA, TERMS, borrower, fill
from rookery.errors import RegistryError
from rookery.replay.file_owner import Owner
from rookery.replay.ring import Ring
from rookery.sharing import borrower as borrowing
from rookery.sharing import registry as registries
from rookery.sharing.borrower import Borrower
from rookery.sharing.registry import Registry, create_distributed_registry

MOST, CAPACITY, STALE_S = 50, 8, 1000.0
HEARTBEAT = 40  # where `Ring.beat` posts
PICK = st.integers(0, 10**6)  # of whatever there is


@dataclass
class Buffer:
    """What the model knows of one."""

    registrar: int
    owner: int | None = None  # of the ring: who made it, or claimed it last
    rows: int = 0
    silent: bool = False


@dataclass
class Run:
    """A process of the imagined world."""

    number: int
    registry: Registry
    rings: dict[str, Ring] = field(default_factory=dict)  # what it has mapped, by buffer
    claimed: set[str] = field(default_factory=set)


class World(RuleBasedStateMachine):
    """A pool, its members, and somebody who borrows from them."""

    @initialize(crowd=st.lists(st.integers(1, 12), max_size=4))
    def begin(self, crowd: list[int]) -> None:
        self.patch = pytest.MonkeyPatch()
        self.alive: set[int] = set()
        self.acting = 0
        self.patch.setattr(Owner, "this", lambda: Owner(self.acting, 1, bytes(16)))
        self.patch.setattr(Owner, "alive", property(lambda owner: owner.pid in self.alive))
        self.patch.setattr(registries, "PATIENCE_S", 0.0)
        self.patch.setattr(borrowing, "SWEEP_S", 1e9)
        self.before = descriptors(), mapped()
        self.home = Path(tempfile.mkdtemp())
        self.folder = self.home / "pool"
        self.model: dict[str, Buffer] = {}
        self.runs: dict[int, Run] = {}
        self.inodes: set[int] = set()  # of all rings there ever were
        self.made = 0
        self.observer: tuple[Run, str, Borrower] | None = None
        self.watch()
        for count in crowd:
            self.a_run_joins(count)

    def run(self, pick: int) -> Run:
        others = [run for run in self.runs.values() if not self.is_observer(run)]
        return others[pick % len(others)]

    def is_observer(self, run: Run) -> bool:
        return self.observer is not None and self.observer[0] is run

    def buffer(self, pick: int) -> str:
        there = sorted(self.strangers())
        return there[pick % len(there)]

    def strangers(self) -> list[str]:
        """Returns the buffers that are not the observer's own."""
        return [name for name in self.model if self.observer is None or name != self.observer[1]]

    @contextmanager
    def acts(self, run: Run) -> Iterator[None]:
        self.acting = run.number
        yield
        self.acting = 0

    def is_dead(self, buffer: Buffer) -> bool:
        return buffer.registrar not in self.alive and buffer.owner not in self.alive

    def sweep(self) -> set[str]:
        """Takes the dead out of the model, as any registration does with the pool."""
        dead = {name for name, buffer in self.model.items() if self.is_dead(buffer)}
        for name in dead:
            del self.model[name]
        return dead

    # --- joining

    def start(self) -> Run:
        self.made += 1
        self.alive.add(self.made)
        self.acting = self.made
        registry = create_distributed_registry(100, path=self.folder, stale_s=STALE_S)
        self.acting = 0
        self.runs[self.made] = Run(self.made, registry)
        return self.runs[self.made]

    @precondition(lambda self: len(self.runs) < 10)
    @rule(count=st.integers(0, 8))
    def a_run_joins(self, count: int) -> None:
        """It lends from all but its first two buffers, of which nobody has the other one."""
        run = self.start()
        for k in range(min(count, MOST - len(self.model))):
            buffer_id = self.register(run)
            if k > 0:
                self.attach(run, buffer_id)
            if k > 1:
                self.claim(run, buffer_id)
        self.writers_write(0, 1)

    def register(self, run: Run) -> str:
        self.made += 1
        with self.acts(run):
            buffer_id = run.registry.register_buffer(run_id=f"r{self.made}", algorithm="SAC")
        self.sweep()
        self.model[buffer_id] = Buffer(run.number)
        return buffer_id

    @precondition(lambda self: len(self.runs) > 1)
    @rule(pick=PICK, count=st.integers(1, 8))
    def a_run_registers(self, pick: int, count: int) -> None:
        run = self.run(pick)
        for _ in range(min(count, MOST - len(self.model))):
            self.register(run)

    def attach(self, run: Run, buffer_id: str) -> None:
        with self.acts(run):
            ring = run.registry.attach(buffer_id, TERMS, SCHEMA, CAPACITY)
        self.inodes.add(os.fstat(ring.fd).st_ino)
        run.rings[buffer_id] = ring
        if self.model[buffer_id].owner is None:
            self.model[buffer_id].owner = run.number

    @precondition(lambda self: len(self.runs) > 1 and self.strangers())
    @rule(who=PICK, what=PICK, count=st.integers(1, 8))
    def a_run_attaches(self, who: int, what: int, count: int) -> None:
        run = self.run(who)
        for k in range(count):
            buffer_id = self.buffer(what + k)
            if buffer_id not in run.rings:
                self.attach(run, buffer_id)

    @precondition(lambda self: any(run.rings for run in self.runs.values()))
    @rule(pick=PICK)
    def a_run_claims(self, pick: int) -> None:
        self.claim(*self.handle(pick))

    def claim(self, run: Run, buffer_id: str) -> None:
        taken = any(buffer_id in other.claimed for other in self.runs.values() if other is not run)
        with self.acts(run):
            if taken or buffer_id not in self.model:
                with pytest.raises(RegistryError):
                    run.registry.claim(run.rings[buffer_id], buffer_id)
                return
            run.registry.claim(run.rings[buffer_id], buffer_id)
        run.claimed.add(buffer_id)
        self.model[buffer_id].owner = run.number

    def handle(self, pick: int) -> tuple[Run, str]:
        pairs = [(run, name) for run in self.runs.values() for name in sorted(run.rings)]
        return pairs[pick % len(pairs)]

    @precondition(lambda self: any(run.claimed for run in self.runs.values()))
    @rule(pick=PICK, count=st.integers(1, CAPACITY))
    def writers_write(self, pick: int, count: int) -> None:
        for run in self.runs.values():
            for buffer_id in sorted(run.claimed)[pick % 3 :: 3]:
                fill(run.rings[buffer_id], count)
                if buffer_id in self.model:
                    self.model[buffer_id].rows += count
                    self.model[buffer_id].silent = False

    @precondition(lambda self: any(run.rings for run in self.runs.values()))
    @rule(pick=PICK)
    def a_buffer_goes_silent(self, pick: int) -> None:
        run, buffer_id = self.handle(pick)
        run.rings[buffer_id].words[HEARTBEAT] -= int(2 * STALE_S * 1e9)
        if buffer_id in self.model:
            self.model[buffer_id].silent = True

    # --- leaving

    @precondition(lambda self: len(self.runs) > 1 and self.strangers())
    @rule(who=PICK, what=PICK)
    def a_buffer_leaves(self, who: int, what: int) -> None:
        buffer_id = self.buffer(what)
        self.run(who).registry.deregister_buffer(buffer_id)
        del self.model[buffer_id]
        for run in self.runs.values():
            if buffer_id in run.rings:
                self.claim(run, buffer_id)  # is refused

    @precondition(lambda self: len(self.runs) > 1)
    @rule(pick=PICK, end=st.sampled_from(["stop", "crash"]))
    def a_run_ends(self, pick: int, end: str) -> None:
        {"stop": self.stop, "crash": self.crash}[end](self.run(pick))

    def stop(self, run: Run) -> None:
        """Ends a run as it should: what it registered goes, and what the dead have left."""
        for ring in run.rings.values():
            ring.close()
        run.registry.stop()
        self.model = {n: b for n, b in self.model.items() if b.registrar != run.number}
        self.sweep()
        self.alive.remove(run.number)
        del self.runs[run.number]

    def crash(self, run: Run) -> None:
        for ring in run.rings.values():
            ring.close()
        for fd in (run.registry._pool_fd, *run.registry._held.values()):
            os.close(fd)
        run.registry._pool_fd = -1
        run.registry._held.clear()
        self.alive.remove(run.number)
        del self.runs[run.number]

    @rule()
    def somebody_sweeps(self) -> None:
        if self.observer is not None:
            assert set(self.observer[0].registry.sweep()) == self.sweep()

    # --- watching

    @precondition(lambda self: self.observer is None and len(self.model) < MOST)
    @rule()
    def watch(self) -> None:
        """Somebody who borrows joins the pool, or makes it."""
        run = self.start()
        buffer_id = self.register(run)
        self.attach(run, buffer_id)
        member = borrower(run.registry, buffer_id, run.rings[buffer_id], ratio=1.0)
        self.observer = (run, buffer_id, member)

    @precondition(lambda self: self.observer is not None)
    @rule()
    def look_away(self) -> None:
        """It leaves; where nobody else is, the pool goes with it."""
        assert self.observer is not None
        run, _, member = self.observer
        member.close()
        self.observer = None
        self.stop(run)

    @invariant()
    def the_pool_is_what_the_model_says(self) -> None:
        assert self.folder.exists() == bool(self.runs or self.model)
        if self.observer is None:
            return
        listed = self.observer[0].registry.list()
        assert {each.buffer_id: (each.state, each.rows) for each in listed} == {
            name: (self.standing(buffer), buffer.rows) for name, buffer in self.model.items()
        }

    def standing(self, buffer: Buffer) -> str:
        if self.is_dead(buffer):
            return "dead"
        if not buffer.rows:
            return "reserved"
        return "silent" if buffer.silent else "lending"

    @invariant()
    def who_borrows_knows_everybody_who_lends(self) -> None:
        if self.observer is None:
            return
        _, own, member = self.observer
        member.refresh()
        peers = {name for name, b in self.model.items() if b.owner is not None and name != own}
        assert member.counts.stats()["num_shared_buffers"] == len(peers)
        assert set(member.peers) == peers
        assert member.counts.stats()["refused"] == {}
        full = {n for n in peers if self.model[n].rows and not self.model[n].silent}
        loan = member.borrow(64)
        lent = set() if loan is None else {member._copier.lenders[k].name for k in loan.lender[:64]}
        assert lent <= full
        assert (loan is not None and loan.filled == 64) == bool(full)

    def teardown(self) -> None:
        if not hasattr(self, "patch"):
            return
        try:
            self.everybody_goes()
        finally:
            self.patch.undo()
        left = list(self.home.rglob("*"))
        shutil.rmtree(self.home)
        assert left == []
        open_before, mapped_before = self.before
        assert descriptors() == open_before
        assert not (self.inodes - mapped_before) & mapped()

    def everybody_goes(self) -> None:
        if self.observer is not None:
            self.look_away()
        for run in tuple(self.runs.values()):
            self.stop(run) if run.number % 2 else self.crash(run)
        last = self.start()
        last.registry.sweep()
        assert last.registry.list() == ()
        self.stop(last)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def mapped() -> set[int]:
    """Returns the inodes of all files that this process has mapped."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return {int(line.split()[4]) for line in lines} - {0}


World.TestCase.settings = settings(max_examples=16, stateful_step_count=30)
TestWorld = World.TestCase
