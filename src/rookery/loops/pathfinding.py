"""Judges policies on path finding: plays cases, many at once, and measures how they end.

    result = judge(policy, cases, Rules(steps=256))
    episode = watch(policy, cases, Rules(steps=256), case=7)    # of one of them, to be drawn

A policy is an `Algorithm` for as many agents as the cases have, or anything that acts like one.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol, cast, runtime_checkable

import numpy as np

from rookery.algos import Acted
from rookery.algos.chance import Choir, Voice, uniform
from rookery.algos.team import VALUES
from rookery.envs.pathfinding.cases import Cases
from rookery.envs.pathfinding.planner import Plan
from rookery.envs.pathfinding.rules import NEARER, STAY, UP, Rules
from rookery.envs.pathfinding.shield import shield
from rookery.envs.pathfinding.worlds import Worlds
from rookery.report.grid import Episode
from rookery.types import Array, Bools, Floats, Obs, Rows

BATCH = 32  # worlds at once


class Policy(Protocol):
    """Who chooses for the N agents of E worlds."""

    memory: int  # numbers that it remembers of each world

    def act(
        self,
        obs: Obs,
        rng: np.random.Generator,
        *,
        memory: Floats | None = None,
    ) -> Acted:
        """Returns [E, N] actions; what it draws, it draws with `rookery.algos.chance`."""


@runtime_checkable
class Talker(Protocol):
    """A policy whose agents listen to each other."""

    def links(self, obs: Obs, memory: Floats | None = None) -> Array:
        """Returns whom each agent listens to, [E, N, K], itself included; -1: nobody."""


class Outcome(NamedTuple):
    """How C cases ended."""

    success: Bools  # [C] all were on their goals at once
    present: Rows  # [C] agents
    home: Rows  # [C] agents on their goals at the end
    length: Rows  # [C] steps until success, or the limit
    cost: Rows  # [C] steps of all agents together until each stayed on its goal


class Result(NamedTuple):
    """The measures of one row of a table."""

    agents: int  # in the fullest case
    size: int | str  # rows and columns; "rows x columns" where they differ
    cases: int
    success: float  # share of cases in which all were on their goals at once, within the limit
    individual_success: float  # share of agents on their goals at the end
    mean_length: float  # steps until success; the limit where there was none
    sum_of_costs: float  # mean over cases


def judge(
    policy: Policy,
    cases: Cases,
    rules: Rules,
    *,
    seed: int = 0,
    batch: int = BATCH,
    shielded: bool = False,
) -> Result:
    """Plays every case once and measures.

    For policies that draw, each case has numbers of its own, which follow from `seed` and from its
    place among the cases.

    `shielded` (envs/pathfinding/shield.py), the policy's values decide who gives way to whom
    before each step, instead of what it would do; it must be one that has them.
    """
    rngs = [np.random.default_rng((seed, case)) for case in range(len(cases.maps))]
    batches = (slice(at, at + batch) for at in range(0, len(rngs), batch))
    parts = [
        _play(Match(policy, some(cases, part), rules, rngs[part], shielded=shielded))
        for part in batches
    ]
    return summary(cases, joined(parts))


def watch(
    policy: Policy,
    cases: Cases,
    rules: Rules,
    *,
    seed: int = 0,
    case: int = 0,
    number: int | None = None,
) -> Episode:
    """Plays one case as `judge` plays it and keeps what is to be seen of it.

    `number` is its place among all cases that are judged, where these are not all of them.
    """
    rng = np.random.default_rng((seed, case if number is None else number))
    match = Match(policy, some(cases, slice(case, case + 1)), rules, [rng])
    places, links = [match.worlds.place[0].copy()], []
    while match.running.any():
        if isinstance(policy, Talker):
            links.append(policy.links(match.obs(), match.memory)[0])
        match.step()
        places.append(match.worlds.place[0].copy())
    heard = np.stack(links) if links else None
    return Episode(cases.maps[case], cases.goals[case], np.stack(places), heard)


def some(cases: Cases, which: slice) -> Cases:
    """Returns a part of the cases."""
    return Cases(cases.maps[which], cases.starts[which], cases.goals[which])


def planned(cases: Cases, plans: Sequence[Plan], limit: int) -> Result:
    """Measures plans as if they had been played; without one, nobody gets anywhere."""
    found = np.array([plan.paths is not None for plan in plans])
    present = (cases.starts[..., 0] >= 0).sum(1)
    return summary(
        cases,
        Outcome(
            success=found,
            present=present,
            home=np.where(found, present, 0),
            length=np.where(found, [plan.length for plan in plans], limit),
            cost=np.where(found, [plan.cost for plan in plans], present * limit),
        ),
    )


def joined(parts: Sequence[Outcome]) -> Outcome:
    """Puts outcomes one after another."""
    return Outcome(*(np.concatenate(part) for part in zip(*parts, strict=True)))


def summary(cases: Cases, ended: Outcome) -> Result:
    """Returns the measures of cases that ended so."""
    rows, columns = cases.maps.shape[1:]
    return Result(
        agents=int(ended.present.max()),
        size=rows if rows == columns else f"{rows} x {columns}",
        cases=len(cases.maps),
        success=float(ended.success.mean()),
        individual_success=float(ended.home.sum() / ended.present.sum()),
        mean_length=float(ended.length.mean()),
        sum_of_costs=float(ended.cost.mean()),
    )


def _play(match: "Match") -> Outcome:
    while match.running.any():
        match.step()
    return match.outcome()


class Match:
    """E worlds that a policy plays. Those that are over are not asked about any more."""

    def __init__(
        self,
        policy: Policy,
        cases: Cases,
        rules: Rules,
        rngs: Sequence[np.random.Generator],  # one for each
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
        self._settled = (~self.home).astype(np.int64)  # the first step from which it is at home
        self._away = np.zeros(self.home.shape, dtype=np.int64)  # steps since it was at home
        self._reward = np.zeros(self.home.shape, dtype=np.float32)
        self._memory = np.zeros((len(cases.maps), policy.memory), dtype=np.float32)

    @property
    def memory(self) -> Floats | None:
        """What the policy remembers of the worlds that go on."""
        return self._memory[self.running] if self._policy.memory else None

    @property
    def running(self) -> Bools:
        """[E] worlds that go on."""
        going: Bools = ~self._success & (self.steps < self.worlds.rules.steps)
        return going

    def obs(self) -> Obs:
        """Returns what is seen in the worlds that go on."""
        who = self.running
        return {
            "view": self.worlds.views()[who],
            "place": self.worlds.place[who],
            "reward": self._reward[who],
        }

    def step(self) -> None:
        """Lets every agent of the worlds that go on do something."""
        who = np.flatnonzero(self.running)
        acted = self._policy.act(self.obs(), self._chance(who), memory=self.memory)
        action = np.full(self.home.shape, STAY)
        action[who] = self._settle(acted, who) if self._shielded else acted.action
        stepped = self.worlds.step(action)

        self.steps += 1
        self.home[who], self._reward[who] = stepped.home[who], stepped.reward[who]
        self._settled[who] = np.where(self.home[who], self._settled[who], self.steps + 1)
        self._away[who] = np.where(self.home[who], 0, self._away[who] + 1)
        self._length[who] = self.steps
        self._success = self.home.all(1)
        if acted.memory is not None:
            self._memory[who] = acted.memory

    def _chance(self, who: Rows) -> np.random.Generator:
        """Returns a generator that draws each world's numbers from its own."""
        voices = [Voice(slice(i, i + 1), self._rngs[world], 0.0) for i, world in enumerate(who)]
        return cast(np.random.Generator, Choir(voices))

    def _settle(self, acted: Acted, who: Rows) -> Array:
        """Returns actions that do not collide: who has been away for longest chooses first."""
        worlds = self.worlds
        q = acted.extras[VALUES]
        return shield(q, worlds.place[who], worlds.maps[who], self._away[who])

    def outcome(self) -> Outcome:
        """Says how the worlds stand."""
        cost = np.minimum(self._settled, self._length[:, None])
        return Outcome(
            self._success.copy(),
            self._present.sum(1),
            (self.home & self._present).sum(1),
            self._length.copy(),
            cost.sum(1),
        )


class Follower:
    """Everybody goes along its own shortest way, whoever stands in it: what is to be beaten.

    Where several moves are equally short, one is drawn.
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
