"""A cluster of two hosts inside the test process, for what does not depend on Ray.

    from loopback_cluster import loopback_cluster      # a fixture

Host workers, their actor processes, all messages and their order are the real ones, and every
message is pickled on its way, as Ray does it. Only Ray itself is not there: no node, no object
store, no process of its own for a host worker.
"""

import concurrent.futures as futures
import os
import random
import time
from collections.abc import Sequence
from typing import Any

import cloudpickle
import pytest

from rookery.config.schema import ClusterConfig
from rookery.engines.ray import RayNode
from rookery.engines.rpc import (
    BuildRole,
    CallVerdict,
    HostInfo,
    RemoteHandle,
    RoleServer,
    SharedObject,
    versions,
)

NODES = {f"node-{n}": RayNode(f"node-{n}", "here", f"127.0.0.{n}", {"CPU": 4.0}) for n in (1, 2)}


@pytest.fixture
def loopback_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes runs of the test with the engine ray use host workers in the test's process."""
    monkeypatch.setattr("rookery.cluster.cluster_group.Cluster", LoopbackCluster)


class LoopbackServer(RoleServer):
    """A role server whose working thread ends when it is closed."""

    def __init__(self, node: RayNode):
        super().__init__()
        self._node = node

    def hello(self) -> HostInfo:
        return HostInfo(self._node.name, self._node.address, self._node.id, os.getpid(), versions())

    def close(self) -> None:
        with self._free:
            self._close()
            self._free.notify_all()

    def _work(self) -> None:
        while not self._closed:
            with self._free:
                self._free.wait_for(lambda: self._closed or self._may_work())
                if not self._closed and self._role is not None:
                    self._attempt(self._role.work)


class LoopbackLink:
    """Calls a role server in a thread of its own; arguments and results are pickled."""

    def __init__(self, node: RayNode):
        self._server = LoopbackServer(node)
        self._thread = futures.ThreadPoolExecutor(1)

    def call(self, *args: object) -> "futures.Future[bytes]":
        return self._thread.submit(self._perform, cloudpickle.dumps(args))

    def _perform(self, args: bytes) -> bytes:
        return bytes(cloudpickle.dumps(self._server.do(*cloudpickle.loads(args))))

    def ready(self, ref: Any, timeout_s: float) -> bool:
        return bool(futures.wait([ref], timeout_s).done)

    def get(self, ref: Any) -> Any:
        return cloudpickle.loads(ref.result())

    def classify(self, error: Exception) -> CallVerdict:
        return CallVerdict.RAISED

    def kill(self) -> None:
        self._server.close()
        self._thread.shutdown(cancel_futures=True)


class LostCallError(Exception):
    """A call, or its answer, did not arrive."""


class LossyLink(LoopbackLink):
    """Loses one call in ten, half of them after they were done, in an order that has a seed."""

    def __init__(self, node: RayNode):
        super().__init__(node)
        self._chance = random.Random(0)
        self.lost = 0

    def _perform(self, args: bytes) -> bytes:
        chance = self._chance.random()
        if chance < 0.05:
            raise LostCallError
        answer = super()._perform(args)
        if chance < 0.10:
            raise LostCallError
        return answer

    def classify(self, error: Exception) -> CallVerdict:
        self.lost += isinstance(error, LostCallError)
        return CallVerdict.RETRY if isinstance(error, LostCallError) else CallVerdict.RAISED


class LoopbackCluster:
    """In place of `rookery.engines.ray.Cluster`."""

    started, silence_s, link = True, 0.0, LoopbackLink

    def __init__(self) -> None:
        self._hosts: list[RemoteHandle[Any, Any]] = []

    @classmethod
    def open(cls, config: ClusterConfig, *, cpus: int, store_bytes: int) -> "LoopbackCluster":
        return cls()

    def nodes(self) -> list[RayNode]:
        return list(NODES.values())

    def start(
        self, target: str, setup: object, *, name: str, node: str, **_: Any
    ) -> RemoteHandle[Any, Any]:
        stay = BuildRole(target, cloudpickle.dumps(setup), [], {})
        link = self.link(NODES[node])
        self._hosts.append(RemoteHandle(name, link, stay))
        return self._hosts[-1]

    def share(self, value: object) -> SharedObject:
        return SharedObject(value)

    def wait(self, hosts: Sequence[RemoteHandle[Any, Any]], timeout_s: float) -> None:
        calls: list[Any] = [host.pending for host in hosts if host.busy]
        sent = [call for call in calls if call is not None]
        if len(sent) < len(calls):  # some are to be made again
            timeout_s = min(timeout_s, 0.01)
        if sent:
            futures.wait(sent, timeout_s, futures.FIRST_COMPLETED)
        else:
            time.sleep(timeout_s)

    def close(self) -> None:
        for host in self._hosts:
            host.stop()


class LossyCluster(LoopbackCluster):
    """Hosts behind a network that loses calls."""

    link = LossyLink
