"""A planner that sees everything: what agents who see little are measured against.

    plans = plan(cases, steps=256)
    plans[0].paths      # int16 [T + 1, N, 2], or None
    plans[0].actions()  # int64 [T, N], none of which fails in `Worlds.step`

Groups of agents that can never meet are planned apart: LaCAM finds a few plans (lacam.py), and the
best is shortened (polish.py). A plan has no two agents in a cell and no two that change places;
following and turning in a circle are part of it. Both collision rules let all of that happen.
"""

from enum import StrEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rookery.envs.pathfinding import lacam
from rookery.envs.pathfinding.cases import Cases, Maps, Places, check
from rookery.envs.pathfinding.fields import distances
from rookery.envs.pathfinding.graph import link
from rookery.envs.pathfinding.polish import arrivals, exchange, price, tighten
from rookery.envs.pathfinding.rules import MOVES
from rookery.errors import ConfigError

BUDGET = 200_000  # successors of configurations that may be asked for, for one case
ROUNDS = 100  # times that a few agents are planned anew
TRIES, MOST_TRIES = 3, 16  # the best of so many plans; of more, while it takes too many steps
FIRST_LIMIT = 500  # of the budget, before the search begins anew; then a quarter more, and so on
NOISE = 8  # steps: with each search, ranks by the way that is left are blurred by so much more

Cells = npt.NDArray[np.int32]


class Verdict(StrEnum):
    """What the planner can say about a case."""

    FOUND = "found"
    LATE = "late"  # no plan was short enough
    SPENT = "spent"  # the budget was, before there was a plan
    UNSOLVABLE = "unsolvable"  # however many steps: this is proven


class Plan(NamedTuple):
    """How everybody gets home in one case."""

    verdict: Verdict
    paths: Places | None  # [T + 1, N, 2]; -1 where nobody has this number; None: not FOUND
    cost: int  # sum over agents of the steps until one is home for good; 0 without paths
    spent: int  # of the budget

    @property
    def length(self) -> int:
        """Steps until all are on their goals, T; 0 without paths."""
        return 0 if self.paths is None else len(self.paths) - 1

    def actions(self) -> npt.NDArray[np.int64]:
        """Returns [T, N]; those stay whom nobody is, and T is 0 without paths."""
        if self.paths is None:
            return np.zeros((0, 0), dtype=np.int64)
        moves = np.diff(self.paths.astype(np.int64), axis=0)  # [T, N, 2]
        return np.asarray((moves[..., None, :] == MOVES).all(-1).argmax(-1), dtype=np.int64)


