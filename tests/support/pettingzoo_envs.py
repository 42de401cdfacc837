"""Small environments by PettingZoo's two interfaces, with odd agents and odd ends."""

from typing import Any, TypeAlias

import numpy as np
from gymnasium import spaces
from pettingzoo import AECEnv, ParallelEnv

from rookery.envs.turn_based.game import MASK

Ends: TypeAlias = dict[int, tuple[int, str]]  # agent: after which round or ply, and how
APART: Ends = {0: (1, "terminated"), 1: (2, "truncated"), 2: (3, "terminated")}
BY_TURNS: Ends = {0: (2, "terminated"), 1: (4, "truncated"), 2: (5, "terminated")}


class Turns(AECEnv):  # type: ignore[misc]
    """Three agents with odd names take turns; each turn costs the mover 1 and pays others 2.

    The second leaves after its first turn (terminated), the others after two turns each, truncated
    or terminated as `ending` says. Masks come as `masks` says: allowing `allowed`.
    """

    metadata: dict[str, Any] = {"name": "turns"}  # noqa: RUF012

    def __init__(
        self,
        ending: str = "terminated",
        masks: str = "none",
        allowed: tuple[int, ...] = (1, 1),
        leaves: bool = True,
    ):
        self.possible_agents = [("red", 1), 7, "blue"]
        self.agents: list[Any] = []
        self.ending, self.masks, self.allowed, self.leaves = ending, masks, allowed, leaves
        self.seeds: list[int | None] = []
        self.closed = False
        self.render_mode = None

    def observation_space(self, agent: Any) -> spaces.Space[Any]:
        seen = spaces.Box(0, 100, (2,), np.float32)
        if self.masks != "observation":
            return seen
        return spaces.Dict({"observation": seen, MASK: spaces.Box(0, 1, (2,), np.int8)})

    def action_space(self, agent: Any) -> spaces.Space[Any]:
        return spaces.Discrete(2)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        self.seeds.append(seed)
        self.agents = self.possible_agents[:]
        self.turns = dict.fromkeys(self.agents, 0)
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        told = {MASK: np.array(self.allowed, dtype=np.int8)} if self.masks == "info" else {}
        self.infos: dict[Any, Any] = {agent: dict(told) for agent in self.agents}
        self.agent_selection = self.agents[0]

    def observe(self, agent: Any) -> Any:
        number = self.possible_agents.index(agent)
        seen = np.array([number, sum(self.turns.values())], dtype=np.float32)
        if self.masks != "observation":
            return seen
        return {"observation": seen, MASK: np.array(self.allowed, dtype=np.int8)}

    def step(self, action: Any) -> None:
        mover = self.agent_selection
        if self.terminations[mover] or self.truncations[mover]:
            self._was_dead_step(action)
            return
        assert type(action) is int
        self._cumulative_rewards[mover] = 0
        self.turns[mover] += 1
        self.rewards = {agent: -1.0 if agent == mover else 2.0 for agent in self.agents}
        order = self.agents
        self.agent_selection = order[(order.index(mover) + 1) % len(order)]
        if self.leaves and self.turns[7] == 1:
            self.terminations[7] = True
        if all(self.turns[agent] >= 2 for agent in self.agents if agent != 7):
            ends = self.terminations if self.ending == "terminated" else self.truncations
            for agent in self.agents:
                ends[agent] = True
        self._accumulate_rewards()
        self._deads_step_first()

    def close(self) -> None:
        self.closed = True


class AtOnce(ParallelEnv):  # type: ignore[misc]
    """Two to four agents choose at once for `rounds` rounds; who chose 1 earns 1, and the round.

    Agent 0 leaves after the first round where `leaves` says so.
    """

    metadata: dict[str, Any] = {"name": "at_once"}  # noqa: RUF012

    def __init__(
        self, agents: int = 3, rounds: int = 2, ending: str = "terminated", leaves: bool = False
    ):
        self.possible_agents = list(range(agents))
        self.agents: list[int] = []
        self.rounds, self.ending, self.leaves = rounds, ending, leaves
        self.render_mode = None

    def observation_space(self, agent: Any) -> spaces.Space[Any]:
        return spaces.Discrete(8)

    def action_space(self, agent: Any) -> spaces.Space[Any]:
        return spaces.Discrete(2)

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, Any]:
        self.agents, self.round = self.possible_agents[:], 0
        return self._seen(), {agent: {} for agent in self.agents}

    def step(self, actions: dict[int, int]) -> tuple[Any, Any, Any, Any, Any]:
        assert sorted(actions) == sorted(self.agents)
        self.round += 1
        rewards = {agent: float(actions[agent] * self.round) for agent in self.agents}
        over = self.round == self.rounds
        ended = dict.fromkeys(self.agents, over and self.ending == "terminated")
        cut = dict.fromkeys(self.agents, over and self.ending == "truncated")
        if self.leaves and 0 in ended:
            ended[0] = True
        answer = self._seen(), rewards, ended, cut, {agent: {} for agent in self.agents}
        self.agents = [agent for agent in self.agents if not (ended[agent] or cut[agent])]
        return answer

    def _seen(self) -> dict[int, Any]:
        return {agent: np.int64(self.round) for agent in self.agents}


