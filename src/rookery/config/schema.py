"""The settings of a run: one frozen dataclass for each role, composed into `Config`.

Each role receives its section, never the whole. A field's comment is its documentation: it says
the unit and what raising the value does, and `rookery list --settings` prints it. What cannot
work together is refused in `__post_init__`, so an invalid config cannot exist.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from operator import attrgetter
from typing import Any, NamedTuple

from rookery import plugins
from rookery.config.algorithms import AlgoConfig, DqnConfig
from rookery.config.checks import (
    at_least_0,
    device,
    folder,
    one_of,
    positive,
    reference,
    within,
    word_of_folder,
)
from rookery.errors import ConfigError
from rookery.schedule import Decay

SB3_OFF_POLICY = ("SAC", "TD3", "DDPG", "DQN")
SB3_ALGORITHMS = (*SB3_OFF_POLICY, "PPO", "A2C")
SB3_OURS = (  # what a run of ours gives to the constructor, from settings of its own
    "env",
    "policy",
    "seed",
    "device",
    "verbose",
    "tensorboard_log",
    "buffer_size",
    "replay_buffer_class",
    "replay_buffer_kwargs",
)


class BackendName(StrEnum):
    """Whose algorithms learn."""

    ROOKERY = "rookery"
    SB3 = "sb3"


class Mode(StrEnum):
    """How rows arrive at the learner."""

    SINGLE = "single"
    SYNC = "sync"
    ASYNC = "async"
    DEVICE = "device"  # environments, replay and learner on one device


class Engine(StrEnum):
    """Where actors live."""

    AUTO = "auto"
    INLINE = "inline"
    PROCESSES = "processes"
    RAY = "ray"


class Inference(StrEnum):
    """Who answers what to do: a network of each actor's own, or one for all of them."""

    LOCAL = "local"
    CENTRAL = "central"


class Exploration(StrEnum):
    """How random actions are shared out among actors."""

    SHARED = "shared"
    LADDER = "ladder"


class Draw(StrEnum):
    """Which rows a learner gets to see."""

    UNIFORM = "uniform"
    PRIORITIZED = "prioritized"


class FirstPriority(StrEnum):
    """The priority of a row that was not learned from yet: the largest so far, or its actor's."""

    LARGEST = "largest"
    ACTOR = "actor"


class Storage(StrEnum):
    """Where replay lives."""

    MEMORY = "memory"
    DISK = "disk"


class Strategy(StrEnum):
    """Which buffers of a pool a run borrows from, and how much of each."""

    SELF_HEAVY = "self_heavy"
    UNIFORM = "uniform"
    WEIGHTED = "weighted"
    NEWEST = "newest"
    LOCAL_ONLY = "local_only"


class Pick(StrEnum):
    """Whom a run plays its games against."""

    RANDOM = "random"
    SCRIPTED = "scripted"
    LATEST = "latest"  # its own present weights
    PAST = "past"  # its snapshots, all alike
    PRIORITIZED = "prioritized"  # its snapshots, those more often that are hard to beat


class Weighting(StrEnum):
    """Which opponents are worth more games (prioritised fictitious self-play)."""

    HARD = "hard"  # those that beat us: (1 - win rate)^2
    EVEN = "even"  # those about as strong as we are: win rate x (1 - win rate)


class Drop(StrEnum):
    """Which snapshot goes when there are too many. The newest never does."""

    SPREAD = "spread"  # those left stay evenly spread over the run; the first one stays
    OLDEST = "oldest"
    WEAKEST = "weakest"  # the one that we beat most surely


class Part(StrEnum):
    """What a run is to a league."""

    MAIN = "main"  # plays against everybody
    EXPLOITER = "exploiter"  # plays against the newest snapshots of the main runs alone


class Optimizer(StrEnum):
    """How gradients become weights."""

    ADAM = "adam"
    ADAMW = "adamw"
    RMSPROP = "rmsprop"
    SGD = "sgd"


class Activation(StrEnum):
    """The non-linearity between layers."""

    RELU = "relu"
    TANH = "tanh"
    ELU = "elu"
    GELU = "gelu"
    SILU = "silu"


class Image(StrEnum):
    """The convolutions that look at images."""

    AUTO = "auto"
    NATURE = "nature"
    IMPALA = "impala"
    SMALL = "small"


class Recurrent(StrEnum):
    """What remembers earlier observations."""

    NONE = "none"
    LSTM = "lstm"
    GRU = "gru"


