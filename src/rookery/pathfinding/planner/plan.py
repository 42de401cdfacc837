"""Plans collision-free paths for all agents of a problem instance, with full map knowledge.

    plans = plan(cases, steps=256)
    plans[0].paths      # int16 [T + 1, N, 2]: T steps of N agents, row and column; or None
    plans[0].actions()  # int64 [T, N], none of which fails in `Worlds.step`

Agents in different connected components of the map are planned separately: LaCAM finds a few plans
(lacam.py), and the best one is improved (shorten.py). A plan never has two agents in one cell and
no swaps; agents may follow each other and rotate in cycles. Both collision rules of the grid world
(`reference` and `soft`) allow such moves.
"""

from enum import StrEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rookery.errors import ConfigError
from rookery.pathfinding.planner import lacam
from rookery.pathfinding.planner.grid_graph import link
from rookery.pathfinding.planner.shorten import arrivals, improve_each, improve_groups, price
from rookery.pathfinding.world.cases import Cases, Maps, Places, check
from rookery.pathfinding.world.distance_fields import distances
from rookery.pathfinding.world.rules import MOVES

BUDGET = 200_000  # proposed successors of configurations, for one problem instance
ROUNDS = 100  # of replanning a few agents
TRIES, MOST_TRIES = 3, 16  # plans to choose from; more while all are too long
FIRST_LIMIT = 500  # budget of the first search; each restart gets a quarter more
NOISE = 8  # steps of random noise that each restart adds to the ranks

Cells = npt.NDArray[np.int32]


class PlanStatus(StrEnum):
    """The outcome of planning one problem instance."""

    FOUND = "found"
    LATE = "late"  # all plans found have too many steps
    SPENT = "spent"  # the budget ran out before a plan was found
    UNSOLVABLE = "unsolvable"  # proven for any number of steps


class JointPlan(NamedTuple):
    """Result of planning one problem instance: the status and, if a plan was found, all paths."""

    status: PlanStatus
    paths: Places | None  # [T + 1, N, 2]; -1 for absent agents; None: not FOUND
    cost: int  # sum of costs: steps until each agent stays on its goal, summed; 0 without paths
    spent: int  # budget used

    @property
    def length(self) -> int:
        """The makespan T: steps until all agents are on their goals; 0 if there is no plan."""
        return 0 if self.paths is None else len(self.paths) - 1

    def actions(self) -> npt.NDArray[np.int64]:
        """Returns the planned actions of N agents for T steps, [T, N]; [0, 0] if there is no plan.

        Absent agents stay.
        """
        if self.paths is None:
            return np.zeros((0, 0), dtype=np.int64)
        moves = np.diff(self.paths.astype(np.int64), axis=0)  # [T, N, 2]
        return np.asarray((moves[..., None, :] == MOVES).all(-1).argmax(-1), dtype=np.int64)


def plan(
    cases: Cases, *, steps: int, seed: int = 0, budget: int = BUDGET, rounds: int = ROUNDS
) -> list[JointPlan]:
    """Plans paths of at most `steps` steps for each problem instance (map, starts, goals).

    If no such plan was found, the `paths` of the result are None and its `status` says why. The
    same seed gives the same plans. `budget` is the maximum number of successors (next positions of
    all agents) that LaCAM proposes for each instance. `rounds` is the number of attempts to lower
    the cost of a plan by replanning a few agents.
    """
    check(cases)
    for name, value in (("steps", steps), ("budget", budget)):
        if value < 1:
            raise ConfigError(f"a plan needs {name} of at least 1, got {value}; raise it")
    seeds = np.random.default_rng(seed).integers(2**64, size=len(cases.maps), dtype=np.uint64)
    return [
        _plan(Cases(*one), steps, budget, rounds, int(seed))
        for one, seed in zip(zip(*cases, strict=True), seeds, strict=True)
    ]


def _plan(case: Cases, steps: int, budget: int, rounds: int, seed: int) -> JointPlan:
    """Plans one problem instance; the arrays of `case` have no axis for several instances."""
    present = np.flatnonzero(case.starts[:, 0] >= 0)
    starts, goals = _cells(case.starts[present], case.maps), _cells(case.goals[present], case.maps)
    near, far = link(case.maps), distances(case.maps[None], case.goals[None, present])[0]
    far = far.reshape(len(goals), -1)  # [N, cells]; -1: unreachable
    if (far[np.arange(len(goals)), starts] < 0).any():
        return JointPlan(PlanStatus.UNSOLVABLE, None, 0, 0)
    spent, found = 0, []
    for group in _groups(far, starts):
        solver = _Group(near, far[group], starts[group], goals[group], seed)
        outcome, ways = solver.solve(steps, budget - spent, rounds)
        spent += solver.spent
        status = STATUS_OF[outcome] if len(ways) <= steps + 1 else PlanStatus.LATE
        if status != PlanStatus.FOUND:
            return JointPlan(status, None, 0, spent)
        found.append((group, ways))
    joined = _join(found, goals)
    paths = np.full((len(joined), *case.starts.shape), -1, dtype=np.int16)
    paths[:, present] = np.stack(np.divmod(joined, case.maps.shape[1]), axis=-1)
    return JointPlan(PlanStatus.FOUND, paths, int(arrivals(joined, goals).sum()), spent)


