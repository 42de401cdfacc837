"""Small runs of Stable-Baselines3's algorithms."""

from typing import Any

from rookery.config.load import load
from rookery.config.schema import Config

SHORT: dict[str, Any] = {
    "run.env_steps": 400,
    "eval.target": None,
    "eval.period": 200,
    "eval.episodes": 2,
    "report.log_period": 150,
    "report.tensorboard": False,
    "env.check": False,
    "learner.device": "cpu",
}
SMALL: dict[str, dict[str, Any]] = {
    "SAC": {"learning_starts": 100, "batch_size": 8, "train_freq": [4, "step"]},
    "TD3": {"learning_starts": 100, "batch_size": 8, "train_freq": 4, "action_noise": 0.1},
    "DDPG": {"learning_starts": 100, "batch_size": 8, "train_freq": 4, "action_noise": 0.1},
    "DQN": {"learning_starts": 100, "batch_size": 8},
    "PPO": {"n_steps": 64, "batch_size": 32, "n_epochs": 2},
    "A2C": {},
}


def small(algorithm: str = "DQN", **changes: Any) -> Config:
    """Returns the settings of a small run of one of SB3's algorithms."""
    kwargs = {**SMALL[algorithm], "policy_kwargs": {"net_arch": [8]}}
    discrete = algorithm in ("DQN", "PPO", "A2C")
    return load(
        "sb3-dqn" if discrete else "sb3-sac",
        changes={**SHORT, "sb3.algorithm": algorithm, "sb3.kwargs": kwargs, **changes},
    )
