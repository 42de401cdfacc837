"""Whole runs with host workers: the weights of inline, the ratio kept, resumed with other shards.

Host workers, actor processes and messages are real, Ray is not there; with Ray: test_ray_runs.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from cluster_driver import Witness
from inline_runs import begin, finish, inline
from loopback_cluster import LossyCluster, loopback_cluster
from rookery.actors.actor import CHUNKS
from rookery.checkpoints import checkpoint
from rookery.config.load import load_run
from rookery.evaluation.backend import RunRequest
from rookery.event import Event, Stopped
from rookery.training.launch import session
from rookery.training.run import TrainingRun
from run_processes import record
from watched_runs import account

__all__ = ["inline", "loopback_cluster"]  # fixtures
pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.usefixtures("inline", "loopback_cluster"),
]

HINDSIGHT = {
    "run.mode": "sync",
    "actor.num": 2,
    "replay.shards": 1,
    "env.id": "rookery.envs.toy.bit_flip:BitFlip",
    "env.kwargs": {"bits": 6},
    "replay.hindsight": 0.8,
    "algo.n_step": 1,
}


def test_sync_gives_the_weights_of_inline_bit_for_bit_with_goals_in_hindsight(tmp_path):
    with begin(tmp_path / "inline", HINDSIGHT | {"run.engine": "inline"}) as training_run:
        inline = finish(training_run)
    with begin(tmp_path / "hosts", HINDSIGHT | {"run.engine": "ray"}) as training_run:
        hosts = finish(training_run)

    assert hosts["weights_sha256"] == inline["weights_sha256"]
    assert hosts["learner_steps"] == inline["learner_steps"] > 0


WARMUP = 200  # env steps that ask for no learning
RATIO = 4.0  # samples per insert
ASYNC = {
    "run.mode": "async",
    "run.engine": "ray",
    "run.env_steps": 6_000,
    "actor.num": 2,
    "actor.chunk": 64,
    "actor.envs": 8,
    "replay.shards": 2,
    "replay.capacity": 20_000,
    "replay.learning_starts": WARMUP,
    "replay.samples_per_insert": RATIO,
    "checkpoint.period": 2_000,
    "eval.period": 2_000,
    "report.log_period": 500,
}
# What may lie in the actors' rings when a gate is closed, the limiter's slack, and as much again:
# what host workers were allowed because the learner was learning, if it stops doing so.
AHEAD = 2 * CHUNKS * (64 + 2 * 8) + 2 * (2 * 2 * (64 + 8))


def _ahead(entry: dict[str, Any]) -> float:
    """Returns how many env steps the learner is behind."""
    inserted = entry["env_steps"] - WARMUP
    return float(inserted * (1 - entry["metrics"]["replay/samples_per_insert"] / RATIO))


def _resumed(run_dir: Path, changes: dict[str, Any]) -> dict[str, Any]:
    config = load_run(run_dir, changes=changes)
    with session(config, RunRequest(resume=run_dir)) as training_run:
        return finish(training_run)


def test_async_learns_keeps_its_ratio_and_goes_on_with_other_shards(tmp_path):
    with begin(tmp_path, ASYNC) as training_run:
        first = finish(training_run)
    second = _resumed(tmp_path, {"run.env_steps": 8_000, "replay.shards": 1})

    assert first["best_score"] > 0.9
    assert second["env_steps"] >= 8_000 > first["env_steps"]
    assert second["learner_steps"] > first["learner_steps"]
    logged = record(tmp_path, "logged")
    for counter in ("env_steps", "learner_steps", "episodes", "wall_s"):
        values = [entry[counter] for entry in logged]
        assert values == sorted(values)
    metrics = [entry["metrics"] for entry in logged]
    assert metrics[-1]["replay/samples_per_insert"] == pytest.approx(RATIO, rel=0.05)
    assert all(m["replay/samples_per_insert"] <= RATIO for m in metrics)  # never more
    assert max(_ahead(entry) for entry in logged) <= AHEAD
    fresh = [m for m in metrics if m.get("actors/fresh_ms_p50") is not None]
    assert fresh
    assert all(0 < m["actors/fresh_ms_p50"] <= m["actors/fresh_ms_p99"] for m in fresh)
    assert metrics[-1]["cluster/hosts"] == 1.0
    assert {m["cluster/lost_rows"] for m in metrics} == {0.0}
    search = checkpoint.newest(tmp_path / "checkpoints")
    assert search.broken == []
    assert search.found is not None
    assert {segment.shard for segment in search.found.segments()} <= {0}


def test_calls_that_fail_on_their_way_are_made_again_and_applied_once(tmp_path, monkeypatch):
    """Ray's own losses: tests/integration/test_ray_engine_real.py."""
    monkeypatch.setattr("rookery.cluster.cluster_group.Cluster", LossyCluster)
    settings = ASYNC | {"run.env_steps": 4_000, "replay.sampling": "prioritized"}
    with begin(tmp_path, settings) as training_run:
        witness = Witness(training_run, tmp_path)

        def look(training_run: TrainingRun, event: Event) -> None:
            witness.look(event)
            if not witness.noted and witness.cluster_actors.acknowledged_rows > 1_000:
                witness.note()
                witness.save()
            if isinstance(event, Stopped):
                witness.report(event)

        finish(training_run, look)
        lost = sum(handle.host._link.lost for handle in witness.cluster_actors.handles)
    report = json.loads((tmp_path / "report.json").read_text())
    account(report)

    assert lost > 20
    assert report["restarts"] == report["lost_rows"] == 0
    assert [noted["missing"] for noted in report["noted"]] == [0, 0]
