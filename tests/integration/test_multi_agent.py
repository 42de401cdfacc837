"""Several agents that share one network: every seat's rows are stored, and runs are what they were.

All seats are ours here; runs against opponents are in test_selfplay.py.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inline_runs import begin, finish, inline, resume, stop_at

__all__ = ["inline"]  # a fixture

SMALL: dict[str, Any] = {
    "env.id": "tictactoe",
    "run.env_steps": 600,
    "net.hidden": [16],
    "replay.learning_starts": 64,
    "replay.batch_size": 16,
    "replay.capacity": 2_000,
    "replay.samples_per_insert": 4.0,
    "actor.envs": 8,
    "actor.chunk": 32,
    "eval.period": 300,
    "eval.episodes": 4,
    "checkpoint.period": 250,
    "learner.device": "cpu",
}
RPS = {"env.id": "pettingzoo.classic.rps.rps:parallel_env", "env.kwargs": {"max_cycles": 4}}
TURNS = {"env.id": "pettingzoo.classic.tictactoe.tictactoe:env"}
APART = {"env.id": "pettingzoo_envs:Apart", "actor.envs": 9}
RESULT = ("weights_sha256", "env_steps", "learner_steps", "episodes", "best_score")
RECURRENT = {"algo.name": "r2d2", "algo.burn_in": 1, "algo.length": 4, "algo.overlap": 2}
ROLLOUTS = {
    "replay.learning_starts": None,
    "replay.batch_size": None,
    "replay.samples_per_insert": None,
}

pytestmark = pytest.mark.usefixtures("inline")


def settings(changes: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in (SMALL | changes).items() if value is not None}


def run(run_dir: Path, changes: dict[str, Any]) -> dict[str, Any]:
    with begin(run_dir, settings(changes)) as training_run:
        answer = finish(training_run)
    return {key: answer[key] for key in RESULT}


@pytest.mark.parametrize("game", [{}, RPS, TURNS], ids=["tictactoe", "parallel", "turns"])
def test_every_seat_is_learned_from(game, tmp_path):
    with begin(tmp_path / "run", settings(game)) as training_run:
        answer = finish(training_run)
        ring = training_run.parts.replay.ring
        slots = ring.slots(0, ring.committed)
        lane, end = ring.columns["env"][slots], ring.columns["end"][slots]
        met, version = ring.columns["opponent"][slots], ring.columns["version"][slots]

    assert answer["learner_steps"] > 60
    counts = np.bincount(lane[end == 0], minlength=8)
    assert counts.min() > 0.5 * counts.max()
    assert (met >= version).all()  # all seats play with the weights of the row
    assert (met <= version.max()).all()


@pytest.mark.parametrize("algo", [RECURRENT, {"algo.name": "ppo"} | ROLLOUTS], ids=["r2d2", "ppo"])
def test_other_algorithms_play_all_seats_too(algo, tmp_path):
    assert run(tmp_path / "run", algo)["learner_steps"] > 10


@pytest.mark.parametrize(
    "algo", [{}, RECURRENT, {"algo.name": "ppo"} | ROLLOUTS], ids=["dqn", "r2d2", "ppo"]
)
def test_agents_whose_parts_end_apart_are_learned_from_as_they_ended(algo, tmp_path):
    with begin(tmp_path / "run", settings(APART | algo)) as training_run:
        answer = finish(training_run)
        ring = training_run.parts.replay.ring
        slots = ring.slots(0, ring.committed)
        seat, end = ring.columns["env"][slots] % 3, ring.columns["end"][slots]

    assert answer["learner_steps"] > 10
    by_seat = [np.bincount(end[seat == one], minlength=3).tolist() for one in range(3)]
    (_, first, none), (_, nobody, limited), (_, last, _) = by_seat
    assert (none, nobody) == (0, 0)  # but for seat 2, whom checkpoints cut
    assert min(first, limited, last) > 20


@pytest.mark.parametrize("game", [{}, RPS], ids=["tictactoe", "parallel"])
def test_in_sync_a_run_is_the_same_wherever_its_actors_live(game, tmp_path):
    local_actors = game | {"run.mode": "sync", "run.engine": "inline", "actor.num": 2}
    here = run(tmp_path / "here", local_actors)

    assert run(tmp_path / "there", local_actors | {"run.engine": "processes"}) == here


@pytest.mark.parametrize("game", [{}, TURNS, APART], ids=["saved", "cut", "apart"])
@pytest.mark.parametrize("event", [30, 110])
def test_a_run_that_is_stopped_goes_on_exactly(event, game, tmp_path):
    whole = run(tmp_path / "whole", game)
    with begin(tmp_path / "halves", settings(game)) as training_run:
        finish(training_run, stop_at(event))
    with resume(tmp_path / "halves", exact=True) as training_run:
        answer = finish(training_run)

    assert {key: answer[key] for key in RESULT} == whole


def test_one_network_may_answer_all_lanes(tmp_path):
    central = {"run.mode": "sync", "run.engine": "processes", "actor.inference": "central"}

    assert run(tmp_path / "run", central)["learner_steps"] > 60


def test_in_async_short_games_never_fill_a_ring(tmp_path):
    quick = {"run.mode": "async", "run.engine": "processes", "actor.num": 2, "run.env_steps": 3_000}

    assert run(tmp_path / "run", quick)["env_steps"] >= 3_000
