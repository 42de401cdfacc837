"""What happens in a run. A run is an iterator of these; everything else consumes them.

The loop yields `Learned`, `Turned` and `Collected`; the driver adds the rest. `env_steps`,
`learner_steps`
and `episodes` are three separate counters in every event that has them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple, TypeAlias

from rookery.types import Learned as LearnedFacts


class Reason(StrEnum):
    """Why a run stopped."""

    TARGET = "target"
    ENV_STEPS = "env_steps"
    EPISODES = "episodes"
    MINUTES = "minutes"
    CALLBACK = "callback"
    INTERRUPTED = "interrupted"  # SIGINT, exit 130
    TERMINATED = "terminated"  # SIGTERM, exit 143
    FAILED = "failed"


class Ask(StrEnum):
    """What a callback may return."""

    STOP = "stop"
    CHECKPOINT = "checkpoint"


class Activity(StrEnum):
    """What a process does with its time."""

    PLAY = "play"  # steps environments
    WAIT = "wait"  # for the limiter, or for rows
    WRITE = "write"  # puts rows into a transport ring
    DRAIN = "drain"  # takes rows over into replay
    LEARN = "learn"
    PUBLISH = "publish"
    EVALUATE = "evaluate"  # judges a snapshot; where training is traced: waits for that
    SAVE = "save"  # training stands still for a checkpoint


class Span(NamedTuple):
    """One stretch of one activity, in seconds of CLOCK_MONOTONIC: the same in every process."""

    activity: Activity
    began: float
    ended: float


@dataclass(frozen=True)
class Counters:
    """How far a run is."""

    env_steps: int = 0
    learner_steps: int = 0
    episodes: int = 0


class Episode(NamedTuple):
    """One finished episode of training. A tuple: many quick actors end 100,000 in a second."""

    score: float  # undiscounted, unscaled, unclipped return
    length: int
    info: Mapping[str, float] = {}  # chosen info keys, `is_success` too


@dataclass(frozen=True)
class Started:
    """The run folder is made and the roles are up."""

    run_dir: str
    counters: Counters
    resumed: bool
    about: dict[str, Any]  # scenario, seed, device, estimate of memory: for the console


@dataclass(frozen=True)
class Collected:
    """An actor's chunk has been played and drained into replay."""

    counters: Counters
    ended: tuple[Episode, ...]
    epsilon: float
    version: int  # of the weights that played


@dataclass(frozen=True)
class Learned:
    """One learner step has been taken."""

    counters: Counters
    facts: LearnedFacts


@dataclass(frozen=True)
class Turned:
    """A turn is over: everything learned that may be, and the next chunk not begun."""

    counters: Counters


@dataclass(frozen=True)
class Logged:
    """A log mark: everything worth writing down, under SB3's metric names."""

    counters: Counters
    wall_s: float  # since the run began, earlier sessions included
    metrics: dict[str, float]
    limit: str = ""  # what limits the run, in a sentence; empty: not known yet


@dataclass(frozen=True)
class Evaluated:
    """The evaluator played greedily with the snapshot taken at `counters.env_steps`."""

    counters: Counters
    version: int
    wall_s: float  # when the snapshot was taken
    returns: tuple[float, ...]
    lengths: tuple[int, ...]
    success_rate: float | None
    best: bool  # the best score of this run so far
    passed: bool  # reached the target
    elo: float | None = None  # in a game against opponents; random play has 0
    elo_deviation: float | None = None  # standard error

    @property
    def score(self) -> float:
        return sum(self.returns) / len(self.returns)


@dataclass(frozen=True)
class Saved:
    """A checkpoint stands on disk."""

    counters: Counters
    path: str
    stall_s: float  # how long training waited for it


@dataclass(frozen=True)
class Warned:
    """Something went wrong that does not stop the run: a sink, a checkpoint, the evaluator."""

    counters: Counters
    kind: str  # counted as faults/<kind>
    message: str


@dataclass(frozen=True)
class Traced:
    """What one process did between two of its marks."""

    counters: Counters
    process: str  # actor-0, learner, ...
    began: float  # CLOCK_MONOTONIC, like the spans
    ended: float
    spans: tuple[Span, ...]  # in order; the first ones, where there was no room for all
    totals: dict[str, float]  # activity → seconds, those of dropped spans too
    amounts: dict[str, float]  # activity → rows, batches or versions it handled
    dropped: int  # spans there was no room for


@dataclass(frozen=True)
class Stopped:
    """The last event of every run that ended by itself or by request."""

    counters: Counters
    reason: Reason
    wall_s: float
    train_s: float  # from the first env step, waiting for evaluations excluded
    best_score: float | None
    solved: bool
    weights_sha256: str


Event: TypeAlias = (
    Started | Collected | Learned | Turned | Logged | Evaluated | Saved | Warned | Traced | Stopped
)
