"""Small path-finding runs in async, whose tasks open within a few episodes."""

from typing import Any

from rookery.event import Ask, Event, IterationEnded
from rookery.training.run import TrainingRun

# One agent on 4 x 4 cells gets home by chance. After two episodes the next task may open, so no
# first episode of an environment that begins anew tells of two agents.
CURRICULUM_RUN: dict[str, Any] = {
    "run.mode": "async",
    "run.engine": "processes",
    "run.env_steps": 10_000_000,
    "env.id": "rookery.pathfinding.world.team_env:Team",
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
    "replay.batch_size": 4,
    "replay.samples_per_insert": 1.0,
    "actor.num": 2,
    "actor.envs": 2,
    "actor.chunk": 32,
    "eval.period": 10_000_000,
    "eval.episodes": 1,
    "checkpoint.period": 10_000_000,
    "learner.device": "cpu",
}
ALL = 2  # agents of the last task


def least(standings: Any) -> int:
    """Returns the most agents of an open task, in the environment where those are fewest."""
    return min(
        max(agents for agents, *_ in env["results"]) for _, envs in standings for env in envs
    )


def grown(training_run: TrainingRun) -> bool:
    """Have all environments told that they have opened the last task?"""
    standings = training_run.parts.actors.progress.state()
    return len(standings) == training_run.config.actor.num and least(standings) == ALL


def stop_when_grown(training_run: TrainingRun, event: Event) -> None:
    if isinstance(event, IterationEnded) and grown(training_run):
        training_run._asked.add(Ask.STOP)
