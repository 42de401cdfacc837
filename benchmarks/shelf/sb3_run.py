"""One training of Stable-Baselines3, with the zoo's settings or its defaults, until it is solved.

    python benchmarks/shelf/sb3_run.py sac-pendulum --seed 0 --target -180 --period 1000

The clock runs from the first env step and stands still during evaluations: greedy episodes with
fresh seeds at every mark. Training stops at the first mark that passes; a run that never passes
is given its whole budget as its time. One thread. The last line on stdout is
`{"solved", "env_steps", "seconds", "score"}`, with the score over 100 more episodes.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import stable_baselines3
import torch
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.noise import NormalActionNoise

sys.path.insert(0, str(Path(__file__).parent))
from tasks import EVERY, Row, Zoo

LAST_EPISODES, LAST_SEED = 100, 10_000


def model(row: Row, zoo: Zoo, seed: int) -> Any:
    envs = make_vec_env(row.env, zoo.envs, seed=seed)
    kwargs = dict(zoo.kwargs)
    for name in zoo.linear:
        kwargs[name] = _falling(kwargs[name])
    if zoo.noise is not None:
        shape = envs.action_space.shape
        kwargs["action_noise"] = NormalActionNoise(np.zeros(shape), zoo.noise * np.ones(shape))
    learner = getattr(stable_baselines3, zoo.algorithm)
    return learner("MlpPolicy", envs, device="cpu", seed=seed, **kwargs)


def _falling(first: float) -> Any:
    return lambda left: first * left


def play(agent: Any, env: str, episodes: int, seed: int) -> float:
    """Returns the mean return of one greedy episode in each of `episodes` environments."""
    envs = gymnasium.make_vec(env, episodes, vectorization_mode="sync")
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

    def __init__(self, env: str, args: argparse.Namespace) -> None:
        super().__init__()
        self.env, self.args, self.marks = env, args, 0
        self.start = self.excluded_s = self.train_s = 0.0
        self.passed = False

    def _on_rollout_start(self) -> None:
        self.start = self.start or time.perf_counter()

    def _on_step(self) -> bool:
        marks = self.num_timesteps // self.args.period
        if marks > self.marks:
            self.marks = marks
            self._judge()
        return not self.passed

    def _judge(self) -> None:
        begun = time.perf_counter()
        self.train_s = begun - self.start - self.excluded_s
        fresh = 1_000_000 * (self.args.seed + 1) + self.num_timesteps
        score = play(self.model, self.env, self.args.episodes, fresh)
        self.passed = score >= self.args.target
        self.excluded_s += time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("row", choices=[name for name, row in EVERY.items() if row.zoo])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target", type=float, required=True, help="mean return that solves it")
    parser.add_argument("--period", type=int, required=True, help="env steps between marks")
    parser.add_argument("--episodes", type=int, default=20, help="at each mark")
    args = parser.parse_args()
    torch.set_num_threads(1)
    row = EVERY[args.row]
    assert row.zoo is not None
    agent, clock = model(row, row.zoo, args.seed), Clock(row.env, args)
    agent.learn(row.zoo.env_steps, callback=clock)
    answer = {
        "solved": clock.passed,
        "env_steps": agent.num_timesteps,
        "seconds": clock.train_s,
        "score": play(agent, row.env, LAST_EPISODES, LAST_SEED),
    }
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
