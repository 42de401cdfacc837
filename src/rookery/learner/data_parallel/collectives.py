"""Collective communication among the data-parallel learners of a run, by torch.distributed.

The leader is the learner of rank 0, followers are the other learners.

    store = listen("127.0.0.1:0")                   # the leader; followers: connect(address)
    collectives = Collectives(store, rank, size, ...)   # returns once all learners have joined
    collectives.scatter(rows); collectives.receive(size)   # the leader sends, followers wait
    collectives.all_reduce(tensor)                  # all get the sum, equal to the last bit
    collectives.gather(tensor)                      # the leader gets the tensors of all

Processes and hosts communicate by gloo over TCP, GPUs by nccl. The process groups are made here and
not registered with torch, because torch's default group belongs to the user's program. Nothing is
pickled.
"""

import contextlib
import os
import socket
import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, distributed
from torch.distributed import ProcessGroup, Work

from rookery.errors import ConfigError

if TYPE_CHECKING:
    from torch._C._distributed_c10d import TCPStore

dist: Any = distributed  # type: ignore[explicit-any]  # it exports less than it documents

FIRST = 0  # the rank of the run itself
POLL = timedelta(seconds=1)  # of waiting, between two checks of the other learners
START_S = 120.0  # for a new process to import its modules and to initialise a GPU
THREADS = 2  # of gloo
BEAT_S = 1.0  # between two heartbeats of a follower
SILENT_S = 10.0  # without a heartbeat, after which a follower is lost


class OtherLearners(Protocol):
    """Interface of what a learner knows about the other learners of its run."""

    def check(self, waited_s: float) -> None:
        """Raises an error if another learner is gone, or `waited_s` seconds are too long a wait."""

    def lost(self, error: Exception) -> Exception:
        """Returns the error to raise for a broken connection to another learner."""


class RootedOptions(Protocol):
    """Options of scatter, broadcast and gather: the rank of the root process, and a timeout."""

    rootRank: int
    timeout: timedelta


def listen(address: str) -> "TCPStore":
    """Opens the leader's (rank 0) TCP store, at which the data-parallel learners of a run meet.

    The store accepts connections at `address` (host:port) only. Raises ConfigError if that address
    cannot be opened.
    """
    host, port = _parts(address)
    try:
        listener = socket.create_server((host, port))
    except OSError as error:
        raise ConfigError(
            f"learner.rendezvous {address} cannot be opened: {error}; give an address of this "
            "machine and a free port of it"
        ) from error
    port = listener.getsockname()[1]
    return _store(host, port, listener.detach())


def connect(address: str) -> "TCPStore":
    """Connects a follower (rank > 0) to the leader's (rank 0) TCP store; waits until it is open."""
    return _store(*_parts(address))


def _store(host: str, port: int, listen_fd: int | None = None) -> "TCPStore":
    store: TCPStore = dist.TCPStore(
        host,
        port,
        is_master=listen_fd is not None,
        timeout=timedelta(seconds=START_S),
        wait_for_workers=False,
        master_listen_fd=listen_fd,
    )
    return store


class FollowerHeartbeat:
    """Thread of a follower (rank > 0) that counts seconds in the leader's TCP store.

    A broken connection does not always end a collective operation of gloo: the leader also looks
    whether the followers' counters still move.
    """

    def __init__(self, store: "TCPStore", rank: int):
        self._store, self._key, self._over = store, _alive(rank), threading.Event()
        threading.Thread(target=self._work, name="heartbeat", daemon=True).start()

    def _work(self) -> None:
        with contextlib.suppress(RuntimeError):  # the leader is gone: the main thread notices
            while not self._over.wait(BEAT_S):
                self._store.add(self._key, 1)

    def close(self) -> None:
        self._over.set()


class HeartbeatMonitor:
    """The leader's view of the followers' heartbeats in its TCP store."""

    def __init__(self, store: "TCPStore", ranks: Sequence[int]):
        self._store = store
        self._seen = dict.fromkeys(ranks, (-1, 0.0))  # counter, and when it last moved

    def silent(self) -> int | None:
        """Returns the rank of a follower without a heartbeat for 10 s, or None.

        The time counts from the first call that saw the counter at rest.
        """
        now = time.monotonic()
        for rank, (before, since) in self._seen.items():
            count = self._store.add(_alive(rank), 0)
            if count != before:
                self._seen[rank] = count, now
            elif now - since > SILENT_S:
                return rank
        return None


def _alive(rank: int) -> str:
    return f"alive/{rank}"


