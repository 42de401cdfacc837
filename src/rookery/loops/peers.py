"""Peers: learners that take every step together, wherever they live.

    store = listen("127.0.0.1:0")            # the first one; the others: call(address)
    peers = Peers(store, rank, size, ...)    # returns once all of them are there
    peers.deal(rows); peers.take(size)       # the first one hands out, the others wait for it
    peers.add_up(tensor)                     # everybody gets the sum, the same to the last bit
    peers.gather(tensor)                     # the first one gets everybody's

torch.distributed in the end: gloo over TCP between hosts and processes, nccl between GPUs. Its
groups are made here and not registered with torch, whose own one belongs to the user's program.
Nothing is pickled on the way.
"""

import os
import socket
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, distributed

from rookery.errors import ConfigError

dist: Any = distributed  # which exports less than it documents
Store = Any  # a dist.TCPStore

FIRST = 0  # the rank of the run itself
STRETCH = timedelta(seconds=1)  # of waiting, between two looks at whether it still makes sense
START_S = 120.0  # for a fresh interpreter to import what it needs, and for a GPU to wake up
THREADS = 2  # of gloo

Look = Callable[[float], None]  # seconds waited so far; raises where there is no hope
Lost = Callable[[Exception], Exception]


def listen(address: str) -> Store:
    """Opens the place where peers meet. Nobody can reach it but through this one address."""
    host, port = _parts(address)
    try:
        door = socket.create_server((host, port))
    except OSError as error:
        raise ConfigError(
            f"learner.rendezvous {address} cannot be opened: {error}; give an address of this "
            "machine and a free port of it"
        ) from error
    port = door.getsockname()[1]
    return dist.TCPStore(
        host,
        port,
        is_master=True,
        timeout=timedelta(seconds=START_S),
        wait_for_workers=False,
        master_listen_fd=door.detach(),
    )


def call(address: str) -> Store:
    """Goes where the peers meet; waits for the first one to be there."""
    host, port = _parts(address)
    return dist.TCPStore(
        host,
        port,
        is_master=False,
        timeout=timedelta(seconds=START_S),
        wait_for_workers=False,
    )


class Peers:
    """A group of learners, this one among them.

    While it waits it calls `look`, which may raise; where the connection to somebody breaks, what
    `lost` makes of the error is raised.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        size: int,
        device: torch.device,
        *,
        timeout_s: float,
        look: Look,
        lost: Lost,
    ):
        self.rank, self.size = rank, size
        self._look, self._lost, self._limit = look, lost, timedelta(seconds=timeout_s)
        here = _facing(store.host, store.port)
        try:
            self._group = _gloo(dist.PrefixStore("gloo", store), rank, size, here)
            self._sums: Any = SUMS[device.type](self, store)
        except RuntimeError as error:
            raise lost(error) from error

    def deal(self, rows: Tensor) -> None:
        """Hands out uint8 [N, ...] rows, the first one's being its own."""
        mine = torch.empty_like(rows[FIRST])
        self._wait(self._group.scatter([mine], [list(rows)], self._asking(dist.ScatterOptions())))

    def take(self, count: int) -> Tensor:
        """Waits for what is dealt next, [count] uint8."""
        mine = torch.empty(count, dtype=torch.uint8)
        self._wait(self._group.scatter([mine], [], self._asking(dist.ScatterOptions())))
        return mine

    def tell(self, raw: Tensor) -> None:
        """Makes everybody's tensor the first one's."""
        self._wait(self._group.broadcast([raw], self._asking(dist.BroadcastOptions())))

    def add_up(self, tensor: Tensor) -> None:
        """Makes everybody's tensor the sum of all of them."""
        self._sums(tensor)

    def gather(self, tensor: Tensor) -> Tensor | None:
        """Returns everybody's [K, ...] one after another to the first one, nothing to others."""
        options = self._asking(dist.GatherOptions())
        if self.rank != FIRST:
            self._wait(self._group.gather([], [tensor], options))
            return None
        every = [torch.empty_like(tensor) for _ in range(self.size)]
        self._wait(self._group.gather([every], [tensor], options))
        return torch.cat(every)

    def close(self) -> None:
        """Hangs up: whoever waits for us is told so by an error."""
        self._group = self._sums = None

    def _asking(self, options: Any) -> Any:
        options.rootRank, options.timeout = FIRST, self._limit
        return options

    def _wait(self, work: Any) -> None:
        waited_s = 0.0
        while not self._finished(work):
            waited_s += STRETCH.total_seconds()
            self._look(waited_s)

    def _finished(self, work: Any) -> bool:
        """Waits a little; an error is a stretch that was too short, or that somebody is gone."""
        try:
            work.wait(STRETCH)
            return True
        except RuntimeError:
            if not work.is_completed():
                return False
        try:
            work.wait()
        except RuntimeError as error:
            raise self._lost(error) from error
        return True

    def _by_gloo(self, store: Store) -> Callable[[Tensor], None]:
        options = dist.AllreduceOptions()
        options.timeout = self._limit
        return lambda tensor: self._wait(self._group.allreduce([tensor], options))

    def _by_nccl(self, store: Store) -> Callable[[Tensor], None]:
        """Sums on GPUs. Without waiting in `wait`, an error there would end the process."""
        os.environ.setdefault("TORCH_NCCL_BLOCKING_WAIT", "1")
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = self._limit
        inside = dist.PrefixStore("nccl", store)
        group: Any = dist.ProcessGroupNCCL(inside, self.rank, self.size, options)

        def add_up(tensor: Tensor) -> None:
            try:
                group.allreduce([tensor]).wait()
            except RuntimeError as error:
                raise self._lost(error) from error

        return add_up


SUMS: dict[str, Callable[[Peers, Store], Callable[[Tensor], None]]] = {  # by device
    "cpu": Peers._by_gloo,
    "cuda": Peers._by_nccl,
}


def _gloo(store: Store, rank: int, size: int, host: str) -> Any:
    gloo: Any = dist.ProcessGroupGloo
    options = gloo._Options()
    options._devices = [gloo.create_device(hostname=host)]
    options._timeout, options._threads = timedelta(seconds=START_S), THREADS
    return gloo(store, rank, size, options)


def _facing(host: str, port: int) -> str:
    """Returns the address of this machine by which it reaches a host. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, port))
        found: Sequence[Any] = probe.getsockname()
    return str(found[0])


def _parts(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)
