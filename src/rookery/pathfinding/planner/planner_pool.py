"""A pool of processes that plan paths: one per CPU core, except two cores for actor and learner.

    planners = PlannerPool(planner_count())
    future = planners.submit(worlds, cases, steps, seed)      # arguments of `plan_actions`
    planners.close()

The plans are for imitation learning. For each planner process the calling process has a
thread that waits for its answers. Planner processes end when the calling process ends. They run
this module; it imports neither torch nor a network.
"""

import contextlib
import time
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

import numpy as np

from rookery.engines.processes import Child, spawn
from rookery.errors import LostError
from rookery.pathfinding.planner.plan import plan
from rookery.pathfinding.world.cases import Cases
from rookery.runtime import machine
from rookery.types import Array

SPARE = 2  # cores left for the actor and the learner
LOOK_S = 1.0  # between two checks whether a planner process is alive
PATIENCE_S = 300.0  # for an answer: the search has a budget, but the first one includes compilation
BUDGET = 3_000  # of the search for each plan; a problem instance that needs more is left out
ROUNDS = 20  # of shortening a plan

PlannedActions = dict[int, Array]  # world → actions [T, N]


def plan_actions(worlds: Array, cases: Cases, steps: int, seed: int) -> PlannedActions:
    """Plans problem instances (map, starts, goals); returns planned actions by grid world index.

    Each value is uint8 [T, N]: T steps of N agents. `worlds` holds the index of the grid world of
    each problem instance in `cases`. Instances without a plan of at most `steps` steps, and those
    that are already solved, are not in the dict.
    """
    plans = plan(cases, steps=steps, seed=seed, budget=BUDGET, rounds=ROUNDS)
    return {
        int(world): each.actions().astype(np.uint8)
        for world, each in zip(worlds, plans, strict=True)
        if each.length > 0
    }


def planner_count() -> int:
    """Returns how many planner processes to start: all CPU cores except two, at least 1."""
    return max(1, machine.cores() - SPARE)


class PlannerPool:
    """A pool of processes that plan paths for imitation learning; a request takes a free one."""

    def __init__(self, count: int):
        function = f"{__name__}:{plan_actions.__name__}"
        self.children: list[Child] = []
        with contextlib.ExitStack() as stack:  # if one cannot start, those before it are stopped
            for _ in range(count):
                child = spawn(
                    "rookery.engines.child_process:serve_function", function, name="planner"
                )
                stack.callback(child.stop, 0.0)
                self.children.append(child)
            stack.pop_all()
        self._free: SimpleQueue[Child] = SimpleQueue()
        for child in self.children:
            self._free.put(child)
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="planners")

    def submit(self, *given: Any) -> Future[PlannedActions]:
        """Returns a future of `plan_actions(*given)`."""
        return self._threads.submit(self._ask, given)

    def _ask(self, given: tuple[Any, ...]) -> PlannedActions:
        child = self._free.get()
        deadline = time.monotonic() + PATIENCE_S
        try:
            child.send(given)
            while (advice := child.receive(LOOK_S)) is None:
                if not child.alive or time.monotonic() > deadline:
                    raise LostError(
                        "a planner process of algo.teacher has ended, or has not answered for "
                        f"{PATIENCE_S:g} s; see the kernel's log for a lack of memory, and "
                        "continue from the last checkpoint with --resume"
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