@dataclass(frozen=True, kw_only=True)
class EnvConfig:
    """Which environment, and what is done at its door."""

    id: str = "CartPole-v1"  # Gymnasium id, module:Id, or module:Class (any callable)
    kwargs: dict[str, Any] = field(default_factory=dict)  # given to the environment
    wrappers: tuple[Any, ...] = ()  # gymnasium.wrappers names or module:Class, or {name: kwargs}
    imports: tuple[str, ...] = ()  # modules that register environments, imported first
    max_episode_steps: int | None = None  # time limit; none keeps the environment's own
    reward_scale: float = 1.0  # learned reward = clip(reward * scale); scores stay unscaled
    reward_clip: float | None = None  # learned rewards are cut to ± this
    frame_stack: int = 1  # frames a policy sees; each is stored once
    normalize_obs: bool = False  # running mean and variance, published with the weights
    normalize_reward: bool = False  # divided by the running deviation of the return
    check: bool = True  # runs gymnasium's env_checker on a throw-away instance first

    def __post_init__(self) -> None:
        positive("env.frame_stack", self.frame_stack)
        if self.max_episode_steps is not None:
            positive("env.max_episode_steps", self.max_episode_steps)
        if self.reward_clip is not None:
            positive("env.reward_clip", self.reward_clip)


@dataclass(frozen=True, kw_only=True)
class NetConfig:
    """The network. `net: module:Class` in a file is short for `net: {custom: module:Class}`."""

    hidden: tuple[int, ...] = (256, 256)  # width of each hidden layer
    activation: Activation = Activation.RELU
    image: Image = Image.AUTO  # nature from 36x36 on, impala from 8x8; auto: nature, else small
    recurrent: Recurrent = Recurrent.NONE  # lstm | gru, for r2d2 alone; none: it takes lstm
    memory: int = 128  # outputs of the recurrent layer, which it also remembers (lstm: twice)
    custom: str | None = None  # module:Class, called as Class(spec, outputs, **kwargs)
    kwargs: dict[str, Any] = field(default_factory=dict)  # given to the custom class

    def __post_init__(self) -> None:
        for width in self.hidden:
            positive("net.hidden", width)
        positive("net.memory", self.memory)
        if self.custom is not None:
            reference("net.custom", self.custom)


@dataclass(frozen=True, kw_only=True)
class ReplayConfig:
    """How experience is kept and drawn."""

    capacity: int = 100_000  # rows
    learning_starts: int = 1_000  # rows stored before the first learner step
    batch_size: int = 64  # rows in a learner step
    samples_per_insert: float = 32.0  # how often a row is learned from, on average
    sampling: Draw = Draw.UNIFORM
    alpha: float = 0.6  # how much priorities count; 0 draws uniformly
    initial_priority: FirstPriority = FirstPriority.LARGEST  # actor: TD error by its own values
    beta: float = 0.4  # importance correction at the start of the run
    beta_end: float = 1.0  # importance correction at its end
    max_policy_lag: int | None = None  # versions; rows that arrive later are never drawn
    storage: Storage = Storage.MEMORY  # disk: larger than memory, slower
    hindsight: float = 0.0  # share of a batch that gets a goal its episode reached later (HER)
    shards: int | None = None  # pieces that share the capacity; none: one, with ray one per host

    def __post_init__(self) -> None:
        for name in ("shards", "max_policy_lag"):
            if getattr(self, name) is not None:
                positive(f"replay.{name}", getattr(self, name))
        if not self.samples_per_insert > 0:
            raise ConfigError(
                f"replay.samples_per_insert must be above 0, got {self.samples_per_insert}; "
                "it is batch x learner steps per env step"
            )
        for name in ("alpha", "beta", "beta_end", "hindsight"):
            within(f"replay.{name}", getattr(self, name), 0.0, 1.0)
        if self.initial_priority is FirstPriority.ACTOR and self.sampling is Draw.UNIFORM:
            raise ConfigError(
                "replay.initial_priority is actor, but replay.sampling is uniform and knows no "
                "priorities; set replay.sampling=prioritized, or leave replay.initial_priority out"
            )


@dataclass(frozen=True, kw_only=True)
class ActorConfig:
    """How experience is made."""

    num: int = 1  # actors; more than one needs run.mode sync or async
    envs: int = 8  # environments an actor steps together
    chunk: int = 64  # env steps an actor plays between two looks at the learner
    chunk_episodes: int | None = None  # sync: this many finished episodes instead
    epsilon: float | None = None  # share of random actions at the start; none: by the algorithm
    epsilon_end: float = 0.05  # and once `epsilon_steps` are over
    epsilon_steps: int = 10_000  # env steps in between
    epsilon_decay: Decay = Decay.LINEAR
    exploration: Exploration = Exploration.SHARED  # ladder: actor i of N uses e**(1 + 7i/(N-1))
    pull_period: int = 400  # env steps between two looks for new weights, rounded up to chunks
    devices: tuple[str, ...] = ()  # cuda:0, cuda:1: actors take turns; none: all on the CPU
    inference: Inference = Inference.LOCAL  # central: one server answers all actor processes
    env_step_timeout_s: float = 60.0  # an environment that is silent for longer is given up
    max_restarts: int = 3  # times in a row a lost actor is started again

    def __post_init__(self) -> None:
        for name in ("num", "envs", "chunk", "epsilon_steps", "pull_period", "env_step_timeout_s"):
            positive(f"actor.{name}", getattr(self, name))
        at_least_0("actor.max_restarts", self.max_restarts)
        if self.chunk_episodes is not None:
            positive("actor.chunk_episodes", self.chunk_episodes)
        for place in self.devices:
            device("actor.devices", place)
        within("actor.epsilon_end", self.epsilon_end, 0.0, 1.0)
        if self.epsilon is not None:
            within("actor.epsilon", self.epsilon, 0.0, 1.0)


