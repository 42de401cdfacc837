"""A class for each algorithm, with its settings as typed keyword arguments.

The TypedDicts list what `Agent.__init__` takes, for editors and type checkers. What a setting means
is said in `config/algorithms.py` and on the page of all settings.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack

from rookery.api.agent import Agent, EnvSource


class CommonSettings(TypedDict, total=False):
    """Keyword arguments of every algorithm; `Agent` explains the first three."""

    seed: int
    run_dir: str | Path | None
    overrides: Sequence[str]
    gamma: float
    n_step: int
    lr: float
    critic_lr: float | None
    lr_decay: Literal["constant", "linear", "exponential", "cosine"]
    max_grad_norm: float | None
    device: str
    batch_size: int
    capacity: int
    learning_starts: int
    samples_per_insert: float
    sampling: Literal["uniform", "prioritized"]
    hidden: Sequence[int]
    critic_hidden: Sequence[int] | None
    activation: Literal["relu", "tanh", "elu", "gelu", "silu"]
    init: Literal["torch", "orthogonal"]
    mode: Literal["single", "sync", "async"]
    actors: int
    envs: int
    chunk: int
    normalize_obs: bool
    normalize_reward: bool
    env_kwargs: Mapping[str, Any]


class DqnSettings(CommonSettings, total=False):
    """Settings of DQN."""

    double: bool
    dueling: bool
    target_period: int
    target_tau: float | None
    values: Literal["mean", "categorical", "quantiles", "implicit"]
    atoms: int
    value_min: float
    value_max: float
    quantiles: int
    noisy: bool
    noise: float
    munchausen: bool
    temperature: float
    munchausen_scale: float
    munchausen_clip: float


class SacSettings(CommonSettings, total=False):
    """Settings of SAC."""

    target_tau: float
    critics: int
    temperature: float | None
    initial_temperature: float
    target_entropy: float | None


class TqcSettings(SacSettings, total=False):
    """Settings of TQC."""

    quantiles: int
    dropped_quantiles: int


class DdpgSettings(CommonSettings, total=False):
    """Settings of DDPG."""

    target_tau: float
    noise: float


class Td3Settings(DdpgSettings, total=False):
    """Settings of TD3."""

    policy_delay: int
    target_policy_noise: float
    target_noise_clip: float


class R2d2Settings(CommonSettings, total=False):
    """Settings of R2D2."""

    length: int
    burn_in: int
    overlap: int
    double: bool
    dueling: bool
    target_period: int
    target_tau: float | None
    rescale: bool
    eta: float


class ActorCriticSettings(CommonSettings, total=False):
    """Settings of PPO, A2C and IMPALA."""

    vf_coef: float
    ent_coef: float
    ent_coef_end: float | None
    shared_net: bool


class A2cSettings(ActorCriticSettings, total=False):
    """Settings of A2C."""

    gae_lambda: float
    normalize_advantage: bool


class PpoSettings(A2cSettings, total=False):
    """Settings of PPO."""

    epochs: int
    clip_range: float
    clip_range_end: float | None
    clip_range_vf: float | None
    target_kl: float | None


class ImpalaSettings(ActorCriticSettings, total=False):
    """Settings of IMPALA."""

    length: int
    rho_clip: float
    c_clip: float


class DQN(Agent):
    """Deep Q-learning and its parts (double, dueling, distributional, noisy); discrete actions."""

    algorithm = "dqn"

    def __init__(self, env: EnvSource, **settings: Unpack[DqnSettings]) -> None:
        super().__init__(env, **settings)


class SAC(Agent):
    """Soft actor-critic, for continuous and discrete actions."""

    algorithm = "sac"

    def __init__(self, env: EnvSource, **settings: Unpack[SacSettings]) -> None:
        super().__init__(env, **settings)


class TQC(Agent):
    """SAC with truncated quantile critics, for continuous actions."""

    algorithm = "tqc"

    def __init__(self, env: EnvSource, **settings: Unpack[TqcSettings]) -> None:
        super().__init__(env, **settings)


class TD3(Agent):
    """Twin delayed DDPG, for continuous actions."""

    algorithm = "td3"

    def __init__(self, env: EnvSource, **settings: Unpack[Td3Settings]) -> None:
        super().__init__(env, **settings)


class DDPG(Agent):
    """Deep deterministic policy gradient, for continuous actions."""

    algorithm = "ddpg"

    def __init__(self, env: EnvSource, **settings: Unpack[DdpgSettings]) -> None:
        super().__init__(env, **settings)


class R2D2(Agent):
    """Recurrent DQN from sequences, for discrete actions."""

    algorithm = "r2d2"

    def __init__(self, env: EnvSource, **settings: Unpack[R2d2Settings]) -> None:
        super().__init__(env, **settings)


class PPO(Agent):
    """Proximal policy optimisation, for all kinds of actions."""

    algorithm = "ppo"

    def __init__(self, env: EnvSource, **settings: Unpack[PpoSettings]) -> None:
        super().__init__(env, **settings)


class A2C(Agent):
    """Advantage actor-critic, for all kinds of actions."""

    algorithm = "a2c"

    def __init__(self, env: EnvSource, **settings: Unpack[A2cSettings]) -> None:
        super().__init__(env, **settings)


class IMPALA(Agent):
    """Actor-critic with V-trace for late actors, for all kinds of actions."""

    algorithm = "impala"

    def __init__(self, env: EnvSource, **settings: Unpack[ImpalaSettings]) -> None:
        super().__init__(env, **settings)
