"""Events of a run. A run is an iterator of events; loggers, callbacks and tests consume them.

The training loop yields `Learned`, `IterationEnded` and `Collected`; the run adds the others.
`env_steps`, `learner_steps` and `episodes` are three separate counters.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple, TypeAlias

from rookery.types import LearnResult


class Reason(StrEnum):
    """Reasons for which a run stopped."""

    TARGET = "target"
    ENV_STEPS = "env_steps"
    EPISODES = "episodes"
    MINUTES = "minutes"
    CALLBACK = "callback"
    INTERRUPTED = "interrupted"  # SIGINT, exit 130
    TERMINATED = "terminated"  # SIGTERM, exit 143
    FAILED = "failed"


class Ask(StrEnum):
    """Requests that a callback may return: stop the run, or save a checkpoint."""

    STOP = "stop"
    CHECKPOINT = "checkpoint"


class Activity(StrEnum):
    """What an actor, learner or evaluation process spends its time on, for timeline charts."""

    PLAY = "play"  # an actor steps environments
    WAIT = "wait"  # for the rate limiter, or for rows
    WRITE = "write"  # an actor writes rows to its transport ring
    DRAIN = "drain"  # the learner moves rows from transport rings to replay
    LEARN = "learn"
    PUBLISH = "publish"
    EVALUATE = "evaluate"  # evaluates a snapshot; in training processes: waits for that
    SAVE = "save"  # training waits for a checkpoint


class Span(NamedTuple):
    """One activity of a process, from `began` to `ended` in seconds of CLOCK_MONOTONIC."""

    activity: Activity
    began: float
    ended: float


@dataclass(frozen=True)
class Counters:
    """How far a run has come: its numbers of env steps, learner steps and finished episodes."""

    env_steps: int = 0
    learner_steps: int = 0
    episodes: int = 0


class Episode(NamedTuple):
    """One finished training episode.

    It is a tuple, which is fast to make, since actors may finish 100,000 episodes a second.
    """

    score: float  # undiscounted, unscaled, unclipped return
    length: int
    info: Mapping[str, float] = {}  # selected info keys, and `is_success`


@dataclass(frozen=True)
class Started:
    """The first event of a run: the run folder exists and all worker processes have started."""

    run_dir: str
    counters: Counters
    resumed: bool
    about: dict[str, Any]  # scenario, seed, device, memory estimate: for the console


@dataclass(frozen=True)
class Collected:
    """Steps of an actor have been moved into the replay buffer.

    They are one chunk: the steps that an actor plays between two messages to the learner process.
    """

    counters: Counters
    ended: tuple[Episode, ...]  # finished episodes
    epsilon: float
    version: int  # of the acting weights


@dataclass(frozen=True)
class Learned:
    """The learner has taken one gradient step."""

    counters: Counters
    result: LearnResult


@dataclass(frozen=True)
class IterationEnded:
    """One iteration of the training loop (collect, then learn) is over.

    The run logs, evaluates, saves checkpoints and stops only at these points.
    """

    counters: Counters


@dataclass(frozen=True)
class Logged:
    """Metrics have been computed for the loggers, under the names that Stable-Baselines3 uses."""

    counters: Counters
    wall_s: float  # since the run began, with earlier sessions
    metrics: dict[str, float]
    limit: str = ""  # the run's bottleneck, in a sentence; empty: not known yet


@dataclass(frozen=True)
class Evaluated:
    """The evaluation process has evaluated a copy of the weights.

    `counters` are those of the time when the weights were copied.
    """

    counters: Counters
    version: int
    wall_s: float  # when the snapshot was taken
    returns: tuple[float, ...]
    lengths: tuple[int, ...]
    success_rate: float | None
    best: bool  # the score is the run's best so far
    passed: bool  # the score reached the target
    elo: float | None = None  # in games against opponents; random play has 0
    elo_deviation: float | None = None  # standard error

    @property
    def score(self) -> float:
        return sum(self.returns) / len(self.returns)


@dataclass(frozen=True)
class Saved:
    """A checkpoint has been written to disk."""

    counters: Counters
    path: str
    stall_s: float  # seconds that training waited for it


@dataclass(frozen=True)
class Warned:
    """A logger, a checkpoint, an actor or the evaluation has failed, and the run continues."""

    counters: Counters
    kind: str  # counted as faults/<kind>
    message: str


@dataclass(frozen=True)
class Traced:
    """The activities of one process since its previous `Traced` event, for timeline charts."""

    counters: Counters
    process: str  # actor-0, learner, ...
    began: float  # CLOCK_MONOTONIC, like the spans
    ended: float
    spans: tuple[Span, ...]  # in order; only the first ones where the buffer was full
    totals: dict[str, float]  # activity → seconds, with those of dropped spans
    amounts: dict[str, float]  # activity → number of rows, batches or versions
    dropped: int  # spans beyond the buffer's size


@dataclass(frozen=True)
class Stopped:
    """The last event of a run that ended without an error."""

    counters: Counters
    reason: Reason
    wall_s: float
    train_s: float  # since the first env step, without waits for evaluations
    best_score: float | None
    solved: bool
    weights_sha256: str


Event: TypeAlias = (
    Started
    | Collected
    | Learned
    | IterationEnded
    | Logged
    | Evaluated
    | Saved
    | Warned
    | Traced
    | Stopped
)