@dataclass(frozen=True, kw_only=True)
class LearnerConfig:
    """How weights change."""

    lr: float = 1e-3  # learning rate at the start
    lr_end: float = 0.0  # and at the end of the run, where lr_decay is not constant
    lr_decay: Decay = Decay.CONSTANT
    optimizer: Optimizer = Optimizer.ADAM
    optimizer_kwargs: dict[str, Any] = field(default_factory=dict)  # given to torch.optim
    max_grad_norm: float | None = 10.0  # none: no clipping
    publish_period: int = 5  # learner steps between two published versions
    publish_min_interval_s: float = 0.002  # and, in async, at least this long
    device: str = "auto"  # auto | cpu | cuda:N
    threads: int = 1  # torch threads; more than one may change results in the last bit
    compile: bool = False  # torch.compile of the networks that learn: first steps take far longer
    max_bad_steps: int = 10  # learner steps in a row whose loss is not finite before giving up
    replicas: int = 1  # learners that share every batch, on one GPU each (or CPU processes)
    rendezvous: str | None = None  # HOST:PORT where learners of other hosts join; none: all here
    replica_timeout_s: float = 60.0  # a learner that keeps the others waiting for longer is lost

    def __post_init__(self) -> None:
        for name in ("lr", "lr_end", "publish_min_interval_s"):
            at_least_0(f"learner.{name}", getattr(self, name))
        device("learner.device", self.device)
        for name in ("publish_period", "threads", "max_bad_steps", "replicas", "replica_timeout_s"):
            positive(f"learner.{name}", getattr(self, name))
        self._refuse_an_idle_rendezvous()
        if self.max_grad_norm is not None:
            positive("learner.max_grad_norm", self.max_grad_norm)

    def _refuse_an_idle_rendezvous(self) -> None:
        if self.rendezvous is None:
            return
        if not re.fullmatch(r"[^\s:/]+:[1-9]\d*", self.rendezvous):
            raise ConfigError(
                f"learner.rendezvous must be HOST:PORT, got {self.rendezvous!r}; give an address "
                "of this run's host that the others can reach, and a free port of it"
            )
        if self.replicas == 1:
            raise ConfigError(
                f"learner.rendezvous is {self.rendezvous}, but one learner has nobody to meet; "
                "say how many there are with --learners, or leave it out"
            )


@dataclass(frozen=True, kw_only=True)
class SharingConfig:
    """What a run borrows from the replay of others, and lends to them."""

    pool: str | None = None  # folder of the pool, as `rookery share` makes one; none: alone
    strategy: Strategy = Strategy.SELF_HEAVY
    cross_sample_ratio: float = 0.2  # share of each batch's rows that comes from the pool
    reward_tag: str | None = None  # how rewards were normalised before storing; must agree

    def __post_init__(self) -> None:
        within("sharing.cross_sample_ratio", self.cross_sample_ratio, 0.0, 1.0)


@dataclass(frozen=True, kw_only=True)
class SelfplayConfig:
    """Whom games are played against. Without opponents, all seats of a game are the run's own."""

    opponents: dict[str, float] = field(default_factory=dict)  # random, scripted, latest, past, …
    learn_from_both_seats: bool = False  # against latest, the other seat's rows are learned from
    snapshot_period: int = 1_000  # learner steps between two snapshots
    keep: int = 20  # snapshots kept
    drop: Drop = Drop.SPREAD  # which one goes when there are more
    newest: int | None = None  # past and prioritized choose among so many; none: among all kept
    weighting: Weighting = Weighting.HARD  # of prioritized
    memory: int = 200  # games against an opponent that its win rate looks back on
    slips: float = 0.0  # random actions of our own as opponents, for each one of the actor's
    opening: int = 0  # random plies at the beginning of each game, up to so many
    scripted: str | None = None  # module:Class, a player of yours; none: the game's own
    eval_opponent: Pick = (
        Pick.SCRIPTED
    )  # in evaluations: random or scripted; where there is none, random
    eval_opening: int = 2  # random plies at the beginning of each game of an evaluation
    league: bool = False  # runs of one sharing.pool play against each other's snapshots
    part: Part = Part.MAIN  # this run's, in a league

    @property
    def on(self) -> bool:
        return bool(self.opponents)

    def __post_init__(self) -> None:
        for name in ("snapshot_period", "keep", "memory"):
            positive(f"selfplay.{name}", getattr(self, name))
        if self.newest is not None:
            positive("selfplay.newest", self.newest)
        for name in ("opening", "eval_opening"):
            at_least_0(f"selfplay.{name}", getattr(self, name))
        within("selfplay.slips", self.slips, 0.0, 1.0)
        one_of(
            "selfplay.eval_opponent", self.eval_opponent, (Pick.RANDOM.value, Pick.SCRIPTED.value)
        )
        if self.scripted is not None:
            reference("selfplay.scripted", self.scripted)
        for pick, weight in self.opponents.items():
            one_of("selfplay.opponents", pick, tuple(p.value for p in Pick))
            at_least_0(f"selfplay.opponents.{pick}", weight)
        if self.opponents and not sum(self.opponents.values()) > 0:
            raise ConfigError(
                f"selfplay.opponents has no weight above 0, got {self.opponents}; give one of "
                f"{', '.join(Pick)} more, or leave it out to play all seats"
            )


