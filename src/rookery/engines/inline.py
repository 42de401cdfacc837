"""The inline engine: a role here, in the caller's thread.

It works while its keeper waits for it, so that one thread is enough and nothing happens at once.
"""

import importlib
import os
import traceback
from collections import deque
from collections.abc import Sequence
from typing import Any

from rookery.engines.interface import Role, describe


class Inline:
    """A role in this process. One that has raised does nothing any more."""

    def __init__(self, role: Role, name: str):
        self.role, self.name = role, name
        self._orders: deque[Any] = deque()
        self._closed = False
        self.alive, self.busy = True, False

    @property
    def pid(self) -> int:
        return os.getpid()

    def send(self, message: Any) -> None:
        self._orders.append(message)

    def receive(self, timeout_s: float = 0.0) -> Any | None:
        """Has the role do what it was told, or roam a little."""
        if not self.alive or not (self._orders or self.role.roaming):
            return None
        self.busy = True
        try:
            return self.role.do(self._orders.popleft()) if self._orders else self.role.roam()
        except Exception as error:  # whatever it was, its keeper decides what follows
            self.alive = False
            return describe(error, traceback.format_exc())._replace(error=error)
        finally:
            self.busy = False

    def stop(self, grace_s: float = 0.0) -> int | None:
        self.alive = False
        if not self._closed:
            self._closed = self.busy = True
            try:
                self.role.close()
            finally:
                self.busy = False
        return None


def start(target: str, setup: Any, *, name: str, fds: Sequence[int] = ()) -> Inline:
    """Builds the role here. What its constructor raises is the caller's."""
    module, _, builder = target.partition(":")
    try:
        return Inline(getattr(importlib.import_module(module), builder)(setup), name)
    except BaseException:  # whatever it was, nobody else knows of these
        for fd in fds:
            os.close(fd)
        raise
