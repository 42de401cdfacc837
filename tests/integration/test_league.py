"""Leagues: main runs and exploiters of one pool, which meet each other's snapshots."""

import os
import signal
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from eventually import eventually
from inline_runs import begin, finish, inline, resume, stop_at
from rookery.checkpoints import checkpoint
from rookery.checkpoints.run_folder import LOCK
from rookery.cli.main import main
from rookery.config.load import load_run
from rookery.envs.turn_based.game import Who
from rookery.selfplay.snapshot_files import TAG_BITS, claim
from rookery.training.run import TrainingRun
from run_processes import CommandForker, Started, members, record, words

__all__ = ["inline"]  # a fixture

TINY: dict[str, Any] = {
    "env.id": "tictactoe",
    "run.env_steps": 500,
    "net.hidden": [16],
    "replay.capacity": 400,
    "replay.learning_starts": 64,
    "replay.batch_size": 16,
    "actor.envs": 8,
    "actor.chunk": 32,
    "eval.period": 1_000,
    "learner.device": "cpu",
    "selfplay.league": True,
    "selfplay.opponents": {"latest": 1, "past": 2},
    "selfplay.snapshot_period": 10,
    "selfplay.keep": 2,  # snapshots go while others may meet them
}
EXPLOITER = {"selfplay.part": "exploiter", "selfplay.opponents": {"past": 1}}
SHORT = {
    "run.env_steps": 1_500,
    "replay.learning_starts": 256,
    "replay.capacity": 2_000,
    "selfplay.snapshot_period": 10,
    "eval.period": 1_000,
    "eval.episodes": 10,
    "checkpoint.period": 500,
    "report.tensorboard": "false",
}
COMMAND = ["share", "--json", "--quiet", "--run-dir", "runs"]
START_S = 120.0  # for three runs to be on their way on a busy machine


def play_in_turns(training_runs: list[TrainingRun]) -> None:
    """An event of each run after the other, so that all of them are there at any time."""
    going = [training_run.events() for training_run in training_runs]
    while going:
        going = [events for events in going if next(events, None) is not None]


def met(run_dir: Path) -> set[int]:
    """Whom a run has ended games against, by its newest checkpoint."""
    found = checkpoint.newest(run_dir / "checkpoints").found
    assert found is not None
    return {who for who, points in found.state()["opponents"]["records"] if points}


def tags(whom: set[int]) -> set[int]:
    return {who >> TAG_BITS for who in whom if who > 0} - {0}


@pytest.fixture
def pool(tmp_path: Path) -> Path:
    return tmp_path / "pool"


@pytest.mark.usefixtures("inline")
@pytest.mark.parametrize("ratio", [0.0, 0.5])
def test_main_runs_meet_all_runs_and_an_exploiter_the_newest_main_snapshots(ratio, pool, tmp_path):
    shared = TINY | {"sharing.pool": str(pool), "sharing.cross_sample_ratio": ratio}
    names = {"one": {}, "two": {"run.seed": 1}, "foe": EXPLOITER | {"run.seed": 2}}
    with ExitStack() as stack:
        training_runs = {
            name: stack.enter_context(begin(tmp_path / name, shared | changes))
            for name, changes in names.items()
        }
        tag = {name: claim(pool / "league", str(tmp_path / name)) for name in names}
        play_in_turns([*training_runs.values()])
        league_seen = training_runs["foe"].parts.opponents.league_seen
        borrowed = {
            name: training_run.parts.peers.statistics()["distributed_samples"]
            for name, training_run in training_runs.items()
        }

    assert tags(met(tmp_path / "one")) == {tag["two"], tag["foe"]}
    assert tags(met(tmp_path / "two")) == {tag["one"], tag["foe"]}
    assert tags(met(tmp_path / "foe")) == {tag["one"], tag["two"]}
    own = {who for who in met(tmp_path / "foe") if who >> TAG_BITS <= 0}
    assert own == {Who.RANDOM}  # before there was anybody; never itself
    assert all(len({who >> TAG_BITS for who in look}) == len(look) for look in league_seen)
    assert all((count > 0) == (ratio > 0) for count in borrowed.values())
    assert not pool.exists()
    for name in names:
        assert 0 < record(tmp_path / name, "logged")[-1]["metrics"]["selfplay/win_rate_league"] < 1


@pytest.mark.usefixtures("inline")
def test_a_run_that_is_stopped_goes_on_against_those_it_was_meeting_though_the_pool_is_gone(
    pool, tmp_path
):
    shared = TINY | {"sharing.pool": str(pool)}
    with begin(tmp_path / "other", shared | {"run.seed": 1}) as other:
        finish(other)
        with begin(tmp_path / "own", shared) as training_run:
            finish(training_run, stop_at(60))
            before = training_run.parts.opponents.league_copies
    assert not pool.exists()

    with resume(tmp_path / "own", exact=True) as training_run:
        assert training_run.parts.opponents.league_copies == before != []
        answer = finish(training_run)

    assert answer["env_steps"] >= 500


@pytest.mark.parametrize("scenario", ["league", "league-exploiter"])
def test_a_league_of_one_is_refused_with_the_command_that_makes_one(
    scenario, capsys, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)

    assert main(["train", scenario]) == 2
    assert "rookery share --scenarios league league-exploiter" in capsys.readouterr().err
    assert not [*tmp_path.iterdir()]


@pytest.fixture
def league(forker: CommandForker, tmp_path: Path) -> Started:
    """Two main runs and an exploiter, started as from a terminal."""
    settings = SHORT | {"run.env_steps": 10_000_000}
    scenarios = ["league", "league", "league-exploiter"]
    return forker.start([*COMMAND, "--scenarios", *scenarios, *words(settings)], tmp_path)


def rates(run_dir: Path) -> list[float]:
    """Every win rate against the league that a run has logged."""
    path = run_dir / "metrics.jsonl"
    logged = [entry["metrics"] for entry in record(run_dir, "logged")] if path.exists() else []
    return [m["selfplay/win_rate_league"] for m in logged if "selfplay/win_rate_league" in m]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_league_goes_on_without_a_run_that_was_killed_and_nothing_of_it_is_left(league, tmp_path):
    runs = [
        tmp_path / "runs" / f"league{name}" for name in ("-seed42", "-seed43", "-exploiter-seed44")
    ]
    one, two, foe = runs
    assert eventually(lambda: all(rates(run) for run in runs), START_S)
    pool = Path(str(load_run(one).sharing.pool))
    assert (pool / "league").is_dir()

    killed = int((one / LOCK).read_text().split()[1])
    assert killed in members(league.pid)
    os.killpg(killed, signal.SIGKILL)
    counts = [len(rates(run)) for run in (two, foe)]
    assert eventually(
        lambda: all(len(rates(r)) > n + 2 for r, n in zip((two, foe), counts, strict=True)), START_S
    )
    league.send(signal.SIGINT)
    league.wait(START_S)

    codes = [run["exit_code"] for run in league.answer["runs"]]
    assert (codes[0], codes[1:]) == (-signal.SIGKILL, [130, 130])
    assert not pool.exists()
    for run in (two, foe):
        assert main(["ladder", str(run), "--games", "2", "--snapshots", "2"]) == 0
