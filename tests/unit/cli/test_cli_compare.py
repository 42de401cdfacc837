"""`rookery compare`: what it prints, what it writes, what it refuses."""

import json
import sys

import pytest

from page_parts import PageParser
from rookery.cli import compare as verb
from rookery.cli.main import main
from rookery.event import Reason
from rookery.report.statistics.run_records import Metric
from run_records_on_disk import CARTPOLE, CORRIDOR, group, record

FEW = ["--reps", "100"]
EVIL = "<b>&\"'"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two groups of two runs each; the second is better."""
    top = tmp_path_factory.mktemp("runs")
    group(top, "one", [0.25, 0.5])
    group(top, "two", [0.75, 1.0])
    return top


def answer(capsys, *argv):
    assert main(["compare", *map(str, argv), *FEW, "--json"]) == 0
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_the_answer_has_every_number(folder, capsys):
    found = answer(capsys, folder)

    assert (found["metric"], found["baseline"], found["groups"]) == (
        "eval/mean_reward",
        "one",
        ["one", "two"],
    )
    assert (found["reps"], found["seed"], found["level"], found["html"]) == (100, 0, 0.95, None)
    assert (found["overall"], found["tasks"][0]["task"]) == (None, CORRIDOR)
    two = found["tasks"][0]["cells"][1]
    assert (two["group"], two["runs"]) == ("two", 2)
    assert two["final"]["iqm"] == {"value": 0.875, "low": 0.75, "high": 1.0}
    assert two["reach"]["threshold"] == 1.0
    assert (two["reach"]["reached"], two["reach"]["runs"]) == (1, 2)
    assert two["reach"]["at_least"] == {"value": True, "low": False, "high": True}
    assert two["improvement"]["value"] == 1.0
    assert two["curve"]["env_steps"] == [1_000, 2_000, 3_000, 4_000]
    assert two["curve"]["carried"] == [0, 0, 0, 0]
    assert found["improvement"]["two"]["value"] == 1.0


def test_text_is_plain_where_there_is_no_terminal(folder, capsys):
    assert main(["compare", str(folder), *FEW]) == 0

    said = capsys.readouterr().out
    assert f"{CORRIDOR}: score\n" in said
    assert "  two    2     0.88 [0.75, 1.00]" in said
    assert "P(X > one)" in said
    assert "before you believe it:" in said
    assert said.isascii()
    assert "\x1b" not in said


def test_a_terminal_gets_a_table_with_lines(folder, capsys, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "120")

    assert main(["compare", str(folder), *FEW]) == 0

    said = capsys.readouterr().out
    assert "┃" in said
    assert "0.88 [0.75, 1.00]" in said


def test_groups_thresholds_and_the_metric_can_be_chosen(folder, capsys):
    flags = ["--tag", "two", "--tag", "one", "--threshold", "0.4", "--metric", Metric.ROLLOUT]
    found = answer(capsys, folder, *flags, "--baseline", "one", "--seed", "3")

    assert (found["groups"], found["baseline"], found["seed"]) == (["two", "one"], "one", 3)
    assert found["tasks"][0]["threshold"] == 0.4
    assert found["tasks"][0]["cells"][0]["final"]["iqm"]["value"] == pytest.approx(-0.125)


def test_runs_may_be_named_one_by_one(folder, capsys):
    found = answer(capsys, folder / "two-1", folder / "one-0")

    assert found["groups"] == ["two", "one"]
    assert [cell["runs"] for cell in found["tasks"][0]["cells"]] == [1, 1]
    assert found["tasks"][0]["cells"][0]["spread"] is None


def test_several_tasks_are_put_on_one_scale(tmp_path, capsys):
    record(tmp_path / "a", {1_000: 0.0, 2_000: 0.5})
    record(tmp_path / "b", {1_000: 0.0, 2_000: 300.0}, env__id=CARTPOLE, eval__target=400.0)

    found = answer(capsys, tmp_path)

    assert found["overall"]["scales"][CARTPOLE] == {"lowest": 0.0, "target": 400.0}
    assert found["overall"]["cells"][0]["final"]["mean"]["value"] == pytest.approx(0.625)


def test_a_run_that_goes_on_and_a_damaged_one_are_compared_and_said(tmp_path, capsys):
    record(tmp_path / "a", {1_000: 0.5}, reason=None)
    solved = record(tmp_path / "b", {1_000: 1.0}, reason=Reason.TARGET, run__seed=1)
    with (solved / "metrics.jsonl").open("a") as file:
        file.write('{"event": "evaluated", "env\n{"event": "eval')

    notes = " ".join(answer(capsys, tmp_path)["notes"])

    assert "1 run not over" in notes
    assert "unreadable lines of records, left out: 1" in notes


# The page


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """A page of two groups, one with a name that is trouble."""
    top = tmp_path_factory.mktemp("page")
    group(top / "x", "plain", [0.25, 0.5])
    group(top / "y", "evil", [0.75, 1.0])
    for path in (top / "y").glob("*/config.yaml"):
        path.write_text(path.read_text().replace("tag: evil", f"tag: {json.dumps(EVIL)}"))
    assert main(["compare", str(top), *FEW, "--out", str(top / "new" / "r.html")]) == 0
    return (top / "new" / "r.html").read_text()


def test_the_page_has_every_chart_tables_and_a_warning(page):
    found = PageParser(page)

    curves, finals, steps, better = found.options
    assert curves["xAxis"]["name"] == "env steps"
    assert curves["yAxis"]["name"] == "eval/mean_reward, IQM"
    assert finals["yAxis"]["data"] == steps["yAxis"]["data"] == curves["legend"]["data"]
    goals = [option["series"][-1]["markLine"]["label"] for option in (curves, finals, better)]
    assert [goal["formatter"] for goal in goals] == [
        "threshold 1.00",
        "threshold 1.00",
        "no difference",
    ]
    assert '<th scope="row">plain</th>' in page
    assert "Before you believe it" in found.words


def test_names_are_escaped(page):
    found = PageParser(page)

    assert "b" not in found.tags
    assert EVIL in found.words
    assert EVIL in found.options[0]["legend"]["data"]


# Refusals


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--reps", "99"], "--reps must be from 100 to 100,000"),
        (["--reps", "100001"], "--reps must be"),
        (["--seed", "-1"], "--seed: needs a whole number, at least 0"),
        (["--metric", "eval/mean_rewrd"], "did you mean 'eval/mean_reward'?"),
        (["--threshold", "high"], "needs SCORE or ENV=SCORE"),
        (["--threshold", "nan"], "needs SCORE or ENV=SCORE"),
        (["--threshold", "T="], "needs SCORE or ENV=SCORE"),
        (["--tga", "a"], "did you mean --tag?"),
    ],
)
def test_a_wrong_flag_is_refused(tmp_path, flags, said, capsys):
    assert main(["compare", str(tmp_path), *flags]) == 2

    out, err = capsys.readouterr()
    assert out == ""
    assert said in err


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--tag", "on"], "did you mean 'one'?"),
        (["--baseline", "zzz"], "There are: one, two"),
        (["--threshold", "T=1"], "no run played"),
    ],
)
def test_what_is_not_there_is_refused(folder, flags, said, capsys):
    assert main(["compare", str(folder), *flags]) == 2
    assert said in capsys.readouterr().err


def test_folders_without_runs_are_refused(tmp_path, capsys):
    assert main(["compare", str(tmp_path)]) == 2
    assert "holds no run" in capsys.readouterr().err


def test_runs_without_an_evaluation_are_refused(tmp_path, capsys):
    record(tmp_path / "a", {}, reason=None)

    assert main(["compare", str(tmp_path)]) == 2
    assert "there is no eval/mean_reward yet in 1 run;" in capsys.readouterr().err


def test_a_place_that_cannot_be_written_is_refused(folder, tmp_path, capsys):
    (tmp_path / "file").write_text("")

    assert main(["compare", str(folder), *FEW, "--out", str(tmp_path / "file" / "r.html")]) == 2
    assert "choose another file with --out" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "meant"),
    [("475", ("", 475.0)), ("A-v1=-2.5", ("A-v1", -2.5)), ("a:B=1e3", ("a:B", 1e3))],
)
def test_a_threshold_is_a_score_or_one_for_a_task(text, meant):
    assert verb.threshold(text) == meant
