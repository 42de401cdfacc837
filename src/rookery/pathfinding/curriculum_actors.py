"""Actors on a GPU (`run.mode device`) for several team sizes, unlocked by a curriculum.

    ((report,),) = actors.collect(0, [epsilon])      # `algo.length` steps of every world
    actors.take_written()                            # how many steps that were, for `DeviceReplay`

The training loop sees one `ActorGroup` with a single actor. Each team size has its own `TeamActor`
with its own parallel grid worlds and replay. Of the team sizes that the curriculum has unlocked
only the largest few are trained: all of them collect steps, and batches come from each in turn.
"""

import time
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from rookery import seeding
from rookery.actors.actor_group import LADDER, ActorGroup, ActorGroupState
from rookery.actors.messages import ActorReport, ActorState
from rookery.config.schema import Config
from rookery.event import Activity, Counters, Episode, Traced
from rookery.pathfinding.planner.planner_pool import PlannerPool, planner_count
from rookery.pathfinding.teacher import PlannerTeacher, first_unguided_world, wait_until_ready
from rookery.pathfinding.team_actor import EndedTeamEpisodes, TeamActor
from rookery.pathfinding.team_dqn import TeamDQN
from rookery.pathfinding.world.curriculum import Curriculum, CurriculumTask, curriculum_spec
from rookery.pathfinding.world.rules import WorldRules
from rookery.replay.replay import Inserted
from rookery.report.metrics.trace import Trace
from rookery.seeding import Role

TRACE_S = 0.5  # between two traces
CALM = 0.01  # only worlds with a smaller epsilon count for the curriculum


