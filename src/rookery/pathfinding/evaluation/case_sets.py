"""Sets of path-finding problem instances, random or from files, for comparing methods.

    evaluator = CaseEvaluator(policy=load_team_policy("runs/a"), rules=rules)
    for case_set in random_case_sets(200, agents=[8], sizes=(17, 21), densities=(0.1, 0.3), seed=0):
        evaluator.evaluate("results", case_set)

A problem instance ("case") is a map with starts and goals. The methods are a policy, a baseline
(shortest paths) and a planner.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rookery import seeding
from rookery.errors import ConfigError
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
from rookery.report import video
from rookery.runtime import machine
from rookery.seeding import Role
from rookery.terminal import output
from rookery.training.resources import spelled

LARGE_BATCH = 256  # problem instances played in parallel on a GPU
DRAWING = 16  # bytes per cell while one map is being drawn


class CaseSet(NamedTuple):
    """A set of problem instances (map, starts, goals), whose results are reported as means."""

    cases: Cases
    size: int | str | None = None  # map size in the report; None: that of the maps


WRITERS: dict[str, Callable[[Path, RecordedEpisode, float], None]] = {
    "svg": episode_svg.write,
    "gif": episode_gif.write,
}


def random_case_sets(
    cases: int,
    *,
    agents: Sequence[int],
    sizes: tuple[int, int],
    densities: tuple[float, float],
    seed: int,
) -> Iterator[CaseSet]:
    """Yields a set of `cases` random problem instances for each number of agents in `agents`.

    Each set depends on `seed` and its own number of agents only.
    """
    for number in agents:
        check_case_memory(cases, agents=number, size=sizes[1])
    return (_random_case_set(cases, number, sizes, densities, seed=seed) for number in agents)


def check_case_memory(count: int, *, agents: int, size: int) -> None:
    """Raises ConfigError if `count` random problem instances would not fit into memory.

    An instance is a map of `size` x `size` cells with starts and goals. Two copies of all maps have
    to fit: concatenating the maps copies them.
    """
    need, free = (2 * count + DRAWING) * size**2, machine.memory().free
    if need > free:
        raise ConfigError(
            f"{count} instances of {agents} agents on {size} x {size} cells need up to "
            f"{spelled(need)} of memory, {spelled(free)} are available; lower --cases or --size"
        )


def _random_case_set(
    count: int, agents: int, sizes: tuple[int, int], densities: tuple[float, float], *, seed: int
) -> CaseSet:
    (low, high), rng = sizes, seeding.generator(seed, Role.EVALUATOR, index=agents)
    if low == high and densities[0] == densities[1]:
        return CaseSet(
            cases.generate(count, agents=agents, size=low, density=densities[0], rng=rng)
        )
    specs = [_draw_spec(sizes, densities, rng) for _ in range(count)]
    mixed = [
        cases.pad(from_seeds(seed, agents=agents, size=size, density=density), agents, high)
        for size, density, seed in specs
    ]
    return CaseSet(cases.concatenate(mixed), low if low == high else f"{low}-{high}")


def _draw_spec(
    sizes: tuple[int, int], densities: tuple[float, float], rng: np.random.Generator
) -> tuple[int, float, Seeds]:
    size = int(rng.integers(*sizes, endpoint=True))
    return size, float(rng.uniform(*densities)), cases.seeds(1, rng)


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
    read = map_text.read_scenario
    return [
        CaseSet(cases.concatenate([read(name, blocked, agents=number) for name in scenarios]))
        for number in agents
    ]


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
    team = evaluator.policy.for_agents(given.starts.shape[1])
    return evaluate_cases(
        team,
        given,
        evaluator.rules,
        seed=evaluator.seed,
        batch=BATCH if evaluator.policy.device.type == "cpu" else LARGE_BATCH,
        shielded=evaluator.shield,
    )


def _baseline(evaluator: CaseEvaluator, given: Cases) -> CaseSetResult:
    return evaluate_cases(ShortestPathPolicy(), given, evaluator.rules, seed=evaluator.seed)


def _planner(evaluator: CaseEvaluator, given: Cases) -> CaseSetResult:
    steps = evaluator.rules.steps
    return evaluate_plans(given, plan(given, steps=steps, seed=evaluator.seed), steps)


# By their keys in the JSON answer.
METHODS: dict[str, Callable[[CaseEvaluator, Cases], CaseSetResult]] = {
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
    if format == "gif":
        video.require("gif")
    output.prepare(out, "a picture")
    if case >= len(case_set.cases.maps):
        raise ConfigError(
            f"--case is {case}, and the instances are 0 to "
            f"{len(case_set.cases.maps) - 1}; choose one"
        )
    policy = evaluator.policy.for_agents(case_set.cases.starts.shape[1])
    episode = record_episode(
        policy, case_set.cases, evaluator.rules, seed=evaluator.seed, case=case
    )
    with output.reported(out):
        WRITERS[format](out, episode, pace)
    home = int(episode.home[-1, episode.present].sum())
    return {
        "file": str(out),
        "agents": len(episode.present),
        "home": home,
        "length": episode.steps,
        "bytes": out.stat().st_size,
    }
