"""Registry of the algorithms, and the settings of each.

    algo: {name: sac, target_tau: 0.01}          # a row of ALGORITHMS, by its name
    algo: mypackage.toy:Toy                      # a class of yours, whose `Settings` it takes

A settings class is all that is known of an algorithm before it is built. Beside its fields it has
class attributes that say how it learns (from rollouts or from replay, from single steps or from
sequences) and which settings go with it, so that what does not fit together is refused before torch
is imported. `defaults` are those of other sections, such as `learner.lr`: a run with the algorithm
begins with them, and its source is named beside each.
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Annotated, Any, ClassVar, NamedTuple

from rookery import plugins
from rookery.config.checks import (
    Count,
    CountOr0,
    Fraction,
    Limit,
    NegativeOr0,
    Positive,
    PositiveOr0,
    nearest,
)
from rookery.config.refusals import Takes
from rookery.config.section import Section
from rookery.errors import ConfigError

GROUP = "rookery.algorithms"  # entry points by which a package adds its own

REPLAY = "to learn from rows more than a few times, use dqn, sac, td3 or ddpg"
Ordered = tuple[tuple[str, str, str], ...]  # two settings, what to do
SEQUENCES: Takes = {
    "replay.initial_priority": (("largest",), "a sequence has several TD errors: leave it out"),
    "replay.hindsight": ((0.0,), "goals are exchanged in single transitions; leave it out"),
}
PROBABLE: Takes = {
    "actor.epsilon": ((None,), "its rows carry probabilities of its policy; leave it out"),
    "replay.sampling": (("uniform",), "priorities would change what its probabilities mean"),
    "sharing.pool": ((None,), f"others' rows were played by other policies; {REPLAY}"),
}

# Defaults of other sections than `algo`; those of DQN stand in the schema.
# SB3 is Stable-Baselines3 2.9, zoo the RL Baselines3 Zoo.
Defaults = dict[str, Any]
# SB3's SAC, TD3 and DDPG: train_freq=1, gradient_steps=1, one environment
OFF_POLICY_DEFAULTS: Defaults = {
    "replay.capacity": 1_000_000,
    "replay.learning_starts": 100,
    "replay.batch_size": 256,
    "replay.samples_per_insert": 256.0,
    "actor.envs": 1,
    "actor.chunk": 1,
    "actor.pull_period": 1,
    "learner.publish_period": 1,
    "learner.max_grad_norm": None,
}
ACTOR_CRITIC_DEFAULTS: Defaults = {  # SB3's MlpPolicy of PPO and A2C
    "run.env_steps": 200_000,
    "net.hidden": [64, 64],
    "net.activation": "tanh",
    "net.init": "orthogonal",
    "learner.max_grad_norm": 0.5,
}


@dataclass(frozen=True, kw_only=True)
class AlgoConfig(Section):
    """Settings that all algorithms have; the subclass that `name` chooses adds its own."""

    name: str = "dqn"  # algorithm: a row of `rookery list`, or module:Class
    gamma: Fraction = 0.99  # discount factor of one env step
    n_step: Count = 1  # env steps summed before bootstrapping

    bare = "name"
    ordered: ClassVar[Ordered] = ()  # settings of which the first must be below the second
    on_policy = False  # whether it learns only from what its newest policy has just played
    remembers = False  # whether it has a recurrent layer
    defaults: ClassVar[Defaults] = {}  # of other sections, by dotted key
    critic_settings: ClassVar[tuple[str, ...]] = ()  # of other sections, for separate critics
    length = burn_in = overlap = 0  # of sequences, where it learns from such: see R2d2Config

    @property
    def takes(self) -> Takes:
        """Settings of the run that the algorithm limits to few values, and what to do instead."""
        return {}

    @property
    def network_settings(self) -> tuple[str, ...]:
        """Names of the algorithm's settings that decide what its networks are, or compute.

        A run that is resumed from saved weights cannot change them.
        """
        return ()

    @property
    def explores(self) -> bool:
        """Whether the policy explores by itself, without random actions."""
        return False

    @property
    def random_first(self) -> bool:
        """Whether all actions before `replay.learning_starts` are random."""
        return not self.explores or "actor.epsilon" not in self.takes

    @property
    def sequence(self) -> int:
        """Length of a sampled sequence in steps; 0 where single transitions are sampled."""
        return self.burn_in + self.length

    @property
    def stride(self) -> int:
        """Steps between the starts of two sequences of an episode."""
        return self.length - self.overlap or 1

    @property
    def learned(self) -> int:
        """Rows of a sampled sequence that are learned from; 1 for a single transition."""
        return self.length or 1

    def __post_init__(self) -> None:
        wanted = settings_of(self.name)
        if type(self) not in (wanted, AlgoConfig):
            raise ConfigError(
                f"algo.name {self.name!r} takes {wanted.__name__}, got {type(self).__name__}; "
                f"use {wanted.__name__}, or leave the name out"
            )
        super().__post_init__()
        for first, second, do in self.ordered:
            if not getattr(self, first) < (bound := getattr(self, second)):
                raise ConfigError(
                    f"algo.{first} must be below algo.{second} {bound}, got "
                    f"{getattr(self, first)}; {do}"
                )


# Model of returns: their mean, or their distribution.
Values = StrEnum("Values", ["MEAN", "CATEGORICAL", "QUANTILES", "IMPLICIT"])
VALUE_SETTINGS: dict[Values, tuple[str, ...]] = {  # that decide what the outputs of a network mean
    Values.CATEGORICAL: ("atoms", "value_min", "value_max"),
    Values.QUANTILES: ("quantiles",),
}
DIVERGENCES: Takes = {
    "replay.initial_priority": (("largest",), "its priorities are divergences: leave it out")
}
MUNCHAUSEN: Takes = {
    "algo.values": (("mean", "implicit"), "choose one of them, or leave algo.munchausen out")
}
Atoms = Annotated[int, Limit("must be at least 2", {"minimum": 2})]


@dataclass(frozen=True, kw_only=True)
class DqnConfig(AlgoConfig):
    """Deep Q-learning (Mnih et al. 2015): double, dueling, distributional, noisy, Munchausen."""

    name: str = "dqn"
    double: bool = True  # double Q-learning (van Hasselt et al. 2016); no effect with munchausen
    dueling: bool = False  # dueling networks (Wang et al. 2016)
    target_period: Count = 500  # learner steps between copies into the target network
    target_tau: Fraction | None = None  # Polyak factor at every learner step, instead of a period
    values: Values = Values.MEAN  # model of returns: mean, categorical C51, QR-DQN or implicit IQN
    atoms: Atoms = 51  # number of returns of C51
    value_min: float = -10.0  # smallest return of C51
    value_max: float = 10.0  # largest return of C51
    quantiles: Count = 32  # quantiles of each action's return: learned (QR-DQN), sampled (IQN)
    noisy: bool = False  # noise in the weights instead of random actions (Fortunato et al. 2018)
    noise: PositiveOr0 = 0.5  # standard deviation of the noise of noisy networks at the start
    munchausen: bool = False  # adds log-probabilities of actions to rewards (Vieillard et al. 2020)
    temperature: Positive = 0.03  # temperature of munchausen's policy; higher is closer to random
    munchausen_scale: Fraction = 0.9  # factor of temperature * log-probability in rewards
    munchausen_clip: NegativeOr0 = -1.0  # lower bound of temperature * log-probability

    ordered = (("value_min", "value_max", "lower the first or raise the second"),)

    @property
    def network_settings(self) -> tuple[str, ...]:
        return ("dueling", "values", "noisy", *VALUE_SETTINGS.get(self.values, ()))

    @property
    def explores(self) -> bool:
        return self.noisy

    @property
    def takes(self) -> Takes:
        divergences = DIVERGENCES if self.values is Values.CATEGORICAL else {}
        return {**divergences, **(MUNCHAUSEN if self.munchausen else {})}


@dataclass(frozen=True, kw_only=True)
class SacConfig(AlgoConfig):
    """Soft actor-critic (Haarnoja et al. 2018), for continuous and for discrete actions."""

    name: str = "sac"
    target_tau: Fraction = 0.005  # Polyak factor of the target critics at every learner step
    critics: Count = 2  # number of critics, of which the smallest value is the target
    temperature: PositiveOr0 | None = None  # weight of the entropy; null: learned
    initial_temperature: Positive = 1.0  # learned temperature at the start
    target_entropy: float | None = None  # null: -1 per action; discrete: half the largest one

    defaults = OFF_POLICY_DEFAULTS | {"learner.lr": 3e-4, "net.hidden": [256, 256]}  # SB3's SAC
    critic_settings = ("net.critic_hidden", "learner.critic_lr")
    explores = True

    @property
    def network_settings(self) -> tuple[str, ...]:
        return ("critics", "temperature")  # the temperature is saved with the weights


@dataclass(frozen=True, kw_only=True)
class TqcConfig(SacConfig):
    """SAC with truncated quantile critics (Kuznetsov et al. 2020)."""

    name: str = "tqc"
    quantiles: Count = 25  # quantiles of each critic
    dropped_quantiles: CountOr0 = 2  # largest quantiles of each critic that targets leave out

    ordered = (("dropped_quantiles", "quantiles", "lower the first"),)
    network_settings = ("critics", "temperature", "quantiles")


@dataclass(frozen=True, kw_only=True)
class DdpgConfig(AlgoConfig):
    """Deep deterministic policy gradients (Lillicrap et al. 2016)."""

    name: str = "ddpg"
    target_tau: Fraction = 0.005  # Polyak factor of all targets at every learner step
    noise: PositiveOr0 = 0.1  # standard deviation of the noise on actions, which lie in -1 to 1

    # SB3's DDPG and TD3
    defaults = OFF_POLICY_DEFAULTS | {"learner.lr": 1e-3, "net.hidden": [400, 300]}
    critic_settings = ("net.critic_hidden", "learner.critic_lr")
    explores = True


@dataclass(frozen=True, kw_only=True)
class Td3Config(DdpgConfig):
    """DDPG with two critics, late policy updates and smoothed targets (Fujimoto et al. 2018)."""

    name: str = "td3"
    policy_delay: Count = 2  # learner steps between two steps of the policy and of the targets
    target_policy_noise: PositiveOr0 = 0.2  # standard deviation of the noise on target actions
    target_noise_clip: PositiveOr0 = 0.5  # bound of the noise on target actions


@dataclass(frozen=True, kw_only=True)
class R2d2Config(AlgoConfig):
    """Recurrent DQN over sequences (Kapturowski et al. 2019)."""

    name: str = "r2d2"
    n_step: Count = 5  # env steps summed before bootstrapping
    length: Count = 40  # steps of a sequence that are learned from
    burn_in: CountOr0 = 20  # steps before the learned ones, which only warm up the memory
    overlap: CountOr0 = 20  # steps learned from that two neighbouring sequences share
    double: bool = True  # double Q-learning (van Hasselt et al. 2016)
    dueling: bool = True  # dueling networks (Wang et al. 2016)
    target_period: Count = 500  # learner steps between copies into the target network
    target_tau: Fraction | None = None  # Polyak factor at every learner step, instead of a period
    rescale: bool = True  # learns h(Q): sign(x)(sqrt(|x|+1)-1) + 0.001 x; rewards stay as they are
    eta: Fraction = 0.9  # priority of a sequence: eta * largest TD error + (1 - eta) * mean

    ordered = (("overlap", "length", "half of the length is usual"),)
    # Kapturowski et al. 2019, for small tasks: a smaller network, torch's Adam
    defaults: ClassVar[Defaults] = {
        "net.hidden": [128],
        "replay.capacity": 100_000,
        "replay.batch_size": 64,
        "replay.samples_per_insert": 32.0,
        "replay.sampling": "prioritized",
        "replay.alpha": 0.9,
        "replay.beta": 0.6,
        "replay.beta_end": 0.6,
        "learner.lr": 1e-3,
    }
    takes = SEQUENCES
    remembers = True
    network_settings = ("dueling", "rescale")


@dataclass(frozen=True, kw_only=True)
class ActorCriticConfig(AlgoConfig):
    """Settings of algorithms that learn a policy and the value of states."""

    vf_coef: PositiveOr0 = 0.5  # weight of the value's loss in the sum of losses
    ent_coef: PositiveOr0 = 0.0  # weight of the policy's entropy
    ent_coef_end: PositiveOr0 | None = None  # ent_coef at the end of the run, linear; null: equal
    shared_net: bool = False  # one network for policy and value, except the last layer

    network_settings = ("shared_net",)
    critic_settings = ("net.critic_hidden",)
    explores = True


@dataclass(frozen=True, kw_only=True)
class RolloutConfig(ActorCriticConfig):
    """Settings of on-policy algorithms, which learn from rollouts of the newest policy."""

    gae_lambda: Fraction = 0.95  # weight of later steps: 0 bootstraps after one, 1 at the end
    normalize_advantage: bool = True  # normalises advantages within each batch

    on_policy = True
    epochs = 1  # times every row of a rollout is learned from
    whole = False  # whether a rollout is one batch
    defaults = ACTOR_CRITIC_DEFAULTS
    takes: ClassVar[Takes] = {
        **PROBABLE,
        "run.mode": (("single", "sync"), "async actors have old weights; use algo.name=impala"),
        "algo.n_step": ((1,), "algo.gae_lambda decides how far it looks"),
        "actor.chunk_episodes": ((None,), "a rollout has actor.chunk env steps of each actor"),
        "learner.replicas": ((1,), "use an off-policy algorithm, such as dqn, on several GPUs"),
        "replay.initial_priority": (("largest",), REPLAY),
        "replay.hindsight": ((0.0,), REPLAY),
        "replay.max_policy_lag": ((None,), "its rows are never old; leave it out"),
        "replay.storage": (("memory",), "a rollout is small; leave it out"),
        "replay.shards": ((None, 1), "a rollout is one piece; leave it out"),
    }


@dataclass(frozen=True, kw_only=True)
class PpoConfig(RolloutConfig):
    """Proximal policy optimisation (Schulman et al. 2017)."""

    name: str = "ppo"
    epochs: Count = 10  # passes over each rollout
    clip_range: Positive = 0.2  # largest change of an action's probability ratio that is learned
    clip_range_end: Positive | None = None  # clip_range at the end of the run, linear; null: equal
    clip_range_vf: Positive | None = None  # largest change of a state's value; null: no limit
    target_kl: Positive | None = None  # KL divergence; 1.5 times it ends a rollout's epochs

    defaults = ACTOR_CRITIC_DEFAULTS | {  # SB3's PPO
        "actor.chunk": 2_048,  # n_steps
        "replay.batch_size": 64,
        "learner.lr": 3e-4,
        "learner.optimizer_kwargs": {"eps": 1e-5},
    }


@dataclass(frozen=True, kw_only=True)
class A2cConfig(RolloutConfig):
    """Advantage actor-critic (Mnih et al. 2016), with all actors in step."""

    name: str = "a2c"
    gae_lambda: Fraction = 1.0  # weight of later steps: 0 bootstraps after one, 1 at the end
    normalize_advantage: bool = False  # normalises advantages within each rollout

    defaults = ACTOR_CRITIC_DEFAULTS | {  # SB3's A2C
        "actor.chunk": 40,  # n_steps: 5 of each of 8 environments
        "learner.lr": 7e-4,
        "learner.optimizer": "rmsprop",
        "learner.optimizer_kwargs": {"alpha": 0.99, "eps": 1e-5},
    }
    whole = True


@dataclass(frozen=True, kw_only=True)
class ImpalaConfig(ActorCriticConfig):
    """Actor-critic from late actors, corrected by V-trace (Espeholt et al. 2018)."""

    name: str = "impala"
    ent_coef: PositiveOr0 = 0.01  # weight of the policy's entropy
    length: Count = 20  # env steps of a sampled sequence
    rho_clip: Positive = 1.0  # bound of the ratios that weigh a step's TD error
    c_clip: Positive = 1.0  # bound of the ratios that carry errors back

    defaults = ACTOR_CRITIC_DEFAULTS | {  # Espeholt et al. 2018, with Adam
        "replay.capacity": 1_000,  # little more than a batch: rows are learned from once
        "replay.learning_starts": 640,
        "replay.batch_size": 32,  # sequences
        "replay.samples_per_insert": 1.0,
        "actor.chunk": 64,
        "actor.pull_period": 64,
        "learner.lr": 6e-4,
        "learner.publish_period": 1,
    }
    takes: ClassVar[Takes] = {
        **SEQUENCES,
        **PROBABLE,
        "algo.n_step": ((1,), "V-trace looks as far as algo.length"),
    }


class Entry(NamedTuple):
    """A row of the registry: settings class, import name and description of an algorithm."""

    settings: type[AlgoConfig]
    where: str  # module:Class
    about: str


def _core(settings: type[AlgoConfig], place: str, about: str) -> Entry:
    return Entry(settings, f"rookery.algorithms.{place}", about)


ALGORITHMS: dict[str, Entry] = {
    "dqn": _core(
        DqnConfig,
        "dqn:Dqn",
        "deep Q-learning and its parts: double, dueling, n-step, distributional, noisy; discrete",
    ),
    "sac": _core(SacConfig, "sac:sac", "soft actor-critic; continuous and discrete actions"),
    "tqc": _core(TqcConfig, "tqc:Tqc", "SAC with truncated quantile critics; continuous"),
    "td3": _core(Td3Config, "td3:Td3", "DDPG with twin critics, delayed and smoothed; continuous"),
    "ddpg": _core(DdpgConfig, "ddpg:Ddpg", "deep deterministic policy gradients; continuous"),
    "r2d2": _core(R2d2Config, "r2d2:R2d2", "recurrent DQN, from sequences; discrete actions"),
    "ppo": _core(PpoConfig, "ppo:Ppo", "proximal policy optimisation, on-policy; all actions"),
    "a2c": _core(A2cConfig, "a2c:A2c", "advantage actor-critic, on-policy; all actions"),
    "impala": _core(ImpalaConfig, "impala:Impala", "actor-critic with V-trace; all actions"),
}


@cache
def known() -> dict[str, Entry]:
    """Returns all algorithms that have a name: those of the core, of plugins, of entry points."""
    from importlib.metadata import entry_points  # takes 20 ms, which most imports do not need

    found = dict(ALGORITHMS)
    for name, row in plugins.algorithms().items():
        found[name] = Entry(load_class(row.settings), row.algorithm, row.about)
    for point in entry_points(group=GROUP):
        found.setdefault(point.name, _entry(point.value, point.load()))
    return found


def entry_of(name: str) -> Entry:
    """Returns the row of an algorithm, which is given by name or as `module:Class`."""
    if name in ALGORITHMS:  # without the imports that all others need
        return ALGORITHMS[name]
    if re.fullmatch(r"[\w.]+:[\w.]+", name):
        return _entry(name, load_class(name))
    if name in known():
        return known()[name]
    near = nearest(name, known())
    do = f"did you mean {near!r}?" if near else "or write module:Class for one of yours"
    raise ConfigError(f"algo.name must be one of {', '.join(known())}, got {name!r}; {do}")


def settings_of(name: str) -> type[AlgoConfig]:
    """Returns the settings class of an algorithm, which is given by name or as `module:Class`."""
    return entry_of(name).settings


def defaulted() -> set[str]:
    """Returns the settings outside section `algo` for which some algorithm has a default."""
    return {key for entry in known().values() for key in entry.settings.defaults}


def load_class(where: str) -> Any:
    """Imports the class that `module:Class` names; raises ConfigError if that fails."""
    try:
        return plugins.load(where)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"algo.name is {where!r}, which cannot be imported ({error}); "
            "it must be module:Class; put its folder on PYTHONPATH"
        ) from error


def _entry(where: str, cls: Any) -> Entry:
    settings = getattr(cls, "Settings", AlgoConfig)
    if not (isinstance(settings, type) and issubclass(settings, AlgoConfig)):
        raise ConfigError(
            f"{where}.Settings is {settings!r}; it must be a frozen dataclass derived from "
            "rookery.config.algorithms.AlgoConfig; leave it out for the common settings alone"
        )
    about = (cls.__doc__ or "").strip().partition("\n")[0].rstrip(".")
    return Entry(settings, where, about)
