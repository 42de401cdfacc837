"""What to practise: more agents and larger maps, as those before are mastered.

    lesson = curriculum.choose(rng)                 # how many agents, on how large a map
    curriculum.record(lesson, success=True)
    opened = curriculum.advance()                   # lessons that may be chosen from now on

A lesson is mastered when the last `history` episodes of it, and at least as many, succeeded often
enough. Then the next larger map for as many agents opens, and the next larger team on that map.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from rookery.errors import ConfigError


class Lesson(NamedTuple):
    """One kind of case."""

    agents: int
    size: int  # rows and columns


@dataclass(frozen=True, kw_only=True)
class Syllabus:
    """Every lesson there is: some numbers of agents, some sizes of maps."""

    agents: tuple[int, ...] = (1, 2, 4, 8, 16)
    sizes: tuple[int, ...] = (10, 15, 20, 25, 30, 35, 40)
    threshold: float = 0.9  # share of successes that opens what follows
    history: int = 200  # episodes that are looked at
    crowd: float = 0.18  # agents per cell, at most
    density: float | None = None  # of obstacles; none: triangular, 0 to 0.5, mostly 0.33

    def __post_init__(self) -> None:
        for name in ("agents", "sizes"):
            values = getattr(self, name)
            if not values or list(values) != sorted(set(values)) or values[0] < 1:
                raise ConfigError(
                    f"a curriculum needs {name} that grow, from at least 1, got {list(values)}; "
                    "sort them, each once"
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
    def first(self) -> Lesson:
        return Lesson(self.agents[0], self.sizes[0])

    def __contains__(self, lesson: Lesson) -> bool:
        return lesson.agents in self.agents and lesson.size in self.sizes and self.fits(lesson)

    def fits(self, lesson: Lesson) -> bool:
        return lesson.agents <= self.crowd * lesson.size**2

    def after(self, lesson: Lesson) -> list[Lesson]:
        """Returns what opens when this one is mastered."""
        larger = [size for size in self.sizes if size > lesson.size][:1]
        more = [agents for agents in self.agents if agents > lesson.agents][:1]
        found = [Lesson(lesson.agents, size) for size in larger]
        found += [Lesson(agents, lesson.size) for agents in more]
        return [each for each in found if self.fits(each)]


@dataclass
class Curriculum:
    """How far a team has come."""

    syllabus: Syllabus = field(default_factory=Syllabus)
    results: dict[Lesson, deque[bool]] = field(default_factory=dict)  # of every open lesson
    mastered: set[Lesson] = field(default_factory=set)

    def __post_init__(self) -> None:
        if not self.results:
            self._open(self.syllabus.first)

    @property
    def lessons(self) -> list[Lesson]:
        """Those that are open, smaller teams first."""
        return sorted(self.results)

    def choose(self, rng: np.random.Generator) -> Lesson:
        """Draws one of the open lessons."""
        return self.lessons[int(rng.integers(len(self.results)))]

    def sizes(self, agents: int) -> list[int]:
        """Returns the open sizes of maps for so many agents."""
        return [lesson.size for lesson in self.lessons if lesson.agents == agents]

    def record(self, lesson: Lesson, *, success: bool) -> None:
        """Counts an episode; one that began before its lesson was given up does not count."""
        if lesson in self.results:
            self.results[lesson].append(success)

    def success(self, lesson: Lesson) -> float:
        """Returns the share of recent episodes that succeeded; 0 before the first."""
        seen = self.results[lesson]
        return sum(seen) / len(seen) if seen else 0.0

    def advance(self) -> list[Lesson]:
        """Opens what follows the lessons that are mastered now; returns what is new."""
        opened = []
        for lesson in self.lessons:
            full = len(self.results[lesson]) >= self.syllabus.history
            if lesson in self.mastered or not full:
                continue
            if self.success(lesson) >= self.syllabus.threshold:
                self.mastered.add(lesson)
                opened += [each for each in self.syllabus.after(lesson) if self._open(each)]
        return opened

    def _open(self, lesson: Lesson) -> bool:
        if lesson in self.results:
            return False
        self.results[lesson] = deque(maxlen=self.syllabus.history)
        return True

    def metrics(self) -> dict[str, float]:
        """What is worth a line in a report."""
        tried = [lesson for lesson in self.lessons if self.results[lesson]]
        shares = {f"curriculum/{n}x{size}": self.success(Lesson(n, size)) for n, size in tried}
        return {
            "curriculum/agents": float(max(lesson.agents for lesson in self.results)),
            "curriculum/size": float(max(lesson.size for lesson in self.results)),
            "curriculum/open": float(len(self.results)),
            **shares,
        }

    def state(self) -> dict[str, Any]:
        """Returns JSON that `restore` goes on from."""
        return {
            "results": [
                [*lesson, [int(one) for one in seen]] for lesson, seen in self.results.items()
            ],
            "mastered": sorted([*lesson] for lesson in self.mastered),
        }

    def restore(self, state: Mapping[str, Any]) -> list[Lesson]:
        """Goes on from a state; returns the lessons in it that the syllabus does not have now.

        Those are given up. What follows a mastered lesson by the syllabus of now is open.
        """
        saved = {Lesson(agents, size): seen for agents, size, seen in state["results"]}
        mastered = {Lesson(*lesson) for lesson in state["mastered"]}
        self.results = {
            lesson: deque(map(bool, seen), maxlen=self.syllabus.history)
            for lesson, seen in saved.items()
            if lesson in self.syllabus
        }
        self.mastered = {lesson for lesson in mastered if lesson in self.syllabus}
        self._open(self.syllabus.first)
        for lesson in sorted(self.mastered):
            for each in self.syllabus.after(lesson):
                self._open(each)
        return sorted(lesson for lesson in saved if lesson not in self.syllabus)


def syllabus(given: Mapping[str, Any]) -> Syllabus:
    """Builds a syllabus from an environment's settings."""
    lists = {key: tuple(value) for key, value in given.items() if isinstance(value, Sequence)}
    try:
        return Syllabus(**{**given, **lists})
    except TypeError as error:
        raise ConfigError(
            f"a curriculum takes {', '.join(Syllabus.__dataclass_fields__)}, got {dict(given)} "
            f"({error}); correct this one"
        ) from error
