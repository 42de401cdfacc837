"""Trials of path finding: the cases that policies are judged on, and who is judged.

contest = Contest(squad=recruit("runs/a"), rules=rules)
for trial in drawn(200, agents=[8, 16], sizes=(17, 21), densities=(0.1, 0.3), seed=0):
    contest.judge("results", trial)
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rookery import seeding
from rookery.envs.pathfinding import cases, text
from rookery.envs.pathfinding.cases import Cases, generate
from rookery.envs.pathfinding.planner import plan
from rookery.envs.pathfinding.rules import Rules
from rookery.errors import ConfigError
from rookery.loops import place
from rookery.loops.pathfinding import BATCH, Follower, Result, judge, planned, some, watch
from rookery.loops.squad import Squad
from rookery.report import gif, grid, reel
from rookery.report.grid import Episode
from rookery.seeding import Role

LARGE_BATCH = 256  # worlds at once on a GPU


class Trial(NamedTuple):
    """Cases that become one row of a table."""

    cases: Cases
    size: int | str | None = None  # what the row says; None: what the maps are


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
) -> Iterator[Trial]:
    """Draws so many cases for each number of agents, whichever other numbers are asked for."""
    low, high = sizes
    for number in agents:
        rng = seeding.generator(seed, Role.EVALUATOR, index=number)
        if low == high and densities[0] == densities[1]:
            yield Trial(generate(count, agents=number, size=low, density=densities[0], rng=rng))
            continue
        mixed = [_one(number, sizes, densities, rng) for _ in range(count)]
        yield Trial(stacked(mixed), low if low == high else f"{low}-{high}")


def from_file(path: str, *, agents: Sequence[int] | None = None, count: int | None = None) -> Trial:
    """Reads a file of cases, or the first `count` of it; `agents` must be what it has."""
    found = cases.load(path)
    number = found.starts.shape[1]
    if agents and list(agents) != [number]:
        raise ConfigError(
            f"--agents is {','.join(map(str, agents))}, and {path} has cases of {number}; leave "
            "it out, or give another file"
        )
    if not len(found.maps):
        raise ConfigError(f"{path} has no cases; give a file with at least one")
    return Trial(some(found, slice(count)))


def from_map(path: str, scenarios: Sequence[str], agents: Sequence[int]) -> Iterator[Trial]:
    """Reads MovingAI's files: for each number of agents, a case from the top of each scenario."""
    blocked = text.read_map(path)
    for number in agents:
        yield Trial(
            stacked([text.read_scenario(name, blocked, agents=number) for name in scenarios])
        )


def stacked(parts: Sequence[Cases]) -> Cases:
    """Puts cases of one shape one after another."""
    return Cases(
        np.concatenate([part.maps for part in parts]),
        np.concatenate([part.starts for part in parts]),
        np.concatenate([part.goals for part in parts]),
    )


def _one(
    agents: int, sizes: tuple[int, int], densities: tuple[float, float], rng: np.random.Generator
) -> Cases:
    size = int(rng.integers(*sizes, endpoint=True))
    density = float(rng.uniform(*densities))
    case = generate(1, agents=agents, size=size, density=density, rng=rng)
    return cases.pad(case, agents, sizes[1])


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
    return judge(
        squad.of(given.starts.shape[1]),
        given,
        contest.rules,
        seed=contest.seed,
        batch=BATCH if squad.device.type == "cpu" else LARGE_BATCH,
        shielded=contest.shield,
    )


def _baseline(contest: Contest, given: Cases) -> Result:
    return judge(Follower(), given, contest.rules, seed=contest.seed)


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
    chosen = some(trial.cases, slice(case, case + 1))
    if not len(chosen.maps):
        raise ConfigError(
            f"--case is {case}, and there are cases 0 to {len(trial.cases.maps) - 1}; take one"
        )
    policy = contest.squad.of(chosen.starts.shape[1])
    episode = watch(policy, chosen, contest.rules, seed=contest.seed)
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
