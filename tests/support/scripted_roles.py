"""Roles small enough to look at: an environment that follows a script, a policy that is told."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch import nn

from rookery.actors.actor import Actor
from rookery.algorithms.algorithm import Acted, Algorithm, Loss
from rookery.config.schema import ActorConfig, EnvConfig
from rookery.envs.vector import Envs
from rookery.types import ActionSpec, Array, Batch, End, EnvSpec, Leaf, LeafKind, Obs

TERMINATED, TRUNCATED, RUNNING = End.TERMINATED, End.TRUNCATED, End.RUNNING
AUTORESETS = (AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP)


class Life(NamedTuple):
    """One episode of a script."""

    rewards: tuple[float, ...]
    end: End
    info: dict[str, Any] | None = None  # of the last step


class Row(NamedTuple):
    """A row as an actor must have written it, seen from inside the environment."""

    obs: tuple[float, ...]
    action: int | None  # None: a final row
    reward: float
    end: End
    episode: int
    t: int


class Script(gym.Env[Any, Any]):
    """Plays its lives in order, again and again, and remembers what was done to it.

    Observes (its own number, the episode, the step in it), so that no two observations are alike.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - as gymnasium declares it

    def __init__(self, number: int, lives: Sequence[Life], actions: int = 4):
        self.observation_space = spaces.Box(-1e6, 1e6, (3,), np.float32)
        self.action_space = spaces.Discrete(actions)
        self.number, self.lives = number, tuple(lives)
        self.episode, self.t = -1, 0
        self.seeds: list[int | None] = []
        self.rows: list[Row] = []

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        self.seeds.append(seed)
        self.episode, self.t = self.episode + 1, 0
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        life = self.lives[self.episode % len(self.lives)]
        reward = life.rewards[self.t]
        self._note(int(action), reward, RUNNING)
        self.t += 1
        over = self.t == len(life.rewards)
        if over:
            self._note(None, 0.0, life.end)
        info = (life.info or {}) if over else {}
        return self._obs(), reward, *(over and life.end is e for e in (TERMINATED, TRUNCATED)), info

    def _note(self, action: int | None, reward: float, end: End) -> None:
        obs = tuple(self._obs().tolist())
        self.rows.append(Row(obs, action, reward, end, self.episode, self.t))

    def _obs(self) -> Array:
        return np.array([self.number, self.episode, self.t], dtype=np.float32)


class Told(Algorithm):
    """An algorithm that does what it is told, and remembers what it was shown."""

    def __init__(self, choose: Callable[[Obs], Array] | None = None):
        self.acting: nn.Module = nn.Linear(2, 1)
        self.networks = nn.ModuleDict({"acting": self.acting})
        self.choose = choose or (lambda obs: obs.sum(1).astype(np.int64) % 4)  # type: ignore[union-attr]
        self.seen: list[Obs] = []

    def groups(self) -> dict[str, list[nn.Parameter]]:
        return {"all": list(self.acting.parameters())}

    def losses(self, batch: Batch, **_: Any) -> Iterator[Loss]:
        raise NotImplementedError("this one only acts")

    def act(self, obs: Obs, rng: np.random.Generator, **_: Any) -> Acted:
        self.seen.append(obs.copy())
        return Acted(self.choose(obs))


def vector(scripts: Sequence[gym.Env[Any, Any]], mode: AutoresetMode, frame_stack: int = 1) -> Envs:
    made = [lambda script=script: script for script in scripts]
    return Envs(SyncVectorEnv(made, autoreset_mode=mode), "script", frame_stack)


def actor(
    envs: Envs,
    algorithm: Any = None,
    *,
    chunk: int = 64,
    seed: int = 7,
    values: bool = False,
    **env: Any,
) -> Actor:
    config = ActorConfig(chunk=chunk)
    return Actor(envs, algorithm or Told(), config, EnvConfig(**env), seed=seed, values=values)


def written(ring: Any) -> list[dict[str, Any]]:
    """Returns the rows of a ring, oldest first, as dicts of plain values, None for nan."""
    slots = ring.slots(ring.oldest, ring.committed - ring.oldest)
    columns = {name: column[slots].tolist() for name, column in ring.columns.items()}
    for name in ("taken", "best"):
        columns[name] = [None if value != value else value for value in columns[name]]
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def flat_spec(width: int = 3, actions: int = 2) -> EnvSpec:
    """Returns the spec of an environment that shows `width` numbers."""
    return EnvSpec("flat", (Leaf("", (width,), "float32", LeafKind.VECTOR),), ActionSpec(n=actions))
