"""PettingZoo environments as E parallel games, stepped one after another in Python.

    games = AecGames(tictactoe_v3.env, 8)            # agents take turns
    games = ParallelGames(rps_v2.parallel_env, 8)    # all agents move at once

A seat (player) is an index of `possible_agents`. Rewards are `env.rewards` after each step. Dead
agents, those that were terminated or truncated, are stepped with None, as PettingZoo requires, and
are never to move (`due`). The game is over when no agent is alive.

The game ends for a seat when its agent is first terminated or truncated, even if the agent is
removed later. The agent's observation at that time is kept, and the seat gets no more rewards. An
agent that is both terminated and truncated counts as terminated. An agent that is removed without
being either counts as truncated at the end of the game.

An action mask may be an entry of the observation or of an agent's info; in the latter case the
observation becomes a Dict of `observation` and `action_mask`.
"""

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from copy import deepcopy
from typing import Any, TypeAlias

import numpy as np
from gymnasium import spaces

from rookery.envs.env_calls import EnvCalls
from rookery.envs.env_fault import ENV_ERRORS, Fault, raised
from rookery.envs.nested import Space, stacked, zeros
from rookery.envs.turn_based.game import MASK, OBSERVATION
from rookery.errors import ConfigError
from rookery.types import Array, Bools, Floats, Rows

Agent: TypeAlias = Hashable
EMPTY = "it must allow at least one action; end the game there, or add an action that passes"


