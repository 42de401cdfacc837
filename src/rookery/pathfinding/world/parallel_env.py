"""Path finding as a PettingZoo parallel environment; needs the extra `pettingzoo`.

env = parallel_env(agents=8, size=20, density=0.3)
observations, infos = env.reset(seed=0)
while env.agents:
    actions = {agent: env.action_space(agent).sample() for agent in env.agents}
    observations, rewards, terminations, truncations, infos = env.step(actions)
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
from gymnasium import spaces

from rookery.errors import ConfigError, ProtocolError
from rookery.pathfinding.world.cases import Cases, Maps, check_possible, generate
from rookery.pathfinding.world.episode_measures import EpisodeMeasures
from rookery.pathfinding.world.rule_options import make_rules
from rookery.pathfinding.world.rules import CHANNELS, MOVES, Collision, Outside
from rookery.pathfinding.world.views import Codes, planes
from rookery.pathfinding.world.world_image import picture
from rookery.pathfinding.world.worlds import StepResult, Worlds

try:
    from pettingzoo import ParallelEnv
except ImportError as error:
    raise ConfigError(
        "this environment needs PettingZoo, which is not installed; "
        "pip install 'rookery[pettingzoo]', or use rookery.pathfinding.world.team_env:Team"
    ) from error

Infos: TypeAlias = dict[str, dict[str, Any]]


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
        radius: int = 4,
        steps: int = 256,
        collision: str = Collision.REFERENCE,
        outside: str = Outside.BLOCKED,
        rewards: Mapping[str, float] | None = None,
        render_mode: str | None = None,
    ) -> None:
        self.rules = make_rules(
            radius=radius, steps=steps, collision=collision, outside=outside, rewards=rewards
        )
        self.size, self.density, self.render_mode = size, density, render_mode
        check_possible(1, agents, size, density)
        self.possible_agents = [f"agent_{i}" for i in range(agents)]
        self.agents: list[str] = []
        seen = (CHANNELS, self.rules.sight, self.rules.sight)
        self.observation_spaces = {
            agent: spaces.Box(0, 1, seen, np.uint8) for agent in self.possible_agents
        }
        self.action_spaces = {agent: spaces.Discrete(len(MOVES)) for agent in self.possible_agents}
        self._rng = np.random.default_rng()
        self._worlds: Worlds | None = None
        self._measures = EpisodeMeasures.empty(agents)

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
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        cases = self._checked((options or {}).get("cases") or self._random_case())
        self._worlds = Worlds(cases, self.rules)
        self._measures = EpisodeMeasures(cases.starts[0], cases.goals[0])
        self.agents = self.possible_agents[:]
        return self._observed(self._worlds), {agent: {} for agent in self.agents}

    def step(
        self, actions: Mapping[str, int]
    ) -> tuple[dict[str, Codes], dict[str, float], dict[str, bool], dict[str, bool], Infos]:
        """Steps all agents at once; returns observations, rewards, ends and infos by agent name.

        An info has `collided` (the move failed) and `home` (the agent is on its goal). Raises
        ProtocolError if no episode is running.
        """
        if self._worlds is None or not self.agents:
            raise ProtocolError("step was called without a running episode; call reset first")
        stepped = self._worlds.step([self._chosen(actions)])
        self._measures.count(stepped.home[0])
        terminated = bool(stepped.finished[0])
        truncated = not terminated and bool(self._worlds.steps[0] >= self.rules.steps)
        ended = self._measures.ended() if terminated or truncated else {}
        answer = (
            self._observed(self._worlds),
            self._each(stepped.reward[0], float),
            dict.fromkeys(self.agents, terminated),
            dict.fromkeys(self.agents, truncated),
            self._infos(stepped, ended),
        )
        self.agents = [] if terminated or truncated else self.agents
        return answer

    def render(self) -> Maps | None:
        """Returns an RGB image of the map, agents and goals.

        Returns None without `render_mode="rgb_array"` and before the first `reset`.
        """
        if self.render_mode is None or self._worlds is None:
            return None
        return picture(self._worlds.maps[0], self._worlds.place[0], self._worlds.goals[0])

    def _random_case(self) -> Cases:
        count = len(self.possible_agents)
        return generate(1, agents=count, size=self.size, density=self.density, rng=self._rng)

    def _checked(self, cases: Cases) -> Cases:
        """Returns `cases`; ConfigError unless it is one problem instance with the right team size.

        Absent agents (positions of -1) are not allowed.
        """
        given, needed = cases.starts.shape[:2], (1, len(self.possible_agents))
        if given != needed or cases.starts.min() < 0:
            raise ConfigError(
                f"an episode takes one problem instance of {needed[1]} present agents, got "
                f"{given[0]} of {given[1]}; select one, or make the environment for other agents"
            )
        return cases

    def _chosen(self, actions: Mapping[str, int]) -> list[int]:
        if missing := [agent for agent in self.agents if agent not in actions]:
            raise ConfigError(
                f"all agents move at once, got no action of {', '.join(missing)}; "
                "give an action for each of env.agents"
            )
        return [int(actions[agent]) for agent in self.agents]

    def _observed(self, worlds: Worlds) -> dict[str, Codes]:
        return dict(zip(self.possible_agents, planes(worlds.views())[0], strict=True))

    def _each(self, values: Any, kind: Callable[[Any], Any]) -> dict[str, Any]:
        return {agent: kind(value) for agent, value in zip(self.agents, values, strict=True)}

    def _infos(self, stepped: StepResult, ended: Mapping[str, Any]) -> Infos:
        pairs = zip(stepped.collided[0].tolist(), stepped.home[0].tolist(), strict=True)
        return self._each(pairs, lambda pair: {"collided": pair[0], "home": pair[1], **ended})


parallel_env = Parallel  # PettingZoo's name for the constructor
