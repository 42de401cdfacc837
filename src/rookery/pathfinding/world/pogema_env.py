"""Gymnasium wrapper of the path-finding benchmark POGEMA, with joint observations and actions.

    env = Pogema({"num_agents": 16, "size": 20, "density": 0.2}, steps=128)
    env = Pogema({"map": "a.#B\\nb..A"})

Needs POGEMA (Skrynnik et al. 2025), version 2 or newer. Moves, rewards and the end of episodes are
POGEMA's; observations and actions are those of this library's environment `team_env.Team`. With
`rules.Collision.SOFT`, `Team` resolves collisions by the same rule without POGEMA.
"""

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rookery import plugins
from rookery.errors import ConfigError
from rookery.pathfinding.world.cases import Cases
from rookery.pathfinding.world.curriculum import CurriculumTask
from rookery.pathfinding.world.episode_measures import EpisodeMeasures
from rookery.pathfinding.world.rules import Collision, Outside, WorldRules
from rookery.pathfinding.world.team_env import Observed, action_space, observation_space
from rookery.pathfinding.world.worlds import Worlds
from rookery.types import Array

# Settings of POGEMA's benchmark.
PLAYED = {"on_target": "nothing", "collision_system": "soft", "observation_type": "MAPF"}
_FIXED = f"it is fixed here as in POGEMA's benchmark ({PLAYED}); leave it out"
REFUSED = {  # settings of GridConfig, and what to do instead
    "obs_radius": "give it as radius",
    "max_episode_steps": "give it as steps",
    **dict.fromkeys((*PLAYED, "integration", "auto_reset"), _FIXED),
}


class Pogema(gym.Env[Observed, Array]):
    """POGEMA as one Gymnasium environment with the observations and actions of all agents.

    `config` holds settings of POGEMA's GridConfig. View radius and step limit are arguments of this
    class instead. Collision rule, behaviour on goals and observation type are fixed as in POGEMA's
    benchmark. Without a `seed` in `config` every episode has a new problem instance (map, starts,
    goals), determined by the seed of `reset`. Observations, end of episodes and info are as in
    `team_env.Team`, with POGEMA's `metrics` in the last info; the rewards are POGEMA's. The state
    of the environment cannot be saved.
    """

    def __init__(
        self,
        config: Mapping[str, Any] | None = None,
        *,
        radius: int = 4,
        steps: int = 128,
        outside: str = Outside.BLOCKED,
    ) -> None:
        self.rules = WorldRules(radius=radius, steps=steps, outside=outside)
        self._pogema, self._config = _installed(), _checked_config(config or {})
        self._begin(seed=0)
        most = self._task
        earned = spaces.Box(0, 1, (most.agents,), np.float32)  # POGEMA's; the rest is as in Team
        self.observation_space: spaces.Space[Any] = spaces.Dict(
            {**observation_space(most, self.rules).spaces, "reward": earned}
        )
        self.action_space = action_space(most)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observed, dict[str, Any]]:
        super().reset(seed=seed)
        self._begin(int(self.np_random.integers(2**31)))
        return self._observed(), {}

    def step(self, action: Any) -> tuple[Observed, float, bool, bool, dict[str, Any]]:
        chosen = [int(one) for one in action]  # a copy: POGEMA writes into it
        _, reward, terminated, truncated, infos = self._env.step(chosen)
        self._reward = np.asarray(reward, dtype=np.float32)
        self._worlds.move_to(self._positions(self._env.get_agents_xy))
        self._measures.count(np.all(self._worlds.place == self._worlds.goals, axis=-1))
        over, late = all(terminated), all(truncated)
        info = self._ended(infos) if over or late else {}
        return self._observed(), float(self._reward.mean()), over, late and not over, info

    def _begin(self, seed: int) -> None:
        """Builds a new POGEMA environment with this seed, and starts its only episode.

        It is new for every episode, since POGEMA's `reset` takes no map seed.
        """
        self._env = self._made({"seed": seed, **self._config})
        self._env.reset()
        # without POGEMA's border, which is as wide as the view radius
        blocked = np.asarray(self._env.get_obstacles(ignore_borders=True), dtype=np.uint8)
        starts, goals = map(self._positions, (self._env.get_agents_xy, self._env.get_targets_xy))
        self._worlds = Worlds(Cases(blocked[None], starts, goals), self.rules)
        self._measures = EpisodeMeasures(starts, goals)
        self._reward = np.zeros(self._worlds.agents, dtype=np.float32)

    @property
    def _task(self) -> CurriculumTask:
        return CurriculumTask(self._worlds.agents, max(self._worlds.maps.shape[1:]))

    def _made(self, settings: Mapping[str, Any]) -> Any:
        ours = {"obs_radius": self.rules.radius, "max_episode_steps": self.rules.steps}
        try:
            return self._pogema.pogema_v0(self._pogema.GridConfig(**settings, **PLAYED, **ours))
        except Exception as error:  # POGEMA's own checks raise various errors
            raise ConfigError(
                f"POGEMA does not take {dict(settings)} ({type(error).__name__}: {error}); see its "
                "GridConfig for what it takes"
            ) from error

    def _positions(self, ask: Any) -> Array:
        """Returns the rows and columns of N agents or goals, [1, N, 2].

        `ask` is the method of POGEMA's environment that returns them.
        """
        return np.asarray(ask(ignore_borders=True), dtype=np.int16)[None]

    def _observed(self) -> Observed:
        view, place = self._worlds.views()[0], self._worlds.place[0]
        return {"view": view.copy(), "place": place.copy(), "reward": self._reward.copy()}

    def _ended(self, infos: list[dict[str, Any]]) -> dict[str, Any]:
        metrics = dict(infos[0].get("metrics", {}))
        return {**self._measures.ended(), **self._task._asdict(), "metrics": metrics}


def _installed() -> Any:
    try:
        return plugins.load_module("pogema")
    except ImportError as error:
        raise ConfigError(
            "this environment needs POGEMA, which is not installed; install POGEMA 2 or newer "
            "(older ones do not work with this numpy and gymnasium), or use its rule without it: "
            f"collision={Collision.SOFT}"
        ) from error


def _checked_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns settings of POGEMA's GridConfig as a dict; ConfigError for those of `REFUSED`."""
    for name in config:
        if name in REFUSED:
            raise ConfigError(f"{name} was given in config; {REFUSED[name]}")
    return dict(config)
