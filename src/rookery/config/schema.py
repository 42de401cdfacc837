"""The settings of a run: one frozen dataclass for each role, composed into `Config`.

Each role receives its section, never the whole. A field's comment is its documentation: it says
the unit and what raising the value does, and `rookery list --settings` prints it. What cannot
work together is refused in `__post_init__`, so an invalid config cannot exist.

The defaults are those of DQN: of the RL Baselines3 Zoo for LunarLander and Acrobot, with its
`learning_starts` for CartPole. Stable-Baselines3's own are those of Atari. Other algorithms begin
with others (`defaults` in `algorithms.py`).
"""

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Annotated, Any, NamedTuple

from rookery.config import refusals
from rookery.config.algorithms import AlgoConfig, DqnConfig
from rookery.config.checks import (
    POSITIVE,
    Count,
    CountOr0,
    DeviceName,
    FolderPath,
    FolderWord,
    Fraction,
    ImportName,
    Limit,
    Positive,
    PositiveOr0,
    one_of,
)
from rookery.config.section import Section
from rookery.schedule import Decay

SB3_OFF_POLICY = ("SAC", "TD3", "DDPG", "DQN")
SB3_ALGORITHMS = (*SB3_OFF_POLICY, "PPO", "A2C")

SAMPLES = Limit(POSITIVE.allowed, POSITIVE.schema, "it is batch x learner steps per env step")
RENDEZVOUS = Limit(
    "must be HOST:PORT",
    {"pattern": r"^[^\s:/]+:[1-9]\d*$"},
    "give an address of this run's host that the others can reach, and a free port of it",
)
ADDRESS = Limit(
    "must be HOST:PORT or auto",
    {"pattern": r"^(auto|[^\s:/]+:\d+)$"},
    "`ray start --head` prints the address of a cluster",
)


# The choices of settings; each value is the name in lower case.
BackendName = StrEnum("BackendName", ["ROOKERY", "SB3"])
# device: environments, replay and learner are on one device
Mode = StrEnum("Mode", ["SINGLE", "SYNC", "ASYNC", "DEVICE"])
Engine = StrEnum("Engine", ["AUTO", "INLINE", "PROCESSES", "RAY"])
Inference = StrEnum("Inference", ["LOCAL", "CENTRAL"])
Exploration = StrEnum("Exploration", ["SHARED", "LADDER"])
Draw = StrEnum("Draw", ["UNIFORM", "PRIORITIZED"])
# Of a row before it is learned from: the largest so far, or its actor's.
FirstPriority = StrEnum("FirstPriority", ["LARGEST", "ACTOR"])
Storage = StrEnum("Storage", ["MEMORY", "DISK"])
Strategy = StrEnum("Strategy", ["SELF_HEAVY", "UNIFORM", "WEIGHTED", "NEWEST", "LOCAL_ONLY"])
# latest: the run's own present weights; past: its snapshots, all alike; prioritized: its
# snapshots, those more often that are hard to beat
Pick = StrEnum("Pick", ["RANDOM", "SCRIPTED", "LATEST", "PAST", "PRIORITIZED"])
# Prioritised fictitious self-play. hard: opponents that win most, (1 - win rate)^2; even: those of
# equal strength, win rate x (1 - win rate)
Weighting = StrEnum("Weighting", ["HARD", "EVEN"])
# spread: the snapshots left stay evenly spread over the run, and the first one stays; weakest: the
# one with the fewest wins goes. The newest never goes.
Drop = StrEnum("Drop", ["SPREAD", "OLDEST", "WEAKEST"])
# main: plays against all runs; exploiter: against the newest snapshots of the main runs alone
Part = StrEnum("Part", ["MAIN", "EXPLOITER"])
Optimizer = StrEnum("Optimizer", ["ADAM", "ADAMW", "RMSPROP", "SGD"])
Capture = StrEnum("Capture", ["AUTO", "ON", "OFF"])
Activation = StrEnum("Activation", ["RELU", "TANH", "ELU", "GELU", "SILU"])
Init = StrEnum("Init", ["TORCH", "ORTHOGONAL"])
Image = StrEnum("Image", ["AUTO", "NATURE", "IMPALA", "SMALL"])
Recurrent = StrEnum("Recurrent", ["NONE", "LSTM", "GRU"])

