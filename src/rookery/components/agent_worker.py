"""A gradient worker that plays with a copy of a user's own agent."""

from typing import Any, NamedTuple

import numpy as np

from rookery.components.custom_policy import answer
from rookery.config.schema import EnvConfig
from rookery.envs.lookup import name_of
from rookery.envs.make import make_one
from rookery.event import Episode
from rookery.server.gradient_worker import BATCH, ComputedGradient
from rookery.types import Array


class Own(NamedTuple):
    """A worker with a copy of a user's agent."""

    agent: Any
    env_factory: Any
    seed: int

    made_by: str = "rookery.components.agent_worker:OwnHand"


class OwnHand:
    """Plays one environment with a user's agent, a batch at a time; keeps nothing."""

    def __init__(self, given: Own):
        self.agent, self.env_steps, self.ended = given.agent, 0, list[Episode]()
        factory = given.env_factory
        self.env = make_one(EnvConfig(id=name_of(factory)), factory)
        self._obs = self.env.reset(seed=given.seed)[0]
        self._score, self._length = 0.0, 0

    def load(self, parameters: dict[str, Array], steps: int) -> None:
        self.agent.set_policy_parameters(parameters)

    def step(self) -> ComputedGradient | None:
        steps = [self._played() for _ in range(int(getattr(self.agent, "batch_size", BATCH)))]
        batch = {key: np.stack([step[key] for step in steps]) for key in steps[0]}
        gradients = self.agent.compute_gradients(batch)
        return ComputedGradient(gradients) if gradients else None

    def _played(self) -> dict[str, Any]:
        obs, action = self._obs, answer(self.agent, self._obs)
        after, reward, terminated, truncated, _ = self.env.step(action)
        self._obs, self.env_steps = after, self.env_steps + 1
        self._score, self._length = self._score + float(reward), self._length + 1
        if terminated or truncated:
            self.ended.append(Episode(self._score, self._length))
            self._score, self._length, self._obs = 0.0, 0, self.env.reset()[0]
        return {
            "obs": np.asarray(obs),
            "action": np.asarray(action),
            "reward": np.float32(reward),
            "next_obs": np.asarray(after),
            "terminated": np.bool_(terminated),
            "truncated": np.bool_(truncated),
        }

    def close(self) -> None:
        self.env.close()
