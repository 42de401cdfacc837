"""A herd: everything of a run that lives on one device, but for the learner.

    played = herd.play(epsilon)               # all worlds of all arenas, a stretch of steps
    batch = tapes.draw(2048, beta=0.4)        # of the arena whose turn it is
    tapes.rerank(surprise)

To the rest of a run a herd is its crew and the tapes are its replay. Each team size has an arena;
the curriculum says which are open, and of those the largest few are played and learned from in
turn.
"""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rookery import seeding
from rookery.algos.team import Team
from rookery.config.schema import Config
from rookery.envs.pathfinding.curriculum import Curriculum, Lesson, syllabus
from rookery.envs.pathfinding.rules import Rules
from rookery.errors import ConfigError
from rookery.event import Episode
from rookery.loops.arena import Arena, Ended
from rookery.loops.crew import LADDER, Dealt
from rookery.loops.planners import Planners, cores
from rookery.loops.tutor import Tutor, await_one, examined
from rookery.replay.kept import Extent, Kept
from rookery.replay.tape import Picks
from rookery.seeding import Role
from rookery.types import Array, Batch

CALM = 0.01  # worlds with a smaller share of random actions count for the curriculum


def refuse_herds(config: Config) -> None:
    """Refuses, before anything is made, teams that no arena could hold or no batch be drawn of."""
    teams, batch = syllabus(config.device.curriculum).agents, config.replay.batch
    uneven = [agents for agents in teams if batch % agents]
    if uneven:
        raise ConfigError(
            f"a batch has whole teams, got replay.batch {batch} and teams of {uneven}; choose "
            "a batch that device.curriculum's agents divide"
        )
    if teams[-1] > config.device.agents:
        raise ConfigError(
            f"device.agents {config.device.agents} do not make a team of {teams[-1]}; raise it, "
            "or leave that team out of device.curriculum"
        )
    if config.algo.taught and 2 * teams[-1] > config.device.agents:
        raise ConfigError(
            f"with a teacher there are worlds that are taught and worlds that are examined, got "
            f"device.agents {config.device.agents} and a team of {teams[-1]}; have twice as many "
            "as the largest team"
        )
    least = config.algo.sequence + 1 + config.algo.stride
    if config.device.rows < least:
        raise ConfigError(
            f"device.rows {config.device.rows} hold no window of {config.algo.sequence + 1} "
            f"steps, one every {config.algo.stride}; keep at least {least}"
        )


class Played(NamedTuple):
    """What a stretch brought."""

    ended: list[Episode]
    env_steps: int  # of worlds
    agent_steps: int  # that can be learned from