@dataclass(frozen=True, kw_only=True)
class ClusterConfig:
    """Where the ray engine finds its hosts. Other engines do not look at it."""

    address: str | None = None  # HOST:PORT, or auto; none: a Ray of its own on this machine
    token_path: str | None = None  # file of the cluster's token, mode 0600; none: Ray's own place
    learner_resources: dict[str, float] = field(default_factory=dict)  # its host has; none: here
    actors_per_node: int | None = None  # none: actor.num, shared out among the hosts
    absent_s: float = 1.0  # a host that is silent for longer is not drawn from meanwhile
    lost_s: float = 30.0  # and after this long it is given up and its actors are placed anew
    start_s: float = 60.0  # for a host to bring up its actors
    dashboard: bool = False  # Ray's web page, where this run starts the Ray

    def __post_init__(self) -> None:
        if self.actors_per_node is not None:
            positive("cluster.actors_per_node", self.actors_per_node)
        for name in ("absent_s", "lost_s", "start_s"):
            positive(f"cluster.{name}", getattr(self, name))
        for resource, amount in self.learner_resources.items():
            positive(f"cluster.learner_resources.{resource}", amount)
        if self.address is not None and not re.fullmatch(r"auto|[^\s:/]+:\d+", self.address):
            raise ConfigError(
                f"cluster.address must be HOST:PORT or auto, got {self.address!r}; "
                "`ray start --head` prints the address of a cluster"
            )


@dataclass(frozen=True, kw_only=True)
class DeviceConfig:
    """What run.mode device puts on the learner's device."""

    agents: int = 4_096  # agents that play at once, of each team size
    rows: int = 256  # steps of all of them that replay holds

    def __post_init__(self) -> None:
        for name in ("agents", "rows"):
            positive(f"device.{name}", getattr(self, name))


@dataclass(frozen=True, kw_only=True)
class EvalConfig:
    """How a run is judged: greedily, on snapshots at fixed env-step marks, in its own process."""

    period: int = 2_500  # env steps between evaluations
    episodes: int = 20  # greedy episodes at each
    target: float | None = None  # mean return at which the run is solved and stops
    epsilon: float = 0.0  # share of random actions while judging
    kwargs: dict[str, Any] = field(default_factory=dict)  # over env.kwargs, while judging
    timeout_s: float = 120.0  # an evaluation that takes longer is given up and reported
    max_restarts: int = 3  # times in a row the evaluator is started again
    queue: int = 8  # marks waiting to be judged; training waits for the evaluator beyond that
    record: bool = False  # a GIF of the first episode whenever the best score is beaten

    def __post_init__(self) -> None:
        for name in ("period", "episodes", "queue", "timeout_s"):
            positive(f"eval.{name}", getattr(self, name))
        at_least_0("eval.max_restarts", self.max_restarts)
        within("eval.epsilon", self.epsilon, 0.0, 1.0)


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """When a run is saved."""

    period: int = 10_000  # env steps between checkpoints
    keep: int = 2  # newest periodic checkpoints kept; the best model is kept beside them
    replay: bool = True  # false: smaller, but a resumed run starts with an empty replay

    def __post_init__(self) -> None:
        positive("checkpoint.period", self.period)
        positive("checkpoint.keep", self.keep)


