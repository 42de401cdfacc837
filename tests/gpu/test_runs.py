"""Whole runs with a learner on a GPU; what they leave is played on a CPU."""

from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
import torch

import rookery
from rookery.api.runs import events
from rookery.config.load import load
from rookery.event import Logged
from rookery.pathfinding.world.team_env import Team

TAUGHT: dict[str, Any] = {
    "run.env_steps": 60_000,
    "run.minutes": "null",
    "env.kwargs": "{agents: 2, size: 5, density: 0.1, steps: 16, radius: 1}",
    "env.check": "false",
    "eval.period": 1_000_000,
    "checkpoint.period": 20_000,
    "report.log_period": 2_000,
    "report.tensorboard": "false",
    "device.agents": 64,
    "device.rows": 64,
    "algo.curriculum": "{agents: [2], sizes: [5]}",
    "algo.guided_steps": 8,
    "algo.policy_steps": 4,
    "replay.learning_starts": 64,
    "replay.batch_size": 16,
    "replay.samples_per_insert": 4.0,
    "algo.length": 4,
    "algo.burn_in": 2,
    "net.memory": 16,
    "learner.lr": 0.003,
    "learner.lr_end": 0.003,
    "learner.device": "cuda:0",
    "learner.compile": "false",
}


def test_a_taught_team_agrees_more_and_more_with_its_teacher(tmp_path: Path) -> None:
    given = [f"{key}={value}" for key, value in TAUGHT.items()]
    config = load("pathfinding", overrides=[*given, f"run.run_dir={tmp_path / 'run'}"])

    lines = [event.metrics for event in events(config) if isinstance(event, Logged)]

    agreed = [line["train/agreement"] for line in lines if "train/agreement" in line]
    assert agreed[-1] > max(0.5, agreed[0])  # one action in five, by chance
    policy = rookery.load(tmp_path / "run", checkpoint="last")
    env = Team(agents=2, size=5, density=0.1, steps=16, radius=1)
    obs, _ = env.reset(seed=0)
    action, _ = policy.act(obs)
    assert env.action_space.contains(action)


@pytest.mark.parametrize(
    ("mode", "engine", "actors"), [("single", "inline", 1), ("async", "processes", 2)]
)
def test_a_learner_on_a_gpu_solves_cartpole_for_actors_on_cpus(
    tmp_path: Path, mode: str, engine: str, actors: int
) -> None:
    wanted = {"run.mode": mode, "run.engine": engine, "actor.num": actors}
    run = rookery.train(
        "cartpole",
        seed=0,
        run_dir=tmp_path / "run",
        overrides=["learner.device=cuda:0", *(f"{key}={value}" for key, value in wanted.items())],
    )

    policy, env = rookery.load(run.run_dir), gym.make("CartPole-v1")
    obs, _ = env.reset(seed=0)
    score, over = 0.0, False
    while not over:
        action, _ = policy.act(obs)
        obs, reward, terminated, truncated, _ = env.step(action)
        score, over = score + float(reward), terminated or truncated
    assert score > 400
    assert torch.cuda.max_memory_allocated() > 0
