"""The inline engine: runs a worker object in the caller's process and thread.

The worker runs only while the caller waits for its answer, so that nothing runs in parallel.
"""

import os
import traceback
from collections import deque
from collections.abc import Sequence
from typing import Any

from rookery import plugins
from rookery.engines.engine import EngineRole, describe


class Inline:
    """Handle of a worker object, such as an actor, that runs in the caller's process.

    After an error the worker is not called again.
    """

    def __init__(self, role: EngineRole[object, object], name: str):
        self.role, self.name, self.pid = role, name, os.getpid()
        self._orders: deque[object] = deque()
        self._closed = False
        self.alive = True

    def send(self, message: object) -> None:
        self._orders.append(message)

    def receive(self, timeout_s: float = 0.0) -> Any | None:  # type: ignore[explicit-any]  # what the worker answers
        """Lets the worker handle the oldest control message and returns its answer.

        If no message is queued and the worker is self-driven, calls its `work` once instead.
        Returns `RoleFailed` if the worker raises; None if there is nothing to do or it has failed
        before.
        """
        if not self.alive or not (self._orders or self.role.self_driven):
            return None
        try:
            return self.role.do(self._orders.popleft()) if self._orders else self.role.work()
        except Exception as error:  # the caller decides what follows
            self.alive = False
            return describe(error, traceback.format_exc())

    def stop(self, grace_s: float = 0.0) -> int | None:
        self.alive = False
        if not self._closed:
            self._closed = True
            self.role.close()
        return None


def start(target: str, setup: object, *, name: str, fds: Sequence[int] = ()) -> Inline:
    """Starts a worker object, such as an actor, in this process: the engine `inline`.

    Errors of the worker's constructor are raised here.
    """
    try:
        return Inline(plugins.load(target)(setup), name)
    except BaseException:  # the descriptors have no other owner
        for fd in fds:
            os.close(fd)
        raise
