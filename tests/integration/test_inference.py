"""Runs whose actors ask one inference server, for algorithms of every kind."""

from contextlib import closing
from itertools import takewhile
from typing import Any

import numpy as np
import pytest

import row_lineage as lineage
from inline_runs import begin, finish, inline, stop_at
from rookery.config.load import load, load_run
from rookery.config.schema import Config
from rookery.evaluation.backend import RunRequest
from rookery.event import Event, IterationEnded
from rookery.training import LOOPS
from rookery.training.build import Parts, build_parts
from rookery.training.launch import session
from thread_engine import threads

__all__ = ["inline", "threads"]  # fixtures

pytestmark = pytest.mark.timeout(60)
CENTRAL: dict[str, Any] = {
    "actor.inference": "central",
    "actor.num": 2,
    "actor.envs": 3,
    "actor.chunk": 24,
    "actor.pull_period": 24,
    "run.env_steps": 9_000,
    "net.hidden": [16],
    "replay.capacity": 10_000,
    "replay.learning_starts": 100,
    "replay.batch_size": 16,
    "replay.samples_per_insert": 8.0,
    "learner.device": "cpu",
    "learner.publish_period": 2,
    "env.check": False,
}
ENOUGH = 480  # env steps; in async, learning may begin later than that
VALUES = {"replay.sampling": "prioritized", "replay.initial_priority": "actor"}
RECALL = {
    "env.id": "rookery.envs.toy.recall:Recall",
    "env.kwargs": {"delay": 5},
    "algo.name": "r2d2",
    "algo.length": 3,
    "algo.burn_in": 2,
    "algo.overlap": 1,
    "net.memory": 4,
    "replay.sampling": "prioritized",
}
REACH = {"env.id": "rookery.envs.toy.basic:Reach", "algo.name": "sac"}
CORRIDOR = {"env.id": "rookery.envs.toy.basic:Corridor", "env.frame_stack": 2}
TEAM = {
    "env.id": "rookery.pathfinding.world.team_env:Team",
    "env.kwargs": {"agents": 3, "size": 6, "radius": 1, "steps": 12},
    "algo.name": "team",
    "algo.length": 3,
    "algo.burn_in": 2,
    "algo.temperature": 0.5,
    "net.memory": 4,
    "replay.sampling": "prioritized",
}
RUNS: dict[str, tuple[str, dict[str, Any], set[str]]] = {
    "dqn, sync": ("sync", CORRIDOR | VALUES | {"algo.name": "dqn"}, set()),
    "dqn, async": (
        "async",
        CORRIDOR | {"algo.name": "dqn", "actor.exploration": "ladder"},
        set(),
    ),
    "sac, sync": ("sync", REACH, set()),
    "sac, async": ("async", REACH | VALUES, set()),
    "r2d2, sync": ("sync", RECALL, {"memory", "fresh"}),
    "r2d2, async": ("async", RECALL, {"memory", "fresh"}),
    "team, sync": ("sync", TEAM, {"memory", "fresh"}),
    "team, async": ("async", TEAM, {"memory", "fresh"}),
    "ppo, sync": ("sync", CORRIDOR | {"algo.name": "ppo"}, {"log_prob", "ahead"}),
    "impala, async": (
        "async",
        CORRIDOR | {"algo.name": "impala", "algo.length": 5},
        {"log_prob"},
    ),
}


def config(mode: str, changes: dict[str, Any]) -> Config:
    return load(changes=CENTRAL | {"run.mode": mode} | changes)


def run(parts: Parts) -> None:
    """Takes a run on until it has played with what it has learned, or to its end."""

    def goes_on(event: Event) -> bool:
        if not isinstance(event, IterationEnded) or event.counters.env_steps < ENOUGH:
            return True
        over = event.counters.env_steps >= parts.config.run.env_steps
        return not over and lineage.rows_of(parts.replay.ring)["version"].max() == 1

    for _ in takewhile(goes_on, LOOPS[parts.config.run.mode](parts)):
        pass


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("name", RUNS)
def test_actors_without_a_network_play_and_the_learner_learns_from_it(name):
    """Rows have the versions that really played, and what the algorithm wants to find again."""
    plays(*RUNS[name])


