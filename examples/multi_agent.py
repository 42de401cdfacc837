"""Several agents, one network: all agents act with it, and it learns from the rows of all.

Any environment of PettingZoo's will do whose agents have the same spaces, by turns or at once:

    rookery train --env pettingzoo.classic.rps_v2:parallel_env

python examples/multi_agent.py
"""

from typing import Any

import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv

import rookery

ROUNDS = 10


class Channels(ParallelEnv):
    """Three senders choose a channel at once, ten times; a sender alone on its channel succeeds."""

    def __init__(self):
        self.metadata = {"name": "channels"}
        self.possible_agents = ["north", "east", "west"]
        self.agents: list[str] = []

    def observation_space(self, agent: str):
        return spaces.Discrete(3)  # index of the sender: one network acts for all

    def action_space(self, agent: str):
        return spaces.Discrete(3)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None):
        self.agents, self.rounds = self.possible_agents[:], 0
        return self._look(), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, int]):
        chosen = list(actions.values())
        rewards = {agent: float(chosen.count(actions[agent]) == 1) for agent in self.agents}
        self.rounds += 1
        ended = dict.fromkeys(self.agents, False)
        limit = dict.fromkeys(self.agents, self.rounds >= ROUNDS)
        answer = self._look(), rewards, ended, limit, {agent: {} for agent in self.agents}
        self.agents = [] if self.rounds >= ROUNDS else self.agents
        return answer

    def _look(self) -> dict[str, np.int64]:
        return {agent: np.int64(i) for i, agent in enumerate(self.possible_agents)}


run = rookery.train(
    env=Channels,
    seed=0,
    overrides=[
        "actor={envs: 12, chunk: 48, epsilon_steps: 3000}",  # 12: four of three senders
        "net.hidden=[32]",
        "run.env_steps=6000",
        "eval={period: 1500, episodes: 3, target: 9.5}",
        "replay={capacity: 5000, learning_starts: 500, samples_per_insert: 8}",
        "algo.gamma=0.5",
    ],
)
print(f"{run.run_dir}: best score {run.answer['best_score']:.1f} of {ROUNDS} for each sender")