class ZooGames(ABC):
    """Base class of PettingZoo environments as parallel games; implements the interface `Games`."""

    def __init__(self, factory: Callable[[], Any], num: int, calls: EnvCalls | None = None):
        self.num, self._calls = num, calls or EnvCalls()
        self._envs = [self._made(factory) for _ in range(num)]
        first = self._envs[0]
        self.name: str = getattr(first, "metadata", {}).get("name") or type(first).__name__
        self.agents: list[Agent] = list(_possible(first, self.name))
        self.seats = len(self.agents)
        self._seat = {agent: seat for seat, agent in enumerate(self.agents)}
        self._seen, self.action_space = _spaces(first, self.agents, self.name)
        self.due: Bools = np.zeros((num, self.seats), dtype=np.bool_)
        self.reward: Floats = np.zeros((num, self.seats), dtype=np.float32)
        self.over: Bools = np.ones(num, dtype=np.bool_)
        self.ended: Bools = np.ones((num, self.seats), dtype=np.bool_)
        self.truncated: Bools = np.zeros((num, self.seats), dtype=np.bool_)
        # Of each game: last observations of dead agents, masks of the latest observations.
        self._last: list[dict[Agent, Any]] = [{} for _ in range(num)]
        self._allowed: list[dict[Agent, Array]] = [{} for _ in range(num)]
        self._own = int if isinstance(self.action_space, spaces.Discrete) else np.array
        self._masks_from_info = self._masks_in_infos()
        self.observation_space = self._with_mask() if self._masks_from_info else self._seen
        self._masked = _masked(self.observation_space, self.action_space)

    def _made(self, factory: Callable[[], Any]) -> Any:
        with self._calls.during("the constructor"):
            return factory()

    def _masks_in_infos(self) -> bool:
        """Returns whether agents get their action masks in `info` instead of the observation.

        Resets the first game to read the infos.
        """
        if MASK in getattr(self._seen, "spaces", ()):
            return False
        self._begin(0, seed=0)
        return any(MASK in self._info(0, agent) for agent in self.agents)

    def _with_mask(self) -> Space:
        if not isinstance(self.action_space, spaces.Discrete):
            raise ConfigError(
                f"{self.name} has masks in its infos with actions {self.action_space}; only a "
                "Discrete can be masked; leave the masks out, or offer a Discrete"
            )
        mask = spaces.Box(0, 1, (int(self.action_space.n),), np.int8)
        return spaces.Dict({OBSERVATION: self._seen, MASK: mask})

    def reset(self, which: Rows, rng: np.random.Generator) -> None:
        """Restarts the parallel games with the indices `which`, with random seeds from `rng`."""
        self.over[which] = self.ended[which] = self.truncated[which] = False
        self.reward[which] = 0.0
        for table in which.tolist():
            self._last[table].clear()
            self._begin(table, int(rng.integers(2**31)))
            self._update_due(table)

    def look(self, which: Rows, seats: Rows) -> Any:
        """Returns a batch of observations: the k-th of player (seat) `seats[k]`, game `which[k]`.

        For a seat for which the game has ended, it is the seat's last observation.
        """
        pairs = zip(which.tolist(), seats.tolist(), strict=True)
        seen = [self._look(table, self.agents[seat]) for table, seat in pairs]
        if self._masked:
            self._keep_masks(which, seats, seen)
        return stacked(seen)

    def _keep_masks(self, which: Rows, seats: Rows, seen: Sequence[Any]) -> None:
        """Stores the action masks of players that are to move, to check their next actions.

        The observation `seen[k]` is that of seat (player) `seats[k]` in game `which[k]`. Raises
        `Fault` if a mask allows no action.
        """
        for at in np.flatnonzero(self.due[which, seats]).tolist():
            table, agent = int(which[at]), self.agents[int(seats[at])]
            mask = self._allowed[table][agent] = np.asarray(seen[at][MASK])
            if not mask.any():
                raise Fault(f"{agent!r} is due, and its {MASK} allows no action; {EMPTY}", table)

    def play(self, which: Rows, action: Array) -> None:
        """Plays actions [K, S], one for each of S seats (players), in the K games `which`.

        `which` are indices of the parallel games. Actions of seats that are not to move are
        ignored. Raises `Fault` for a forbidden action.
        """
        self.reward[which] = 0.0
        for table, row in zip(which.tolist(), action, strict=True):
            due = np.flatnonzero(self.due[table]).tolist()
            chosen = {self.agents[seat]: self._own(row[seat]) for seat in due}
            if self._masked:
                self._refuse_forbidden(table, chosen)
            ended = self.ended[table].copy()
            self._step(table, chosen)
            self.reward[table, ended] = 0.0
            self._update_due(table)

    def _refuse_forbidden(self, table: int, chosen: Mapping[Agent, Any]) -> None:
        start = int(getattr(self.action_space, "start", 0))
        for agent, action in chosen.items():
            mask = self._allowed[table].get(agent)
            if mask is None:  # its observation was not read
                mask = np.asarray(self._look(table, agent)[MASK])
            if not (0 <= action - start < mask.size and mask[action - start]):
                raise Fault(
                    f"{agent!r} chose action {action}, and its mask allows "
                    f"{(start + np.flatnonzero(mask)).tolist()}; choose among those",
                    table,
                )

    def _update_due(self, table: int) -> None:
        """Updates which seats (players) of a game are to move; if there are none, it is over."""
        self.due[table] = False
        self._allowed[table].clear()
        for agent in self._alive(table):
            self.due[table, self._seat[agent]] = True
        self.over[table] = not self.due[table].any()
        if self.over[table]:
            self.truncated[table] |= ~self.ended[table]
            self.ended[table] = True

    def _look(self, table: int, agent: Agent) -> Any:
        last = self._last[table]
        if agent in last:
            return last[agent]
        seen = self._observed(table, agent)
        if not self._masks_from_info:
            return seen
        allowed = self._info(table, agent).get(MASK)
        mask = np.ones(int(self.action_space.n)) if allowed is None else np.asarray(allowed)  # type: ignore[attr-defined]
        return {OBSERVATION: seen, MASK: mask.astype(np.int8)}

    def _record_ends(
        self, table: int, terminated: Mapping[Agent, Any], truncated: Mapping[Agent, Any]
    ) -> None:
        """Records which agents of a game have just been terminated or truncated.

        Stores their last observations.
        """
        for agent in {**terminated, **truncated}:
            seat, died = self._seat[agent], bool(terminated.get(agent))
            if self.ended[table, seat] or not (died or truncated.get(agent)):
                continue
            self._last[table][agent] = deepcopy(self._look(table, agent))
            self.ended[table, seat], self.truncated[table, seat] = True, not died

    def _call(self, table: int, call: str, *args: Any, **kwargs: Any) -> Any:
        try:
            with self._calls.during(call):
                return getattr(self._envs[table], call)(*args, **kwargs)
        except ENV_ERRORS as error:  # an environment may raise anything
            raise Fault(raised(call, error), table) from error

    def export_state(self) -> dict[str, Any] | None:
        """Returns None: the state of PettingZoo environments cannot be saved."""
        return None

    def restore_state(self, state: dict[str, Any]) -> None:
        raise NotImplementedError("nothing was exported")

    def close(self) -> None:
        for table in range(self.num):
            self._call(table, "close")

    @abstractmethod
    def _begin(self, table: int, seed: int) -> None:
        """Resets the PettingZoo environment of the game with index `table`."""

    @abstractmethod
    def _step(self, table: int, chosen: Mapping[Agent, Any]) -> None:
        """Steps the game with index `table`; adds the agents' rewards to `self.reward`.

        `chosen` maps the agents that are to move to their actions.
        """

    @abstractmethod
    def _alive(self, table: int) -> Sequence[Agent]:
        """Returns the agents of one game that must act now; none if the game is over."""

    @abstractmethod
    def _observed(self, table: int, agent: Agent) -> Any:
        """Returns the observation of an agent that has not been removed from its game."""

    @abstractmethod
    def _info(self, table: int, agent: Agent) -> Mapping[str, Any]:
        """Returns the info of an agent; empty after it has been removed from its game."""


