"""Events in, one `Logged` at each log mark out. Lives in the training process.

    meter = Meter(config.report, time.monotonic)
    for event in run:
        meter.observe(event)            # every event; a Learned costs an append
    meter.logged(counters, ...)         # at a log mark: the only place that waits for a device

`Started` sets the point speeds are counted from, so a resumed run does not count steps it has
not played.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from statistics import fmean
from typing import Any, cast

from rookery.config.schema import ReportConfig
from rookery.event import Collected, Counters, Episode, Event, Learned, Logged, Started
from rookery.report.metrics.metric_names import finite, named
from rookery.report.metrics.resource_usage import Usage

LABELS = ("opponent", "seat")  # what says which game it was: a mean of them says nothing
NEWEST = 128  # learner steps averaged at a log mark: the latest, at most this many


class Meter:
    """Keeps what the next `Logged` will say."""

    def __init__(self, config: ReportConfig, now: Callable[[], float]):
        self._now = now
        self._usage = Usage(now)
        self._began = now()  # minus what earlier sessions took
        self._episodes: deque[Episode] = deque(maxlen=config.window)
        self._learned: deque[Mapping[str, Any]] = deque(maxlen=NEWEST)
        self._played: Collected | None = None
        self._mark, self._marked_at = Counters(), self._began
        self._watch: dict[type, Callable[[Any], None]] = {
            Learned: self._on_learned,
            Collected: self._on_collected,
            Started: self._on_started,
        }

    @property
    def wall_s(self) -> float:
        """Seconds since the run began, earlier sessions included."""
        return self._now() - self._began

    def processes(self, names: Mapping[str, int | None]) -> dict[str, float | None]:
        """Returns what each of these processes took at the last sample, under metric names."""
        taken = {name: self._usage.processes.get(pid or -1) for name, pid in names.items()}
        known = {name: one for name, one in taken.items() if one is not None}
        return {f"system/cpu_percent/{name}": one.cpu_percent for name, one in known.items()} | {
            f"system/memory_mb/{name}": one.memory_mb for name, one in known.items()
        }

    def observe(self, event: Event) -> None:
        watch = self._watch.get(type(event))
        if watch is not None:
            watch(event)

    def logged(
        self,
        counters: Counters,
        *,
        replay_fill: float,
        samples_per_insert: float,
        version: int,
        extra: Mapping[str, float | None],
    ) -> Logged:
        """Closes the interval since the last mark. Converts tensors, so it waits for the device.

        `version` is the newest published one; `extra` holds metrics under their whole names and
        wins over ours.
        """
        taken = self._usage.sample()
        metrics = {
            **self._rollout(version),
            **self._time(counters),
            **{f"train/{name}": value for name, value in _means(self._learned).items()},
            "train/n_updates": counters.learner_steps,
            "replay/fill": replay_fill,
            "replay/samples_per_insert": samples_per_insert,
            "system/cpu_percent": taken.cpu_percent,
            "system/memory_mb": taken.memory_mb,
            **extra,
        }
        self._learned.clear()
        self._mark, self._marked_at = counters, self._now()
        return Logged(counters, self.wall_s, finite(metrics))

    def state(self) -> dict[str, Any]:
        """Returns, JSON-ready, what a resumed run needs to log as if it had never stopped."""
        played = self._played
        return {
            "wall_s": self.wall_s,
            "episodes": [[e.score, e.length, dict(e.info)] for e in self._episodes],
            "learned": _rows(self._learned),
            "played": None if played is None else [played.epsilon, played.version],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Goes on where `state` looked."""
        self._began = self._now() - state["wall_s"]
        self._episodes.clear()
        self._episodes.extend(Episode(*row) for row in state["episodes"])
        self._learned.clear()
        self._learned.extend(state["learned"])
        if state["played"] is not None:
            epsilon, version = state["played"]
            self._played = Collected(Counters(), (), epsilon, version)

    def _on_learned(self, event: Learned) -> None:
        self._learned.append(event.result.metrics)

    def _on_collected(self, event: Collected) -> None:
        self._episodes.extend(event.ended)
        self._played = event

    def _on_started(self, event: Started) -> None:
        self._mark, self._marked_at = event.counters, self._now()

    def _rollout(self, version: int) -> dict[str, float | None]:
        found = dict.fromkeys(key for episode in self._episodes for key in episode.info)
        metrics: dict[str, float | None] = {
            named(key): _mean([e.info[key] for e in self._episodes if key in e.info])
            for key in found
            if key not in LABELS
        }
        metrics["rollout/ep_rew_mean"] = _mean([e.score for e in self._episodes])
        metrics["rollout/ep_len_mean"] = _mean([e.length for e in self._episodes])
        if self._played is not None:
            metrics["rollout/exploration_rate"] = self._played.epsilon
            metrics["actors/policy_lag"] = version - self._played.version
        return metrics

    def _time(self, counters: Counters) -> dict[str, float | None]:
        took = self._now() - self._marked_at
        steps = counters.env_steps - self._mark.env_steps
        updates = counters.learner_steps - self._mark.learner_steps
        return {
            "time/fps": steps / took if took > 0 else None,
            "time/learner_steps_per_s": updates / took if took > 0 else None,
            "time/episodes": counters.episodes,
            "time/time_elapsed": self.wall_s,
            "time/total_timesteps": counters.env_steps,
        }


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None


def _means(learned: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """Averages each metric over the steps that have it and where it is finite."""
    columns = {
        name: _floats([row[name] for row in learned if name in row]) for name in _names(learned)
    }
    return {name: _mean([x for x in column if isfinite(x)]) for name, column in columns.items()}


def _rows(learned: Sequence[Mapping[str, Any]]) -> list[dict[str, float]]:
    """Turns kept tensors into numbers, leaving out what is not finite."""
    rows: list[dict[str, float]] = [{} for _ in learned]
    for name in _names(learned):
        at = [i for i, row in enumerate(learned) if name in row]
        for i, value in zip(at, _floats([learned[i][name] for i in at]), strict=True):
            rows[i] |= finite({name: value})
    return rows


def _names(learned: Sequence[Mapping[str, Any]]) -> dict[str, None]:
    return dict.fromkeys(name for row in learned for name in row)  # a set that keeps its order


def _floats(values: list[Any]) -> list[float]:
    """Converts scalars; tensors in one piece, so that a GPU is waited for once."""
    import torch  # not at the top: this module is imported where no tensor ever comes

    if not all(isinstance(value, torch.Tensor) for value in values):
        return [float(value) for value in values]
    return cast(list[float], torch.stack(values).double().tolist())  # sync point
