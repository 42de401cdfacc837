"""The shelf's table: which algorithm learns which task, by which scenario, beside what of SB3's."""

from typing import Any, NamedTuple


class Zoo(NamedTuple):
    """An algorithm of SB3 with the settings of its zoo (RL Baselines3 Zoo, hyperparams/*.yml)."""

    algorithm: str
    env_steps: int
    kwargs: dict[str, Any]
    envs: int = 1
    noise: float | None = None  # deviation of normal action noise
    linear: tuple[str, ...] = ()  # settings that go down to 0 with the run


class Marks(NamedTuple):
    """When a run is evaluated, and when its task is solved."""

    target: float  # mean return
    period: int  # env steps
    episodes: int = 20


class Row(NamedTuple):
    """An algorithm on a task, by a scenario or, without one, with the defaults of the algorithm."""

    algorithm: str
    env: str
    scenario: str | None
    asynchronous: bool = False  # is it measured in async mode as well?
    zoo: Zoo | None = None  # None: SB3 has no such algorithm
    marks: Marks | None = None  # None: those of the scenario


WIDE = {"net_arch": [256, 256]}
OLD = {"net_arch": [400, 300]}

DETERMINISTIC: dict[str, Any] = {
    "gamma": 0.98,
    "buffer_size": 200_000,
    "learning_starts": 10_000,
    "gradient_steps": -1,
    "train_freq": (1, "episode"),
    "learning_rate": 1e-3,
    "policy_kwargs": OLD,
}

ROWS: dict[str, Row] = {
    "dqn-cartpole": Row(
        "DQN",
        "CartPole-v1",
        "cartpole",
        True,
        Zoo(
            "DQN",
            50_000,
            {
                "learning_rate": 2.3e-3,
                "batch_size": 64,
                "buffer_size": 100_000,
                "learning_starts": 1_000,
                "target_update_interval": 10,
                "train_freq": 256,
                "gradient_steps": 128,
                "exploration_fraction": 0.16,
                "exploration_final_eps": 0.04,
                "policy_kwargs": WIDE,
            },
        ),
    ),
    "dqn-acrobot": Row(
        "DQN",
        "Acrobot-v1",
        "acrobot",
        True,
        Zoo(
            "DQN",
            100_000,
            {
                "learning_rate": 6.3e-4,
                "batch_size": 128,
                "buffer_size": 50_000,
                "learning_starts": 0,
                "target_update_interval": 250,
                "train_freq": 4,
                "gradient_steps": -1,
                "exploration_fraction": 0.12,
                "exploration_final_eps": 0.1,
                "policy_kwargs": WIDE,
            },
        ),
    ),
    "dqn-mountaincar": Row(
        "DQN",
        "MountainCar-v0",
        "mountaincar",
        False,
        Zoo(
            "DQN",
            120_000,
            {
                "learning_rate": 4e-3,
                "batch_size": 128,
                "buffer_size": 10_000,
                "learning_starts": 1_000,
                "gamma": 0.98,
                "target_update_interval": 600,
                "train_freq": 16,
                "gradient_steps": 8,
                "exploration_fraction": 0.2,
                "exploration_final_eps": 0.07,
                "policy_kwargs": WIDE,
            },
        ),
    ),
    "rainbow-cartpole": Row("DQN, Rainbow", "CartPole-v1", "rainbow"),
    "ppo-cartpole": Row(
        "PPO",
        "CartPole-v1",
        "ppo-cartpole",
        False,
        Zoo(
            "PPO",
            100_000,
            {
                "n_steps": 32,
                "batch_size": 256,
                "gae_lambda": 0.8,
                "gamma": 0.98,
                "n_epochs": 20,
                "ent_coef": 0.0,
                "learning_rate": 1e-3,
                "clip_range": 0.2,
            },
            envs=8,
            linear=("learning_rate", "clip_range"),
        ),
    ),
    "a2c-cartpole": Row(
        "A2C",
        "CartPole-v1",
        "a2c-cartpole",
        False,
        Zoo("A2C", 500_000, {"ent_coef": 0.0}, envs=8),
    ),
    "impala-cartpole": Row(
        "IMPALA",
        "CartPole-v1",
        "impala-cartpole",
        True,
    ),
    "sac-pendulum": Row(
        "SAC",
        "Pendulum-v1",
        "sac-pendulum",
        True,
        Zoo("SAC", 20_000, {"learning_rate": 1e-3}),
    ),
    "tqc-pendulum": Row("TQC", "Pendulum-v1", "tqc-pendulum"),
    "td3-pendulum": Row(
        "TD3",
        "Pendulum-v1",
        "td3-pendulum",
        False,
        Zoo("TD3", 20_000, DETERMINISTIC, noise=0.1),
    ),
    "ddpg-pendulum": Row(
        "DDPG",
        "Pendulum-v1",
        "ddpg-pendulum",
        False,
        Zoo("DDPG", 20_000, DETERMINISTIC, noise=0.1),
    ),
    "mountaincar-continuous": Row(
        "TD3",
        "MountainCarContinuous-v0",
        "mountaincar-continuous",
        False,
        Zoo(
            "SAC",
            50_000,
            {
                "learning_rate": 3e-4,
                "buffer_size": 50_000,
                "batch_size": 512,
                "ent_coef": 0.1,
                "train_freq": 32,
                "gradient_steps": 32,
                "gamma": 0.9999,
                "tau": 0.01,
                "learning_starts": 0,
                "use_sde": True,
                "policy_kwargs": {"log_std_init": -3.67, "net_arch": [64, 64]},
            },
        ),
    ),
    "r2d2-recall": Row("R2D2", "Recall", "recall"),
    "dqn-orchard": Row("DQN, images", "Orchard", "orchard"),
}

CARTPOLE, ACROBOT, PENDULUM = Marks(475.0, 2_500), Marks(-100.0, 2_500), Marks(-180.0, 2_500)


def _plain(algorithm: str, env: str, marks: Marks, env_steps: int) -> Row:
    """Returns a row in which both sides have their defaults, and SB3's has one environment."""
    return Row(algorithm, env, None, zoo=Zoo(algorithm, env_steps, {}), marks=marks)


DEFAULTS: dict[str, Row] = {
    "default-ppo-cartpole": _plain("PPO", "CartPole-v1", CARTPOLE, 150_000),
    "default-ppo-acrobot": _plain("PPO", "Acrobot-v1", ACROBOT, 200_000),
    "default-ppo-pendulum": _plain("PPO", "Pendulum-v1", PENDULUM, 300_000),
    "default-a2c-cartpole": _plain("A2C", "CartPole-v1", CARTPOLE, 300_000),
    "default-a2c-acrobot": _plain("A2C", "Acrobot-v1", ACROBOT, 300_000),
    "default-a2c-pendulum": _plain("A2C", "Pendulum-v1", PENDULUM, 300_000),
    "default-dqn-cartpole": _plain("DQN", "CartPole-v1", CARTPOLE, 100_000),
    "default-dqn-acrobot": _plain("DQN", "Acrobot-v1", ACROBOT, 100_000),
    "default-sac-pendulum": _plain("SAC", "Pendulum-v1", PENDULUM, 20_000),
    "default-td3-pendulum": _plain("TD3", "Pendulum-v1", PENDULUM, 20_000),
    "default-ddpg-pendulum": _plain("DDPG", "Pendulum-v1", PENDULUM, 20_000),
}
EVERY: dict[str, Row] = ROWS | DEFAULTS