def plan(
    cases: Cases, *, steps: int, seed: int = 0, budget: int = BUDGET, rounds: int = ROUNDS
) -> list[Plan]:
    """Returns a plan for each case, of `steps` steps at most.

    The same seed gives the same plans. More `rounds` give a lower cost.
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


def _plan(case: Cases, steps: int, budget: int, rounds: int, seed: int) -> Plan:
    """Plans one case, given without the axis C."""
    present = np.flatnonzero(case.starts[:, 0] >= 0)
    starts, goals = _cells(case.starts[present], case.maps), _cells(case.goals[present], case.maps)
    near, far = link(case.maps), _distances(case.maps, case.goals[present])
    if (far[np.arange(len(goals)), starts] < 0).any():
        return Plan(Verdict.UNSOLVABLE, None, 0, 0)
    spent, found = 0, []
    for group in _groups(far, starts):
        meeting = _Group(near, far[group], starts[group], goals[group], seed)
        outcome, ways = meeting.solve(steps, budget - spent, rounds)
        spent += meeting.spent
        verdict = OUTCOMES[outcome] if len(ways) <= steps + 1 else Verdict.LATE
        if verdict != Verdict.FOUND:
            return Plan(verdict, None, 0, spent)
        found.append((group, ways))
    joined = _join(found, goals)
    paths = np.full((len(joined), *case.starts.shape), -1, dtype=np.int16)
    paths[:, present] = np.stack(np.divmod(joined, case.maps.shape[1]), axis=-1)
    return Plan(Verdict.FOUND, paths, int(arrivals(joined, goals).sum()), spent)


OUTCOMES: dict[int, Verdict] = {
    lacam.FOUND: Verdict.FOUND,
    lacam.NONE: Verdict.UNSOLVABLE,
    lacam.SPENT: Verdict.SPENT,
}


def _cells(places: Places, blocked: Maps) -> Cells:
    cells: Cells = places[:, 0].astype(np.int32) * np.int32(blocked.shape[1]) + places[:, 1]
    return cells


def _distances(blocked: Maps, goals: Places) -> Cells:
    """Returns [N, cells], -1: no way."""
    far: Cells = distances(blocked[None], goals[None])[0].reshape(len(goals), -1)
    return far


def _groups(far: Cells, starts: Cells) -> list[npt.NDArray[np.int64]]:
    """Returns the agents of each connected part of the map, the smallest group first."""
    named = (far[:, starts] >= 0).argmax(0)  # of all whose goals one can reach, the first
    return sorted((np.flatnonzero(named == name) for name in np.unique(named)), key=len)


def _join(found: list[tuple[npt.NDArray[np.int64], Cells]], goals: Cells) -> Cells:
    """Puts the groups' ways [T' + 1, N'] together, up to the moment when all are home."""
    joined = np.tile(goals, (max(len(ways) for _, ways in found), 1))
    for group, ways in found:
        joined[: len(ways), group] = ways
    return joined[: int((joined == goals).all(1).argmax()) + 1]


class _Group:
    """Agents who can meet, in cells as in graph.py, and the search for their plan."""

    def __init__(self, near: Cells, far: Cells, starts: Cells, goals: Cells, seed: int):
        self.near, self.far, self.starts, self.goals = near, far, starts, goals
        self.rng, self.state = np.random.default_rng(seed), np.array([seed], dtype=np.uint64)
        self.spent = 0

    def solve(self, steps: int, budget: int, rounds: int) -> tuple[int, Cells]:
        """Returns an outcome of lacam.py, and the best ways found [T + 1, N].

        These are too long where none of `steps` steps were found.
        """
        outcome, best = self._first(budget)
        if outcome != lacam.FOUND or len(self.goals) == 1:
            return outcome, best
        best = self._tighten(best)
        for tried in range(1, MOST_TRIES):
            if tried >= TRIES and len(best) <= steps + 1:
                break
            outcome, ways = self._search(min(FIRST_LIMIT, budget - self.spent), noise=0)
            if outcome == lacam.FOUND:
                best = min(best, self._tighten(ways), key=lambda ways: self._price(ways, steps))
            if tried >= TRIES - 1:
                best = exchange(best, self.near, self.far, self.goals, steps, rounds, self.state)
        return lacam.FOUND, best

    def _first(self, budget: int) -> tuple[int, Cells]:
        """Searches until there is a plan, again and again: some are lucky, some never end."""
        limit, noise = min(FIRST_LIMIT, budget), 0
        outcome, ways = self._search(limit, noise)
        while outcome == lacam.SPENT and self.spent < budget:
            limit, noise = min(limit + limit // 4 + 1, budget - self.spent), noise + NOISE
            outcome, ways = self._search(limit, noise)
        return outcome, ways

    def _search(self, limit: int, noise: int) -> tuple[int, Cells]:
        """Searches once; those who have a longer way rank higher, give or take `noise` steps."""
        way = self.far[np.arange(len(self.goals)), self.starts]
        rank = way + self.rng.integers(noise + 1, size=len(way), dtype=np.int32)
        outcome, ways, took = lacam.search(
            self.near, self.far, self.starts, self.goals, rank, limit, self.state
        )
        self.spent += took
        return outcome, ways

    def _tighten(self, ways: Cells) -> Cells:
        tight: Cells = tighten(ways, self.near, self.far, self.goals)
        return tight

    def _price(self, ways: Cells, steps: int) -> int:
        return int(price(ways, self.goals, steps))
