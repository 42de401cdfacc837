"""Small path-finding runs in async, whose lessons open within a few episodes."""

from typing import Any

from rookery.event import Ask, Event, Turned
from rookery.loops.driver import Driver

# One agent on 4 x 4 cells gets home by chance. After two episodes the next lesson may open, so no
# first episode of an environment that begins anew tells of two agents.
PUPILS: dict[str, Any] = {
    "run.mode": "async",
    "run.engine": "processes",
    "run.env_steps": 10_000_000,
    "env.id": "rookery.envs.pathfinding.team:Team",
    "env.kwargs": {
        "radius": 1,
        "steps": 16,
        "density": 0.0,
        "curriculum": {"agents": [1, 2], "sizes": [4], "threshold": 0.01, "history": 2},
    },
    "algo.name": "team",
    "algo.length": 4,
    "algo.burn_in": 2,
    "algo.heads": 1,
    "algo.width": 8,
    "net.memory": 8,
    "replay.capacity": 100_000,
    "replay.batch": 4,
    "replay.samples_per_insert": 1.0,
    "actor.num": 2,
    "actor.envs": 2,
    "actor.chunk": 32,
    "eval.period": 10_000_000,
    "eval.episodes": 1,
    "checkpoint.period": 10_000_000,
    "learner.device": "cpu",
}
ALL = 2  # agents of the last lesson


def least(standings: Any) -> int:
    """Returns the most agents of an open lesson, in the environment where those are fewest."""
    return min(
        max(agents for agents, *_ in env["results"]) for _, envs in standings for env in envs
    )


def grown(driver: Driver) -> bool:
    """Have all environments told that they have opened the last lesson?"""
    standings = driver.parts.crew.progress.state()
    return len(standings) == driver.config.actor.num and least(standings) == ALL


def stop_when_grown(driver: Driver, event: Event) -> None:
    if isinstance(event, Turned) and grown(driver):
        driver._asked.add(Ask.STOP)