ALONE = (Mode.SINGLE, Mode.DEVICE)  # modes in which the training process is the only actor


# sequential: one after another; async: at the same time, each in a process of its own
Stepping = StrEnum("Stepping", ["SEQUENTIAL", "ASYNC"])


@dataclass(frozen=True, kw_only=True)
class EnvConfig(Section):
    """Settings of the environment, its wrappers, and the scaling of rewards and observations."""

    id: str = "CartPole-v1"  # environment: Gymnasium id, module:Id, or module:Class (any callable)
    kwargs: dict[str, Any] = field(default_factory=dict)  # arguments of the environment
    wrappers: tuple[Any, ...] = ()  # names in gymnasium.wrappers, module:Class, or {name: kwargs}
    imports: tuple[str, ...] = ()  # modules that register environments, imported first
    max_episode_steps: Count | None = None  # time limit; null: that of the environment
    reward_scale: float = 1.0  # factor of learned rewards; scores stay unscaled
    reward_clip: Positive | None = None  # bound of scaled rewards, cut to ± this; null: none
    frame_stack: Count = 1  # frames in an observation of the policy; each is stored once
    normalize_obs: bool = False  # scales observations by their running mean and variance
    normalize_reward: bool = False  # divides rewards by the running deviation of the return
    normalized_reward_clip: Positive | None = 10.0  # bound of normalised rewards; null: none
    vector: Stepping = Stepping.SEQUENTIAL  # stepping of an actor's environments; async: at once
    check: bool = True  # runs gymnasium's env_checker on an instance of its own first


@dataclass(frozen=True, kw_only=True)
class NetConfig(Section):
    """Settings of the network; `net: module:Class` is short for `net: {custom: module:Class}`."""

    hidden: tuple[Count, ...] = (256, 256)  # width of each hidden layer
    critic_hidden: tuple[Count, ...] | None = None  # those of critics and values; null: `hidden`
    activation: Activation = Activation.RELU  # non-linearity between layers
    init: Init = Init.TORCH  # initial weights: torch's, or orthogonal matrices with biases of 0
    image: Image = Image.AUTO  # for images: nature from 36x36 on, impala from 8x8; auto: what fits
    recurrent: Recurrent = Recurrent.NONE  # recurrent layer, for r2d2 alone; none: it takes lstm
    memory: Count = 128  # outputs of the recurrent layer, which it also remembers (lstm: twice)
    custom: ImportName | None = None  # module:Class of yours, called (spec, outputs, **kwargs)
    kwargs: dict[str, Any] = field(default_factory=dict)  # arguments of the custom class

    bare = "custom"


@dataclass(frozen=True, kw_only=True)
class ReplayConfig(Section):
    """Settings of the replay buffer: size, sampling, priorities, storage."""

    capacity: Count = 50_000  # rows in the replay buffer
    learning_starts: CountOr0 = 1_000  # rows stored before the first learner step; at least a batch
    batch_size: Count = 128  # rows in a learner step
    samples_per_insert: Annotated[float, SAMPLES] = 128.0  # times that a row is learned from
    sampling: Draw = Draw.UNIFORM  # draw of rows: alike, or in proportion to priorities
    alpha: Fraction = 0.6  # exponent of priorities; 0 samples uniformly
    initial_priority: FirstPriority = FirstPriority.LARGEST  # of a new row; actor: its TD error
    beta: Fraction = 0.4  # exponent of importance weights at the start of the run
    beta_end: Fraction = 1.0  # exponent of importance weights at the end of the run
    max_policy_lag: Count | None = None  # age of rows in versions, above which they are dropped
    storage: Storage = Storage.MEMORY  # place of replay; disk is larger and slower
    hindsight: Fraction = 0.0  # share of rows with a goal that their episode reached later (HER)
    shards: Count | None = None  # parts that share the capacity; null: one, with ray one per host


