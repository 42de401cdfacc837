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
from rookery.pathfinding.world.rules import Collision, Outside
from rookery.pathfinding.world.team_env import Observed, Team, observation_space
from rookery.types import Array

# Settings of POGEMA's benchmark.
PLAYED = {"on_target": "nothing", "collision_system": "soft", "observation_type": "MAPF"}
_FIXED = f"it is fixed here as in POGEMA's benchmark ({PLAYED}); leave it out"
REFUSED = {  # settings of GridConfig, and what to do instead
    "obs_radius": "give it as radius",
    "max_episode_steps": "give it as steps",
    **dict.fromkeys((*PLAYED, "integration", "auto_reset"), _FIXED),
}


class Pogema(Team):
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
        render_mode: str | None = None,
    ) -> None:
        self._pogema, self._config = _installed(), dict(config or {})
        for name in REFUSED.keys() & self._config.keys():
            raise ConfigError(f"{name} was given in config; {REFUSED[name]}")
        self._fixed = {**PLAYED, "obs_radius": radius, "max_episode_steps": steps}
        first = self._begin(seed=0)
        super().__init__(
            agents=first.starts.shape[1],
            size=max(first.maps.shape[1:]),
            radius=radius,
            steps=steps,
            outside=outside,
            render_mode=render_mode,
        )
        earned = spaces.Box(0, 1, self._reward.shape, np.float32)
        usual = observation_space(self.largest, self.rules)
        self.observation_space = spaces.Dict({**usual.spaces, "reward": earned})

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observed, dict[str, Any]]:
        gym.Env.reset(self, seed=seed)
        self._worlds = None  # the next map may be of another shape
        self._reward[:] = 0
        return self._observed(self._load(self._begin(int(self.np_random.integers(2**31))))), {}

    def step(self, action: Any) -> tuple[Observed, float, bool, bool, dict[str, Any]]:
        assert self._worlds is not None, "gymnasium's order: reset comes first"
        chosen = [int(one) for one in action]  # a copy: POGEMA writes into it
        _, reward, terminated, truncated, infos = self._env.step(chosen)
        self._reward[:] = reward
        self._worlds.move_to(_positions(self._env.get_agents_xy))
        self._measures.count(np.all(self._worlds.place == self._worlds.goals, axis=-1))
        over, late = all(terminated), all(truncated)
        metrics = dict(infos[0].get("metrics", {}))
        info = self._ended() | {"metrics": metrics} if over or late else {}
        return self._observed(self._worlds), float(np.mean(reward)), over, late and not over, info

    def export_state(self) -> None:
        """Returns None: the state of POGEMA's environment cannot be saved."""

    def _begin(self, seed: int) -> Cases:
        """Builds a new POGEMA environment with this seed; returns the instance of its only episode.

        It is new for every episode, since POGEMA's `reset` takes no map seed.
        """
        settings = {"seed": seed, **self._config}
        try:
            self._env = self._pogema.pogema_v0(self._pogema.GridConfig(**settings, **self._fixed))
        except Exception as error:  # POGEMA's own checks raise various errors
            raise ConfigError(
                f"POGEMA does not take {settings} ({type(error).__name__}: {error}); see its "
                "GridConfig for what it takes"
            ) from error
        self._env.reset()
        # without POGEMA's border, which is as wide as the view radius
        blocked = np.asarray(self._env.get_obstacles(ignore_borders=True), dtype=np.uint8)
        places = map(_positions, (self._env.get_agents_xy, self._env.get_targets_xy))
        return Cases(blocked[None], *places)


def _positions(ask: Any) -> Array:
    """Returns the rows and columns of N agents or goals, [1, N, 2].

    `ask` is the method of POGEMA's environment that returns them.
    """
    return np.asarray(ask(ignore_borders=True), dtype=np.int16)[None]


def _installed() -> Any:
    try:
        return plugins.load_module("pogema")
    except ImportError as error:
        raise ConfigError(
            "this environment needs POGEMA, which is not installed; install POGEMA 2 or newer "
            "(older ones do not work with this numpy and gymnasium), or use its rule without it: "
            f"collision={Collision.SOFT}"
        ) from error
