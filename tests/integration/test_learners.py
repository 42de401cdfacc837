"""Runs with several learners: they learn, repeat, and go on with another number of them."""

from pathlib import Path
from typing import Any

import pytest

from inline_runs import begin, finish, inline, stop_at
from rookery.config.load import load, load_run
from rookery.errors import LostError
from rookery.evaluation.backend import RunRequest
from rookery.learner.data_parallel.follower import FollowerWorker
from rookery.learner.data_parallel.leader import LeaderLearner
from rookery.training.build import build_parts
from rookery.training.launch import session
from thread_engine import threads

__all__ = ["inline", "threads"]  # fixtures

TWO: dict[str, Any] = {
    "learner.replicas": 2,
    "learner.device": "cpu",
    "replay.sampling": "prioritized",
}
MOVING: dict[str, Any] = {
    "env.id": "rookery.envs.toy.basic:Reach",
    "algo": {"name": "sac"},
    "env.normalize_obs": True,
    "run.env_steps": 600,
    "net.hidden": [16],
}


def run(run_dir: Path, settings: dict[str, Any]) -> dict[str, Any]:
    with begin(run_dir, settings) as training_run:
        return finish(training_run)


def go_on(run_dir: Path, changes: dict[str, Any], look: Any = None) -> dict[str, Any]:
    with session(load_run(run_dir, changes=changes), RunRequest(resume=run_dir)) as training_run:
        return finish(training_run, look) if look else finish(training_run)


@pytest.mark.usefixtures("inline")
def test_two_learners_in_two_processes_learn_the_corridor(tmp_path):
    target = {"eval.target": 0.92, "run.env_steps": 10_000, "eval.episodes": 20}

    with begin(tmp_path, TWO | target | {"replay.samples_per_insert": 8.0}) as training_run:
        other = training_run.parts.learner.pids["learner-1"]
        answer = finish(training_run)

    assert answer["solved"]
    assert not Path(f"/proc/{other}").exists()


@pytest.mark.usefixtures("inline", "threads")
class TestRuns:
    def test_one_seed_gives_one_result_and_another_number_of_learners_a_close_one(self, tmp_path):
        steps = {"run.env_steps": 400}
        first, second = (run(tmp_path / name, TWO | steps) for name in ("first", "second"))
        alone = run(tmp_path / "alone", TWO | steps | {"learner.replicas": 1})

        assert first["weights_sha256"] == second["weights_sha256"]
        assert alone["weights_sha256"] != first["weights_sha256"]
        assert alone["learner_steps"] == first["learner_steps"]

    @pytest.mark.parametrize("settings", [TWO, TWO | MOVING], ids=["dqn", "sac"])
    def test_a_run_that_was_stopped_goes_on_bit_for_bit(self, settings, tmp_path):
        whole = run(tmp_path / "whole", settings)
        with begin(tmp_path / "torn", settings) as training_run:
            torn = finish(training_run, stop_at(70))
        again = go_on(tmp_path / "torn", {})

        assert torn["reason"] == "interrupted"
        assert again["env_steps"] == whole["env_steps"] > torn["env_steps"]
        assert again["weights_sha256"] == whole["weights_sha256"]

    def test_a_run_goes_on_with_one_learner_and_with_two_again(self, tmp_path):
        with begin(tmp_path, TWO) as training_run:
            first = finish(training_run, stop_at(50))
        second = go_on(tmp_path, {"learner.replicas": 1}, stop_at(50))
        third = go_on(tmp_path, {"learner.replicas": 2})

        assert first["learner_steps"] < second["learner_steps"] < third["learner_steps"]
        assert [second["reason"], third["reason"]] == ["interrupted", "env_steps"]

    @pytest.mark.parametrize("mode", ["sync", "async"])
    def test_actors_and_learners_may_both_be_many(self, mode, tmp_path):
        many = {"run.mode": mode, "actor.num": 2, "learner.replicas": 4, "run.env_steps": 500}

        answer = run(tmp_path, TWO | many)

        assert answer["env_steps"] >= 500
        assert answer["learner_steps"] > 0

    def test_games_against_earlier_selves_are_learned_by_two(self, tmp_path):
        settings = load(
            "tictactoe",
            changes={
                "run.env_steps": 600,
                "run.run_dir": str(tmp_path),
                "run.mode": "single",
                "actor.num": 1,
                "replay.learning_starts": 300,
                "replay.batch_size": 32,
                "selfplay.snapshot_period": 10,
                "eval.period": 600,
                "eval.episodes": 2,
                "eval.target": None,
                "learner.replicas": 2,
                "learner.device": "cpu",
            },
        )

        with session(settings, RunRequest()) as training_run:
            answer = finish(training_run)

        assert answer["learner_steps"] > 10


@pytest.mark.usefixtures("threads")
def test_a_replica_that_cannot_be_built_ends_the_start_and_leaves_nothing(monkeypatch):
    def refuse(self: FollowerWorker, setup: Any) -> None:
        raise ValueError("not today")

    monkeypatch.setattr(FollowerWorker, "__init__", refuse)
    closed: list[bool] = []
    monkeypatch.setattr(
        LeaderLearner,
        "close",
        lambda self, close=LeaderLearner.close: (close(self), closed.append(True)),
    )

    with pytest.raises(LostError, match=r"number 1 of 2 learners .*not today"):
        build_parts(load("corridor", changes=TWO | {"env.check": False}))
    assert closed
