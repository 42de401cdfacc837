"""`rookery ladder` and `rookery play` on run folders whose policies are untrained."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from page_parts import PageParser
from rookery.algorithms import build_algorithm
from rookery.checkpoints import checkpoint
from rookery.checkpoints.checkpoint import Content
from rookery.cli.main import main
from rookery.config.load import RUN_FILE, dump, load
from rookery.envs.make import make
from rookery.networks.named_arrays import arrays_of
from rookery.selfplay.snapshot_files import SnapshotStore
from rookery.types import Array

GAMES = ("tictactoe", "connect_four", "ludo")


def weights(config: Any, seed: int) -> dict[str, Array]:
    envs = make(config.env, 1)
    envs.close()
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return dict(arrays_of(build_algorithm(config, envs.spec).acting))


def write_run(run_dir: Path, game: str, *, snapshots: int) -> Path:
    """A folder as a run of this game leaves it: a checkpoint, and so many snapshots."""
    run_dir.mkdir()
    config = load(None, changes={"env.id": game, "net.hidden": [16]})
    (run_dir / RUN_FILE).write_text(dump(config))
    for i in range(1, snapshots + 1):
        about = {"version": 40 * i, "learner_steps": 200 * i, "env_steps": 800 * i}
        SnapshotStore(run_dir / "opponents").put(40 * i, weights(config, i), about)
    counters = {"env_steps": 4000, "learner_steps": 1000, "episodes": 300}
    final = Content(4000, 200, False, True, {"counters": counters}, weights(config, 99))
    checkpoint.write(run_dir / "checkpoints", checkpoint.name_of(4000), final)
    return run_dir


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("runs") / "a", "tictactoe", snapshots=5)


def answered(capsys: pytest.CaptureFixture[str], *argv: object) -> dict[str, Any]:
    capsys.readouterr()
    assert main([*map(str, argv), "--json"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    answer: dict[str, Any] = json.loads(line)
    return answer


def test_all_pairs_of_players_meet_and_the_perfect_player_is_on_top(run, capsys):
    answer = answered(capsys, "ladder", run, "--games", 20)

    names = [player["name"] for player in answer["players"]]
    assert set(names) == {"random", "scripted", "v40", "v80", "v120", "v160", "v200"}
    assert names[0] == "scripted"
    assert all(player["games"] == 6 * 20 for player in answer["players"])
    (random,) = (p for p in answer["players"] if p["name"] == "random")
    assert random["elo"] == random["deviation"] == 0.0
    payoff = np.array(answer["payoff"], dtype=float)
    other = ~np.eye(7, dtype=bool)
    assert np.allclose((payoff + payoff.T)[other], 1.0)
    assert answer["cycles"]["triples"] <= 10


def test_the_same_seed_gives_the_same_ladder_and_another_one_another(run, capsys):
    one, other = (answered(capsys, "ladder", run, "--games", 10) for _ in range(2))
    third = answered(capsys, "ladder", run, "--games", 10, "--seed", 1)

    assert one == other
    assert one["payoff"] != third["payoff"]


def test_at_most_so_many_snapshots_play_and_the_newest_does(run, capsys):
    answer = answered(capsys, "ladder", run, "--games", 2, "--snapshots", 2)

    assert {p["name"] for p in answer["players"]} == {"random", "scripted", "v40", "v200"}


@pytest.mark.parametrize("game", GAMES)
def test_every_game_of_ours_has_a_ladder(game, tmp_path, capsys):
    folder = write_run(tmp_path / "run", game, snapshots=1)

    answer = answered(capsys, "ladder", folder, "--games", 20)

    assert answer["game"] == game
    assert {p["name"] for p in answer["players"]} == {"random", "scripted", "v40"}
    scripted = next(p for p in answer["players"] if p["name"] == "scripted")
    assert scripted["against_random"] > 0.5


def test_the_table_and_the_picture_show_the_same_players(run, tmp_path, capsys):
    out = tmp_path / "pictures" / "ladder.html"
    assert main(["ladder", str(run), "--games", "4", "--out", str(out)]) == 0

    said = capsys.readouterr().out
    texts = PageParser(out.read_text()).options[1]["xAxis"]["data"]
    for name in ("random", "scripted", "v40", "v200"):
        assert name in said
        assert name in texts
    assert "Spearman" in said
    assert str(out) in said


def test_a_run_without_snapshots_has_its_checkpoint_rated(tmp_path, capsys):
    folder = write_run(tmp_path / "run", "tictactoe", snapshots=0)

    answer = answered(capsys, "ladder", folder, "--games", 2)

    (latest,) = (p for p in answer["players"] if p["name"] == "latest")
    assert (latest["version"], latest["learner_steps"]) == (200, 1000)
    assert answer["spearman"] is None
    assert list(folder.glob("opponents*")) == []  # looking leaves nothing behind


def test_a_run_of_an_environment_for_one_is_refused(tmp_path, capsys):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / RUN_FILE).write_text(dump(load("corridor")))

    for verb in ("ladder", "play"):
        assert main([verb, str(folder)]) == 2
        assert "an environment for one agent" in capsys.readouterr().err


def test_a_policy_with_memory_is_refused(tmp_path, capsys):
    folder = write_run(tmp_path / "run", "tictactoe", snapshots=1)
    changed = load(None, changes={"env.id": "tictactoe", "algo.name": "r2d2"})
    (folder / RUN_FILE).write_text(dump(changed))

    assert main(["ladder", str(folder)]) == 2
    assert "has memory" in capsys.readouterr().err


def test_snapshots_of_another_network_are_refused(tmp_path, capsys):
    folder = write_run(tmp_path / "run", "tictactoe", snapshots=1)
    wider = load(None, changes={"env.id": "tictactoe", "net.hidden": [32]})
    (folder / RUN_FILE).write_text(dump(wider))

    assert main(["ladder", str(folder)]) == 3
    assert "another network" in capsys.readouterr().err


def through_a_pipe(run_dir: Path, lines: str, *argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "rookery", "play", str(run_dir), *argv],
        input=lines,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize("seat", ["first", "second"])
def test_a_whole_game_is_played_through_a_pipe(run, seat):
    """Every cell is named in turn: what is taken is asked for again."""
    cells = "".join(f"{cell}\n" for cell in range(9)) * 3

    played = through_a_pipe(run, cells + "n\n", "--seat", seat)

    assert played.returncode == 0, played.stderr
    assert f"you are {seat}" in played.stdout
    assert "latest plays" not in played.stdout
    assert "best plays" in played.stdout
    assert any(end in played.stdout for end in ("you won", "you lost", "a draw"))
    assert played.stderr == ""


@pytest.mark.parametrize("game", GAMES)
@pytest.mark.parametrize("who", ["latest", "v40", "random", "scripted"])
def test_every_game_can_be_played_against_every_opponent(game, who, tmp_path, capsys, monkeypatch):
    """A person who always does the first thing that is allowed comes to an end."""
    folder = write_run(tmp_path / "run", game, snapshots=1)
    asked: list[str] = []

    def first_allowed(prompt: str) -> str:
        asked.append(capsys.readouterr().out)
        if prompt.startswith("again"):
            return "n"
        (offer,) = [line for line in asked[-1].splitlines() if line.startswith("you may play: ")]
        return offer.removeprefix("you may play: ").split(",")[0]

    monkeypatch.setattr("builtins.input", first_allowed)

    assert main(["play", str(folder), "--against", who]) == 0

    told = "".join(asked) + capsys.readouterr().out
    assert f"{game} against {who}" in told
    assert f"{who} plays" in told
    assert told.strip().splitlines()[-1].startswith("bye: ")


def test_a_reader_who_leaves_is_no_error(run):
    """`rookery play ... | head`: the reader has closed the pipe."""
    play = f"yes 0 | {sys.executable} -m rookery play {run} --seat first | head -n 4"

    played = subprocess.run(
        ["bash", "-c", play],
        capture_output=True,
        text=True,
        timeout=120,
    )

    assert played.stderr == ""
    assert len(played.stdout.splitlines()) == 4


def test_a_snapshot_that_is_not_there_is_refused_with_those_there_are(run, capsys):
    assert main(["play", str(run), "--against", "v41"]) == 2

    said = capsys.readouterr().err
    assert "'v41'" in said
    assert "v40, v80" in said
