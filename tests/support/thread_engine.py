"""An engine for tests: a role in a thread of this process, without an interpreter's start."""

import importlib
import os
import queue
import threading
import traceback
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from rookery.config.schema import Engine
from rookery.engines import ENGINES
from rookery.engines.engine import CloseRole, describe
from rookery.errors import RoleFailed

PATIENCE_S = 20.0


class Thread:
    """A role that obeys and roams as it would in a process. It cannot be killed."""

    def __init__(self, target: str, setup: Any, name: str):
        self.name, self._target, self._setup = name, target, setup
        self._orders: queue.Queue[Any] = queue.Queue()
        self._answers: queue.Queue[Any] = queue.Queue()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int:
        return os.getpid()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def send(self, message: Any) -> None:
        self._orders.put(message)

    def receive(self, timeout_s: float = 0.0) -> Any | None:
        try:
            return self._answers.get(timeout=timeout_s) if timeout_s else self._answers.get_nowait()
        except queue.Empty:
            return None

    def stop(self, grace_s: float = 0.0) -> int | None:
        self.send(CloseRole())
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), f"{self.name} does not end"
        return 0

    def _serve(self) -> None:
        try:
            module, _, builder = self._target.partition(":")
            role = getattr(importlib.import_module(module), builder)(self._setup)
            try:
                for answer in self._obey(role):
                    self._answers.put(answer)
            finally:
                role.close()
        except Exception as error:  # any error; the role server decides what follows
            failed: RoleFailed = describe(error, traceback.format_exc())
            self._answers.put(failed)

    def _obey(self, role: Any) -> Iterator[Any]:
        while True:
            try:
                order = self._orders.get(block=not role.self_driven)
            except queue.Empty:
                news = role.work()
                if news is not None:
                    yield news
                continue
            if isinstance(order, CloseRole):
                return
            yield role.do(order)


def start(target: str, setup: Any, *, name: str, fds: Sequence[int] = ()) -> Thread:
    return Thread(target, setup, name)


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the engine `processes` put roles into threads."""
    monkeypatch.setitem(ENGINES, Engine.PROCESSES, start)
