"""Rookery's games as PettingZoo environments (AEC API); needs `rookery[pettingzoo]`.

env = ludo_env()
env.reset(seed=0)
for agent in env.agent_iter():
    observation, reward, terminated, truncated, info = env.last()
    over = terminated or truncated
    action = None if over else env.action_space(agent).sample(observation["action_mask"])
    env.step(action)
"""

from copy import deepcopy
from typing import Any

import numpy as np
from gymnasium import spaces

from rookery import plugins
from rookery.envs.turn_based.game import Games
from rookery.errors import ConfigError
from rookery.games.connect_four import ConnectFour
from rookery.games.ludo import Ludo
from rookery.games.plugin import PLUGIN
from rookery.games.tictactoe import TicTacToe

try:
    from pettingzoo import AECEnv
    from pettingzoo.utils import wrappers
except ImportError as error:
    raise ConfigError(
        "this environment needs PettingZoo, which is not installed; "
        "pip install 'rookery[pettingzoo]', or use the games of rookery.games.plugin"
    ) from error

RENDER_MODES = ("human", "ansi")
_ONE = np.array([0])  # the only table


class AecGame(AECEnv[str, Any, int]):  # type: ignore[misc]  # untyped base
    """PettingZoo environment (AEC API) that plays one of Rookery's games.

    Its agents are player_0 and player_1.
    """

    def __init__(self, games: Games, render_mode: str | None) -> None:
        if render_mode not in (None, *RENDER_MODES):
            raise ConfigError(
                f"{games.name} can be rendered as {' or '.join(RENDER_MODES)}, got "
                f"{render_mode!r}; choose one of them, or None"
            )
        super().__init__()
        self.metadata = {
            "name": f"rookery_{games.name}",
            "render_modes": list(RENDER_MODES),
            "is_parallelizable": False,
            "render_fps": 2,
        }
        self.games, self.render_mode = games, render_mode
        self.possible_agents = [f"player_{seat}" for seat in range(games.seats)]
        self.agents = self.possible_agents[:]
        self._rng = np.random.default_rng()
        # Copies, since each agent's spaces have their own generators.
        self.observation_spaces = {
            agent: deepcopy(games.observation_space) for agent in self.agents
        }
        self.action_spaces = {agent: deepcopy(games.action_space) for agent in self.agents}

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return self.action_spaces[agent]

    def observe(self, agent: str) -> dict[str, Any]:
        seat = np.array([self.possible_agents.index(agent)])
        seen: dict[str, Any] = self.games.look(_ONE, seat)
        return {name: part[0] for name, part in seen.items()}

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Starts a new game; without a seed, continues with the random generator as it is."""
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self.games.reset(_ONE, self._rng)
        self.agents = self.possible_agents[:]
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.infos: dict[str, dict[str, Any]] = {agent: {} for agent in self.agents}
        self._end()
        self._select(self.agents[0])

    def step(self, action: int | None) -> None:
        """Plays an action of the agent that is to move; raises `EnvError` for an illegal action.

        In environments from `ludo_env`, `connect_four_env` and `tictactoe_env`, PettingZoo's
        `TerminateIllegalWrapper` ends the game instead.
        """
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            self._was_dead_step(action)
            return
        self._cumulative_rewards[agent] = 0.0
        self.games.play(_ONE, np.full((1, self.games.seats), action))
        self.rewards = dict(zip(self.agents, self.games.reward[0].tolist(), strict=True))
        self._end()
        others = [other for other in self.agents if other != agent]
        self._select(others[0])
        self._accumulate_rewards()
        if self.render_mode == "human":
            self.render()

    def render(self) -> str | None:
        """Draws the position as text, as the agent that is to move sees it.

        Returns the text in render mode "ansi", prints it in mode "human", and does nothing without
        a mode.
        """
        if self.render_mode is None:
            return None
        seat = self.possible_agents.index(self.agent_selection)
        text: str = plugins.load(PLUGIN.text_boards[self.games.name])(
            self.observe(self.agent_selection), seat
        )
        if self.render_mode == "ansi":
            return text
        print(text)
        return None

    def close(self) -> None:
        self.games.close()

    def _end(self) -> None:
        ended, cut = self.games.ended[0], self.games.truncated[0]
        self.terminations = dict(zip(self.agents, (ended & ~cut).tolist(), strict=True))
        self.truncations = dict(zip(self.agents, cut.tolist(), strict=True))

    def _select(self, otherwise: str) -> None:
        """Selects the agent that is to move; the agent `otherwise` if the game is over."""
        due = np.flatnonzero(self.games.due[0])
        self.agent_selection = self.agents[due[0]] if len(due) else otherwise


def ludo_env(
    *, limit: int = 1000, step_cost: float = 0.0, render_mode: str | None = None
) -> AECEnv[str, Any, int]:
    """Returns Ludo as a PettingZoo environment; an illegal action loses the game."""
    return _env(Ludo(1, limit=limit, step_cost=step_cost), render_mode)


def connect_four_env(*, render_mode: str | None = None) -> AECEnv[str, Any, int]:
    """Returns Connect Four as a PettingZoo environment; an illegal action loses the game."""
    return _env(ConnectFour(1), render_mode)


def tictactoe_env(*, render_mode: str | None = None) -> AECEnv[str, Any, int]:
    """Returns tic-tac-toe as a PettingZoo environment; an illegal action loses the game."""
    return _env(TicTacToe(1), render_mode)


def _env(games: Games, render_mode: str | None) -> AECEnv[str, Any, int]:
    env = wrappers.TerminateIllegalWrapper(AecGame(games, render_mode), illegal_reward=-1)
    return wrappers.OrderEnforcingWrapper(wrappers.AssertOutOfBoundsWrapper(env))
