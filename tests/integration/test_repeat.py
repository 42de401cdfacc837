"""A run is a function of its seed, not of how fast anything was."""

from pathlib import Path
from typing import Any

import pytest

from inline_runs import Inline, begin, finish, inline
from rookery.training import launch
from run_processes import record

__all__ = ["inline"]  # a fixture

RESULT = ("weights_sha256", "env_steps", "learner_steps", "episodes", "best_score", "solved")


def wander(where: str = "nowhere") -> dict[str, Any]:
    """Settings of a noisy environment that may be made slow in evaluation."""
    return {
        "env.id": "misbehaving_envs:Moody",
        "env.kwargs": {"mood": "dawdle", "at": 0, "where": where},
        "replay.sampling": "prioritized",
        "algo.n_step": 2,
    }


def run(run_dir: Path, settings: dict[str, Any]) -> dict[str, Any]:
    with begin(run_dir, settings) as training_run:
        answer = finish(training_run)
    return {key: answer[key] for key in RESULT}


def test_a_run_that_stops_at_its_target_stops_there_however_late_the_evaluation(
    tmp_path, monkeypatch
):
    with monkeypatch.context() as patch:
        patch.setattr(launch, "EvaluationClient", Inline)
        run(tmp_path / "measure", wander())
        scores = [entry["score"] for entry in record(tmp_path / "measure", "evaluated")]
        target = {"eval.target": max(scores[:3])}  # not the last mark's
        at_once = run(tmp_path / "at once", wander() | target)
    soon = run(tmp_path / "soon", wander() | target)
    late = run(tmp_path / "late", wander(where="judge") | target)

    assert at_once["solved"]
    assert at_once["env_steps"] < 1_200
    assert soon == at_once
    assert late == at_once


SYNC = {"run.mode": "sync", "run.engine": "inline", "actor.num": 2}
EPISODES = {"actor.chunk_episodes": 2, "actor.envs": 2}


@pytest.mark.usefixtures("inline")
@pytest.mark.parametrize(
    "local_actors", [{}, SYNC, SYNC | EPISODES], ids=["single", "sync", "episodes"]
)
def test_two_runs_with_one_seed_are_identical_and_two_seeds_are_not(local_actors, tmp_path):
    first = run(tmp_path / "first", wander() | local_actors)
    second = run(tmp_path / "second", wander() | local_actors)
    other = run(tmp_path / "other", wander() | local_actors | {"run.seed": 1})

    assert second == first
    assert other["weights_sha256"] != first["weights_sha256"]


@pytest.mark.usefixtures("inline")
def test_the_single_loop_is_the_sync_loop_with_one_actor_at_home(tmp_path):
    single = run(tmp_path / "single", wander())

    assert run(tmp_path / "sync", wander() | SYNC | {"actor.num": 1}) == single


@pytest.mark.usefixtures("inline")
def test_every_actor_counts(tmp_path):
    """Two actors play something else than one, and a third one something else again."""
    shas = {
        run(tmp_path / str(num), wander() | SYNC | {"actor.num": num})["weights_sha256"]
        for num in (1, 2, 3)
    }

    assert len(shas) == 3


RANKED = {
    "replay.sampling": "prioritized",
    "replay.initial_priority": "actor",
    "actor.exploration": "ladder",
}
EXPORTS = {"env.id": "rookery.envs.toy.basic:Corridor", "env.kwargs": {}, "env.frame_stack": 2}
CURRICULUM = {"agents": [1, 2], "sizes": [4], "history": 2}
TEAM = {
    "env.id": "rookery.pathfinding.world.team_env:Team",
    "env.kwargs": {"curriculum": CURRICULUM, "radius": 2, "steps": 9},
    "algo.name": "team",
    "algo.length": 4,
    "algo.burn_in": 2,
    "actor.envs": 2,
    "net.memory": 8,
    "replay.sampling": "prioritized",
}


@pytest.mark.usefixtures("inline")
@pytest.mark.parametrize(
    "settings",
    [
        {"actor.num": 1},
        {"actor.num": 2} | RANKED | EXPORTS,
        {"actor.num": 3} | RANKED,
        {"actor.num": 2} | EPISODES,
        {"actor.num": 2} | TEAM,
    ],
    ids=["one", "two that export their state", "three", "two by episodes", "two teams"],
)
def test_where_actors_live_does_not_matter(settings, tmp_path):
    """Timing decides nothing: environments are cut, saved and pulled for at the same places."""
    settings = wander() | SYNC | settings

    assert run(tmp_path / "processes", settings | {"run.engine": "processes"}) == run(
        tmp_path / "inline", settings
    )
    assert not record(tmp_path / "processes", "warned")
