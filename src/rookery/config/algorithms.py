"""The algorithms: one table of all, and the settings of each.

    algo: {name: sac, target_tau: 0.01}          # a row of ALGORITHMS, by its name
    algo: mypackage.toy:Toy                      # a class of yours, whose `Settings` it takes

What a program must know of an algorithm before it is built (does it learn from rollouts or from
replay, from single steps or from sequences?) stands in its settings too, so that what does not fit
together is refused before torch is imported.
"""

import difflib
import math
import re
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib.metadata import entry_points
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from rookery import plugins
from rookery.config.checks import at_least_0, positive, within
from rookery.errors import ConfigError

if TYPE_CHECKING:
    from rookery.config.schema import Config

GROUP = "rookery.algorithms"  # entry points by which a package adds its own
Taken = MappingProxyType[str, tuple[tuple[Any, ...], str]]  # key → what may be there, what to do

REPLAY = "to learn from rows more than a few times, use dqn, sac, td3 or ddpg"
SEQUENCES: dict[str, tuple[tuple[Any, ...], str]] = {
    "replay.initial_priority": (("largest",), "a sequence has no single TD error: leave it out"),
    "replay.hindsight": ((0.0,), "goals are exchanged in single transitions alone; leave it out"),
}
DIVERGENCES: dict[str, tuple[tuple[Any, ...], str]] = {
    "replay.initial_priority": (("largest",), "it ranks rows by divergences, which actors cannot"),
}
PROBABLE: dict[str, tuple[tuple[Any, ...], str]] = {
    "actor.epsilon": (
        (None,),
        "its rows carry probabilities, and random actions have others; leave it out",
    ),
    "replay.sampling": (("uniform",), "priorities would change what its probabilities mean"),
    "sharing.pool": ((None,), f"others' rows were played by other policies; {REPLAY}"),
}


@dataclass(frozen=True, kw_only=True)
class AlgoConfig:
    """What every algorithm has. Those that follow add their own; `name` decides which they are."""

    name: str = "dqn"  # a row of `rookery list`, or module:Class
    gamma: float = 0.99  # discount of one env step
    n_step: int = 1  # env steps summed before bootstrapping

    on_policy = False  # does it learn only from what its newest policy has just played?
    remembers = False  # has it a recurrent layer?
    burn_in = 0  # steps of a sequence that only warm up its memory, but where an episode begins

    @property
    def takes(self) -> Taken:
        """The settings that go with it, where not all do."""
        return Taken({})

    @property
    def network_settings(self) -> tuple[str, ...]:
        """Names of its own settings that decide which networks it has, or what they compute.

        A run that is resumed from saved weights cannot change them.
        """
        return ()

    @property
    def explores(self) -> bool:
        """Does its policy explore by itself, without random actions?"""
        return False

    @property
    def random_first(self) -> bool:
        """Does it play at random while replay is warming up?"""
        return not self.explores or "actor.epsilon" not in self.takes

    @property
    def sequence(self) -> int:
        """Steps of a drawn sequence; 0 where single transitions are drawn."""
        return 0

    @property
    def stride(self) -> int:
        """Steps between the beginnings of two sequences of an episode."""
        return 1

    @property
    def learned(self) -> int:
        """Rows that one drawn row, or sequence, teaches."""
        return 1

    def check_run(self, config: "Config") -> None:
        """Refuses, with a ConfigError, a run that the algorithm cannot do."""

    def __post_init__(self) -> None:
        wanted = settings_of(self.name)
        if type(self) not in (wanted, AlgoConfig):
            raise ConfigError(
                f"algo.name {self.name!r} takes {wanted.__name__}, got {type(self).__name__}; "
                f"use {wanted.__name__}, or leave the name out"
            )
        within("algo.gamma", self.gamma, 0.0, 1.0)
        positive("algo.n_step", self.n_step)


class Values(StrEnum):
    """What DQN learns of a return: its mean, or its distribution."""

    MEAN = "mean"
    CATEGORICAL = "categorical"
    QUANTILES = "quantiles"
    IMPLICIT = "implicit"


VALUE_SETTINGS: dict[Values, tuple[str, ...]] = {  # that decide what the outputs of a network mean
    Values.CATEGORICAL: ("atoms", "value_min", "value_max"),
    Values.QUANTILES: ("quantiles",),
}