@dataclass(frozen=True, kw_only=True)
class ReportConfig:
    """What is written down."""

    log_period: int = 1_000  # env steps between two lines of metrics
    window: int = 100  # episodes in the running means
    info_keys: tuple[str, ...] = ()  # entries of `info` at an episode's end worth logging
    tensorboard: bool = True  # event files in the run folder, under SB3's metric names
    timeline: bool = True  # what each process did when, for `rookery timeline`
    wandb: bool = False  # Weights & Biases; needs the extra `wandb`
    wandb_mode: str = "offline"  # offline | online | disabled
    tag: str = ""  # a word of yours in the run folder's name and in the trackers
    plain_period_s: float = 5.0  # seconds between plain lines where there is no terminal

    def __post_init__(self) -> None:
        word_of_folder("report.tag", self.tag)
        positive("report.log_period", self.log_period)
        positive("report.window", self.window)
        positive("report.plain_period_s", self.plain_period_s)
        one_of("report.wandb_mode", self.wandb_mode, ("offline", "online", "disabled"))


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """How long, from which seed, and where."""

    mode: Mode = Mode.SINGLE
    engine: Engine = Engine.AUTO  # auto: inline in single mode, processes otherwise
    window_s: float = 0.1  # async: the longest the learner waits for rows before it looks around
    seed: int = 0  # everything random in a run follows from it
    env_steps: int = 50_000  # stop after this many
    episodes: int | None = None  # or after this many finished episodes
    minutes: float | None = None  # or after this long; schedules follow it in async and on a device
    run_dir: str | None = None  # none: runs/<scenario>-seed<seed>-<time>
    callbacks: tuple[str, ...] = ()  # module:function, called with every event

    def __post_init__(self) -> None:
        positive("run.env_steps", self.env_steps)
        positive("run.window_s", self.window_s)
        at_least_0("run.seed", self.seed)
        if self.run_dir is not None:
            folder("run.run_dir", self.run_dir)
        if self.episodes is not None:
            positive("run.episodes", self.episodes)
        if self.minutes is not None:
            positive("run.minutes", self.minutes)
        for callback in self.callbacks:
            reference("run.callbacks", callback)


@dataclass(frozen=True, kw_only=True)
class Sb3Config:
    """An algorithm of Stable-Baselines3, where `backend` is sb3."""

    algorithm: str | None = None  # SAC, TD3, DDPG, DQN, PPO or A2C
    policy: str = "MlpPolicy"  # as SB3 names them: MlpPolicy, CnnPolicy, MultiInputPolicy
    kwargs: dict[str, Any] = field(default_factory=dict)  # given to SB3's constructor
    envs: int = 1  # environments that SB3 steps together

    def __post_init__(self) -> None:
        positive("sb3.envs", self.envs)
        if self.algorithm is not None:
            one_of("sb3.algorithm", self.algorithm, SB3_ALGORITHMS)
        for key in SB3_OURS:
            if key in self.kwargs:
                raise ConfigError(
                    f"sb3.kwargs has {key!r}, which follows from other settings (env, run.seed, "
                    "learner.device, replay.capacity, sharing); leave it out"
                )
        for key in self.kwargs.get("policy_kwargs") or {}:
            if key != "net_arch":
                raise ConfigError(
                    f"sb3.kwargs.policy_kwargs may have net_arch alone, got {key!r}; for more, "
                    "use SB3 itself with rookery's DistributedReplayBuffer"
                )


class Randomness(NamedTuple):
    """How the share of random actions goes down."""

    first: float
    last: float
    steps: int  # env steps in between
    decay: Decay