class AecGames(ZooGames):
    """Parallel games of a PettingZoo `AECEnv`, whose agents take turns."""

    def _begin(self, table: int, seed: int) -> None:
        self._call(table, "reset", seed=seed)

    def _step(self, table: int, chosen: Mapping[Agent, Any]) -> None:
        for action in chosen.values():  # of one agent
            self._call(table, "step", action)
        for agent, reward in self._envs[table].rewards.items():
            self.reward[table, self._seat[agent]] += reward

    def _dead_is_selected(self, table: int) -> bool:
        env = self._envs[table]
        self._record_ends(table, env.terminations, env.truncations)
        return bool(env.agents) and bool(self.ended[table, self._seat[env.agent_selection]])

    def _alive(self, table: int) -> Sequence[Agent]:
        """Returns the agent to move, if any; steps dead agents before it with the action None.

        PettingZoo requires this of terminated or truncated agents. Rewards of these steps are not
        counted.
        """
        env = self._envs[table]
        while self._dead_is_selected(table):
            self._call(table, "step", None)
        return [env.agent_selection] if env.agents else []

    def _observed(self, table: int, agent: Agent) -> Any:
        return self._call(table, "observe", agent)

    def _info(self, table: int, agent: Agent) -> Mapping[str, Any]:
        info: Mapping[str, Any] = self._envs[table].infos.get(agent, {})
        return info


class ParallelGames(ZooGames):
    """Parallel games of a PettingZoo `ParallelEnv`, whose agents act simultaneously."""

    def __init__(self, factory: Callable[[], Any], num: int, calls: EnvCalls | None = None):
        self._views: list[dict[Agent, Any]] = [{} for _ in range(num)]
        self._infos: list[dict[Agent, Any]] = [{} for _ in range(num)]
        super().__init__(factory, num, calls)

    def _begin(self, table: int, seed: int) -> None:
        seen, infos = self._call(table, "reset", seed=seed)
        self._views[table], self._infos[table] = dict(seen), dict(infos)

    def _step(self, table: int, chosen: Mapping[Agent, Any]) -> None:
        seen, rewards, terminations, truncations, infos = self._call(table, "step", dict(chosen))
        self._views[table].update(seen)
        self._infos[table] = dict(infos)
        for agent, reward in rewards.items():
            self.reward[table, self._seat[agent]] += reward
        self._record_ends(table, terminations, truncations)

    def _alive(self, table: int) -> Sequence[Agent]:
        there = self._envs[table].agents
        return [agent for agent in there if not self.ended[table, self._seat[agent]]]

    def _observed(self, table: int, agent: Agent) -> Any:
        views = self._views[table]
        if agent in views:
            return views[agent]
        # an agent that joins later has no observation yet
        return zeros(self._seen)

    def _info(self, table: int, agent: Agent) -> Mapping[str, Any]:
        info: Mapping[str, Any] = self._infos[table].get(agent, {})
        return info


def kind_of(env: Any) -> type[ZooGames] | None:
    """Returns the class that runs a PettingZoo environment as games; None for any other `env`."""
    zoo: Any = sys.modules.get("pettingzoo")  # not imported: it cannot be one
    if zoo is None:
        return None
    if isinstance(env, zoo.AECEnv):
        return AecGames
    return ParallelGames if isinstance(env, zoo.ParallelEnv) else None


def _possible(env: Any, name: str) -> Sequence[Agent]:
    agents = getattr(env, "possible_agents", None)
    if not agents:
        raise ConfigError(
            f"{name} has no possible_agents, whose order defines the seats; set it in the "
            "environment's constructor"
        )
    return agents  # type: ignore[no-any-return]


def _spaces(env: Any, agents: Sequence[Agent], name: str) -> tuple[Space, Space]:
    """Returns the observation and the action space of the agents of a PettingZoo environment.

    Raises `ConfigError` if they differ between agents, since one network plays all seats.
    """
    first, *others = ((env.observation_space(a), env.action_space(a)) for a in agents)
    for agent, own in zip(agents[1:], others, strict=True):
        for what, mine, theirs in zip(("observation", "action"), first, own, strict=True):
            if mine != theirs:
                raise ConfigError(
                    f"{name}: the {what} space of {agents[0]!r} is {mine}, that of {agent!r} is "
                    f"{theirs}; all agents must have the same; pad them with the wrappers of "
                    "SuperSuit, or with one of your own"
                )
    return first


def _masked(seen: Space, action: Space) -> bool:
    return MASK in getattr(seen, "spaces", ()) and isinstance(action, spaces.Discrete)
