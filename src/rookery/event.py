"""Events that a training run yields: loggers and callbacks consume them.

A run is an iterator of events, from `Started` to `Stopped`. The training loop yields `Collected`,
`Learned` and `IterationEnded`; the class of the run adds the others. Every event has the run's
counters of env steps, learner steps (gradient steps) and episodes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple, TypeAlias

from rookery.types import LearnResult


class Reason(StrEnum):
    """Reasons for which a training run stopped: a limit, a callback, a signal or an error."""

    TARGET = "target"
    ENV_STEPS = "env_steps"
    EPISODES = "episodes"
    MINUTES = "minutes"
    CALLBACK = "callback"
    INTERRUPTED = "interrupted"  # SIGINT, exit 130
    TERMINATED = "terminated"  # SIGTERM, exit 143
    FAILED = "failed"


class Ask(StrEnum):
    """Requests that a callback of a training run may return: stop, or save a checkpoint."""

    STOP = "stop"
    CHECKPOINT = "checkpoint"


class Activity(StrEnum):
    """Kinds of work of an actor, learner or evaluation process, for charts of its time."""

    PLAY = "play"  # an actor steps environments
    WAIT = "wait"  # for the rate limiter (samples per insert), or for env steps
    WRITE = "write"  # an actor writes env steps to its ring in shared memory
    DRAIN = "drain"  # the learner moves env steps from these rings to replay
    LEARN = "learn"
    PUBLISH = "publish"
    EVALUATE = "evaluate"  # evaluates a copy of the weights; in training processes: waits for that
    SAVE = "save"  # training waits for a checkpoint


class Span(NamedTuple):
    """One activity of a process, from `began` to `ended` in seconds of CLOCK_MONOTONIC."""

    activity: Activity
    began: float
    ended: float


@dataclass(frozen=True)
class Counters:
    """Progress of a run: its numbers of env steps, learner (gradient) steps and ended episodes."""

    env_steps: int = 0
    learner_steps: int = 0
    episodes: int = 0


class Episode(NamedTuple):
    """One finished training episode: its return, length and selected `info` entries.

    It is a tuple, which is fast to make, since actors may finish 100,000 episodes a second.
    """

    score: float  # undiscounted, unscaled, unclipped return
    length: int
    info: Mapping[str, float] = {}  # selected info keys, and `is_success`


@dataclass(frozen=True)
class Started:
    """First event of a run: its folder exists and all its worker processes have started."""

    run_dir: str
    counters: Counters
    resumed: bool
    about: dict[str, Any]  # scenario, seed, device, memory estimate: for the console


@dataclass(frozen=True)
class Collected:
    """Event: the learner process has moved new env steps of the actors into the replay buffer.

    In single and sync mode these are `actor.chunk` env steps (or `actor.chunk_episodes` episodes)
    of each actor; in async mode all steps that have arrived since the previous such event, which
    may be none.
    """

    counters: Counters
    ended: tuple[Episode, ...]  # finished episodes
    epsilon: float
    version: int  # of the acting weights


@dataclass(frozen=True)
class Learned:
    """Event: the learner has taken one gradient step."""

    counters: Counters
    result: LearnResult


@dataclass(frozen=True)
class IterationEnded:
    """Event: one iteration of the training loop (collect env steps, then learn) has ended.

    The run logs, evaluates, saves checkpoints and stops only after such an event.
    """

    counters: Counters


@dataclass(frozen=True)
class Logged:
    """Event: metrics for the loggers, under the names that Stable-Baselines3 uses."""

    counters: Counters
    wall_s: float  # since the run began, with earlier sessions
    metrics: dict[str, float]
    limit: str = ""  # the run's bottleneck, in a sentence; empty: not known yet


@dataclass(frozen=True)
class Evaluated:
    """Event: the evaluation process has played episodes with a copy of the weights.

    `counters` are those of the time when the weights were copied.
    """

    counters: Counters
    version: int
    wall_s: float  # when the weights were copied
    returns: tuple[float, ...]
    lengths: tuple[int, ...]
    success_rate: float | None
    best: bool  # the score is the run's best so far
    passed: bool  # the score reached the target score, `eval.target`
    elo: float | None = None  # in games against opponents; random play has 0
    elo_deviation: float | None = None  # standard error

    @property
    def score(self) -> float:
        return sum(self.returns) / len(self.returns)


@dataclass(frozen=True)
class Saved:
    """Event: a checkpoint of the run has been written to disk."""

    counters: Counters
    path: str
    stall_s: float  # seconds that training waited for it


@dataclass(frozen=True)
class Warned:
    """Event: a logger, a checkpoint, an actor or an evaluation has failed; the run continues."""

    counters: Counters
    kind: str  # counted as faults/<kind>
    message: str


@dataclass(frozen=True)
class Traced:
    """Event: what one process has done since its previous `Traced` event, for timeline charts."""

    counters: Counters
    process: str  # actor-0, learner, ...
    began: float  # CLOCK_MONOTONIC, like the spans
    ended: float
    spans: tuple[Span, ...]  # in order; only the first ones where the buffer was full
    totals: dict[str, float]  # activity → seconds, with those of dropped spans
    amounts: dict[str, float]  # activity → number of env steps, batches or weight versions
    dropped: int  # spans beyond the buffer's size


@dataclass(frozen=True)
class Stopped:
    """Last event of a run that ended without an error: the reason, duration and best score."""

    counters: Counters
    reason: Reason
    wall_s: float
    train_s: float  # since the first env step, without waits for evaluations
    best_score: float | None
    solved: bool
    weights_sha256: str
    faults: Mapping[str, int] = field(default_factory=dict)  # failures that the run survived


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
