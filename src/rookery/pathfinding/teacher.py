"""Imitation learning from a planner: some grid worlds of an actor follow planned actions.

    teacher = PlannerTeacher(actor, planners, team_config, seed=0)
    if not teacher.pending():               # otherwise plans are still being computed
        agent_steps = teacher.load_plans()  # actions in the new plans, summed over agents
        actor.play(steps, epsilon)          # env steps of each world
        teacher.advance(steps)

A world is one of the actor's parallel environments. The actor alternates between two phases:

1. Guided phase: a random subset of the worlds follows the planner's actions; the other worlds
   follow the policy.
2. Policy phase: all worlds follow the policy.

Then the teacher draws a new subset, and the actor waits until the planner processes have planned
from the current states of these worlds. So the planner's actions are learned in states that the
policy itself reaches (DAgger: Ross, Gordon, Bagnell 2011, "A reduction of imitation learning and
structured prediction to no-regret online learning"). The worlds with the highest numbers are never
guided; their episodes measure the policy alone.
"""

from collections.abc import Iterable
from concurrent.futures import FIRST_COMPLETED, Future, wait

import numpy as np

from rookery.pathfinding.planner.planner_pool import PlannedActions, PlannerPool
from rookery.pathfinding.settings import TeamConfig
from rookery.pathfinding.team_actor import TeamActor
from rookery.pathfinding.world.cases import select

UNGUIDED_ONE_IN = 8  # one world in this many is never guided
AGENTS_PER_REQUEST = 256  # agents in one planning request, over all its problem instances


def first_unguided_world(worlds: int) -> int:
    """Returns the index of an actor's first grid world that never follows the planner.

    `worlds` is the actor's number of parallel grid worlds. Worlds with higher indices never follow
    the planner either.
    """
    return worlds - max(1, worlds // UNGUIDED_ONE_IN)


class PlannerTeacher:
    """Teacher of imitation learning: chooses which grid worlds of one actor follow a planner.

    Requests the plans for these worlds from planner processes.
    """

    def __init__(self, actor: TeamActor, planners: PlannerPool, config: TeamConfig, *, seed: int):
        self.actor, self._planners, self._config = actor, planners, config
        self._rng = np.random.default_rng(seed)
        self._requests: list[Future[PlannedActions]] = []
        self._rows_left = config.policy_steps  # until worlds to guide are chosen

    def load_plans(self) -> int:
        """Passes the requested plans to the actor; returns their number of actions of all agents.

        Returns 0 if no plans were requested since the last call.
        """
        if not self._requests:
            return 0
        teacher_actions, planned = self.actor.teacher_actions, _merge(self._requests)
        assert teacher_actions is not None, "the algorithm has a teacher"
        self._requests = []
        self._rows_left = self._config.guided_steps + self._config.policy_steps
        return teacher_actions.load(planned) * self.actor.agents

    def advance(self, rows: int) -> None:
        """Counts `rows` steps that the actor has played in each of its grid worlds.

        The phase in which some worlds follow the planner is followed by a phase in which none does.
        After that, chooses the worlds that follow the planner next, and requests plans for them.
        """
        self._rows_left -= rows
        if self._rows_left <= 0:
            self._request_plans()

    def _request_plans(self) -> None:
        guidable = first_unguided_world(self.actor.count)
        count = max(1, round(guidable * self._config.student_share))
        students = np.sort(self._rng.choice(guidable, size=count, replace=False))
        cases, steps = self.actor.current_cases(students), self.actor.rules.steps
        seeds = self._rng.integers(2**32, size=count)
        cases_each = max(1, AGENTS_PER_REQUEST // self.actor.agents)
        for start in range(0, count, cases_each):
            part = slice(start, start + cases_each)
            request = (students[part], select(cases, part), steps, int(seeds[start]))
            self._requests.append(self._planners.submit(*request))

    def pending(self) -> list[Future[PlannedActions]]:
        """Returns the planning requests that the planner processes have not answered yet.

        The actor can step its grid worlds if there are none.
        """
        return [future for future in self._requests if not future.done()]


def wait_until_ready(teachers: Iterable[PlannerTeacher]) -> list[PlannerTeacher]:
    """Waits until at least one teacher has received all plans that it requested.

    Returns all teachers to which this applies.
    """
    teachers = list(teachers)
    while not (ready := [teacher for teacher in teachers if not teacher.pending()]):
        wait(
            [request for teacher in teachers for request in teacher.pending()],
            return_when=FIRST_COMPLETED,
        )
    return ready


def _merge(requests: list[Future[PlannedActions]]) -> PlannedActions:
    return {world: steps for future in requests for world, steps in future.result().items()}