STATUS_OF: dict[int, PlanStatus] = {
    lacam.FOUND: PlanStatus.FOUND,
    lacam.NONE: PlanStatus.UNSOLVABLE,
    lacam.SPENT: PlanStatus.SPENT,
}


def _cells(places: Places, blocked: Maps) -> Cells:
    cells: Cells = places[:, 0].astype(np.int32) * np.int32(blocked.shape[1]) + places[:, 1]
    return cells


def _groups(far: Cells, starts: Cells) -> list[npt.NDArray[np.int64]]:
    """Groups the agents by connected component of the map; the smallest group comes first."""
    named = (far[:, starts] >= 0).argmax(0)  # the first agent whose goal is in the same component
    return sorted((np.flatnonzero(named == name) for name in np.unique(named)), key=len)


def _join(found: list[tuple[npt.NDArray[np.int64], Cells]], goals: Cells) -> Cells:
    """Joins the paths of separately planned groups of agents to the paths of all agents.

    Agents of groups that arrive earlier stay on their goals. The joined paths end at the time when
    all agents have arrived.
    """
    joined = np.tile(goals, (max(len(ways) for _, ways in found), 1))
    for group, ways in found:
        joined[: len(ways), group] = ways
    return joined[: int((joined == goals).all(1).argmax()) + 1]


class _Group:
    """Plans paths for the agents of one connected region of free cells.

    Cells are numbered row * width + column.
    """

    def __init__(self, near: Cells, far: Cells, starts: Cells, goals: Cells, seed: int):
        self.near, self.far, self.starts, self.goals = near, far, starts, goals
        self.rng, self.state = np.random.default_rng(seed), np.array([seed], dtype=np.uint64)
        self.spent = 0

    def solve(self, steps: int, budget: int, rounds: int) -> tuple[int, Cells]:
        """Plans the group's paths; returns the outcome of LaCAM and the paths of lowest cost found.

        The paths are [T + 1, N], the cells of N agents for T steps. They are empty unless the
        outcome is `lacam.FOUND`. T exceeds `steps` if all plans found are longer than that.
        """
        outcome, best = self._first(budget)
        if outcome != lacam.FOUND or len(self.goals) == 1:
            return outcome, best
        best = improve_each(best, self.near, self.far, self.goals)
        for tried in range(1, MOST_TRIES):
            if tried >= TRIES and len(best) <= steps + 1:
                break
            outcome, ways = self._search(min(FIRST_LIMIT, budget - self.spent), noise=0)
            if outcome == lacam.FOUND:
                other = improve_each(ways, self.near, self.far, self.goals)
                best = min(best, other, key=lambda ways: price(ways, self.goals, steps))
            if tried >= TRIES - 1:
                best = improve_groups(
                    best, self.near, self.far, self.goals, steps, rounds, self.state
                )
        return lacam.FOUND, best

    def _first(self, budget: int) -> tuple[int, Cells]:
        """Runs LaCAM with restarts until a plan is found or the budget is spent.

        A single search can take very long. So each search has a limit of proposed successors (next
        positions of all agents). Each restart raises the limit and adds noise to the priority
        order of the agents. Returns the last search's outcome and paths.
        """
        limit, noise = min(FIRST_LIMIT, budget), 0
        outcome, ways = self._search(limit, noise)
        while outcome == lacam.SPENT and self.spent < budget:
            limit, noise = min(limit + limit // 4 + 1, budget - self.spent), noise + NOISE
            outcome, ways = self._search(limit, noise)
        return outcome, ways

    def _search(self, limit: int, noise: int) -> tuple[int, Cells]:
        """Runs one LaCAM search; returns its outcome (such as `lacam.FOUND`) and the agents' paths.

        `limit` is the maximum number of proposed successors. Agents with longer shortest paths have
        a higher rank in the priority order; random noise of up to `noise` steps is added.
        """
        way = self.far[np.arange(len(self.goals)), self.starts]
        rank = way + self.rng.integers(noise + 1, size=len(way), dtype=np.int32)
        outcome, ways, took = lacam.search(
            self.near, self.far, self.starts, self.goals, rank, limit, self.state
        )
        self.spent += took
        return outcome, ways