class DeviceActors(ActorGroup):
    """Actor group of a path-finding run in `run.mode device` (environments and replay on one GPU).

    Has one `TeamActor` for each team size that is trained now.
    """

    def __init__(self, config: Config, algorithm: TeamDQN, rules: WorldRules, device: torch.device):
        self.config, self.algorithm, self.rules, self.device = config, algorithm, rules, device
        self.curriculum = Curriculum(curriculum_spec(algorithm.config.curriculum))
        self.rng = torch.Generator(device)
        self.rng.manual_seed(seeding.integer(config.run.seed, Role.ACTOR))
        self.team_actors: dict[int, TeamActor] = {}
        self._opened: dict[CurriculumTask, int] = {}  # rows of its team actor when it was unlocked
        self._planners = PlannerPool(planner_count()) if algorithm.config.taught else None
        self._teachers: dict[int, PlannerTeacher] = {}  # team actors by team size
        self._warnings: list[str] = []
        self.version = 0  # of the newest published weights
        self._env_steps = self._agent_steps = 0  # written since `take_written`
        self._trace, self._traced_at = Trace("actor-0"), time.monotonic()

    # Playing.

    def collect(
        self, env_steps: int, epsilons: Sequence[float], episodes: int | None = None
    ) -> Iterator[list[ActorReport]]:
        """Steps all parallel grid worlds `algo.length` times; yields one actor report, in a list.

        Each world has its own epsilon, on a ladder from the given one downwards (as in Ape-X). The
        arguments `env_steps` and `episodes` are ignored. Worlds of team sizes that still wait for a
        planner's plans are not stepped.
        """
        (epsilon,) = epsilons
        began = time.monotonic()
        ended, played = self._play(epsilon)
        self._trace.note(Activity.PLAY, began, time.monotonic(), played)
        yield [ActorReport(played, ended, self.version, traced=self._traced())]

    def _traced(self) -> Traced | None:
        if time.monotonic() - self._traced_at < TRACE_S:
            return None
        self._traced_at = time.monotonic()
        return self._trace.take(Counters())

    def take_written(self) -> Inserted:
        """Returns how many env steps and agent steps were written to replay since the last call.

        An agent step is one action of one agent; with a planner to imitate, only planned actions
        count.
        """
        env_steps, agent_steps = self._env_steps, self._agent_steps
        self._env_steps = self._agent_steps = 0
        return Inserted(-1, agent_steps, env_steps, agent_steps=agent_steps)

    def _play(self, epsilon: float) -> tuple[list[Episode], int]:
        """Steps all grid worlds, except those that wait for plans, `algo.length` times.

        Returns the episodes that ended and the number of env steps.
        """
        self._open()
        ended: list[Episode] = []
        env_steps = learnable = 0
        stride = self.algorithm.config.stride
        for team_actor in self._able():
            teacher = self._teachers.get(team_actor.agents)
            steps = stride * team_actor.count
            learnable += steps * team_actor.agents if teacher is None else teacher.load_plans()
            rung = torch.arange(team_actor.count, device=self.device) / max(1, team_actor.count - 1)
            shares = torch.pow(epsilon, 1 + LADDER * rung)
            over = team_actor.play(stride, shares)
            self._record_results(team_actor, over, shares)
            ended += _episodes(over, team_actor.agents)
            env_steps += steps
            if teacher is not None:
                teacher.advance(stride)
        self.curriculum.advance()
        self._env_steps += env_steps
        self._agent_steps += learnable
        return ended, env_steps

    def _able(self) -> list[TeamActor]:
        """Returns the team actors (one per team size) whose grid worlds can step now, at least one.

        With a planner to imitate these are the team actors whose requested plans have all arrived;
        the call waits until there is one.
        """
        if self._planners is None:
            return self.live
        return [teacher.actor for teacher in wait_until_ready(self._teachers.values())]

    @property
    def live(self) -> list[TeamActor]:
        return [self.team_actors[agents] for agents in sorted(self.team_actors)]

    def _open(self) -> None:
        """Builds an actor for each of the `algo.teams` largest team sizes that are unlocked.

        Actors of other team sizes are dropped. Existing ones are kept and get the map sizes that
        the curriculum has unlocked.
        """
        open_ = sorted({task.agents for task in self.curriculum.tasks})
        largest = open_[-self.algorithm.config.teams :]
        for agents in [size for size in self.team_actors if size not in largest]:
            del self.team_actors[agents]
            self._teachers.pop(agents, None)
        for agents in largest:
            sizes = self.curriculum.sizes(agents)
            team_actor = self.team_actors.get(agents) or self._build_team_actor(agents, sizes)
            self.team_actors[agents], team_actor.sizes = team_actor, sizes
            if self._planners is not None and agents not in self._teachers:
                self._teachers[agents] = PlannerTeacher(
                    team_actor,
                    self._planners,
                    self.algorithm.config,
                    seed=seeding.integer(self.config.run.seed, Role.ACTOR, index=agents),
                )
            for size in sizes:
                self._opened.setdefault(CurriculumTask(agents, size), team_actor.ring.written)

    def _build_team_actor(self, agents: int, sizes: Sequence[int]) -> TeamActor:
        config = self.config
        return TeamActor(
            self.algorithm,
            agents,
            worlds=max(1, config.device.agents // agents),
            width=self.curriculum.spec.sizes[-1],
            rules=self.rules,
            density=self.curriculum.spec.density,
            rows=config.device.rows,
            replay=config.replay,
            sizes=sizes,
            rng=self.rng,
        )

    def _record_results(
        self, team_actor: TeamActor, over: EndedTeamEpisodes, shares: Tensor
    ) -> None:
        """Records the results of ended episodes in the curriculum.

        Only nearly greedy grid worlds (epsilon below CALM) count and, with a planner to imitate,
        only worlds that never follow it. Successes end earlier than failures, which last until the
        step limit. To avoid a bias from this, episodes of a team size and map size count only after
        one maximum episode length has passed since it was unlocked.
        """
        calm = (shares < CALM).cpu().numpy()[over.world]
        if self._planners is not None:
            calm &= over.world >= first_unguided_world(team_actor.count)
        for size, success in zip(over.size[calm], over.success[calm], strict=True):
            task = CurriculumTask(team_actor.agents, int(size))
            age = team_actor.ring.written - self._opened[task]
            if age > self.rules.steps + self.algorithm.config.stride:
                self.curriculum.record(task, success=bool(success))

    # Other methods of an `ActorGroup`.

    def metrics(self) -> dict[str, float]:
        stored = sum(team_actor.ring.nbytes for team_actor in self.live)
        return {**self.curriculum.metrics(), "replay/device_mb": stored / 2**20}

    def warnings(self) -> Iterator[str]:
        while self._warnings:
            yield self._warnings.pop(0)

    def save(self) -> ActorGroupState:
        """Returns the state of the curriculum only; a resumed run starts new episodes."""
        return ActorGroupState([], [ActorState(self.curriculum.state(), {}, exact=True)])

    def cut(self) -> None:
        """Does nothing: episodes need not be truncated, since `save` does not store them."""

    def restore(self, state: ActorGroupState) -> None:
        lost = self.curriculum.restore(state.actors[0].numbers)
        if lost:
            self._warnings.append(
                f"curriculum tasks {', '.join(f'{agents}x{size}' for agents, size in lost)} are "
                "not in algo.curriculum any more and are not trained further; the weights are kept"
            )

    def close(self) -> None:
        if self._planners is not None:
            self._planners.close()
        self.team_actors.clear()


def _episodes(over: EndedTeamEpisodes, agents: int) -> list[Episode]:
    return [
        Episode(
            float(score),
            int(length),
            {
                "is_success": float(success),
                "individual_success": float(home),
                "agents": float(agents),
                "size": float(size),
            },
        )
        for size, success, home, length, score in zip(*over[1:], strict=True)
    ]
