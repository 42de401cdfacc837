"""Evaluation of path-finding policies: plays problem instances in parallel, measures outcomes.

    result = evaluate_cases(policy, cases, WorldRules(steps=256))
    episode = record_episode(policy, cases, WorldRules(steps=256), case=7)    # to be drawn

A problem instance ("case") is a map with starts and goals. A policy is an `Algorithm` for as many
agents as the problem instances have, or any `CasePolicy`.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol, cast, runtime_checkable

import numpy as np

from rookery.algorithms import Acted
from rookery.algorithms.exploration import ActorSlice, BatchedGenerators, uniform
from rookery.pathfinding.pictures.episode_svg import RecordedEpisode
from rookery.pathfinding.planner.plan import JointPlan
from rookery.pathfinding.planner.shield import shield
from rookery.pathfinding.team_dqn import VALUES
from rookery.pathfinding.world.cases import Cases, select
from rookery.pathfinding.world.rules import NEARER, STAY, UP, WorldRules
from rookery.pathfinding.world.worlds import Worlds
from rookery.types import Array, Bools, Floats, Obs, Rows

BATCH = 32  # problem instances played in parallel


class CasePolicy(Protocol):
    """Interface of a policy that chooses the actions of N agents in each of E parallel worlds."""

    memory: int  # size of its recurrent state for each world; 0: none

    def act(
        self,
        obs: Obs,
        rng: np.random.Generator,
        *,
        memory: Floats | None = None,
    ) -> Acted:
        """Returns the actions [E, N] of N agents in E parallel worlds.

        `rng` may combine one generator per world (`BatchedGenerators`), so a policy must draw
        random numbers by the functions of `rookery.algorithms.exploration`.
        """


@runtime_checkable
class CommunicatingPolicy(Protocol):
    """Interface of a policy whose agents exchange messages.

    It can report who receives messages from whom, the communication graph.
    """

    def links(self, obs: Obs) -> Array:
        """Returns the communication graph of N agents in each of E parallel worlds, [E, N, K].

        For each agent, the numbers of the up to K agents it receives messages from, including
        itself; -1: no edge.
        """


class CaseOutcomes(NamedTuple):
    """Outcomes of C problem instances: success, makespan and sum of costs."""

    success: Bools  # [C] all agents were on their goals at once
    present: Rows  # [C] number of agents
    home: Rows  # [C] number of agents on their goals at the end
    length: Rows  # [C] makespan: steps until success; without success the step limit
    cost: Rows  # [C] sum of costs: sum over agents of the steps until each stayed on its goal


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

    `batch` instances are played in parallel. Each has its own random generator, seeded by `seed`
    and the index of the instance.

    With `shielded`, actions that would collide are replaced before each step, by the MAPF method
    PIBT on the policy's action values (pathfinding/planner/shield.py); the policy must return these
    values.
    """
    rngs = [np.random.default_rng((seed, case)) for case in range(len(cases.maps))]
    batches = (slice(at, at + batch) for at in range(0, len(rngs), batch))
    parts = [
        _play(CaseRollout(policy, select(cases, part), rules, rngs[part], shielded=shielded))
        for part in batches
    ]
    return summarize(cases, concatenate_outcomes(parts))


def record_episode(
    policy: CasePolicy,
    cases: Cases,
    rules: WorldRules,
    *,
    seed: int = 0,
    case: int = 0,
    number: int | None = None,
) -> RecordedEpisode:
    """Plays problem instance `case` of `cases` and records positions and messages for drawing.

    `number` determines the random seed; None: `number` is `case`. The episode is the same as in
    `evaluate_cases` without `shielded`, if `number` is the index of the instance there.
    """
    rng = np.random.default_rng((seed, case if number is None else number))
    match = CaseRollout(policy, select(cases, slice(case, case + 1)), rules, [rng])
    places, links = [match.worlds.place[0].copy()], []
    while match.running.any():
        if isinstance(policy, CommunicatingPolicy):
            links.append(policy.links(match.obs())[0])
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
        CaseOutcomes(
            success=found,
            present=present,
            home=np.where(found, present, 0),
            length=np.where(found, [plan.length for plan in plans], limit),
            cost=np.where(found, [plan.cost for plan in plans], present * limit),
        ),
    )


def concatenate_outcomes(parts: Sequence[CaseOutcomes]) -> CaseOutcomes:
    """Concatenates the outcomes of several batches of problem instances."""
    return CaseOutcomes(*(np.concatenate(part) for part in zip(*parts, strict=True)))