@dataclass(frozen=True, kw_only=True)
class ActorConfig(Section):
    """Settings of the actors: number, environments, random actions, weights."""

    num: Count = 1  # actors; more than one needs run.mode sync or async
    envs: Count = 8  # environments that an actor steps together
    chunk: Count = 8  # env steps that an actor plays before it reports to the learner
    chunk_episodes: Count | None = None  # finished episodes instead of env steps, in sync mode
    epsilon: Fraction | None = None  # share of random actions at the start; null: by the algorithm
    epsilon_end: Fraction = 0.1  # share of random actions after `epsilon_steps`
    epsilon_steps: Count = 12_000  # env steps between epsilon and epsilon_end
    epsilon_decay: Decay = Decay.LINEAR  # curve from epsilon to epsilon_end
    exploration: Exploration = Exploration.SHARED  # ladder: epsilon ** (1 + 7i/(N-1)) in actor i
    pull_period: Count = 8  # env steps between two checks for new weights, in whole chunks
    devices: tuple[DeviceName, ...] = ()  # GPUs that actors take turns on; []: all on the CPU
    inference: Inference = Inference.LOCAL  # network that acts; central: one for all processes
    env_step_timeout_s: Positive = 60.0  # seconds after which a silent environment is given up
    max_restarts: CountOr0 = 3  # restarts of a lost actor in a row


@dataclass(frozen=True, kw_only=True)
class LearnerConfig(Section):
    """Settings of the learner: optimizer, devices, publication of weights."""

    lr: PositiveOr0 = 6.3e-4  # learning rate at the start
    critic_lr: PositiveOr0 | None = None  # learning rate of separate critics; null: `lr`
    lr_end: PositiveOr0 = 0.0  # learning rate at the end of the run, unless lr_decay is constant
    lr_decay: Decay = Decay.CONSTANT  # curve from lr to lr_end
    optimizer: Optimizer = Optimizer.ADAM  # optimizer of torch.optim
    optimizer_kwargs: dict[str, Any] = field(default_factory=dict)  # arguments of torch.optim
    max_grad_norm: Positive | None = 10.0  # bound of the gradient's norm; null: none
    publish_period: Count = 5  # learner steps between two published versions
    publish_min_interval_s: PositiveOr0 = 0.002  # least seconds between two versions, in async
    device: DeviceName = "auto"  # device of the learner: auto, cpu or cuda:N
    threads: Count = 1  # threads of torch; more than one may change results in the last bit
    capture: Capture = Capture.AUTO  # CUDA graphs of gradient steps; auto: where possible
    compile: bool = False  # compiles networks with torch.compile; the first steps take far longer
    max_bad_steps: Count = 10  # learner steps in a row with a loss that is not finite, at most
    replicas: Count = 1  # learners that share every batch, on one GPU each (or CPU processes)
    rendezvous: Annotated[str, RENDEZVOUS] | None = None  # HOST:PORT for learners of other hosts
    replica_timeout_s: Positive = 60.0  # seconds after which a silent learner is lost


@dataclass(frozen=True, kw_only=True)
class SharingConfig(Section):
    """Settings of experience sharing: rows that a run borrows from the replay of other runs."""

    pool: str | None = None  # folder of the pool, as `rookery share` makes one; null: no sharing
    strategy: Strategy = Strategy.SELF_HEAVY  # buffers of the pool to borrow from, and their shares
    cross_sample_ratio: Fraction = 0.2  # share of each batch's rows that comes from the pool
    reward_tag: str | None = None  # name of the normalisation of stored rewards; runs must agree


Opponents = dict[Annotated[str, one_of(*Pick)], PositiveOr0]


