"""A tutor: has some worlds of an arena do what a planner would, from wherever they are.

    tutor = Tutor(arena, planners, device_config)
    if tutor.ready:                       # else plans are still being made
        steps = tutor.begin()             # of agents, that will be told
        arena.play(stride, epsilon)
        tutor.end(stride)

An arena goes round: a lecture, in which pupils do as planned and the others as they like; a trial,
in which all do; then pupils are drawn anew, and the arena rests while they are planned for. So the
states that are learned from are those that the policy itself leads to (DAgger: Ross, Gordon,
Bagnell 2011, "A reduction of imitation learning and structured prediction to no-regret online
learning"), and it learns a way out of each. The last worlds are never pupils: they show how far the
policy gets by itself.
"""

from collections.abc import Iterable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any, Protocol

import numpy as np

from rookery.config.schema import DeviceConfig
from rookery.envs.pathfinding.advice import Advice
from rookery.loops.arena import Arena
from rookery.loops.pathfinding import some

EXAMINED = 8  # one world in so many is never told anything
HANDFUL = 256  # agents that are planned for at a time, in however many cases


def examined(worlds: int) -> int:
    """Returns the number of the first world that is never told anything."""
    return worlds - max(1, worlds // EXAMINED)


class Planning(Protocol):
    """Whoever plans: `advice.advise`, sooner or later."""

    def submit(self, *given: Any) -> Future[Advice]: ...


class Tutor:
    """Goes round with one arena."""

    def __init__(self, arena: Arena, planners: Planning, config: DeviceConfig, *, seed: int):
        self.arena, self._planners, self._config = arena, planners, config
        self._rng = np.random.default_rng(seed)
        self._asked: list[Future[Advice]] = []
        self._rows = config.trial  # until pupils are drawn

    @property
    def ready(self) -> bool:
        return all(future.done() for future in self._asked)

    def begin(self) -> int:
        """Hands out plans that were asked for; returns how many steps of agents they have."""
        if not self._asked:
            return 0
        script, said = self.arena.script, _joined(self._asked)
        assert script is not None, "an arena with a tutor can be told what to do"
        self._asked, self._rows = [], self._config.lecture + self._config.trial
        return script.load(said) * self.arena.agents

    def end(self, rows: int) -> None:
        """Takes note of rows that were played, and asks for plans where it is time."""
        self._rows -= rows
        if self._rows <= 0:
            self._ask()

    def _ask(self) -> None:
        able = examined(self.arena.count)
        count = max(1, round(able * self._config.pupils))
        pupils = np.sort(self._rng.choice(able, size=count, replace=False))
        cases, steps = self.arena.cases(pupils), self.arena.rules.steps
        seeds = self._rng.integers(2**32, size=count)
        several = max(1, HANDFUL // self.arena.agents)
        for at in range(0, count, several):
            part = slice(at, at + several)
            given = (pupils[part], some(cases, part), steps, int(seeds[at]))
            self._asked.append(self._planners.submit(*given))

    def waiting(self) -> list[Future[Advice]]:
        """Returns the plans that are still being made."""
        return [future for future in self._asked if not future.done()]


def await_one(tutors: Iterable[Tutor]) -> list[Tutor]:
    """Returns those who are ready; where none is, waits until one is."""
    tutors = list(tutors)
    while not (able := [tutor for tutor in tutors if tutor.ready]):
        wait([one for tutor in tutors for one in tutor.waiting()], return_when=FIRST_COMPLETED)
    return able


def _joined(asked: list[Future[Advice]]) -> Advice:
    return {world: said for future in asked for world, said in future.result().items()}