def summarize(cases: Cases, ended: CaseOutcomes) -> CaseSetResult:
    """Returns mean success, makespan and cost of a set of problem instances from their outcomes."""
    rows, columns = cases.maps.shape[1:]
    return CaseSetResult(
        agents=int(ended.present.max()),
        size=rows if rows == columns else f"{rows} x {columns}",
        cases=len(cases.maps),
        success=float(ended.success.mean()),
        individual_success=float(ended.home.sum() / ended.present.sum()),
        mean_length=float(ended.length.mean()),
        sum_of_costs=float(ended.cost.mean()),
    )


def _play(match: "CaseRollout") -> CaseOutcomes:
    while match.running.any():
        match.step()
    return match.outcome()


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
        self._present = cases.starts[..., 0] >= 0  # [E, N]
        self.home = ~self._present | (cases.starts == cases.goals).all(-1)  # [E, N]
        self.steps = 0
        self._success = self.home.all(1)
        self._length = np.zeros(len(cases.maps), dtype=np.int64)
        self._settled = (~self.home).astype(np.int64)  # first step since which it is on its goal
        self._away = np.zeros(
            self.home.shape, dtype=np.int64
        )  # steps since an agent was on its goal
        self._reward = np.zeros(self.home.shape, dtype=np.float32)
        self._memory = np.zeros((len(cases.maps), policy.memory), dtype=np.float32)

    @property
    def memory(self) -> Floats | None:
        """Recurrent states of the policy in the grid worlds whose episode has not ended.

        None if the policy is not recurrent.
        """
        return self._memory[self.running] if self._policy.memory else None

    @property
    def running(self) -> Bools:
        """Mask [E] of the parallel worlds whose episode is not over by success or step limit."""
        running: Bools = ~self._success & (self.steps < self.worlds.rules.steps)
        return running

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
        running = np.flatnonzero(self.running)
        acted = self._policy.act(self.obs(), self._generators(running), memory=self.memory)
        action = np.full(self.home.shape, STAY)
        action[running] = self._resolved(acted, running) if self._shielded else acted.action
        stepped = self.worlds.step(action)

        self.steps += 1
        self.home[running], self._reward[running] = stepped.home[running], stepped.reward[running]
        home = self.home[running]
        self._settled[running] = np.where(home, self._settled[running], self.steps + 1)
        self._away[running] = np.where(home, 0, self._away[running] + 1)
        self._length[running] = self.steps
        self._success = self.home.all(1)
        if acted.memory is not None:
            self._memory[running] = acted.memory

    def _generators(self, running: Rows) -> np.random.Generator:
        """Combines the random generators of some grid worlds into one, for the policy's `act`.

        `running` are the indices of the worlds.
        """
        voices = [
            ActorSlice(slice(i, i + 1), self._rngs[world], 0.0) for i, world in enumerate(running)
        ]
        return cast(np.random.Generator, BatchedGenerators(voices))

    def _resolved(self, acted: Acted, running: Rows) -> Array:
        """Returns collision-free actions, by the MAPF method PIBT on the policy's action values.

        `running` are the indices of the parallel worlds whose episode has not ended. The longer an
        agent has been away from its goal, the higher its priority.
        """
        worlds = self.worlds
        q = acted.extras[VALUES]
        return shield(q, worlds.place[running], worlds.maps[running], self._away[running])

    def outcome(self) -> CaseOutcomes:
        """Returns success, makespan and sum of costs of all problem instances so far."""
        cost = np.minimum(self._settled, self._length[:, None])
        return CaseOutcomes(
            self._success.copy(),
            self._present.sum(1),
            (self.home & self._present).sum(1),
            self._length.copy(),
            cost.sum(1),
        )


class ShortestPathPolicy:
    """Baseline policy: every agent follows its own shortest path and ignores the others.

    Of several moves on shortest paths one is chosen at random.
    """

    memory = 0

    def act(
        self,
        obs: Obs,
        rng: np.random.Generator,
        *,
        memory: Floats | None = None,
    ) -> Acted:
        assert isinstance(obs, dict), "agents have views, places and rewards"
        view = obs["view"]
        middle = view.shape[-1] // 2
        under = view[..., middle, middle]  # [E, N]
        shorter = under[..., None] & (NEARER << np.arange(4)) > 0  # [E, N, 4]
        drawn = np.where(shorter, uniform(shorter.shape, rng), -1.0)
        return Acted(np.where(shorter.any(-1), drawn.argmax(-1) + UP, STAY))
