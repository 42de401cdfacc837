"""`rookery pathfinding`: what is refused before anything is played, and what is said."""

import argparse
from pathlib import Path

import pytest
from safetensors.numpy import save

from rookery.cli.main import main
from rookery.config.load import RUN_FILE, dump
from rookery.config.schema import Config
from rookery.errors import CheckpointError, ConfigError
from rookery.networks.named_arrays import fingerprint
from rookery.pathfinding.evaluation import case_sets, team_policy
from rookery.pathfinding.verb import (
    FORMATS,
    METHOD_NAMES,
    VERBS,
    _folder,
    add_arguments,
    densities,
    heading,
    picture_line,
    row,
    sizes,
)
from rookery.pathfinding.world.rules import Collision
from rookery.terminal.arguments import Parser

RESULT = {
    "agents": 64,
    "size": "17-21",
    "cases": 200,
    "success": 0.995,
    "individual_success": 0.99922,
    "mean_length": 54.26,
    "sum_of_costs": 1345.5,
}


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_a_help(verb, capsys):
    assert main(["pathfinding", verb, "--help"]) == 0
    assert f"rookery pathfinding {verb}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([], "VERB"),
        (["judge"], "invalid choice"),
        (["evaluate"], "RUN"),
        (["evaluate", "runs/absent"], "no run folder 'runs/absent'"),
        (["evaluate", "runs/absent", "--agnts", "8"], "did you mean --agents?"),
        (["evaluate", "runs/absent", "--agents", "8,0"], "above 0"),
        (["evaluate", "runs/absent", "--size", "21-17"], "at least 2, or 17-21"),
        (["evaluate", "runs/absent", "--size", "1"], "at least 2, or 17-21"),
        (["evaluate", "runs/absent", "--density", "1.0"], "below 1, or 0.1-0.3"),
        (["evaluate", "runs/absent", "--density", "much"], "below 1, or 0.1-0.3"),
        (["evaluate", "runs/absent", "--cases", "0"], "above 0"),
        (["evaluate", "runs/absent", "--steps", "0"], "above 0"),
        (["evaluate", "runs/absent", "--seed", "-1"], "at least 0"),
        (["evaluate", "runs/absent", "--collision", "hard"], "invalid choice"),
        (["evaluate", "runs/absent", "--checkpoint", "newest"], "best, last or a number"),
        (["evaluate", "runs/absent", "--map", "a.map"], "give both, or neither"),
        (["evaluate", "runs/absent", "--scen", "a.scen"], "give both, or neither"),
        (["evaluate", "x", "--cases-file", "a.npz", "--size", "8"], "leave one of them out"),
        (["evaluate", "x", "--map", "a", "--scen", "b", "--cases", "2"], "leave one of them out"),
        (
            ["evaluate", "x", "--cases-file", "a.npz", "--map", "a", "--scen", "b"],
            "both give problem instances",
        ),
        (["evaluate", "x", "--map", "a", "--scen", "b", "--size", "9"], "--size and --map"),
        (["evaluate", "demo", "--size", "9999", "--cases", "999999"], "lower --cases or --size"),
        (["show", "runs/absent", "--agents", "8,16"], "above 0"),
        (["show", "runs/absent", "--out", "a.mp4"], "does not end in .svg or .gif"),
        (["show", "runs/absent", "--pace", "0"], "from 0.1 to 50"),
        (["show", "runs/absent", "--pace", "nan"], "from 0.1 to 50"),
        (["show", "runs/absent", "--case", "-1"], "at least 0"),
        (["show", "runs/absent", "--case", "1000001"], "from 0 to 1000000"),
        (["demo", "--device", "gpu"], "auto, cpu or cuda:N"),
        (["demo", "--threads", "0"], "above 0"),
        (["demo", "--out", "demo.png"], "does not end in .svg or .gif"),
        (["demo", "--agents", "8"], "does not take '--agents'; `rookery pathfinding --help`"),
    ],
)
def test_a_wrong_request_is_one_line_and_exit_code_2(argv, said, capsys):
    assert main(["pathfinding", *argv]) == 2

    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert said in err


