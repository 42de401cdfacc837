"""POGEMA's own environment, seen and played as `team.Team` is.

    env = Pogema({"num_agents": 16, "size": 20, "density": 0.2}, steps=128)
    env = Pogema({"map": "a.#B\\nb..A"})

For those who have POGEMA (Skrynnik et al. 2025) in version 2 or newer. The moves, the rewards and
the end are POGEMA's; only what the agents see is ours. With `rules.Collision.SOFT` our own worlds
play by the same rule without it.
"""

import importlib
from collections.abc import Mapping
from typing import Any, TypeAlias

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rookery.envs.pathfinding import fields
from rookery.envs.pathfinding.curriculum import Lesson
from rookery.envs.pathfinding.measures import Measures
from rookery.envs.pathfinding.rules import AGENT, Collision, Outside
from rookery.envs.pathfinding.settings import ruled
from rookery.envs.pathfinding.team import action_space, observation_space
from rookery.envs.pathfinding.views import look
from rookery.envs.pathfinding.worlds import BEYOND
from rookery.errors import ConfigError
from rookery.types import Array

Observed: TypeAlias = dict[str, Array]

# As its benchmark is run; what is asked of us by other names is in OURS.
PLAYED = {"on_target": "nothing", "collision_system": "soft", "observation_type": "MAPF"}
OURS = {"obs_radius": "radius", "max_episode_steps": "steps"}
REFUSED = ("integration", "auto_reset")


class Pogema(gym.Env[Observed, Array]):
    """A game of POGEMA's for all its agents at once.

    `config` has the settings of POGEMA's GridConfig but for those that are set here. Without a
    `seed` among them every episode has a case of its own, which follows from the seed of `reset`.
    Observes, ends and informs as `Team` does, with POGEMA's `metrics` in the last info; the rewards
    are POGEMA's. Its state cannot be saved.
    """

    def __init__(
        self,
        config: Mapping[str, Any] | None = None,
        *,
        radius: int = 4,
        steps: int = 128,
        outside: str = Outside.BLOCKED,
    ) -> None:
        self.rules = ruled(
            radius=radius, steps=steps, collision=Collision.SOFT, outside=outside, rewards=None
        )
        self._pogema, self._config = _installed(), _settled(config or {})
        self._begin(seed=0)
        most = Lesson(self._place.shape[1], max(self._blocked.shape))
        earned = spaces.Box(0, 1, (most.agents,), np.float32)  # POGEMA's, all else is as in Team
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
        chosen = [int(one) for one in action]  # a list of its own: POGEMA writes into it
        _, reward, terminated, truncated, infos = self._env.step(chosen)
        self._reward = np.asarray(reward, dtype=np.float32)
        self._place = self._positions(self._env.get_agents_xy)
        self._measures.count(np.all(self._place == self._goals, axis=-1)[0])
        over, late = all(terminated), all(truncated)
        info = self._ended(infos) if over or late else {}
        return self._observed(), float(self._reward.mean()), over, late and not over, info

    def _begin(self, seed: int) -> None:
        """Makes POGEMA's environment anew: its `reset` does not take a seed for the case."""
        self._env = self._made({"seed": seed, **self._config})
        self._env.reset()
        # without the border that POGEMA lays around, as wide as agents see
        self._blocked = np.asarray(self._env.get_obstacles(ignore_borders=True), dtype=np.uint8)
        self._place = self._positions(self._env.get_agents_xy)
        self._goals = self._positions(self._env.get_targets_xy)
        self._measures = Measures(self._place[0], self._goals[0])
        self._reward = np.zeros(self._place.shape[1], dtype=np.float32)
        around = [length + 2 * self.rules.radius for length in self._blocked.shape]
        self._seen = np.zeros((1, self._place.shape[1], *around), dtype=np.uint8)
        beyond = np.uint8(BEYOND[self.rules.outside])
        fields.draw(
            np.zeros(1, dtype=np.int64),
            self._blocked[None],
            self._goals,
            self.rules.radius,
            beyond,
            self._seen,
        )

    def _made(self, settings: Mapping[str, Any]) -> Any:
        ours = {"obs_radius": self.rules.radius, "max_episode_steps": self.rules.steps}
        try:
            return self._pogema.pogema_v0(self._pogema.GridConfig(**settings, **PLAYED, **ours))
        except Exception as error:  # POGEMA's own checks, which raise whatever they like
            raise ConfigError(
                f"POGEMA does not take {dict(settings)} ({type(error).__name__}: {error}); see its "
                "GridConfig for what it takes"
            ) from error

    def _positions(self, ask: Any) -> Array:
        """Returns what POGEMA tells of all agents' cells, rows first, [1, N, 2]."""
        return np.asarray(ask(ignore_borders=True), dtype=np.int16)[None]

    def _observed(self) -> Observed:
        rows, columns = self._place[0].T + self.rules.radius
        present = np.zeros((1, *self._seen.shape[2:]), dtype=np.uint8)
        present[0, rows, columns] = AGENT
        views = np.empty((*self._place.shape[:2], *[self.rules.sight] * 2), dtype=np.uint8)
        look(self._seen, present, self._place, views)
        return {"view": views[0], "place": self._place[0].copy(), "reward": self._reward.copy()}

    def _ended(self, infos: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            **self._measures.ended(),
            "agents": self._place.shape[1],
            "size": max(self._blocked.shape),
            "metrics": dict(infos[0].get("metrics", {})),
        }


def _installed() -> Any:
    try:
        return importlib.import_module("pogema")
    except ImportError as error:
        raise ConfigError(
            "this environment is POGEMA's, which is not installed; install POGEMA 2 or newer (see "
            "its project page: older ones do not go with this numpy and gymnasium), or play by its "
            f"rule without it: collision={Collision.SOFT}"
        ) from error


def _settled(config: Mapping[str, Any]) -> dict[str, Any]:
    """Refuses settings that are not the user's to choose, or have another name here."""
    for name in config:
        if name in OURS:
            raise ConfigError(f"{name} was given in config; give it as {OURS[name]}")
        if name in PLAYED or name in REFUSED:
            raise ConfigError(
                f"{name} was given in config, but agents play here as in POGEMA's benchmark "
                f"({', '.join(f'{key} {word}' for key, word in PLAYED.items())}); leave it out"
            )
    return dict(config)
