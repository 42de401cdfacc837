"""Planners: processes that plan, one on each core but a few.

    planners = Planners(cores())
    future = planners.submit(worlds, cases, steps, seed)      # as envs/pathfinding/advice.py takes
    planners.close()

A thread of ours waits for each of them. They end when this process does, however it does.
"""

import contextlib
import time
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

from rookery.engines.processes import Child, spawn
from rookery.envs.pathfinding.advice import Advice
from rookery.errors import LostError
from rookery.manage import machine

SPARE = 2  # cores that are left to those who play and learn
LOOK_S = 1.0  # between two looks whether a planner is still there
PATIENCE_S = 300.0  # for an answer: the search has a budget, but the first one is compiled


def cores() -> int:
    """Returns how many planners this machine has room for."""
    return max(1, machine.cores() - SPARE)


class Planners:
    """Processes, of which the next that is free takes what is submitted."""

    def __init__(self, count: int):
        advise = "rookery.envs.pathfinding.advice:advise"
        self.children: list[Child] = []
        with contextlib.ExitStack() as stack:  # where one cannot be, those before it go
            for _ in range(count):
                child = spawn("rookery.engines.callee:serve", advise, name="planner")
                stack.callback(child.stop, 0.0)
                self.children.append(child)
            stack.pop_all()
        self._free: SimpleQueue[Child] = SimpleQueue()
        for child in self.children:
            self._free.put(child)
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="planners")

    def submit(self, *given: Any) -> Future[Advice]:
        return self._threads.submit(self._ask, given)

    def _ask(self, given: tuple[Any, ...]) -> Advice:
        child = self._free.get()
        deadline = time.monotonic() + PATIENCE_S
        try:
            child.send(given)
            while (advice := child.receive(LOOK_S)) is None:
                if not child.alive or time.monotonic() > deadline:
                    raise LostError(
                        "a process that plans for algo.teacher is gone, or has not answered for "
                        f"{PATIENCE_S:g} s; the kernel's log says whether it took too much memory: "
                        "go on from the last checkpoint with --resume"
                    )
            return dict(advice)
        finally:
            self._free.put(child)

    def close(self) -> None:
        for child in self.children:
            child.kill()
        self._threads.shutdown(cancel_futures=True)
        for child in self.children:
            child.stop()