class Herd:
    """Arenas, and the curriculum that opens them."""

    def __init__(self, config: Config, algorithm: Team, rules: Rules, device: torch.device):
        self.config, self.algorithm, self.rules, self.device = config, algorithm, rules, device
        self.curriculum = Curriculum(syllabus(config.device.curriculum))
        self.rng = torch.Generator(device)
        self.rng.manual_seed(seeding.integer(config.run.seed, Role.ACTOR))
        self.arenas: dict[int, Arena] = {}
        self._opened: dict[Lesson, int] = {}  # rows that its arena had by then
        self._planners = Planners(cores()) if config.algo.taught else None
        self._tutors: dict[int, Tutor] = {}  # by team size
        self._complaints: list[str] = []

    # Playing.

    def play(self, epsilon: float) -> Played:
        """Plays one stride of all open arenas; worlds are on a ladder of random actions."""
        self._open()
        ended: list[Episode] = []
        env_steps = learnable = 0
        stride = self.algorithm.config.stride
        for arena in self._able():
            tutor = self._tutors.get(arena.agents)
            told = stride * arena.count * arena.agents if tutor is None else tutor.begin()
            shares = self._ladder(epsilon, arena.count)
            over = arena.play(stride, shares)
            self._judge(arena, over, shares)
            ended += _episodes(over, arena.agents)
            env_steps += stride * arena.count
            learnable += told
            if tutor is not None:
                tutor.end(stride)
        self.curriculum.advance()
        return Played(ended, env_steps, learnable)

    def _able(self) -> list[Arena]:
        """Returns the arenas that can be played now: at least one."""
        if self._planners is None:
            return self.live
        return [tutor.arena for tutor in await_one(self._tutors.values())]

    @property
    def live(self) -> list[Arena]:
        return [self.arenas[agents] for agents in sorted(self.arenas)]

    def _open(self) -> None:
        """Has an arena for each of the largest team sizes that are open, and no other."""
        open_ = sorted({lesson.agents for lesson in self.curriculum.lessons})
        wanted = open_[-self.config.device.teams :]
        for agents in [size for size in self.arenas if size not in wanted]:
            del self.arenas[agents]
            self._tutors.pop(agents, None)
        for agents in wanted:
            sizes = self.curriculum.sizes(agents)
            arena = self.arenas.get(agents) or self._arena(agents, sizes)
            self.arenas[agents], arena.sizes = arena, sizes
            if self._planners is not None and agents not in self._tutors:
                self._tutors[agents] = Tutor(
                    arena,
                    self._planners,
                    self.config.device,
                    seed=seeding.integer(self.config.run.seed, Role.ACTOR, index=agents),
                )
            for size in sizes:
                self._opened.setdefault(Lesson(agents, size), arena.tape.written)

    def _arena(self, agents: int, sizes: Sequence[int]) -> Arena:
        config = self.config
        return Arena(
            self.algorithm,
            agents,
            worlds=max(1, config.device.agents // agents),
            width=self.curriculum.syllabus.sizes[-1],
            rules=self.rules,
            density=self.curriculum.syllabus.density,
            rows=config.device.rows,
            replay=config.replay,
            sizes=sizes,
            rng=self.rng,
            lecture=None if self._planners is None else config.device.lecture,
        )

    def _ladder(self, epsilon: float, worlds: int) -> Tensor:
        rung = torch.arange(worlds, device=self.device) / max(1, worlds - 1)
        return torch.pow(epsilon, 1 + LADDER * rung)

    def _judge(self, arena: Arena, over: Ended, shares: Tensor) -> None:
        """Tells the curriculum how the calm worlds did.

        Of a new lesson the successes come first, for failures take all the steps there are; so an
        episode's length passes before they count.
        """
        calm = (shares < CALM).cpu().numpy()[over.world]
        if self._planners is not None:
            calm &= over.world >= examined(arena.count)
        for size, success in zip(over.size[calm], over.success[calm], strict=True):
            lesson = Lesson(arena.agents, int(size))
            age = arena.tape.written - self._opened[lesson]
            if age > self.rules.steps + self.algorithm.config.stride:
                self.curriculum.record(lesson, success=bool(success))

    # What a run asks of its crew.

    actors: Sequence[Any] = ()
    pids: Mapping[str, int] = MappingProxyType({})
    incarnations: Sequence[int] = ()
    complete = True

    def metrics(self) -> dict[str, float]:
        stored = sum(arena.tape.nbytes for arena in self.live)
        return {**self.curriculum.metrics(), "replay/device_mb": stored / 2**20}

    def complaints(self) -> Iterator[str]:
        while self._complaints:
            yield self._complaints.pop(0)

    def save(self) -> Dealt:
        """Returns the curriculum: worlds begin anew."""
        return Dealt({"incarnations": [], "actors": [self.curriculum.state()]}, {}, exact=True)

    def restore(self, numbers: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
        lost = self.curriculum.restore(numbers["actors"][0])
        if lost:
            self._complaints.append(
                f"lessons {', '.join(f'{agents}x{size}' for agents, size in lost)} are not in "
                "device.curriculum any more and were given up; what had been learned in them stays"
            )

    def close(self) -> None:
        if self._planners is not None:
            self._planners.close()
        self.arenas.clear()


class Tapes:
    """The replay of a herd: the tapes of its arenas, drawn from in turn."""

    extents: Sequence[Extent] = ()
    stale = 0
    version = 0

    def __init__(self, herd: Herd):
        self._herd, self._turn = herd, 0
        self._drawn: tuple[Arena, Picks] | None = None

    @property
    def ready(self) -> bool:
        """Can a batch be drawn?"""
        return any(arena.tape.complete > 0 for arena in self._herd.live)

    def draw(self, agents: int, *, beta: float) -> Batch:
        """Draws windows of so many agents, of the next arena that has any."""
        able = [arena for arena in self._herd.live if arena.tape.complete > 0]
        self._turn += 1
        arena = able[self._turn % len(able)]
        batch, picks = arena.draw(agents // arena.agents, beta=beta)
        self._drawn = arena, picks
        return batch

    def rerank(self, surprise: Tensor) -> None:
        """Gives what was drawn last new priorities, by those of the agents."""
        assert self._drawn is not None, "the loop draws first"
        arena, picks = self._drawn
        arena.rerank(picks, surprise)

    @property
    def fill(self) -> float:
        """The share of it that holds rows."""
        shares = [min(1.0, a.tape.written / a.tape.capacity) for a in self._herd.live]
        return sum(shares) / len(shares) if shares else 0.0

    def save(self, saved: Sequence[int]) -> Kept:
        """Returns nothing: a resumed run fills its replay anew."""
        return Kept({}, {}, (), ())

    def close(self) -> None:
        """The herd has them."""


def _episodes(over: Ended, agents: int) -> list[Episode]:
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
