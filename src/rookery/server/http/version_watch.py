"""Requests that wait for a newer version: one look at the parameter server for all of them."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor

from rookery.errors import RookeryError

LOOK_S = 0.05  # between two looks at the version


class VersionWatch:
    """Lets requests wait without a thread each. Everything here runs on one event loop.

    Asking a parameter server for its version also closes a round whose deadline has passed, so a
    round ends although all its clients only wait.
    """

    def __init__(self, version: Callable[[], int], threads: Executor):
        """`version` may wait for a lock or the disk, so a thread asks."""
        self._version, self._threads = version, threads
        self._waiting: dict[asyncio.Future[None], int] = {}  # to the version that a client has
        self._task: asyncio.Task[None] | None = None
        self.ended = False  # set by any thread: no request waits any more

    async def newer_than(self, version: int, wait_s: float) -> None:
        """Returns once there may be a newer version, at the latest after `wait_s`."""
        if wait_s <= 0 or self.ended:
            return
        loop = asyncio.get_running_loop()
        woken: asyncio.Future[None] = loop.create_future()
        self._waiting[woken] = version
        if self._task is None or self._task.done():
            self._task = loop.create_task(self._look())
        try:
            await asyncio.wait([woken], timeout=wait_s)
        finally:
            del self._waiting[woken]

    async def _look(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            try:
                newest: float = await loop.run_in_executor(self._threads, self._version)
            except RookeryError:  # each request asks once more itself, and answers with the error
                newest = float("inf")
            for woken, version in self._waiting.items():
                if (newest > version or self.ended) and not woken.done():
                    woken.set_result(None)
            await asyncio.sleep(LOOK_S)
