"""Registries that this process has open; they are stopped when the process ends.

A registry that is never stopped would leave its replay buffers in shared memory. `atexit` covers
the end of a script, an exception and Ctrl+C. SIGTERM and SIGHUP end a Python process without
`atexit`, so they get a handler while a registry is open, unless the program has its own. After
SIGKILL other runs of the pool, or `rookery clean`, remove the files.
"""

import atexit
import os
import signal
import threading
from functools import cache
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

if TYPE_CHECKING:
    from rookery.sharing.registry import Registry

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # SIGINT raises, unless it was reset


class OpenRegistries:
    """The open registries of this process: all of them weakly, those with buffers strongly.

    A registry that the program has dropped is closed by the garbage collector, unless it has
    registered replay buffers, which must be removed at the end of the process.
    """

    def __init__(self) -> None:
        self._open: WeakSet[Registry] = WeakSet()
        self._with_buffers: set[Registry] = set()

    def add(self, registry: "Registry") -> None:
        """Notes an open registry; it is stopped at the end of the process."""
        _stop_at_exit()
        self._open.add(registry)
        _replace_handlers(signal.SIG_DFL, _stop_and_end)

    def keep(self, registry: "Registry") -> None:
        """Keeps a registry with buffers alive until it is released or discarded."""
        self._with_buffers.add(registry)

    def release(self, registry: "Registry") -> None:
        """Lets the garbage collector have a registry that has no buffers any more."""
        self._with_buffers.discard(registry)

    def discard(self, registry: "Registry") -> None:
        """Forgets a registry that was closed."""
        self._open.discard(registry)
        self.release(registry)
        if not self._open:
            _replace_handlers(_stop_and_end, signal.SIG_DFL)

    def of(self, path: Path) -> "list[Registry]":
        """Returns the open registries of the pool in folder `path`."""
        return [registry for registry in self._open if registry.path == path]

    def stop(self) -> None:
        """Stops all open registries."""
        for registry in tuple(self._open):
            registry.stop()


OPEN = OpenRegistries()


@cache
def _stop_at_exit() -> None:
    atexit.register(OPEN.stop)


def _replace_handlers(old: Any, new: Any) -> None:
    """Replaces a handler of the signals that would end this process without `atexit`."""
    if threading.current_thread() is not threading.main_thread():
        return  # Python sets handlers in the main thread only
    for number in ENDING:
        if signal.getsignal(number) is old:
            signal.signal(number, new)


def _stop_and_end(number: int, frame: FrameType | None) -> None:
    """Signal handler: stops all registries, then ends the process by the same signal."""
    OPEN.stop()
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