OWN_LOOP, WRAP = "SB3 has a loop of its own: leave it out", "use a wrapper in env.wrappers"
SB3_TAKES: dict[str, tuple[tuple[Any, ...], str]] = {  # what it would pass over in silence
    "run.mode": ((Mode.SINGLE,), OWN_LOOP),
    "run.engine": ((Engine.AUTO, Engine.INLINE), OWN_LOOP),
    "cluster.address": ((None,), OWN_LOOP),
    "cluster.learner_resources": (({},), OWN_LOOP),
    "actor.num": ((1,), "use sb3.envs"),
    "actor.inference": ((Inference.LOCAL,), OWN_LOOP),
    "learner.replicas": ((1,), OWN_LOOP),
    "replay.sampling": ((Draw.UNIFORM,), "leave it out"),
    "replay.storage": ((Storage.MEMORY,), "lower replay.capacity"),
    "replay.shards": ((None, 1), "its replay is one piece: leave it out"),
    "replay.hindsight": ((0.0,), "SB3 has a HerReplayBuffer of its own: leave it out"),
    "env.frame_stack": ((1,), "use FrameStackObservation in env.wrappers"),
    "env.reward_scale": ((1.0,), WRAP),
    "env.reward_clip": ((None,), WRAP),
    "env.normalize_obs": ((False,), WRAP),
    "env.normalize_reward": ((False,), WRAP),
    "eval.epsilon": ((0.0,), "leave it out"),
}
ALONE = (Mode.SINGLE, Mode.DEVICE)  # modes in which nobody plays but the training process
ON_DEVICE = "on one device there is nothing of it: leave it out, or use another --mode"
DEVICE_TAKES: dict[str, tuple[tuple[Any, ...], str]] = {
    "run.engine": ((Engine.AUTO, Engine.INLINE), ON_DEVICE),
    "actor.num": ((1,), "use device.agents"),
    "actor.chunk_episodes": ((None,), ON_DEVICE),
    "replay.sampling": ((Draw.PRIORITIZED,), "its windows are drawn by priorities"),
    "replay.storage": ((Storage.MEMORY,), ON_DEVICE),
    "replay.shards": ((None, 1), ON_DEVICE),
    "sharing.pool": ((None,), ON_DEVICE),
    "checkpoint.replay": ((False,), "a resumed run fills its replay anew: set it to false"),
    "learner.optimizer": (
        (Optimizer.ADAM, Optimizer.ADAMW, Optimizer.SGD),
        "it has to leave out bad steps by itself",
    ),
}
SELFPLAY_TAKES: dict[str, tuple[tuple[Any, ...], str]] = {
    "run.mode": ((Mode.SINGLE, Mode.SYNC, Mode.ASYNC), "leave it out"),
    "run.engine": (
        (Engine.AUTO, Engine.INLINE, Engine.PROCESSES),
        "actors read snapshots from the run's folder, on this machine: use --engine processes",
    ),
    "actor.inference": ((Inference.LOCAL,), "opponents act in the actors' processes: leave it out"),
    "algo.remembers": ((False,), "opponents' memory is not kept: use another algorithm"),
}
REPLICAS_TAKE: dict[str, tuple[tuple[Any, ...], str]] = {
    "run.mode": (
        (Mode.SINGLE, Mode.SYNC, Mode.ASYNC),
        "on one device there is one learner: leave --learners out, or use another --mode",
    ),
    "cluster.learner_resources": (
        ({},),
        "learners live beside the run: start it on the host that has their GPUs",
    ),
}
HINDSIGHT_TAKES: dict[str, tuple[tuple[Any, ...], str]] = {
    "algo.n_step": ((1,), "steps in between were played for another goal: set algo.n_step=1"),
    "algo.sequence": ((0,), "goals are exchanged in single transitions alone: leave it out"),
    "env.frame_stack": ((1,), "older frames would show the old goal: set env.frame_stack=1"),
}


