"""Stable-Baselines3's DQN with the zoo's CartPole settings: seconds until it is solved.

    python benchmarks/train/sb3_dqn.py --seed 0

The clock runs from the first env step and stands still during evaluations: 20 greedy episodes
with fresh seeds every 2,500 env steps. Training stops at the first evaluation with a mean of at
least 475; it is solved if 100 more episodes confirm that mean. A run that never passes is given
its whole 50,000 steps as its time and `"solved": false`: its true time is longer, so a median
that contains it flatters SB3. One environment and one thread. The last line on stdout is
`{"value": seconds, "solved", "env_steps", "score", "confirmed"}`.
"""

import argparse
import json
import time

import gymnasium
import numpy as np
import torch
from stable_baselines3 import DQN
from stable_baselines3.common.callbacks import BaseCallback

TARGET = 475.0
ENV_STEPS = 50_000
PERIOD = 2_500
EPISODES = 20
CONFIRM_EPISODES, CONFIRM_SEED = 100, 10_000


def model(seed: int) -> DQN:
    return DQN(
        "MlpPolicy",
        "CartPole-v1",
        learning_rate=2.3e-3,
        batch_size=64,
        buffer_size=100_000,
        learning_starts=1_000,
        gamma=0.99,
        target_update_interval=10,
        train_freq=256,
        gradient_steps=128,
        exploration_fraction=0.16,
        exploration_final_eps=0.04,
        policy_kwargs={"net_arch": [256, 256]},
        device="cpu",
        seed=seed,
    )


def play(agent: DQN, episodes: int, seed: int) -> float:
    """Returns the mean return of one greedy episode in each of `episodes` environments."""
    envs = gymnasium.make_vec("CartPole-v1", episodes, vectorization_mode="vector_entry_point")
    obs, _ = envs.reset(seed=seed)
    score, running = np.zeros(episodes), np.ones(episodes, dtype=bool)
    while running.any():
        action, _ = agent.predict(obs, deterministic=True)
        obs, reward, terminated, truncated, _ = envs.step(action)
        score += reward * running
        running &= ~(terminated | truncated)
    envs.close()
    return float(score.mean())


class Clock(BaseCallback):
    """Evaluates at every mark, off the clock, and stops the run at the first that passes."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed = seed
        self.start = self.excluded_s = self.train_s = self.score = 0.0
        self.passed = False

    def _on_rollout_start(self) -> None:
        self.start = self.start or time.perf_counter()

    def _on_step(self) -> bool:
        if self.num_timesteps % PERIOD == 0:
            self.judge()
        return not self.passed

    def judge(self) -> None:
        begun = time.perf_counter()
        self.train_s = begun - self.start - self.excluded_s
        fresh = 1_000_000 * (self.seed + 1) + self.num_timesteps
        self.score = play(self.model, EPISODES, fresh)
        self.passed = self.score >= TARGET
        self.excluded_s += time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", help="ignored: a training takes as long as it takes")
    seed = parser.parse_args().seed
    torch.set_num_threads(1)
    agent, clock = model(seed), Clock(seed)
    agent.learn(ENV_STEPS, callback=clock)
    confirmed = play(agent, CONFIRM_EPISODES, CONFIRM_SEED)
    answer = {
        "value": clock.train_s,
        "solved": clock.passed and confirmed >= TARGET,
        "env_steps": agent.num_timesteps,
        "score": clock.score,
        "confirmed": confirmed,
    }
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