class Unequal(AtOnce):
    """Agent 2 has one choice more."""

    def action_space(self, agent: Any) -> spaces.Space[Any]:
        return spaces.Discrete(3 if agent == 2 else 2)


class Apart(ParallelEnv):  # type: ignore[misc]
    """Three agents of whom each has its own end; until then agent i earns 3 - i in each round.

    An agent sees its number and the round, and leaves as it ends. Where the dead linger they stay
    in every answer, see nothing but 9s, and earn 100.
    """

    metadata: dict[str, Any] = {"name": "apart"}  # noqa: RUF012

    def __init__(self, ends: Ends = APART, lingers: bool = False):
        self.possible_agents = list(ends)
        self.agents: list[int] = []
        self.ends, self.lingers = ends, lingers
        self.render_mode = None

    def observation_space(self, agent: Any) -> spaces.Space[Any]:
        return spaces.Box(0, 9, (2,), np.float32)

    def action_space(self, agent: Any) -> spaces.Space[Any]:
        return spaces.Discrete(2)

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, Any]:
        self.agents, self.round = self.possible_agents[:], 0
        return self._seen(self.agents), {agent: {} for agent in self.agents}

    def step(self, actions: dict[int, int]) -> tuple[Any, Any, Any, Any, Any]:
        assert sorted(actions) == self.agents
        self.round += 1
        told = self.possible_agents if self.lingers else self.agents
        rewards = {agent: 3.0 - agent if agent in self.agents else 100.0 for agent in told}
        ended, cut = (
            {
                agent: self.ends[agent][0] <= self.round and self.ends[agent][1] == how
                for agent in told
            }
            for how in ("terminated", "truncated")
        )
        answer = self._seen(told), rewards, ended, cut, {agent: {} for agent in told}
        self.agents = [agent for agent in self.agents if not (ended[agent] or cut[agent])]
        return answer

    def _seen(self, told: list[int]) -> dict[int, Any]:
        lost = np.full(2, 9, dtype=np.float32)
        return {
            agent: np.array([agent, self.round], dtype=np.float32) if agent in self.agents else lost
            for agent in told
        }


class ApartByTurns(AECEnv):  # type: ignore[misc]
    """The same by turns: with every ply agent i earns 3 - i, even between its end and its turn."""

    metadata: dict[str, Any] = {"name": "apart_by_turns"}  # noqa: RUF012

    def __init__(self, ends: Ends = BY_TURNS):
        self.possible_agents = list(ends)
        self.agents: list[int] = []
        self.ends = ends
        self.render_mode = None

    def observation_space(self, agent: Any) -> spaces.Space[Any]:
        return spaces.Box(0, 9, (2,), np.float32)

    def action_space(self, agent: Any) -> spaces.Space[Any]:
        return spaces.Discrete(2)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        self.agents, self.ply = self.possible_agents[:], 0
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos: dict[int, Any] = {agent: {} for agent in self.agents}
        self.agent_selection = self.agents[0]

    def observe(self, agent: Any) -> Any:
        return np.array([agent, self.ply], dtype=np.float32)

    def step(self, action: Any) -> None:
        mover = self.agent_selection
        if self.terminations[mover] or self.truncations[mover]:
            self._was_dead_step(action)
        else:
            self.ply += 1
            self.rewards = {agent: 3.0 - agent for agent in self.agents}
            self._end("terminated", self.terminations)
            self._end("truncated", self.truncations)
        later = [agent for agent in self.agents if agent > mover]
        if self.agents:
            self.agent_selection = (later or self.agents)[0]

    def _end(self, how: str, flags: dict[int, bool]) -> None:
        for agent in self.agents:
            flags[agent] = self.ends[agent][0] <= self.ply and self.ends[agent][1] == how


def turns(**how: Any) -> Turns:
    return Turns(**how)
