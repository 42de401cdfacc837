"""The inline engine: a role here, in the caller's thread.

It works while its keeper waits for it, so that one thread is enough and nothing happens at once.
"""

import importlib
import os
from collections import deque
from collections.abc import Sequence
from typing import Any

from rookery.engines.interface import Role
from rookery.errors import RookeryError


class Inline:
    """A role in this process."""

    def __init__(self, role: Role, name: str):
        self.role, self.name = role, name
        self._orders: deque[Any] = deque()
        self.alive, self.busy = True, False

    @property
    def pid(self) -> int:
        return os.getpid()

    def send(self, message: Any) -> None:
        self._orders.append(message)

    def receive(self, timeout_s: float = 0.0) -> Any | None:
        """Has the role do what it was told, or roam a little. What it raises is the caller's."""
        if not self.alive or not (self._orders or self.role.roaming):
            return None
        self.busy = True
        try:
            return self.role.do(self._orders.popleft()) if self._orders else self.role.roam()
        finally:
            self.busy = False

    def stop(self, grace_s: float = 0.0) -> int | None:
        if self.alive:
            self.alive = False
            self.role.close()
        return None


def start(target: str, setup: Any, *, name: str, fds: Sequence[int] = ()) -> Inline:
    """Builds the role here."""
    module, _, builder = target.partition(":")
    try:
        return Inline(getattr(importlib.import_module(module), builder)(setup), name)
    except RookeryError:
        for fd in fds:
            os.close(fd)
        raise