@pytest.mark.parametrize("name", ["sac, async", "ppo, sync"])
def test_so_they_do_in_processes(name):
    plays(*RUNS[name])


def plays(mode: str, changes: dict[str, Any], extras: set[str]) -> None:
    with closing(build_parts(config(mode, changes))) as parts:
        run(parts)
        rows = lineage.rows_of(parts.replay.ring)
        metrics = parts.actors.metrics()
        published = parts.weight_store.version
        assert parts.actors.pids.keys() == {"actor-0", "actor-1", "infer"}
        assert parts.learner.learner_steps > 10

    played = rows["end"] == 0
    versions = rows["version"][played]
    assert 1 <= versions.min() < versions.max() <= published
    for actor in (0, 1):
        assert (np.diff(rows["version"][played & (rows["actor"] == actor)]) >= 0).all()
    assert np.isfinite(rows["taken"][played]).all() == parts.config.wants_values
    assert {"memory", "fresh", "log_prob", "ahead"} & rows.keys() == extras
    for extra in extras - {"ahead", "fresh"}:
        assert rows[extra][played].any()
    assert metrics["inference/requests_per_s"] > 0
    assert metrics["inference/wait_ms"] > 0
    assert 1 <= metrics["inference/requests_per_batch"] <= 2
    assert metrics["inference/batch"] <= 6
    assert metrics["inference/restarts"] == 0


SYNC: dict[str, Any] = {
    "run.mode": "sync",
    "actor.num": 2,
    "actor.inference": "central",
    "run.env_steps": 900,
    "env.frame_stack": 2,
    "replay.sampling": "prioritized",
}


@pytest.mark.usefixtures("inline", "threads")
@pytest.mark.parametrize("inference", ["central", "local"])
def test_a_sync_run_that_is_stopped_goes_on_and_may_change_who_answers(inference, tmp_path):
    """With the same answerer it ends with the weights of a run that was never stopped.

    Its network is so small that rounding does not depend on who asks together.
    """
    with begin(tmp_path / "whole", SYNC) as training_run:
        whole = finish(training_run)
    with begin(tmp_path / "torn", SYNC) as training_run:
        stopped = finish(training_run, stop_at(40))

    changed = load_run(tmp_path / "torn", changes={"actor.inference": inference})
    with session(changed, RunRequest(resume=tmp_path / "torn")) as training_run:
        torn = finish(training_run)

    assert stopped["reason"] == "interrupted"
    assert torn["env_steps"] == whole["env_steps"] >= 900
    assert (torn["weights_sha256"] == whole["weights_sha256"]) == (inference == "central")


@pytest.mark.usefixtures("inline", "threads")
def test_a_local_run_goes_on_with_a_server(tmp_path):
    with begin(tmp_path, SYNC | {"actor.inference": "local"}) as training_run:
        finish(training_run, stop_at(40))

    changed = load_run(tmp_path, changes={"actor.inference": "central"})
    with session(changed, RunRequest(resume=tmp_path)) as training_run:
        answer = finish(training_run)

    assert answer["reason"] == "env_steps"


@pytest.mark.usefixtures("inline", "threads")
def test_a_corridor_is_solved_by_actors_that_ask(tmp_path):
    """And not where nothing is learned."""
    goal = {"run.mode": "async", "run.env_steps": 6_000, "eval.target": 0.9, "eval.episodes": 5}
    solved = {}
    for lr in (0.003, 0.0):
        changes = SYNC | goal | {"learner.lr": lr}
        with begin(tmp_path / str(lr), changes) as training_run:
            solved[lr] = finish(training_run)["solved"]

    assert solved == {0.003: True, 0.0: False}