@dataclass(frozen=True, kw_only=True)
class DqnConfig(AlgoConfig):
    """Deep Q-learning (Mnih et al. 2015) with the parts that proved themselves."""

    name: str = "dqn"
    double: bool = True  # van Hasselt et al. 2016; means nothing with munchausen
    dueling: bool = False  # Wang et al. 2016
    target_period: int = 500  # learner steps between copies into the target network
    target_tau: float | None = None  # Polyak factor at every learner step, instead of a period
    values: Values = Values.MEAN  # categorical: C51; quantiles: QR-DQN; implicit: IQN
    atoms: int = 51  # categorical: values of a return that are told apart
    value_min: float = -10.0  # categorical: the smallest of them
    value_max: float = 10.0  # and the largest
    quantiles: int = 32  # quantiles: learned for each action; implicit: asked for at a time
    noisy: bool = False  # noise in the weights instead of random actions (Fortunato et al. 2018)
    noise: float = 0.5  # noisy: its deviation at the start
    munchausen: bool = False  # rewards likely actions (Vieillard et al. 2020)
    temperature: float = 0.03  # munchausen: of the policy; higher is closer to random
    munchausen_scale: float = 0.9  # munchausen: share of temperature * log-probability in rewards
    munchausen_clip: float = -1.0  # munchausen: lower bound of temperature * log-probability

    @property
    def network_settings(self) -> tuple[str, ...]:
        return ("dueling", "values", "noisy", *VALUE_SETTINGS.get(self.values, ()))

    @property
    def explores(self) -> bool:
        return self.noisy

    @property
    def takes(self) -> Taken:
        return Taken(DIVERGENCES if self.values is Values.CATEGORICAL else {})

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("target_period", "atoms", "quantiles", "temperature"):
            positive(f"algo.{name}", getattr(self, name))
        at_least_0("algo.noise", self.noise)
        within("algo.munchausen_scale", self.munchausen_scale, 0.0, 1.0)
        within("algo.munchausen_clip", self.munchausen_clip, -math.inf, 0.0)
        if self.target_tau is not None:
            within("algo.target_tau", self.target_tau, 0.0, 1.0)
        if self.atoms < 2 or self.value_min >= self.value_max:
            raise ConfigError(
                "algo.atoms must be at least 2 and algo.value_min below algo.value_max, got "
                f"{self.atoms}, {self.value_min} and {self.value_max}; correct what is outside"
            )
        if self.munchausen and self.values in (Values.CATEGORICAL, Values.QUANTILES):
            raise ConfigError(
                f"algo.munchausen goes with algo.values mean or implicit, got {self.values}; "
                "choose one of them, or leave algo.munchausen out"
            )


@dataclass(frozen=True, kw_only=True)
class SacConfig(AlgoConfig):
    """Soft actor-critic (Haarnoja et al. 2018), for continuous and for discrete actions."""

    name: str = "sac"
    target_tau: float = 0.005  # Polyak factor of the target critics at every learner step
    critics: int = 2  # the smallest of them is believed
    temperature: float | None = None  # weight of the entropy; none: learned
    initial_temperature: float = 1.0  # where it is learned: its value at the start
    target_entropy: float | None = None  # none: -1 per action number; discrete: 0.5 of the largest

    @property
    def network_settings(self) -> tuple[str, ...]:
        return ("critics", "temperature")  # the temperature is saved with the weights

    @property
    def explores(self) -> bool:
        return True

    def __post_init__(self) -> None:
        super().__post_init__()
        within("algo.target_tau", self.target_tau, 0.0, 1.0)
        positive("algo.critics", self.critics)
        positive("algo.initial_temperature", self.initial_temperature)
        if self.temperature is not None:
            at_least_0("algo.temperature", self.temperature)


@dataclass(frozen=True, kw_only=True)
class TqcConfig(SacConfig):
    """SAC with truncated quantile critics (Kuznetsov et al. 2020)."""

    name: str = "tqc"
    quantiles: int = 25  # of each critic
    dropped_quantiles: int = 2  # the largest so many of each critic are not believed

    @property
    def network_settings(self) -> tuple[str, ...]:
        return (*super().network_settings, "quantiles")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.dropped_quantiles < self.quantiles:
            raise ConfigError(
                "algo.dropped_quantiles must be at least 0 and below algo.quantiles "
                f"{self.quantiles}, got {self.dropped_quantiles}; lower it"
            )


@dataclass(frozen=True, kw_only=True)
class DdpgConfig(AlgoConfig):
    """Deep deterministic policy gradients (Lillicrap et al. 2016)."""

    name: str = "ddpg"
    target_tau: float = 0.005  # Polyak factor of all targets at every learner step
    noise: float = 0.1  # deviation of the noise on played actions, which lie in -1 to 1

    @property
    def explores(self) -> bool:
        return True

    def __post_init__(self) -> None:
        super().__post_init__()
        within("algo.target_tau", self.target_tau, 0.0, 1.0)
        at_least_0("algo.noise", self.noise)


