"""Sets of path-finding problem instances, random or from files, for comparing methods.

    evaluator = CaseEvaluator(policy=load_team_policy("runs/a"), rules=rules)
    for case_set in random_case_sets(200, agents=[8], sizes=(17, 21), densities=(0.1, 0.3), seed=0):
        evaluator.evaluate("results", case_set)

A problem instance ("case") is a map with starts and goals. The methods are a policy, a baseline
(shortest paths) and a planner.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rookery import seeding
from rookery.errors import ConfigError
from rookery.pathfinding.evaluation.case_memory import check_case_memory, worlds_at_once
from rookery.pathfinding.evaluation.play_cases import (
    BATCH,
    CaseSetResult,
    ShortestPathPolicy,
    evaluate_cases,
    evaluate_plans,
    record_episode,
)
from rookery.pathfinding.evaluation.team_policy import TeamPolicy
from rookery.pathfinding.pictures import episode_gif, episode_svg
from rookery.pathfinding.pictures.episode_svg import RecordedEpisode
from rookery.pathfinding.planner.plan import plan
from rookery.pathfinding.world import cases, map_text
from rookery.pathfinding.world.cases import Cases, Seeds, from_seeds, select
from rookery.pathfinding.world.rules import WorldRules
from rookery.report import gif
from rookery.seeding import Role
from rookery.terminal import output_path

LARGE_BATCH = 256  # problem instances played in parallel on a GPU


class CaseSet(NamedTuple):
    """A set of problem instances (map, starts, goals), whose results are reported as means."""

    cases: Cases
    size: int | str | None = None  # map size in the report; None: that of the maps
    first: int = 0  # index of the first of `cases` in the whole random sequence


class EpisodeWriter(NamedTuple):
    """Writer of episode animations in one file format.

    `require` checks that the packages that the format needs are installed.
    """

    require: Callable[[], None]  # raises ConfigError if what it needs is not installed
    write: Callable[[Path, RecordedEpisode, float], None]


WRITERS: dict[str, EpisodeWriter] = {
    "svg": EpisodeWriter(lambda: None, episode_svg.write),
    "gif": EpisodeWriter(gif.require, episode_gif.write),
}


def random_case_sets(
    count: int,
    *,
    agents: Sequence[int],
    sizes: tuple[int, int],
    densities: tuple[float, float],
    seed: int,
    skip: int = 0,
) -> Iterator[CaseSet]:
    """Yields a set of `count` random problem instances for each number of agents in `agents`.

    Each set depends on `seed` and its own number of agents only. The first `skip` instances of the
    random sequence are left out: only their random seeds are drawn, not their maps.
    """
    for number in agents:
        check_case_memory(count, agents=number, size=sizes[1])
    numbers = range(skip, skip + count)
    return (_random_case_set(number, numbers, sizes, densities, seed=seed) for number in agents)


def _random_case_set(
    agents: int,
    numbers: range,
    sizes: tuple[int, int],
    densities: tuple[float, float],
    *,
    seed: int,
) -> CaseSet:
    """Draws problem instances for `agents` agents: those at the positions `numbers` of a sequence.

    The random sequence of instances is determined by `seed` and `agents`.
    """
    low, high = sizes
    rng = seeding.generator(seed, Role.EVALUATOR, index=agents)
    if low == high and densities[0] == densities[1]:
        seeds = cases.seeds(numbers.stop, rng)[numbers.start :]
        found = from_seeds(seeds, agents=agents, size=low, density=densities[0])
        return CaseSet(found, first=numbers.start)
    specs = (_draw_spec(sizes, densities, rng) for _ in range(numbers.stop))
    mixed = [_case_from(agents, spec, high) for spec in islice(specs, numbers.start, None)]
    return CaseSet(concatenate_cases(mixed), low if low == high else f"{low}-{high}", numbers.start)


def from_file(
    path: str, *, agents: Sequence[int] | None = None, count: int | None = None
) -> CaseSet:
    """Reads problem instances (maps, starts, goals) from an `.npz` file; all, or the first `count`.

    Raises ConfigError if there are none, or if `agents` differs from the number of agents in the
    file.
    """
    found = select(cases.load(path), slice(count))
    if not len(found.maps):
        raise ConfigError(f"{path} has no problem instances; give a file with at least one")
    number = int((found.starts[..., 0] >= 0).sum(1).max())  # agents of the largest instance
    if agents and list(agents) != [number]:
        raise ConfigError(
            f"--agents is {','.join(map(str, agents))}, and {path} has instances of {number}; "
            "leave it out, or give another file"
        )
    return CaseSet(found)


def from_map(path: str, scenarios: Sequence[str], agents: Sequence[int]) -> list[CaseSet]:
    """Reads problem instances from a MovingAI map file and its scenario files of starts and goals.

    Returns one set for each number of agents. A set has one problem instance per scenario file,
    made of the file's first rows, one row for each agent. All files are read at once, so errors
    come before any evaluation.
    """
    blocked = map_text.read_map(path)
    return [
        CaseSet(
            concatenate_cases(
                [map_text.read_scenario(name, blocked, agents=number) for name in scenarios]
            )
        )
        for number in agents
    ]


def concatenate_cases(parts: Sequence[Cases]) -> Cases:
    """Concatenates problem instances with equal numbers of agents and map sizes."""
    return Cases(
        np.concatenate([part.maps for part in parts]),
        np.concatenate([part.starts for part in parts]),
        np.concatenate([part.goals for part in parts]),
    )


class CaseSpec(NamedTuple):
    """Map size, obstacle density and seed of one random problem instance."""

    size: int
    density: float
    seed: Seeds  # [1]


def _draw_spec(
    sizes: tuple[int, int], densities: tuple[float, float], rng: np.random.Generator
) -> CaseSpec:
    size = int(rng.integers(*sizes, endpoint=True))
    return CaseSpec(size, float(rng.uniform(*densities)), cases.seeds(1, rng))


def _case_from(agents: int, spec: CaseSpec, largest: int) -> Cases:
    case = from_seeds(spec.seed, agents=agents, size=spec.size, density=spec.density)
    return cases.pad(case, agents, largest)


@dataclass(frozen=True, kw_only=True)
class CaseEvaluator:
    """Evaluates a policy, or a baseline or planner for comparison, on sets of problem instances."""

    policy: TeamPolicy
    rules: WorldRules
    seed: int = 0  # of random actions and of the planner
    shield: bool = False  # replace colliding actions of the policy, by PIBT, before each step

    def evaluate(self, method: str, case_set: CaseSet) -> CaseSetResult:
        """Evaluates a method on a set of problem instances; returns means of success and costs.

        `method` is a key of `METHODS`: results (the policy), baseline (shortest paths), planner.
        """
        result = METHODS[method](self, case_set.cases)
        return result if case_set.size is None else result._replace(size=case_set.size)


def _policy(evaluator: CaseEvaluator, given: Cases) -> CaseSetResult:
    policy = evaluator.policy
    most = BATCH if policy.device.type == "cpu" else LARGE_BATCH
    return evaluate_cases(
        policy.for_agents(given.starts.shape[1]),
        given,
        evaluator.rules,
        seed=evaluator.seed,
        batch=worlds_at_once(given, evaluator.rules, most),
        shielded=evaluator.shield,
    )


def _baseline(evaluator: CaseEvaluator, given: Cases) -> CaseSetResult:
    batch = worlds_at_once(given, evaluator.rules, BATCH)
    return evaluate_cases(
        ShortestPathPolicy(), given, evaluator.rules, seed=evaluator.seed, batch=batch
    )


def _planner(evaluator: CaseEvaluator, given: Cases) -> CaseSetResult:
    steps = evaluator.rules.steps
    return evaluate_plans(given, plan(given, steps=steps, seed=evaluator.seed), steps)


METHODS: dict[
    str, Callable[[CaseEvaluator, Cases], CaseSetResult]
] = {  # by their keys in the JSON answer
    "results": _policy,
    "baseline": _baseline,
    "planner": _planner,
}


def record_case(
    evaluator: CaseEvaluator, case_set: CaseSet, case: int, out: Path, *, format: str, pace: float
) -> dict[str, Any]:
    """Plays problem instance `case` with the policy; writes an animation of the episode to `out`.

    Returns a summary: file, agents, agents on their goals at the end, length, bytes. Raises
    ConfigError if the set has no such instance.
    """
    WRITERS[format].require()
    output_path.prepare(out, "a picture")
    at = case - case_set.first
    if at >= len(case_set.cases.maps):
        raise ConfigError(
            f"--case is {case}, and the instances are 0 to "
            f"{len(case_set.cases.maps) - 1}; choose one"
        )
    only = select(case_set.cases, slice(at, at + 1))
    worlds_at_once(only, evaluator.rules, 1)  # refuses a world that is too large
    policy = evaluator.policy.for_agents(case_set.cases.starts.shape[1])
    episode = record_episode(
        policy, case_set.cases, evaluator.rules, seed=evaluator.seed, case=at, number=case
    )
    with output_path.reported(out):
        WRITERS[format].write(out, episode, pace)
    home = int(episode.home[-1, episode.present].sum())
    return {
        "file": str(out),
        "agents": len(episode.present),
        "home": home,
        "length": episode.steps,
        "bytes": out.stat().st_size,
    }
