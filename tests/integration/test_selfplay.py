"""Runs that play against their past: the same every time, wherever, and after a stop."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inline_runs import begin, finish, inline, resume, stop_at
from rookery.config.load import load
from rookery.envs.turn_based.game import Who
from rookery.errors import ConfigError
from rookery.selfplay.opponents import GRACE
from rookery.training.build import Parts
from run_processes import record

__all__ = ["inline"]  # a fixture

MIXED = {"random": 1, "scripted": 1, "latest": 1, "past": 1, "prioritized": 1}
SMALL: dict[str, Any] = {
    "env.id": "tictactoe",
    "run.env_steps": 700,
    "selfplay.opponents": MIXED,
    "selfplay.snapshot_period": 20,
    "selfplay.keep": 3,
    "selfplay.opening": 1,
    "net.hidden": [16],
    "replay.learning_starts": 64,
    "replay.batch_size": 16,
    "replay.capacity": 400,
    "replay.samples_per_insert": 4.0,
    "actor.envs": 8,
    "actor.chunk": 32,
    "eval.period": 300,
    "eval.episodes": 8,
    "checkpoint.period": 250,
    "learner.device": "cpu",
}
SYNC = {"run.mode": "sync", "run.engine": "inline", "actor.num": 2}
BOTH = {"selfplay.learn_from_both_seats": True}
RESULT = ("weights_sha256", "env_steps", "learner_steps", "episodes", "best_score")


def run(run_dir: Path, changes: dict[str, Any]) -> dict[str, Any]:
    with begin(run_dir, SMALL | changes) as training_run:
        answer = finish(training_run)
    return {key: answer[key] for key in RESULT}


def rows(parts: Parts, column: str) -> Any:
    ring = parts.replay.ring  # type: ignore[union-attr]
    return ring.columns[column][ring.slots(0, min(ring.committed, ring.capacity))]


@pytest.mark.usefixtures("inline")
@pytest.mark.parametrize("seats", [{}, BOTH], ids=["one seat", "both seats"])
def test_in_sync_a_run_is_the_same_wherever_its_actors_live(seats, tmp_path):
    here = run(tmp_path / "here", SYNC | seats)
    there = run(tmp_path / "there", SYNC | seats | {"run.engine": "processes"})

    assert here["learner_steps"] > 60
    assert there == here


@pytest.mark.usefixtures("inline")
@pytest.mark.parametrize("seats", [{}, BOTH], ids=["one seat", "both seats"])
def test_a_run_that_is_stopped_in_mid_game_goes_on_exactly(seats, tmp_path):
    whole = run(tmp_path / "whole", seats)
    for event in (30, 90, 150):
        halves = tmp_path / f"stopped after {event}"
        with begin(halves, SMALL | seats) as training_run:
            finish(training_run, stop_at(event))
        with resume(halves, exact=True) as training_run:
            answer = finish(training_run)

        assert {key: answer[key] for key in RESULT} == whole, event


@pytest.mark.usefixtures("inline")
def test_snapshots_are_kept_within_their_number_and_counted_in_the_record(tmp_path):
    run(tmp_path / "run", {})
    files = sorted((tmp_path / "run" / "opponents").iterdir())
    last = record(tmp_path / "run", "logged")[-1]["metrics"]

    assert 3 <= len(files) <= 3 + GRACE  # some were dropped, and may still be played against
    assert last["selfplay/snapshots"] == 3
    assert last["selfplay/games"] > 50
    assert 0 <= last["selfplay/win_rate_random"] <= 1


def test_every_evaluation_rates_its_snapshot(tmp_path):
    """Random play has 0, and the deviation says how sure that is."""
    run(tmp_path / "run", {})
    evaluations = record(tmp_path / "run", "evaluated")

    assert len(evaluations) >= 2
    for each in evaluations:
        assert -400 < each["elo"] < 800
        assert 0 < each["elo_deviation"] < 400


@pytest.mark.usefixtures("inline")
def test_rows_know_the_version_of_their_opponent(tmp_path):
    with begin(tmp_path / "run", SMALL) as training_run:
        finish(training_run)
        met, version = rows(training_run.parts, "opponent"), rows(training_run.parts, "version")
        snapshots = {int(path.stem[1:]) for path in (tmp_path / "run" / "opponents").iterdir()}

    assert {Who.RANDOM, Who.SCRIPTED} <= set(met)
    assert snapshots & set(met[met > 0])
    assert (met <= version).all()  # no opponent is newer than the weights
    assert (met == version).any()  # against our present selves


@pytest.mark.usefixtures("inline")
def test_an_opponents_moves_are_not_rows_of_ours_unless_that_is_asked_for(tmp_path):
    """Between strangers one seat is ours: as many rows as we have moves, five at the most."""
    strangers = {"selfplay.opponents": {"random": 1}, "selfplay.opening": 0}
    with begin(tmp_path / "one", SMALL | strangers | BOTH) as training_run:
        finish(training_run)
        who, t = rows(training_run.parts, "opponent"), rows(training_run.parts, "t")
    with begin(
        tmp_path / "both", SMALL | BOTH | {"selfplay.opponents": {"latest": 1}}
    ) as training_run:
        finish(training_run)
        lanes = rows(training_run.parts, "env")

    assert set(who) == {Who.RANDOM}
    assert t.max() <= 5
    assert set(np.unique(lanes % 2)) == {0, 1}


@pytest.mark.parametrize(
    "local_actors", [{}, SYNC | {"run.engine": "processes"}], ids=["single", "sync"]
)
def test_opponents_need_a_game(local_actors, tmp_path):
    with (
        pytest.raises(ConfigError, match="needs a game with several seats, but CartPole-v1"),
        begin(tmp_path / "run", SMALL | local_actors | {"env.id": "CartPole-v1"}),
    ):
        pass
    assert not (tmp_path / "run" / "opponents").exists()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"run.mode": "async", "run.engine": "ray"}, "run.engine"),
        ({"algo.name": "r2d2"}, "remembers"),
        ({"selfplay.league": True, "selfplay.opponents": {}}, "selfplay.league false only"),
    ],
)
def test_what_does_not_go_with_opponents_is_refused(changes, said):
    with pytest.raises(ConfigError, match=said):
        load(changes=SMALL | changes)


@pytest.mark.usefixtures("inline")
@pytest.mark.parametrize(
    "game",
    [
        {"env.id": "pettingzoo.classic.rps.rps:parallel_env", "env.kwargs": {"max_cycles": 4}},
        {"env.id": "pettingzoo.classic.tictactoe.tictactoe:env"},
    ],
    ids=["at once, without masks", "by turns, with masks"],
)
def test_pettingzoos_games_are_played_against_opponents_the_same_every_time(game, tmp_path):
    """They cannot be saved, so games are cut at checkpoints."""
    others = {"random": 1, "latest": 1, "past": 1}
    changes = game | {"selfplay.opponents": others, "run.env_steps": 500}
    whole = run(tmp_path / "whole", changes)

    assert whole["episodes"] > 20
    assert run(tmp_path / "again", changes) == whole
