"""Trials of path finding: the cases that policies are judged on, and who is judged.

contest = Contest(squad=recruit("runs/a"), rules=rules)
for trial in drawn(200, agents=[8, 16], sizes=(17, 21), densities=(0.1, 0.3), seed=0):
    contest.judge("results", trial)
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rookery import seeding
from rookery.envs.pathfinding import cases, text
from rookery.envs.pathfinding.cases import Cases, Seeds, from_seeds
from rookery.envs.pathfinding.planner import plan
from rookery.envs.pathfinding.rules import Rules
from rookery.errors import ConfigError
from rookery.loops import place
from rookery.loops.pathfinding import BATCH, Follower, Result, judge, planned, some, watch
from rookery.loops.room import at_once, refuse_cases
from rookery.loops.squad import Squad
from rookery.report import gif, grid, reel
from rookery.report.grid import Episode
from rookery.seeding import Role

LARGE_BATCH = 256  # worlds at once on a GPU


class Trial(NamedTuple):
    """Cases that become one row of a table."""

    cases: Cases
    size: int | str | None = None  # what the row says; None: what the maps are
    first: int = 0  # the number, in its row, of the first case


class Writer(NamedTuple):
    """A format of moving pictures."""

    require: Callable[[], None]  # refuses where it cannot be written
    write: Callable[[Path, Episode, float], None]


WRITERS: dict[str, Writer] = {
    "svg": Writer(lambda: None, grid.write),
    "gif": Writer(gif.require, reel.write),
}


def drawn(
    count: int,
    *,
    agents: Sequence[int],
    sizes: tuple[int, int],
    densities: tuple[float, float],
    seed: int,
    skip: int = 0,
) -> Iterator[Trial]:
    """Draws so many cases for each number of agents, whichever other numbers are asked for.

    The first `skip` of a row are left out, without being made.
    """
    for number in agents:
        refuse_cases(count, agents=number, size=sizes[1])
    wanted = range(skip, skip + count)
    return (_row(number, wanted, sizes, densities, seed=seed) for number in agents)


def _row(
    agents: int,
    wanted: range,
    sizes: tuple[int, int],
    densities: tuple[float, float],
    *,
    seed: int,
) -> Trial:
    """Draws the cases with these numbers, of all there are for so many agents."""
    low, high = sizes
    rng = seeding.generator(seed, Role.EVALUATOR, index=agents)
    if low == high and densities[0] == densities[1]:
        seeds = cases.seeds(wanted.stop, rng)[wanted.start :]
        found = from_seeds(seeds, agents=agents, size=low, density=densities[0])
        return Trial(found, first=wanted.start)
    looks = (_look(sizes, densities, rng) for _ in range(wanted.stop))
    mixed = [_one(agents, look, high) for look in islice(looks, wanted.start, None)]
    return Trial(stacked(mixed), low if low == high else f"{low}-{high}", wanted.start)


def from_file(path: str, *, agents: Sequence[int] | None = None, count: int | None = None) -> Trial:
    """Reads a file of cases, or the first `count` of it; `agents` must be what it has."""
    found = some(cases.load(path), slice(count))
    if not len(found.maps):
        raise ConfigError(f"{path} has no cases; give a file with at least one")
    number = int((found.starts[..., 0] >= 0).sum(1).max())  # in the fullest case, as rows say
    if agents and list(agents) != [number]:
        raise ConfigError(
            f"--agents is {','.join(map(str, agents))}, and {path} has cases of {number}; leave "
            "it out, or give another file"
        )
    return Trial(found)


def from_map(path: str, scenarios: Sequence[str], agents: Sequence[int]) -> list[Trial]:
    """Reads MovingAI's files: for each number of agents, a case from the top of each scenario.

    All of them are read before any is judged: what is wrong with the last would come too late.
    """
    blocked = text.read_map(path)
    return [
        Trial(stacked([text.read_scenario(name, blocked, agents=number) for name in scenarios]))
        for number in agents
    ]


def stacked(parts: Sequence[Cases]) -> Cases:
    """Puts cases of one shape one after another."""
    return Cases(
        np.concatenate([part.maps for part in parts]),
        np.concatenate([part.starts for part in parts]),
        np.concatenate([part.goals for part in parts]),
    )


class Look(NamedTuple):
    """What a case of mixed kinds follows from."""

    size: int
    density: float
    seed: Seeds  # [1]


def _look(sizes: tuple[int, int], densities: tuple[float, float], rng: np.random.Generator) -> Look:
    size = int(rng.integers(*sizes, endpoint=True))
    return Look(size, float(rng.uniform(*densities)), cases.seeds(1, rng))


def _one(agents: int, look: Look, largest: int) -> Cases:
    case = from_seeds(look.seed, agents=agents, size=look.size, density=look.density)
    return cases.pad(case, agents, largest)


@dataclass(frozen=True, kw_only=True)
class Contest:
    """Whom to judge, and how."""

    squad: Squad
    rules: Rules
    seed: int = 0  # of those who draw
    shield: bool = False  # settles conflicts of the policy's agents before each step

    def judge(self, who: str, trial: Trial) -> Result:
        """Judges one of `JUDGES` on all cases of a trial."""
        result = JUDGES[who](self, trial.cases)
        return result if trial.size is None else result._replace(size=trial.size)


def _policy(contest: Contest, given: Cases) -> Result:
    squad = contest.squad
    most = BATCH if squad.device.type == "cpu" else LARGE_BATCH
    return judge(
        squad.of(given.starts.shape[1]),
        given,
        contest.rules,
        seed=contest.seed,
        batch=at_once(given, contest.rules, most),
        shielded=contest.shield,
    )


def _baseline(contest: Contest, given: Cases) -> Result:
    batch = at_once(given, contest.rules, BATCH)
    return judge(Follower(), given, contest.rules, seed=contest.seed, batch=batch)


def _planner(contest: Contest, given: Cases) -> Result:
    steps = contest.rules.steps
    return planned(given, plan(given, steps=steps, seed=contest.seed), steps)


JUDGES: dict[str, Callable[[Contest, Cases], Result]] = {  # by the key of the answer
    "results": _policy,
    "baseline": _baseline,
    "planner": _planner,
}


def film(
    contest: Contest, trial: Trial, case: int, out: Path, *, format: str, pace: float
) -> dict[str, Any]:
    """Plays one case of a trial with the policy and writes what it looked like."""
    WRITERS[format].require()
    place.prepare(out, "a picture")
    at = case - trial.first
    if at >= len(trial.cases.maps):
        raise ConfigError(
            f"--case is {case}, and there are cases 0 to {len(trial.cases.maps) - 1}; take one"
        )
    at_once(some(trial.cases, slice(at, at + 1)), contest.rules, 1)  # or it is refused
    policy = contest.squad.of(trial.cases.starts.shape[1])
    episode = watch(policy, trial.cases, contest.rules, seed=contest.seed, case=at, number=case)
    with place.reported(out):
        WRITERS[format].write(out, episode, pace)
    home = int(episode.home[-1, episode.present].sum())
    return {
        "file": str(out),
        "agents": len(episode.present),
        "home": home,
        "length": episode.steps,
        "bytes": out.stat().st_size,
    }