@dataclass(frozen=True, kw_only=True)
class Td3Config(DdpgConfig):
    """DDPG with two critics, late policy updates and smoothed targets (Fujimoto et al. 2018)."""

    name: str = "td3"
    policy_delay: int = 2  # learner steps between two steps of the policy and of the targets
    target_policy_noise: float = 0.2  # deviation of the noise on target actions
    target_noise_clip: float = 0.5  # and its bound

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("algo.policy_delay", self.policy_delay)
        at_least_0("algo.target_policy_noise", self.target_policy_noise)
        at_least_0("algo.target_noise_clip", self.target_noise_clip)


@dataclass(frozen=True, kw_only=True)
class R2d2Config(AlgoConfig):
    """Recurrent DQN over sequences (Kapturowski et al. 2019)."""

    name: str = "r2d2"
    n_step: int = 5  # env steps summed before bootstrapping
    length: int = 40  # steps of a sequence that are learned from
    burn_in: int = 20  # steps before them that only warm up the memory
    overlap: int = 20  # steps learned from that two neighbouring sequences share
    double: bool = True  # van Hasselt et al. 2016
    dueling: bool = True  # Wang et al. 2016
    target_period: int = 500  # learner steps between copies into the target network
    target_tau: float | None = None  # Polyak factor at every learner step, instead of a period
    rescale: bool = True  # learns h(Q): sign(x)(sqrt(|x|+1)-1) + 0.001 x; rewards stay as they are
    eta: float = 0.9  # a sequence's priority: eta of its largest error, the rest of their mean

    takes = Taken(SEQUENCES)
    remembers = True

    @property
    def network_settings(self) -> tuple[str, ...]:
        return ("dueling", "rescale")

    @property
    def sequence(self) -> int:
        return self.burn_in + self.length

    @property
    def stride(self) -> int:
        return self.length - self.overlap

    @property
    def learned(self) -> int:
        return self.length

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("length", "target_period"):
            positive(f"algo.{name}", getattr(self, name))
        at_least_0("algo.burn_in", self.burn_in)
        within("algo.eta", self.eta, 0.0, 1.0)
        if self.target_tau is not None:
            within("algo.target_tau", self.target_tau, 0.0, 1.0)
        if not 0 <= self.overlap < self.length:
            raise ConfigError(
                f"algo.overlap must be at least 0 and below algo.length {self.length}, got "
                f"{self.overlap}; half of the length is usual"
            )


@dataclass(frozen=True, kw_only=True)
class ActorCriticConfig(AlgoConfig):
    """What algorithms share that learn a policy and the value of states."""

    vf_coef: float = 0.5  # of the value's loss beside the policy's
    ent_coef: float = 0.0  # weight of the policy's entropy
    shared_net: bool = False  # one network for policy and value, but for the last layer

    @property
    def network_settings(self) -> tuple[str, ...]:
        return ("shared_net",)

    @property
    def explores(self) -> bool:
        return True

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least_0("algo.vf_coef", self.vf_coef)
        at_least_0("algo.ent_coef", self.ent_coef)


@dataclass(frozen=True, kw_only=True)
class RolloutConfig(ActorCriticConfig):
    """What algorithms share that learn from rollouts: what the newest policy has just played."""

    gae_lambda: float = 0.95  # 0 bootstraps after one step, 1 at the rollout's end alone
    normalize_advantage: bool = True  # within each batch

    on_policy = True
    takes = Taken(
        PROBABLE
        | {
            "run.mode": (
                ("single", "sync"),
                "in async actors play with old weights; use --mode sync, or algo.name=impala",
            ),
            "algo.n_step": ((1,), "algo.gae_lambda decides how far it looks"),
            "actor.chunk_episodes": ((None,), "a rollout has actor.chunk env steps of each actor"),
            "replay.initial_priority": (("largest",), REPLAY),
            "replay.hindsight": ((0.0,), REPLAY),
            "replay.max_policy_lag": ((None,), "its rows are never old; leave it out"),
            "replay.storage": (("memory",), "a rollout is small; leave it out"),
            "replay.shards": ((None, 1), "a rollout is one piece; leave it out"),
        }
    )
    epochs = 1  # times every row of a rollout is learned from
    whole = False  # is a rollout one batch?

    def __post_init__(self) -> None:
        super().__post_init__()
        within("algo.gae_lambda", self.gae_lambda, 0.0, 1.0)
        positive("algo.epochs", self.epochs)


@dataclass(frozen=True, kw_only=True)
class PpoConfig(RolloutConfig):
    """Proximal policy optimisation (Schulman et al. 2017)."""

    name: str = "ppo"
    epochs: int = 10  # times every row of a rollout is learned from
    clip_range: float = 0.2  # how far probabilities may be learned away from those that played

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("algo.clip_range", self.clip_range)


@dataclass(frozen=True, kw_only=True)
class A2cConfig(RolloutConfig):
    """Advantage actor-critic (Mnih et al. 2016), with all actors in step."""

    name: str = "a2c"
    gae_lambda: float = 1.0  # 0 bootstraps after one step, 1 at the rollout's end alone
    normalize_advantage: bool = False  # within each rollout

    whole = True


