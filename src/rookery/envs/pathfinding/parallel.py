"""Path finding by the parallel API of PettingZoo; needs the extra `pettingzoo`.

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

from rookery.envs.pathfinding.cases import Cases, Maps, generate, possible
from rookery.envs.pathfinding.measures import Measures
from rookery.envs.pathfinding.picture import picture
from rookery.envs.pathfinding.rules import CHANNELS, MOVES, Collision, Outside
from rookery.envs.pathfinding.settings import ruled
from rookery.envs.pathfinding.views import Codes, planes
from rookery.envs.pathfinding.worlds import Stepped, Worlds
from rookery.errors import ConfigError, ProtocolError

try:
    from pettingzoo import ParallelEnv
except ImportError as error:
    raise ConfigError(
        "this environment is one of PettingZoo's, which is not installed; "
        "pip install 'rookery[pettingzoo]', or use rookery.envs.pathfinding.team:Team"
    ) from error

Infos: TypeAlias = dict[str, dict[str, Any]]


class Parallel(ParallelEnv[str, Codes, int]):  # type: ignore[misc]  # it has no types
    """Agents on a square map, each with a goal; all arrive at once, or the steps run out.

    An agent observes planes [6, S, S] of 0 and 1: other agents, obstacles, and for each of up,
    down, left and right where that move shortens its own way. Actions: 0 stay, 1 up, 2 down,
    3 left, 4 right. Everybody is there until the end, which is the same for all: terminated when
    all are on their goals at once, truncated after `steps`. The infos of the last step have what
    `Team` says of an episode: `is_success`, `individual_success`, `length`, `sum_of_costs`.

    Every episode has a case of its own, drawn as by `cases.generate`; `reset` plays a given one
    with options={"cases": cases}, `cases` being a `Cases` with one case in it for as many agents.
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
        self.rules = ruled(
            radius=radius, steps=steps, collision=collision, outside=outside, rewards=rewards
        )
        self.size, self.density, self.render_mode = size, density, render_mode
        possible(1, agents, size, density)
        self.possible_agents = [f"agent_{i}" for i in range(agents)]
        self.agents: list[str] = []
        seen = (CHANNELS, self.rules.sight, self.rules.sight)
        self.observation_spaces = {
            agent: spaces.Box(0, 1, seen, np.uint8) for agent in self.possible_agents
        }
        self.action_spaces = {agent: spaces.Discrete(len(MOVES)) for agent in self.possible_agents}
        self._rng = np.random.default_rng()
        self._worlds: Worlds | None = None
        self._measures = Measures.of_nobody(agents)

    def observation_space(self, agent: str) -> spaces.Space[Codes]:
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return self.action_spaces[agent]

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Codes], Infos]:
        """Starts a new episode; without a seed it is the next one of the last seed."""
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        cases = self._fitting((options or {}).get("cases") or self._drawn())
        self._worlds = Worlds(cases, self.rules)
        self._measures = Measures(cases.starts[0], cases.goals[0])
        self.agents = self.possible_agents[:]
        return self._observed(self._worlds), {agent: {} for agent in self.agents}

    def step(
        self, actions: Mapping[str, int]
    ) -> tuple[dict[str, Codes], dict[str, float], dict[str, bool], dict[str, bool], Infos]:
        """Moves everybody. An info says whether its agent collided, and whether it is home."""
        if self._worlds is None or not self.agents:
            raise ProtocolError("step was called where no episode goes on; call reset first")
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
        """Returns the world as a picture, if the environment was made with rgb_array."""
        if self.render_mode is None or self._worlds is None:
            return None
        return picture(self._worlds.maps[0], self._worlds.place[0], self._worlds.goals[0])

    def _drawn(self) -> Cases:
        count = len(self.possible_agents)
        return generate(1, agents=count, size=self.size, density=self.density, rng=self._rng)

    def _fitting(self, cases: Cases) -> Cases:
        """Refuses cases that are not one, or for other agents than these."""
        given, needed = cases.starts.shape[:2], (1, len(self.possible_agents))
        if given != needed or cases.starts.min() < 0:
            raise ConfigError(
                f"an episode takes one case in which {needed[1]} agents are there, got {given[0]} "
                f"of {given[1]}; cut it out, or make the environment for other agents"
            )
        return cases

    def _chosen(self, actions: Mapping[str, int]) -> list[int]:
        if missing := [agent for agent in self.agents if agent not in actions]:
            raise ConfigError(
                f"everybody moves at once, got no action of {', '.join(missing)}; "
                "give an action for each of env.agents"
            )
        return [int(actions[agent]) for agent in self.agents]

    def _observed(self, worlds: Worlds) -> dict[str, Codes]:
        return dict(zip(self.possible_agents, planes(worlds.views())[0], strict=True))

    def _each(self, values: Any, kind: Callable[[Any], Any]) -> dict[str, Any]:
        return {agent: kind(value) for agent, value in zip(self.agents, values, strict=True)}

    def _infos(self, stepped: Stepped, ended: Mapping[str, Any]) -> Infos:
        pairs = zip(stepped.collided[0].tolist(), stepped.home[0].tolist(), strict=True)
        return self._each(pairs, lambda pair: {"collided": pair[0], "home": pair[1], **ended})


parallel_env = Parallel  # the name by which PettingZoo's environments are made