class Collectives:
    """Collective operations among data-parallel learners; each learner has one such object.

    While an operation waits for other learners, it regularly calls `others.check`, which may raise
    an error. If a connection breaks, the operation raises the error that `others.lost` returns.
    """

    def __init__(
        self,
        store: "TCPStore",
        rank: int,
        size: int,
        device: torch.device,
        timeout_s: float,
        others: OtherLearners,
    ):
        self.rank, self.size = rank, size
        self._others, self._limit = others, timedelta(seconds=timeout_s)
        try:
            self._group = self._gloo(store)
            self._nccl = None if device.type == "cpu" else self._nccl_group(store)
        except RuntimeError as error:
            raise others.lost(error) from error

    def scatter(self, rows: Tensor) -> None:
        """Sends row i of a uint8 tensor to the learner of rank i, for all learners of the run.

        Only the leader (rank 0) calls it; followers (the other ranks) call `receive`.
        """
        mine = torch.empty_like(rows[FIRST])
        self._wait(self._group.scatter([mine], [list(rows)], self._options(dist.ScatterOptions())))

    def receive(self, count: int) -> Tensor:
        """Waits for the leader's next `scatter`; returns this learner's row of `count` bytes."""
        mine = torch.empty(count, dtype=torch.uint8)
        self._wait(self._group.scatter([mine], [], self._options(dist.ScatterOptions())))
        return mine

    def broadcast(self, raw: Tensor) -> None:
        """Copies the leader's (rank 0) tensor `raw` into the tensor `raw` of all followers."""
        self._wait(self._group.broadcast([raw], self._options(dist.BroadcastOptions())))

    def all_reduce(self, tensor: Tensor) -> None:
        """Replaces the tensor, in place on every learner, by the sum over all learners."""
        if self._nccl is None:
            options = dist.AllreduceOptions()
            options.timeout = self._limit
            self._wait(self._group.allreduce([tensor], options))
            return
        try:
            self._nccl.allreduce([tensor]).wait()
        except RuntimeError as error:
            raise self._others.lost(error) from error

    def gather(self, tensor: Tensor) -> Tensor | None:
        """Concatenates the tensors of all learners, which have equal shapes, along axis 0.

        Returns the result on the leader (rank 0), None on all other learners.
        """
        options = self._options(dist.GatherOptions())
        if self.rank != FIRST:
            self._wait(self._group.gather([], [tensor], options))
            return None
        every = [torch.empty_like(tensor) for _ in range(self.size)]
        self._wait(self._group.gather([every], [tensor], options))
        return torch.cat(every)

    def close(self) -> None:
        """Closes the connections; learners that wait for this one get an error."""
        self._group = self._nccl = None  # type: ignore[assignment]  # nothing follows

    def _options(self, options: RootedOptions) -> RootedOptions:
        options.rootRank, options.timeout = FIRST, self._limit
        return options

    def _wait(self, work: Work) -> None:
        waited_s = 0.0
        while not self._finished(work):
            waited_s += POLL.total_seconds()
            self._others.check(waited_s)

    def _finished(self, work: Work) -> bool:
        """Waits up to one second for a collective operation; returns whether it is finished.

        Raises an error if another learner was lost.
        """
        try:
            work.wait(POLL)
            return True
        except RuntimeError:
            if not work.is_completed():
                return False
        try:
            work.wait()
        except RuntimeError as error:
            raise self._others.lost(error) from error
        return True

    def _gloo(self, store: "TCPStore") -> ProcessGroup:
        """Returns the process group of CPU tensors; it connects by the interface to the leader."""
        gloo = dist.ProcessGroupGloo
        options = gloo._Options()
        options._devices = [gloo.create_device(hostname=_local_address(store.host, store.port))]
        options._timeout, options._threads = timedelta(seconds=START_S), THREADS
        inside = dist.PrefixStore("gloo", store)
        group: ProcessGroup = gloo(inside, self.rank, self.size, options)
        return group

    def _nccl_group(self, store: "TCPStore") -> ProcessGroup:
        """Returns the process group that sums GPU tensors.

        It uses NCCL's blocking wait, because without it an error in NCCL would end the process.
        """
        os.environ.setdefault("TORCH_NCCL_BLOCKING_WAIT", "1")
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = self._limit
        inside = dist.PrefixStore("nccl", store)
        group: ProcessGroup = dist.ProcessGroupNCCL(inside, self.rank, self.size, options)
        return group


def _local_address(host: str, port: int) -> str:
    """Returns the IP address that this machine uses to reach a host, without sending anything."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, port))
        found: Sequence[object] = probe.getsockname()
    return str(found[0])


def _parts(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)