@dataclass(frozen=True, kw_only=True)
class SelfplayConfig(Section):
    """Settings of opponents in games; without opponents, the run plays all seats itself."""

    opponents: Opponents = field(default_factory=dict)  # weight of each kind of opponent
    learn_from_both_seats: bool = False  # learns from the other seat too, against latest
    snapshot_period: Count = 1_000  # learner steps between two snapshots
    keep: Count = 20  # snapshots kept
    drop: Drop = Drop.SPREAD  # snapshot that goes when there are more
    newest: Count | None = None  # snapshots that past and prioritized choose from; null: all
    weighting: Weighting = Weighting.HARD  # opponents that prioritized prefers
    memory: Count = 200  # games against an opponent that its win rate is computed from
    slips: Fraction = 0.0  # share of random actions of opponents, as a factor of the actor's
    opening: CountOr0 = 0  # largest number of random plies at the beginning of a game
    scripted: ImportName | None = None  # player of yours, module:Class; null: the game's own
    eval_opponent: Annotated[Pick, one_of("random", "scripted")] = Pick.SCRIPTED  # of evaluations
    eval_opening: CountOr0 = 2  # random plies at the beginning of each game of an evaluation
    league: bool = False  # plays against snapshots of the other runs in sharing.pool
    part: Part = Part.MAIN  # role of this run in a league

    @property
    def on(self) -> bool:
        return bool(self.opponents)


@dataclass(frozen=True, kw_only=True)
class ClusterConfig(Section):
    """Settings of the ray engine's cluster; other engines do not use them."""

    address: Annotated[str, ADDRESS] | None = None  # HOST:PORT or auto; null: a Ray of its own here
    token_path: str | None = None  # file of the cluster's token, mode 0600; null: Ray's own place
    learner_resources: dict[str, Positive] = field(default_factory=dict)  # for the learner's host
    actors_per_node: Count | None = None  # actors of each host; null: actor.num is divided
    absent_s: Positive = 1.0  # seconds after which no rows are sampled from a silent host
    lost_s: Positive = 30.0  # seconds after which a silent host is lost and its actors move
    start_s: Positive = 60.0  # seconds that a host has to start its actors
    dashboard: bool = False  # starts Ray's web page, if this run starts the Ray


@dataclass(frozen=True, kw_only=True)
class DeviceConfig(Section):
    """Settings of run.mode device: environments and replay on the learner's device."""

    agents: Count = 4_096  # agents that play at once, of each team size
    rows: Count = 256  # steps of all agents that replay holds


@dataclass(frozen=True, kw_only=True)
class EvalConfig(Section):
    """Settings of evaluations: greedy episodes of weight snapshots, in a separate process."""

    period: Count = 2_500  # env steps between evaluations
    episodes: Count = 20  # episodes of an evaluation
    target: float | None = None  # mean return at which the run is solved and stops; null: none
    epsilon: Fraction = 0.0  # share of random actions in evaluations
    kwargs: dict[str, Any] = field(default_factory=dict)  # changes of env.kwargs in evaluations
    timeout_s: Positive = 120.0  # seconds after which an evaluation is given up and reported
    max_restarts: CountOr0 = 3  # restarts of the evaluation process in a row
    queue: Count = 8  # evaluations that may wait; beyond that, training waits
    record: bool = False  # writes a GIF of an episode whenever the best score is beaten


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig(Section):
    """Settings of checkpoints: when they are saved, how many are kept."""

    period: Count = 10_000  # env steps between checkpoints
    keep: Count = 2  # newest periodic checkpoints kept, beside the best model
    replay: bool = True  # saves replay; without it a resumed run starts with an empty replay


@dataclass(frozen=True, kw_only=True)
class ReportConfig(Section):
    """Settings of logging: metrics, trackers, console."""

    log_period: Count = 1_000  # env steps between two lines of metrics
    window: Count = 100  # episodes in the running means
    info_keys: tuple[str, ...] = ()  # entries of `info` at an episode's end that are logged
    tensorboard: bool = True  # writes event files in the run folder, under SB3's metric names
    timeline: bool = True  # writes what each process did when, for `rookery timeline`
    wandb: bool = False  # logs to Weights & Biases; needs the extra `wandb`
    wandb_mode: Annotated[str, one_of("offline", "online", "disabled")] = "offline"  # of wandb
    tag: FolderWord = ""  # word in the run folder's name and in the trackers
    plain_period_s: Positive = 5.0  # seconds between plain lines without a terminal


