"""Metrics of a run, from its events: one `Logged` at each log point, in the training process.

    meter = Meter(config.report, time.monotonic)
    for event in run:
        meter.observe(event)            # every event; a Learned costs an append
    meter.logged(counters, ...)         # at a log mark: the only place that waits for a device

`Started` sets the point speeds are counted from, so a resumed run does not count steps it has
not played.
"""

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
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
    """Collects the metrics of the next `Logged` event from the events of a run."""

    def __init__(self, config: ReportConfig, now: Callable[[], float]):
        self._now = now
        self._usage = Usage(now)
        self._began = now()  # minus what earlier sessions took
        self._episodes: deque[Episode] = deque(maxlen=config.window)
        self._learned: deque[Mapping[str, Any]] = deque(maxlen=NEWEST)
        self._played: Collected | None = None
        self._mark, self._marked_at = Counters(), self._began

    @property
    def wall_s(self) -> float:
        """Seconds since the run began, earlier sessions included."""
        return self._now() - self._began

    def processes(self, names: Mapping[str, int | None]) -> dict[str, float | None]:
        """Returns CPU percent and memory of these processes at the last sample, by metric name."""
        taken = {name: self._usage.processes.get(pid or -1) for name, pid in names.items()}
        known = {name: one for name, one in taken.items() if one is not None}
        return {f"system/cpu_percent/{name}": one.cpu_percent for name, one in known.items()} | {
            f"system/memory_mb/{name}": one.memory_mb for name, one in known.items()
        }

    def observe(self, event: Event) -> None:
        if isinstance(event, Learned):
            self._learned.append(event.result.metrics)
        elif isinstance(event, Collected):
            self._episodes.extend(event.ended)
            self._played = event
        elif isinstance(event, Started):
            self._mark, self._marked_at = event.counters, self._now()

    def logged(self, counters: Counters, version: int, extra: Mapping[str, float | None]) -> Logged:
        """Returns the metrics since the last call. Converts tensors, so it waits for the device.

        `version` is the newest published one; `extra` holds metrics under their whole names, such
        as replay/fill, and wins over ours.
        """
        taken = self._usage.sample()
        metrics = {
            **self._rollout(version),
            **self._time(counters),
            **{f"train/{name}": _mean(x.values()) for name, x in _columns(self._learned).items()},
            "train/n_updates": counters.learner_steps,
            "system/cpu_percent": taken.cpu_percent,
            "system/memory_mb": taken.memory_mb,
            **extra,
        }
        self._learned.clear()
        self._mark, self._marked_at = counters, self._now()
        return Logged(counters, self.wall_s, finite(metrics))

    def state(self) -> dict[str, Any]:
        """Returns the state for a checkpoint, as JSON values: a resumed run logs the same."""
        played, columns = self._played, _columns(self._learned)
        return {
            "wall_s": self.wall_s,
            "episodes": [[e.score, e.length, dict(e.info)] for e in self._episodes],
            "learned": [
                {name: column[i] for name, column in columns.items() if i in column}
                for i in range(len(self._learned))
            ],
            "played": None if played is None else [played.epsilon, played.version],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restores a state that `state` returned."""
        self._began = self._now() - state["wall_s"]
        self._episodes.clear()
        self._episodes.extend(Episode(*row) for row in state["episodes"])
        self._learned.clear()
        self._learned.extend(state["learned"])
        if state["played"] is not None:
            epsilon, version = state["played"]
            self._played = Collected(Counters(), (), epsilon, version)

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


def _mean(values: Collection[float]) -> float | None:
    return fmean(values) if values else None


def _columns(learned: Sequence[Mapping[str, Any]]) -> dict[str, dict[int, float]]:
    """Returns the finite values of each metric, by the index of the learner step."""
    found: dict[str, dict[int, float]] = {}
    for name in dict.fromkeys(name for row in learned for name in row):  # in their order
        places = [i for i, row in enumerate(learned) if name in row]
        values = _floats([learned[i][name] for i in places])
        found[name] = {i: x for i, x in zip(places, values, strict=True) if isfinite(x)}
    return found


def _floats(values: list[Any]) -> list[float]:
    """Converts scalars to floats; tensors all at once, so that a GPU is waited for only once."""
    import torch  # not at the top: this module is imported where no tensor ever comes

    if not all(isinstance(value, torch.Tensor) for value in values):
        return [float(value) for value in values]
    return cast(list[float], torch.stack(values).double().tolist())  # sync point