def test_a_run_of_another_algorithm_is_refused(tmp_path, capsys):
    (tmp_path / RUN_FILE).write_text(dump(Config()))

    assert main(["pathfinding", "evaluate", str(tmp_path)]) == 2
    assert "needs a run of the algorithm team" in capsys.readouterr().err


def test_the_demo_says_what_to_do_where_there_is_no_policy(monkeypatch, capsys):
    monkeypatch.setattr(team_policy, "PACKAGED", "absent.safetensors")

    assert main(["pathfinding", "demo"]) == 2
    assert "no packaged policy" in capsys.readouterr().err


@pytest.mark.parametrize("make", [Path.mkdir, Path.touch], ids=["folder", "file"])
def test_the_word_demo_is_ours_where_something_else_has_that_name(make, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make(tmp_path / "demo")

    ours, theirs = (
        team_policy.load_team_policy("demo", device="cpu"),
        team_policy.load_packaged_policy(device="cpu"),
    )

    assert fingerprint(ours.arrays) == fingerprint(theirs.arrays)


def test_a_run_folder_that_is_called_demo_is_the_users(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / RUN_FILE).write_text(dump(Config()))

    with pytest.raises(ConfigError, match="'demo' was trained by dqn"):
        team_policy.load_team_policy("demo", device="cpu")


def test_a_file_of_an_export_that_is_called_demo_is_the_users(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "demo").write_bytes(save({}, metadata={"rookery": '{"format": 0}'}))

    with pytest.raises(CheckpointError, match="demo has format 0"):
        team_policy.load_team_policy("demo", device="cpu")


def test_pictures_go_into_a_run_folder_and_into_no_other(tmp_path):
    (tmp_path / RUN_FILE).touch()

    assert _folder(str(tmp_path)) == tmp_path
    assert _folder(str(tmp_path.parent)) == Path()


def test_a_checkpoint_means_nothing_to_a_file(tmp_path, capsys):
    file = tmp_path / "policy.safetensors"
    file.touch()

    assert main(["pathfinding", "evaluate", str(file), "--checkpoint", "last"]) == 2
    assert "give the run folder" in capsys.readouterr().err


@pytest.mark.parametrize(("text", "found"), [("40", (40, 40)), ("17-21", (17, 21))])
def test_a_size_is_a_number_or_a_range(text, found):
    assert sizes(text) == found


@pytest.mark.parametrize(
    ("text", "found"), [("0.3", (0.3, 0.3)), ("0.1-0.3", (0.1, 0.3)), ("0", (0.0, 0.0))]
)
def test_a_density_is_a_share_or_a_range(text, found):
    assert densities(text) == found


@pytest.mark.parametrize("text", ["0.3-0.1", "-0.1", "1", "0.1-1.0", "nan", ""])
def test_a_density_of_all_cells_or_more_is_refused(text):
    with pytest.raises(argparse.ArgumentTypeError):
        densities(text)


def test_a_row_lies_below_its_heading():
    head, line = heading(several=False), row(RESULT)

    assert line.split() == ["64", "17-21", "200", "99.5%", "99.9%", "54.3", "1345.5"]
    assert len(head) == len(line)


def test_a_row_names_its_method_if_there_are_several():
    assert heading(several=True).endswith("by")
    assert row(RESULT, "planner").endswith("  planner")


def test_the_answer_says_where_the_picture_is():
    answer = {"file": "a.svg", "agents": 16, "home": 15, "length": 128, "bytes": 2048}

    assert picture_line(answer) == "a.svg: 15 of 16 agents home after 128 steps, 2.0 KB"


def test_what_the_command_line_offers_is_what_there_is():
    parser = Parser(prog="rookery pathfinding", description=None)
    add_arguments(parser)

    for rule in Collision:
        assert parser.parse_args(["show", "demo", "--collision", rule]).collision == rule
    assert tuple(case_sets.WRITERS) == FORMATS
    assert set(case_sets.METHODS) == set(METHOD_NAMES)


def test_flags_of_the_verbs_are_flags_of_the_command():
    parser = Parser(prog="rookery pathfinding", description=None)
    add_arguments(parser)

    assert {"--agents", "--cases-file", "--pace", "--help"} <= set(parser.flags)
    assert len(set(parser.flags)) == len(parser.flags)
