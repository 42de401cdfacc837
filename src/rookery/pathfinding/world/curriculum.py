"""A curriculum of team sizes and map sizes, unlocked by the success rate on smaller ones.

    task = curriculum.choose(rng)                   # number of agents and map size
    curriculum.record(task, success=True)
    opened = curriculum.advance()                   # tasks unlocked by this call

A curriculum task is a pair of team size and map size. It is mastered when it has at least
`history` episodes and its success rate over the last `history` of them reaches `threshold`. Then
two tasks are unlocked: the next larger map with the same team, and the next larger team on the same
map. Tasks with more than `crowd` agents per cell are left out.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from rookery.errors import ConfigError


class CurriculumTask(NamedTuple):
    """One difficulty level of the curriculum: a team size and a map size."""

    agents: int
    size: int  # rows and columns


@dataclass(frozen=True, kw_only=True)
class CurriculumSpec:
    """Settings of a curriculum: team sizes, map sizes, and when larger ones are unlocked."""

    agents: tuple[int, ...] = (1, 2, 4, 8, 16)
    sizes: tuple[int, ...] = (10, 15, 20, 25, 30, 35, 40)
    threshold: float = 0.9  # success rate that unlocks the next team size and map size
    history: int = 200  # episodes in the success rate
    crowd: float = 0.18  # maximum agents per cell
    density: float | None = None  # of obstacles; none: triangular, from 0 to 0.5 with mode 0.33

    def __post_init__(self) -> None:
        for name in ("agents", "sizes"):
            values = getattr(self, name)
            if not values or list(values) != sorted(set(values)) or values[0] < 1:
                raise ConfigError(
                    f"a curriculum needs {name} in ascending order, each at least 1, got "
                    f"{list(values)}; sort them, each once"
                )
        if not 0.0 < self.threshold <= 1.0 or self.history < 1:
            raise ConfigError(
                "a curriculum needs a threshold above 0 and up to 1 and a history of at least 1, "
                f"got {self.threshold} and {self.history}; choose within these"
            )
        if not self.fits(self.first):
            raise ConfigError(
                f"{self.first.agents} agents are too many for {self.first.size} rows and columns "
                f"(crowd is {self.crowd}); begin with fewer, or a larger map"
            )

    @property
    def first(self) -> CurriculumTask:
        return CurriculumTask(self.agents[0], self.sizes[0])

    def __contains__(self, task: CurriculumTask) -> bool:
        return task.agents in self.agents and task.size in self.sizes and self.fits(task)

    def fits(self, task: CurriculumTask) -> bool:
        return task.agents <= self.crowd * task.size**2

    def after(self, task: CurriculumTask) -> list[CurriculumTask]:
        """Returns the tasks (team and map sizes) that are unlocked when this one is mastered."""
        larger = [size for size in self.sizes if size > task.size][:1]
        more = [agents for agents in self.agents if agents > task.agents][:1]
        found = [CurriculumTask(task.agents, size) for size in larger]
        found += [CurriculumTask(agents, task.size) for agents in more]
        return [each for each in found if self.fits(each)]


@dataclass
class Curriculum:
    """State of a curriculum: which tasks (team size, map size) are unlocked and mastered.

    It keeps the results of the most recent episodes of every unlocked task.
    """

    spec: CurriculumSpec = field(default_factory=CurriculumSpec)
    # Of every unlocked task.
    results: dict[CurriculumTask, deque[bool]] = field(default_factory=dict)
    mastered: set[CurriculumTask] = field(default_factory=set)

    def __post_init__(self) -> None:
        if not self.results:
            self._open(self.spec.first)

    @property
    def tasks(self) -> list[CurriculumTask]:
        """The unlocked tasks (team size, map size), smaller teams first."""
        return sorted(self.results)

    def choose(self, rng: np.random.Generator) -> CurriculumTask:
        """Returns a random unlocked task (team size, map size), uniformly."""
        return self.tasks[int(rng.integers(len(self.results)))]

    def sizes(self, agents: int) -> list[int]:
        """Returns the map sizes that are unlocked for a team of `agents` agents."""
        return [task.size for task in self.tasks if task.agents == agents]

    def record(self, task: CurriculumTask, *, success: bool) -> None:
        """Records whether an episode of a task (team size, map size) succeeded.

        Does nothing if the task is not unlocked, for example after a change of the settings.
        """
        if task in self.results:
            self.results[task].append(success)

    def success(self, task: CurriculumTask) -> float:
        """Returns the success rate of recent episodes of an unlocked task; 0 before the first one.

        A task is a pair of team size and map size; KeyError if it is not unlocked.
        """
        seen = self.results[task]
        return sum(seen) / len(seen) if seen else 0.0

    def advance(self) -> list[CurriculumTask]:
        """Marks tasks with a high enough success rate as mastered and unlocks the next larger ones.

        Returns the tasks (team size, map size) that this call unlocked; empty if there are none.
        """
        opened = []
        for task in self.tasks:
            full = len(self.results[task]) >= self.spec.history
            if task in self.mastered or not full:
                continue
            if self.success(task) >= self.spec.threshold:
                self.mastered.add(task)
                opened += [each for each in self.spec.after(task) if self._open(each)]
        return opened

    def _open(self, task: CurriculumTask) -> bool:
        if task in self.results:
            return False
        self.results[task] = deque(maxlen=self.spec.history)
        return True

    def metrics(self) -> dict[str, float]:
        """Returns the curriculum's progress as metrics for logging, by metric name.

        They are the largest unlocked team size and map size, the number of unlocked tasks
        (`curriculum/open`), and the success rate of each task (team size, map size) with recorded
        episodes.
        """
        tried = [task for task in self.tasks if self.results[task]]
        return {
            "curriculum/agents": float(max(task.agents for task in self.results)),
            "curriculum/size": float(max(task.size for task in self.results)),
            "curriculum/open": float(len(self.results)),
            **{f"curriculum/{task.agents}x{task.size}": self.success(task) for task in tried},
        }

    def state(self) -> dict[str, Any]:
        """Returns mastered tasks and recent results as JSON-compatible data, for `restore`."""
        return {
            "results": [[*task, [int(one) for one in seen]] for task, seen in self.results.items()],
            "mastered": sorted([*task] for task in self.mastered),
        }

    def restore(self, state: Mapping[str, Any]) -> list[CurriculumTask]:
        """Restores the curriculum from what the method `state` returned, for example on resume.

        Saved tasks (team size, map size) that the present settings do not contain are dropped and
        returned. Tasks that follow a mastered one under the present settings are unlocked.
        """
        saved = {CurriculumTask(agents, size): seen for agents, size, seen in state["results"]}
        mastered = {CurriculumTask(*task) for task in state["mastered"]}
        self.results = {
            task: deque(map(bool, seen), maxlen=self.spec.history)
            for task, seen in saved.items()
            if task in self.spec
        }
        self.mastered = {task for task in mastered if task in self.spec}
        self._open(self.spec.first)
        for task in sorted(self.mastered):
            for each in self.spec.after(task):
                self._open(each)
        return sorted(task for task in saved if task not in self.spec)


def curriculum_spec(given: Mapping[str, Any]) -> CurriculumSpec:
    """Builds the settings of a curriculum from a mapping; raises ConfigError for unknown fields.

    The mapping is the setting `algo.curriculum` if environments, replay and learner are on one
    device (`run.mode` device), otherwise the argument `curriculum` of the environment `Team`.
    """
    lists = {key: tuple(value) for key, value in given.items() if isinstance(value, Sequence)}
    try:
        return CurriculumSpec(**{**given, **lists})
    except TypeError as error:
        raise ConfigError(
            f"a curriculum takes {', '.join(CurriculumSpec.__dataclass_fields__)}, got "
            f"{dict(given)} ({error}); correct this one"
        ) from error
