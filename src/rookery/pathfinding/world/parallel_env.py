"""Path finding as a PettingZoo parallel environment; needs the extra `pettingzoo`.

env = parallel_env(agents=8, size=20, density=0.3)
observations, infos = env.reset(seed=0)
while env.agents:
    actions = {agent: env.action_space(agent).sample() for agent in env.agents}
    observations, rewards, terminations, truncations, infos = env.step(actions)
"""

from collections.abc import Mapping
from typing import Any, TypeAlias, Unpack

import numpy as np
from gymnasium import spaces

from rookery.errors import ConfigError, ProtocolError
from rookery.pathfinding.world.cases import Maps
from rookery.pathfinding.world.rules import CHANNELS, MOVES, RuleOptions
from rookery.pathfinding.world.team_env import Observed, Team
from rookery.pathfinding.world.views import Codes, planes

try:
    from pettingzoo import ParallelEnv
except ImportError as error:
    raise ConfigError(
        "this environment needs PettingZoo, which is not installed; "
        "pip install 'rookery[pettingzoo]', or use rookery.pathfinding.world.team_env:Team"
    ) from error

Infos: TypeAlias = dict[str, dict[str, Any]]

MEASURES = ("is_success", "individual_success", "length", "sum_of_costs")


class Parallel(ParallelEnv[str, Codes, int]):  # type: ignore[misc]  # it has no types
    """PettingZoo environment for multi-agent path finding on a square map, each agent with a goal.

    An agent observes the S x S cells around it as channels [6, S, S] of 0 and 1: other agents,
    obstacles, and for each of up, down, left and right the cells where that move shortens its path.
    Actions: 0 stay, 1 up, 2 down, 3 left, 4 right. No agent leaves before the episode ends. The
    episode is terminated when all are on their goals at once, and truncated after `steps`. The
    infos of the last step have `is_success`, `individual_success` (share of agents on their goals),
    `length` and `sum_of_costs` (steps until each agent stays on its goal, summed).

    Every episode has a new random problem instance (map, starts, goals), drawn as by
    `cases.generate`. To play a given one, pass options={"cases": cases} to `reset`: a `Cases` of
    one instance with as many agents.
    """

    metadata: dict[str, Any] = {  # noqa: RUF012 - as PettingZoo declares it
        "name": "rookery_pathfinding",
        "render_modes": ["rgb_array"],
        "render_fps": 4,
        "is_parallelizable": True,
    }

    def __init__(
        self,
        *,
        agents: int = 8,
        size: int = 20,
        density: float | None = None,
        rewards: Mapping[str, float] | None = None,
        render_mode: str | None = None,
        **rules: Unpack[RuleOptions],
    ) -> None:
        self.render_mode = render_mode
        self.team = Team(
            agents=agents,
            size=size,
            density=density,
            rewards=rewards,
            render_mode=render_mode,
            **rules,
        )
        self.possible_agents = [f"agent_{i}" for i in range(agents)]
        self.agents: list[str] = []
        seen = (CHANNELS, *[self.team.rules.sight] * 2)
        self.observation_spaces = {
            agent: spaces.Box(0, 1, seen, np.uint8) for agent in self.possible_agents
        }
        self.action_spaces = {agent: spaces.Discrete(len(MOVES)) for agent in self.possible_agents}

    def observation_space(self, agent: str) -> spaces.Space[Codes]:
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return self.action_spaces[agent]

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Codes], Infos]:
        """Starts a new episode on a random problem instance, or on that in `options["cases"]`.

        Without `seed` the environment's random generator continues.
        """
        obs, _ = self.team.reset(seed=seed, options=options)
        self.agents = self.possible_agents[:]
        return self._observed(obs), {agent: {} for agent in self.agents}

    def step(
        self, actions: Mapping[str, int]
    ) -> tuple[dict[str, Codes], dict[str, float], dict[str, bool], dict[str, bool], Infos]:
        """Steps all agents at once; returns observations, rewards, ends and infos by agent name.

        An info has `collided` (the move failed) and `home` (the agent is on its goal). Raises
        ProtocolError if no episode is running.
        """
        if not self.agents:
            raise ProtocolError("step was called without a running episode; call reset first")
        agents, chosen = self.agents, self._chosen(actions)
        obs, _, terminated, truncated, ended = self.team.step(chosen)
        stepped = self.team.stepped
        assert stepped is not None, "the team has just stepped"
        measures = {name: ended[name] for name in MEASURES} if ended else {}
        outcomes = zip(agents, stepped.collided[0].tolist(), stepped.home[0].tolist(), strict=True)
        self.agents = [] if ended else agents
        return (
            self._observed(obs),
            dict(zip(agents, obs["reward"].tolist(), strict=True)),
            dict.fromkeys(agents, terminated),
            dict.fromkeys(agents, truncated),
            {agent: {"collided": hit, "home": home, **measures} for agent, hit, home in outcomes},
        )

    def render(self) -> Maps | None:
        """Returns an RGB image of the map, agents and goals.

        Returns None without `render_mode="rgb_array"` and before the first `reset`.
        """
        return self.team.render()

    def _chosen(self, actions: Mapping[str, int]) -> list[int]:
        if missing := [agent for agent in self.agents if agent not in actions]:
            raise ConfigError(
                f"all agents move at once, got no action of {', '.join(missing)}; "
                "give an action for each of env.agents"
            )
        return [int(actions[agent]) for agent in self.agents]

    def _observed(self, obs: Observed) -> dict[str, Codes]:
        return dict(zip(self.possible_agents, planes(obs["view"]), strict=True))


parallel_env = Parallel  # PettingZoo's name for the constructor