@dataclass(frozen=True, kw_only=True)
class RunConfig(Section):
    """Settings of the run as a whole: mode, length, seed, folder."""

    mode: Mode = Mode.SINGLE  # training mode: how rows arrive at the learner
    engine: Engine = Engine.AUTO  # place of actors; auto: inline in single and device, or processes
    window_s: Positive = 0.1  # seconds that the learner waits for rows at most, in async
    seed: CountOr0 = 0  # seed of all random numbers of the run
    env_steps: Count = 50_000  # env steps of the run
    episodes: Count | None = None  # finished episodes at which the run stops; null: no limit
    minutes: Positive | None = None  # minutes of the run; schedules follow it in async and device
    run_dir: FolderPath | None = None  # run folder; null: runs/SCENARIO-seedN-TIME
    callbacks: tuple[ImportName, ...] = ()  # functions called with every event, module:function


@dataclass(frozen=True, kw_only=True)
class Sb3Config(Section):
    """Settings of an algorithm of Stable-Baselines3, where `backend` is sb3."""

    algorithm: Annotated[str, one_of(*SB3_ALGORITHMS)] | None = None  # algorithm, by SB3's name
    policy: str = "MlpPolicy"  # policy by SB3's name: MlpPolicy, CnnPolicy, MultiInputPolicy
    kwargs: dict[str, Any] = field(default_factory=dict)  # arguments of SB3's constructor
    envs: Count = 1  # environments that SB3 steps together

    @property
    def same_as(self) -> str | None:
        """Name of Rookery's own version of the algorithm."""
        return self.algorithm and self.algorithm.lower()


class Randomness(NamedTuple):
    """Schedule of the share of random actions (epsilon)."""

    first: float
    last: float
    steps: int  # env steps in between
    decay: Decay


@dataclass(frozen=True, kw_only=True)
class Config(Section):
    """All settings of a run."""

    name: FolderWord = "custom"  # name of the scenario
    about: str = ""  # description of the scenario in `rookery list`
    backend: BackendName = BackendName.ROOKERY  # sb3: section sb3 replaces algo, net and learner
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
        """Engine of the run's actors; `auto` is resolved."""
        if self.run.engine is not Engine.AUTO:
            return self.run.engine
        return Engine.INLINE if self.run.mode in ALONE else Engine.PROCESSES

    @property
    def algorithm(self) -> str:
        """Name of the algorithm that learns, such as "sac" or "SB3 SAC"."""
        return f"SB3 {self.sb3.algorithm}" if self.backend is BackendName.SB3 else self.algo.name

    @property
    def eval_env(self) -> EnvConfig:
        """The environment of evaluations."""
        return replace(self.env, kwargs={**self.env.kwargs, **self.eval.kwargs})

    @property
    def wants_values(self) -> bool:
        """Whether actors store the values that they expect of actions."""
        return self.replay.initial_priority is FirstPriority.ACTOR or self.algo.on_policy

    @property
    def randomness(self) -> Randomness:
        """The schedule of random actions; without `actor.epsilon` the algorithm decides."""
        actor = self.actor
        if actor.epsilon is None and self.algo.explores:
            first = 1.0 if self.algo.random_first else 0.0
            return Randomness(first, 0.0, self.replay.learning_starts, Decay.STEP)
        first = 1.0 if actor.epsilon is None else actor.epsilon
        return Randomness(first, actor.epsilon_end, actor.epsilon_steps, actor.epsilon_decay)

    @property
    def capacity(self) -> int:
        """Number of rows in replay; for rollouts, those of the present one and earlier frames."""
        actor = self.actor
        if not self.algo.on_policy:
            return self.replay.capacity
        earlier = -(-(self.env.frame_stack - 1) * actor.envs // actor.chunk)  # rollouts
        return (1 + max(1, earlier)) * actor.num * (actor.chunk + 2 * actor.envs)

    @property
    def rows_of_sequences(self) -> int:
        """Rows after which one of all environments has played a whole sequence; 0 without any."""
        steps = self.algo.sequence
        return self.actor.num * self.actor.envs * (steps + 1) if steps else 0

    def __post_init__(self) -> None:
        super().__post_init__()
        refusals.refuse_run(self)


def refuse_a_league_of_one(config: Config) -> None:
    """Raises ConfigError for a run of a league that has no pool of snapshots."""
    refusals.refuse(refusals.START, config)