@dataclass(frozen=True, kw_only=True)
class Config:
    """A whole run."""

    name: str = "custom"  # the scenario's name
    about: str = ""  # one line for `rookery list`
    backend: BackendName = (
        BackendName.ROOKERY
    )  # sb3: the section sb3 instead of algo, net and learner
    run: RunConfig = field(default_factory=RunConfig)
    env: EnvConfig = field(default_factory=EnvConfig)
    algo: AlgoConfig = field(default_factory=DqnConfig)
    net: NetConfig = field(default_factory=NetConfig)
    replay: ReplayConfig = field(default_factory=ReplayConfig)
    actor: ActorConfig = field(default_factory=ActorConfig)
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    sharing: SharingConfig = field(default_factory=SharingConfig)
    selfplay: SelfplayConfig = field(default_factory=SelfplayConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    device: DeviceConfig = field(default_factory=DeviceConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    report: ReportConfig = field(default_factory=ReportConfig)
    sb3: Sb3Config = field(default_factory=Sb3Config)

    @property
    def engine(self) -> Engine:
        """Where actors live, `auto` decided."""
        if self.run.engine is not Engine.AUTO:
            return self.run.engine
        return Engine.INLINE if self.run.mode in ALONE else Engine.PROCESSES

    @property
    def eval_env(self) -> EnvConfig:
        """The environment as it is while a policy is judged."""
        return replace(self.env, kwargs={**self.env.kwargs, **self.eval.kwargs})

    @property
    def wants_values(self) -> bool:
        """Do actors write what they expect of their actions?"""
        return self.replay.initial_priority is FirstPriority.ACTOR or self.algo.on_policy

    @property
    def randomness(self) -> Randomness:
        """How many actions are random, and when; what the algorithm needs where nothing is said."""
        actor = self.actor
        if actor.epsilon is None and self.algo.explores:
            first = 1.0 if self.algo.random_first else 0.0
            return Randomness(first, 0.0, self.replay.learning_starts, Decay.STEP)
        first = 1.0 if actor.epsilon is None else actor.epsilon
        return Randomness(first, actor.epsilon_end, actor.epsilon_steps, actor.epsilon_decay)

    @property
    def capacity(self) -> int:
        """Rows that replay holds; where it is rollouts, the present one and earlier frames."""
        actor = self.actor
        if not self.algo.on_policy:
            return self.replay.capacity
        earlier = -(-(self.env.frame_stack - 1) * actor.envs // actor.chunk)  # rollouts
        return (1 + max(1, earlier)) * actor.num * (actor.chunk + 2 * actor.envs)

    def __post_init__(self) -> None:
        word_of_folder("name", self.name)
        if self.backend is BackendName.SB3:
            self._refuse_what_sb3_has_not()
            return
        self._refuse_what_only_sb3_has()
        self._refuse_crowds()
        self._refuse_a_far_oracle()
        self._refuse_two_scales()
        self._refuse_disk_in_a_pool()
        self._refuse_what_nobody_remembers()
        self.algo.check_run(self)
        self._refuse_what_does_not_fit(self.algo.takes, f"algo.name {self.algo.name}")
        if self.selfplay.on:
            self._refuse_what_does_not_fit(SELFPLAY_TAKES, "selfplay.opponents")
        self._refuse_an_idle_league()
        if self.learner.replicas > 1:
            self._refuse_unequal_shares()
        if self.replay.hindsight > 0:
            self._refuse_what_does_not_fit(HINDSIGHT_TAKES, "replay.hindsight")
        if self.run.mode is Mode.DEVICE:
            self._refuse_what_does_not_fit(
                _on_device(self.algo.name) | DEVICE_TAKES, "run.mode device"
            )
        elif self.algo.on_policy:
            positive("replay.batch_size", self.replay.batch_size)
        else:
            self._refuse_sizes()

    def _refuse_sizes(self) -> None:
        """Rows that could never be drawn."""
        replay = self.replay
        if not 1 <= replay.batch_size <= replay.learning_starts <= replay.capacity:
            raise ConfigError(
                "replay needs 1 <= batch_size <= learning_starts <= capacity, got batch_size "
                f"{replay.batch_size}, learning_starts {replay.learning_starts}, capacity "
                f"{replay.capacity}; lower replay.batch_size or raise the other two"
            )
        least = self.actor.num * self.actor.envs * (self.algo.sequence + 1)
        if self.algo.sequence and replay.learning_starts < least:
            raise ConfigError(
                f"no sequence of {self.algo.sequence} steps may be complete after "
                f"replay.learning_starts {replay.learning_starts} rows of {self.actor.num} x "
                f"{self.actor.envs} environments; "
                f"raise replay.learning_starts to {least}, or lower actor.envs"
            )
        if replay.learning_starts > self.run.env_steps:
            raise ConfigError(
                f"learning would never start: replay.learning_starts is {replay.learning_starts} "
                f"rows but run.env_steps is {self.run.env_steps}; lower the first or raise the "
                "second"
            )
        if self.actor.chunk + self.actor.envs > replay.capacity:
            raise ConfigError(
                f"actor.chunk {self.actor.chunk} does not fit into replay.capacity "
                f"{replay.capacity}; lower the first or raise the second"
            )

    def _refuse_what_does_not_fit(
        self, takes: Mapping[str, tuple[tuple[Any, ...], str]], who: str
    ) -> None:
        for name, (allowed, do) in takes.items():
            if (given := attrgetter(name)(self)) not in allowed:
                may = " or ".join(map(_said, allowed))
                raise ConfigError(f"{who} takes {name} {may} only, got {_said(given)}; {do}")

    def _refuse_a_far_oracle(self) -> None:
        """One server answers processes of its own machine."""
        actor = self.actor
        if actor.inference is Inference.LOCAL:
            return
        if self.engine is not Engine.PROCESSES:
            single = self.run.mode is Mode.SINGLE
            what = f"run.mode {self.run.mode}" if single else f"run.engine {self.engine}"
            do = "--mode sync or --mode async" if single else "--engine processes"
            raise ConfigError(
                "actor.inference central answers actors in processes of their own on this "
                f"machine, got {what}; use {do}, or leave --inference out"
            )
        if len(actor.devices) > 1:
            raise ConfigError(
                f"actor.inference central has one network on one device, got actor.devices "
                f"{list(actor.devices)}; name one, or none for learner.device"
            )

    def _refuse_unequal_shares(self) -> None:
        """What several learners cannot share."""
        count, batch = self.learner.replicas, self.replay.batch_size
        if self.algo.on_policy:
            raise ConfigError(
                f"learner.replicas {count} share batches drawn from replay, and algo.name "
                f"{self.algo.name} learns from rollouts; use an off-policy algorithm such as dqn "
                "or sac, or leave --learners out"
            )
        self._refuse_what_does_not_fit(REPLICAS_TAKE, f"learner.replicas {count}")
        if batch % count:
            raise ConfigError(
                f"replay.batch_size {batch} cannot be cut into {count} equal slices; set "
                f"replay.batch_size to a multiple such as {-(-batch // count) * count}, or use "
                "other --learners"
            )

    def _refuse_an_idle_league(self) -> None:
        """Whether there is a pool is known when a run starts: `rookery share` makes one."""
        if self.selfplay.league and not self.selfplay.on:
            raise ConfigError(
                "selfplay.league needs selfplay.opponents, and there are none; add some, such as "
                "{latest: 0.5, past: 0.5}, or leave selfplay.league out"
            )

    def _refuse_what_nobody_remembers(self) -> None:
        if self.net.recurrent is not Recurrent.NONE and not self.algo.remembers:
            raise ConfigError(
                f"net.recurrent is {self.net.recurrent}, but algo.name {self.algo.name} has no "
                "memory and takes none only; use algo.name=r2d2, or leave net.recurrent out"
            )

    def _refuse_disk_in_a_pool(self) -> None:
        if self.sharing.pool is not None and self.replay.storage is Storage.DISK:
            raise ConfigError(
                "replay.storage is disk, but a run that shares keeps its replay in the folder of "
                f"its pool, {self.sharing.pool}; set sharing.pool to a folder on that disk, and "
                "leave replay.storage out"
            )

    def _refuse_what_only_sb3_has(self) -> None:
        wanted = self.sb3.algorithm.lower() if self.sb3.algorithm else self.algo.name
        if wanted != self.algo.name:
            raise ConfigError(
                f"the settings are those of SB3's {self.sb3.algorithm}, and algo.name is "
                f"{self.algo.name!r}; set algo.name={wanted}, or backend=sb3"
            )

    def _refuse_what_sb3_has_not(self) -> None:
        if self.sb3.algorithm is None:
            raise ConfigError(
                "backend sb3 needs to know which algorithm, got none; "
                f"set sb3.algorithm to one of {', '.join(SB3_ALGORITHMS)}"
            )
        self._refuse_what_does_not_fit(SB3_TAKES, "backend sb3")
        if self.run.seed >= 1 << 32:
            raise ConfigError(
                f"SB3 takes seeds below 2**32, got {self.run.seed}; use a smaller one"
            )

    def _refuse_two_scales(self) -> None:
        """Stored rewards beside values learned from divided ones make no TD error."""
        if self.replay.initial_priority is FirstPriority.ACTOR and self.env.normalize_reward:
            raise ConfigError(
                "replay.initial_priority actor needs rewards that are learned as they are stored, "
                "but env.normalize_reward divides them later; scale with env.reward_scale, or "
                "leave replay.initial_priority out"
            )

    def _refuse_crowds(self) -> None:
        """What the modes cannot do."""
        single = self.run.mode is Mode.SINGLE
        if single and self.actor.num > 1:
            raise ConfigError(
                f"run.mode single has one actor, got actor.num {self.actor.num}; "
                "use --mode sync or --mode async"
            )
        if single and self.engine is not Engine.INLINE:
            raise ConfigError(
                f"run.mode single plays in the training process, got run.engine {self.engine}; "
                "use --mode sync or --mode async with one actor"
            )
        if (self.replay.shards or 1) > self.actor.num:
            raise ConfigError(
                f"every shard has actors of its own, got replay.shards {self.replay.shards} and "
                f"actor.num {self.actor.num}; use as many actors, or fewer shards"
            )
        if self.cluster.learner_resources and self.cluster.address is None:
            raise ConfigError(
                f"cluster.learner_resources {self.cluster.learner_resources} are those of a host "
                "of a cluster, got no cluster.address; give --address, or leave it out"
            )
        if self.engine is Engine.RAY and self.replay.storage is Storage.DISK:
            raise ConfigError(
                "replay.storage disk keeps replay in the run folder, which other hosts do not "
                "have; with --engine ray use replay.storage=memory, or more hosts"
            )
        if self.cluster.address is not None and self.engine is not Engine.RAY:
            raise ConfigError(
                f"cluster.address is {self.cluster.address}, but run.engine {self.engine} knows no "
                "cluster; use --engine ray, or leave --address out"
            )
        if self.actor.chunk_episodes is not None and self.run.mode is Mode.ASYNC:
            raise ConfigError(
                f"run.mode async has no chunks of episodes, got actor.chunk_episodes "
                f"{self.actor.chunk_episodes}; leave it out, or use --mode sync"
            )


def _on_device(given: str) -> dict[str, tuple[tuple[Any, ...], str]]:
    """Returns which algorithms have environments that play on a device."""
    able = [name for name, row in plugins.algorithms().items() if row.batched_env is not None]
    if not able:
        raise ConfigError(
            "run.mode device needs an algorithm with environments that play on a device, and none "
            f"is installed, got algo.name {given}; use another --mode"
        )
    return {"algo.name": (tuple(able), "no other has environments there; use another --mode")}


def refuse_a_league_of_one(config: Config) -> None:
    """For the start of a run: whether there is a pool is not known before."""
    if config.selfplay.league and config.sharing.pool is None:
        raise ConfigError(
            f"{config.name} has selfplay.league, in which runs play against each other, and no "
            "sharing.pool to find others in; start several with `rookery share --scenarios league "
            "league-exploiter`, name a folder in sharing.pool, or set selfplay.league=false"
        )


def _said(value: Any) -> str:
    """Returns a value as YAML has it."""
    return (
        "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    )
