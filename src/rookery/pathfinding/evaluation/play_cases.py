"""Evaluation of path-finding policies: plays problem instances in parallel, measures outcomes.

    result = evaluate_cases(policy, cases, WorldRules(steps=256))
    episode = record_episode(policy, cases, WorldRules(steps=256), case=7)    # to be drawn

A problem instance ("case") is a map with starts and goals. A policy is an `Algorithm` for as many
agents as the problem instances have, or any `CasePolicy`.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol, cast

import numpy as np

from rookery.algorithms import Acted
from rookery.algorithms.exploration import ActorSlice, BatchedGenerators, uniform
from rookery.errors import ConfigError
from rookery.pathfinding.pictures.episode_svg import RecordedEpisode
from rookery.pathfinding.planner.plan import JointPlan
from rookery.pathfinding.planner.shield import shield
from rookery.pathfinding.team_dqn import VALUES
from rookery.pathfinding.world.cases import Cases, select
from rookery.pathfinding.world.episode_measures import EpisodeMeasures
from rookery.pathfinding.world.rules import NEARER, STAY, UP, WorldRules
from rookery.pathfinding.world.worlds import Worlds, world_bytes
from rookery.runtime import machine
from rookery.training.resources import spelled
from rookery.types import Array, Floats, Obs, Rows

BATCH = 32  # problem instances played in parallel
MAX_WORLD_BYTES = 1 << 30  # bytes of the worlds that are played at once, if these are several


class CasePolicy(Protocol):
    """Interface of a policy that chooses the actions of N agents in each of E parallel worlds."""

    memory: int  # size of its recurrent state for each world; 0: none

    def act(self, obs: Obs, rng: np.random.Generator, *, memory: Floats | None = None) -> Acted:
        """Returns the actions [E, N] of N agents in E parallel worlds.

        `rng` may combine one generator per world (`BatchedGenerators`), so a policy must draw
        random numbers by the functions of `rookery.algorithms.exploration`.
        """


class CaseSetResult(NamedTuple):
    """Mean success, makespan and sum of costs over a set of path-finding problem instances."""

    agents: int  # the largest number of agents in one problem instance
    size: int | str  # rows and columns; "rows x columns" where they differ
    cases: int
    success: float  # share of instances in which all agents were on their goals at once
    individual_success: float  # share of agents on their goals at the end
    mean_length: float  # mean makespan; the step limit counts where there was no success
    sum_of_costs: float  # mean over problem instances


def evaluate_cases(
    policy: CasePolicy,
    cases: Cases,
    rules: WorldRules,
    *,
    seed: int = 0,
    batch: int = BATCH,
    shielded: bool = False,
) -> CaseSetResult:
    """Plays every problem instance once with a policy; returns mean success, makespan and cost.

    Up to `batch` instances are played in parallel, fewer on large maps. Each has its own random
    generator, seeded by `seed` and the index of the instance.

    With `shielded`, actions that would collide are replaced before each step, by the MAPF method
    PIBT on the policy's action values (pathfinding/planner/shield.py); the policy must return these
    values.
    """
    rngs = [np.random.default_rng((seed, case)) for case in range(len(cases.maps))]
    played, batch = [], worlds_at_once(cases, rules, batch)
    for at in range(0, len(rngs), batch):
        part = slice(at, at + batch)
        rollout = CaseRollout(policy, select(cases, part), rules, rngs[part], shielded=shielded)
        while len(rollout.running):
            rollout.step()
        measures = rollout.measures
        played.append((measures.success, measures.arrived, measures.steps, measures.cost))
    return summarize(cases, *map(np.concatenate, zip(*played, strict=True)))


def worlds_at_once(cases: Cases, rules: WorldRules, most: int) -> int:
    """Returns how many problem instances to play in parallel: up to `most`, fewer on large maps.

    Raises ConfigError if not even one fits into memory.
    """
    agents, (rows, columns) = cases.starts.shape[1], cases.maps.shape[1:]
    each, free = world_bytes(agents, rows, columns, rules), machine.memory().free
    if each > free:
        raise ConfigError(
            f"{agents} agents on {rows} x {columns} cells need {spelled(each)} of memory, "
            f"{spelled(free)} are available; take fewer agents or a smaller map"
        )
    return max(1, min(most, len(cases.maps), min(MAX_WORLD_BYTES, free) // each))


def record_episode(
    policy: CasePolicy,
    cases: Cases,
    rules: WorldRules,
    *,
    seed: int = 0,
    case: int = 0,
) -> RecordedEpisode:
    """Plays problem instance `case` of `cases` and records positions and messages for drawing.

    The episode is the same as in `evaluate_cases` without `shielded`.
    """
    only, rng = select(cases, slice(case, case + 1)), np.random.default_rng((seed, case))
    worlds_at_once(only, rules, 1)  # refuses a world that is too large
    match = CaseRollout(policy, only, rules, [rng])
    places, links = [match.worlds.place[0].copy()], []
    links_of = getattr(policy, "links", None)  # `TeamDQN.links`, of agents that exchange messages
    while len(match.running):
        if links_of is not None:
            links.append(links_of(match.obs())[0])
        match.step()
        places.append(match.worlds.place[0].copy())
    heard = np.stack(links) if links else None
    return RecordedEpisode(cases.maps[case], cases.goals[case], np.stack(places), heard)


def evaluate_plans(cases: Cases, plans: Sequence[JointPlan], limit: int) -> CaseSetResult:
    """Returns mean success, makespan and cost of a planner's plans, without executing them.

    An instance without a plan is a failure: no agent is on its goal, and makespan and the cost of
    each agent are the step limit `limit`.
    """
    found = np.array([plan.paths is not None for plan in plans])
    present = (cases.starts[..., 0] >= 0).sum(1)
    return summarize(
        cases,
        success=found,
        arrived=np.where(found, present, 0),
        length=np.where(found, [plan.length for plan in plans], limit),
        cost=np.where(found, [plan.cost for plan in plans], present * limit),
    )


def summarize(
    cases: Cases, success: Array, arrived: Array, length: Array, cost: Array
) -> CaseSetResult:
    """Returns means over problem instances.

    For each instance: whether it succeeded, how many agents were on their goals at the end, the
    makespan (steps until success, or the step limit), and the sum of costs.
    """
    rows, columns = cases.maps.shape[1:]
    present = (cases.starts[..., 0] >= 0).sum(1)
    return CaseSetResult(
        agents=int(present.max()),
        size=rows if rows == columns else f"{rows} x {columns}",
        cases=len(cases.maps),
        success=float(success.mean()),
        individual_success=float(arrived.sum() / present.sum()),
        mean_length=float(length.mean()),
        sum_of_costs=float(cost.mean()),
    )


class CaseRollout:
    """E path-finding problem instances that a policy plays in parallel worlds, one episode each.

    The policy chooses actions only for worlds whose episode has not ended.
    """

    def __init__(
        self,
        policy: CasePolicy,
        cases: Cases,
        rules: WorldRules,
        rngs: Sequence[np.random.Generator],  # one per world
        *,
        shielded: bool = False,
    ):
        self.worlds, self._policy, self._rngs = Worlds(cases, rules), policy, rngs
        self._shielded = shielded
        self.measures = EpisodeMeasures(cases.starts, cases.goals)
        shape = self.measures.home.shape
        self._away = np.zeros(shape, dtype=np.int64)  # steps since an agent was on its goal
        self._reward = np.zeros(shape, dtype=np.float32)
        self._memory = np.zeros((len(cases.maps), policy.memory), dtype=np.float32)

    @property
    def running(self) -> Rows:
        """Indices of the worlds whose episode is not over by success or step limit."""
        late = self.measures.steps >= self.worlds.rules.steps
        return np.flatnonzero(~self.measures.success & ~late)

    def obs(self) -> Obs:
        """Returns the observations of the parallel grid worlds whose episode has not ended."""
        running = self.running
        return {
            "view": self.worlds.views()[running],
            "place": self.worlds.place[running],
            "reward": self._reward[running],
        }

    def step(self) -> None:
        """Steps all grid worlds whose episode has not ended once, by the policy's actions."""
        running, worlds = self.running, self.worlds
        memory = self._memory[running] if self._policy.memory else None
        acted = self._policy.act(self.obs(), self._generators(running), memory=memory)
        chosen = acted.action
        if self._shielded:  # the longer an agent has been away from its goal, the sooner it chooses
            q, away = acted.extras[VALUES], self._away[running]
            chosen = shield(q, worlds.place[running], worlds.maps[running], away)
        action = np.full(self._away.shape, STAY)
        action[running] = chosen
        stepped = worlds.step(action)

        home = stepped.home[running]
        self.measures.count(home, running)
        self._reward[running] = stepped.reward[running]
        self._away[running] = np.where(home, 0, self._away[running] + 1)
        if acted.memory is not None:
            self._memory[running] = acted.memory

    def _generators(self, running: Rows) -> np.random.Generator:
        """Combines the random generators of the worlds `running` into one, for the policy."""
        voices = [
            ActorSlice(slice(i, i + 1), self._rngs[world], 0.0) for i, world in enumerate(running)
        ]
        return cast(np.random.Generator, BatchedGenerators(voices))


class ShortestPathPolicy:
    """Baseline policy: every agent follows its own shortest path and ignores the others.

    Of several moves on shortest paths one is chosen at random.
    """

    memory = 0

    def act(self, obs: Obs, rng: np.random.Generator, *, memory: Floats | None = None) -> Acted:
        assert isinstance(obs, dict), "agents have views, places and rewards"
        view = obs["view"]
        middle = view.shape[-1] // 2
        under = view[..., middle, middle]  # [E, N]
        shorter = under[..., None] & (NEARER << np.arange(4)) > 0  # [E, N, 4]
        drawn = np.where(shorter, uniform(shorter.shape, rng), -1.0)
        return Acted(np.where(shorter.any(-1), drawn.argmax(-1) + UP, STAY))
