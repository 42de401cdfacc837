"""A run is a function of its seed, not of how fast anything was."""

from pathlib import Path
from typing import Any

import pytest

from inline import Inline, begin, finish, inline
from rookery.loops import launch
from running import record

__all__ = ["inline"]  # a fixture

RESULT = ("weights_sha256", "env_steps", "learner_steps", "episodes", "best_score", "solved")


def wander(where: str = "nowhere") -> dict[str, Any]:
    """Settings of a noisy environment that may be made slow where it is judged."""
    return {
        "env.id": "strange_envs:Moody",
        "env.kwargs": {"mood": "dawdle", "at": 0, "where": where},
        "replay.draw": "prioritized",
        "algo.n_step": 2,
    }


def run(run_dir: Path, settings: dict[str, Any]) -> dict[str, Any]:
    with begin(run_dir, settings) as driver:
        answer = finish(driver)
    return {key: answer[key] for key in RESULT}


def test_a_run_that_stops_at_its_target_stops_there_however_late_it_is_judged(
    tmp_path, monkeypatch
):
    with monkeypatch.context() as patch:
        patch.setattr(launch, "Manager", Inline)
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


@pytest.mark.usefixtures("inline")
def test_two_runs_with_one_seed_are_identical_and_two_seeds_are_not(tmp_path):
    first = run(tmp_path / "first", wander())
    second = run(tmp_path / "second", wander())
    other = run(tmp_path / "other", wander() | {"run.seed": 1})

    assert second == first
    assert other["weights_sha256"] != first["weights_sha256"]