@dataclass(frozen=True, kw_only=True)
class ImpalaConfig(ActorCriticConfig):
    """Actor-critic from late actors, corrected by V-trace (Espeholt et al. 2018)."""

    name: str = "impala"
    ent_coef: float = 0.01  # weight of the policy's entropy
    length: int = 20  # env steps of a drawn stretch
    rho_clip: float = 1.0  # bound of the ratios that weigh a step's TD error
    c_clip: float = 1.0  # bound of the ratios that carry errors back

    takes = Taken(
        SEQUENCES | PROBABLE | {"algo.n_step": ((1,), "V-trace looks as far as algo.length")}
    )

    @property
    def sequence(self) -> int:
        return self.length

    @property
    def stride(self) -> int:
        return self.length

    @property
    def learned(self) -> int:
        return self.length

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("length", "rho_clip", "c_clip"):
            positive(f"algo.{name}", getattr(self, name))


class Entry(NamedTuple):
    """An algorithm: its settings, where its class is, and one line about it."""

    settings: type[AlgoConfig]
    where: str  # module:Class
    about: str


ALGORITHMS: dict[str, Entry] = {
    "dqn": Entry(
        DqnConfig,
        "rookery.algorithms.dqn:Dqn",
        "deep Q-learning and its parts: double, dueling, n-step, distributional, noisy; discrete",
    ),
    "sac": Entry(
        SacConfig,
        "rookery.algorithms.sac:sac",
        "soft actor-critic; continuous and discrete actions",
    ),
    "tqc": Entry(
        TqcConfig, "rookery.algorithms.tqc:Tqc", "SAC with truncated quantile critics; continuous"
    ),
    "td3": Entry(
        Td3Config,
        "rookery.algorithms.td3:Td3",
        "DDPG with twin critics, delayed and smoothed; continuous",
    ),
    "ddpg": Entry(
        DdpgConfig,
        "rookery.algorithms.ddpg:Ddpg",
        "deep deterministic policy gradients; continuous",
    ),
    "r2d2": Entry(
        R2d2Config,
        "rookery.algorithms.r2d2:R2d2",
        "recurrent DQN, from sequences; discrete actions",
    ),
    "ppo": Entry(
        PpoConfig,
        "rookery.algorithms.ppo:Ppo",
        "proximal policy optimisation, on-policy (single, sync); all kinds of actions",
    ),
    "a2c": Entry(
        A2cConfig,
        "rookery.algorithms.a2c:A2c",
        "advantage actor-critic, on-policy (single, sync); all kinds of actions",
    ),
    "impala": Entry(
        ImpalaConfig,
        "rookery.algorithms.impala:Impala",
        "actor-critic with V-trace, for late actors; all kinds of actions",
    ),
}


@cache
def known() -> dict[str, Entry]:
    """Returns every algorithm that has a name: the core's, plugins', other distributions'."""
    found = ALGORITHMS | {name: _of_plugin(row) for name, row in plugins.algorithms().items()}
    for point in entry_points(group=GROUP):
        cls = point.load()
        found.setdefault(point.name, _entry(point.value, cls))
    return found


def entry_of(name: str) -> Entry:
    """Returns the algorithm of this name, or the one that `module:Class` is."""
    if name in ALGORITHMS:
        return ALGORITHMS[name]
    if re.fullmatch(r"[\w.]+:[\w.]+", name):
        return _entry(name, load_class(name))
    if name in known():
        return known()[name]
    near = difflib.get_close_matches(name, known(), n=1)
    do = f"did you mean {near[0]!r}?" if near else "or write module:Class for one of yours"
    raise ConfigError(f"algo.name must be one of {', '.join(known())}, got {name!r}; {do}")


def settings_of(name: str) -> type[AlgoConfig]:
    """Returns the class of an algorithm's settings."""
    return entry_of(name).settings


def load_class(where: str) -> Any:
    """Returns what `module:Class` stands for."""
    try:
        return plugins.load(where)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"algo.name is {where!r}, which cannot be imported ({error}); "
            "it must be module:Class; put its folder on PYTHONPATH"
        ) from error


def _of_plugin(row: plugins.AlgorithmNames) -> Entry:
    return Entry(load_class(row.settings), row.algorithm, row.about)


def _entry(where: str, cls: Any) -> Entry:
    settings = getattr(cls, "Settings", AlgoConfig)
    if not (isinstance(settings, type) and issubclass(settings, AlgoConfig)):
        raise ConfigError(
            f"{where}.Settings is {settings!r}; it must be a frozen dataclass derived from "
            "rookery.config.algorithms.AlgoConfig; leave it out for the common settings alone"
        )
    about = (cls.__doc__ or "").strip().partition("\n")[0].rstrip(".")
    return Entry(settings, where, about)
