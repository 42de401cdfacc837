"""`rookery report`: what is on the page, of runs in any state."""

import json

import pytest

from page_parts import PageParser
from rookery.cli.main import main
from rookery.event import Counters, Logged, Warned
from rookery.report.trackers.jsonl import Jsonl
from run_records_on_disk import group, record

EVIL = "</script><b>"


@pytest.fixture
def run_dir(tmp_path):
    """A run that rose from 0.25 to 0.5, with losses and a fault."""
    folder = record(tmp_path / "a", {1_000: 0.25, 2_000: 0.5})
    sink = Jsonl(folder)
    sink.write(Logged(Counters(2_000), 9.0, {"train/loss": 0.5, "time/fps": 100.0}))
    sink.write(Warned(Counters(2_000), "crash", f"actor-0 ended: {EVIL}"))
    sink.close()
    about = {"command": ["rookery", "train", EVIL], "commit": "abc", "versions": {"torch": "2.0"}}
    (folder / "run.json").write_text(json.dumps(about))
    return folder


def page_of(*argv):
    assert main(["report", *map(str, argv)]) == 0
    return PageParser((argv[0] / "report.html").read_text())


def row(page, name):
    """Returns the first cell behind a name."""
    return page.words[page.words.index(name) + 1]


def test_the_page_has_results_curves_machine_settings_and_faults(run_dir):
    page = page_of(run_dir)

    assert row(page, "best score") == "0.50"
    assert row(page, "state") == "not over"  # something came after its end: it was resumed
    assert row(page, "env steps") == "2,000"
    assert row(page, "torch") == "2.0"
    assert row(page, "commit") == "abc"
    assert row(page, "command") == f"rookery train {EVIL}"
    assert row(page, "eval.period") == "1000"
    assert any(f"2,000 env steps, crash: actor-0 ended: {EVIL}" in word for word in page.words)
    curves = {option["yAxis"]["name"]: option["series"] for option in page.options}
    assert list(curves) == ["eval/mean_reward", "rollout/ep_rew_mean", "time/fps", "train/loss"]
    [score] = curves["eval/mean_reward"]
    assert [point[:2] for point in score["data"]] == [[1_000, 0.25], [2_000, 0.5]]


def test_several_runs_share_charts_and_their_differences_come_first(tmp_path):
    group(tmp_path, "x", [0.25, 0.5])

    page = page_of(tmp_path)

    assert [series["name"] for series in page.options[0]["series"]] == [
        str(tmp_path / "x-0"),
        str(tmp_path / "x-1"),
    ]
    at = page.words.index("Settings that differ")
    assert page.words[at + 4 : at + 7] == ["run.seed", "0", "1"]
    assert page.words[at + 7] == "All settings"


def test_markdown_is_text(run_dir, capsys):
    assert main(["report", str(run_dir), "--markdown", "--json"]) == 0

    answer = json.loads(capsys.readouterr().out)
    out = str(run_dir / "report.md")
    assert answer == {"runs": [str(run_dir)], "unread": [], "file": out}
    text = (run_dir / "report.md").read_text()
    assert "| best score | 0.50 |" in text
    assert "## Settings" in text
    assert "<b>" not in text


def test_a_run_that_has_only_begun_has_a_report(tmp_path, capsys):
    folder = record(tmp_path / "a", {}, reason=None)
    for name in ("metrics.jsonl", "run.json"):
        (folder / name).unlink(missing_ok=True)

    page = page_of(folder)

    assert row(page, "best score") == "-"
    assert "No metrics have been logged yet." in page.words
    assert "report of 1 run\n" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["[1]", "{broken", '{"versions": 3, "command": {}}'])
def test_a_damaged_file_of_facts_is_no_error(run_dir, text):
    (run_dir / "run.json").write_text(text)

    assert row(page_of(run_dir), "commit") == "-"


def test_a_run_that_cannot_be_read_is_left_out_and_named(tmp_path, capsys):
    group(tmp_path, "a", [1.0])
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "config.yaml").write_text("nonsense: 3\n")

    page = page_of(tmp_path)

    assert any("left out" in word and "nonsense" in word for word in page.words)
    assert "nonsense" in capsys.readouterr().out
    assert main(["report", str(tmp_path / "bad")]) == 2


def test_what_is_no_run_is_refused(tmp_path, capsys):
    assert main(["report", str(tmp_path)]) == 2
    assert "holds no run" in capsys.readouterr().err


def test_a_place_that_cannot_be_written_is_refused(run_dir, tmp_path, capsys):
    (tmp_path / "file").write_text("")

    assert main(["report", str(run_dir), "--out", str(tmp_path / "file" / "r.html")]) == 2
    assert "choose another file with --out" in capsys.readouterr().err
