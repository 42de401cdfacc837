"""`rookery timeline`: what it writes, what it says, what it refuses."""

import json

import pytest

from rookery.cli.main import main
from rookery.config.load import RUN_FILE, dump
from rookery.config.schema import Config
from rookery.event import Activity, Counters
from rookery.report.metrics.trace import Trace
from rookery.report.trackers.timeline_file import Timeline


@pytest.fixture
def run_dir(tmp_path):
    """Ten seconds of an actor and a learner that waits."""
    folder = tmp_path / "a"
    folder.mkdir()
    (folder / RUN_FILE).write_text(dump(Config()))
    sink = Timeline(folder)
    for process, busy in (("actor-0", Activity.PLAY), ("learner", Activity.LEARN)):
        trace = Trace(process, now=iter((100.0, 110.0)).__next__)
        for second in range(100, 110):
            quarter = second + 0.25
            trace.note(busy, second, quarter, 5)
            rest = Activity.WRITE if busy is Activity.PLAY else Activity.WAIT
            trace.note(rest, quarter, second + 1.0)
        sink.write(trace.take(Counters(50)))
    sink.close()
    return folder


def test_a_run_becomes_a_page_and_a_trace(run_dir, capsys):
    assert main(["timeline", str(run_dir), "--json"]) == 0

    answer = json.loads(capsys.readouterr().out)
    assert answer == {
        "run_dir": str(run_dir),
        "processes": ["actor-0", "learner"],
        "seconds": 10.0,
        "html": str(run_dir / "timeline.html"),
        "trace": str(run_dir / "trace.json"),
        "flow": None,
    }
    assert (run_dir / "timeline.html").read_text().startswith("<!doctype html>")
    assert len(json.loads((run_dir / "trace.json").read_text())["traceEvents"]) > 20


def test_files_go_where_they_are_wanted(run_dir, tmp_path, capsys):
    out, trace, flow = (tmp_path / "new" / name for name in ("t.html", "t.json", "f.html"))

    flags = ["--out", str(out), "--trace", str(trace), "--flow", str(flow)]
    assert main(["timeline", str(run_dir), *flags]) == 0

    assert all(path.is_file() for path in (out, trace, flow))
    assert not (run_dir / "timeline.html").exists()
    said = capsys.readouterr().out
    assert "2 processes over 10.0 s, limited by actors: the learner waits 75 % of the time" in said
    assert str(flow) in said


def test_a_window_is_what_page_and_trace_show(run_dir):
    assert main(["timeline", str(run_dir), "--from", "2", "--to", "4.5"]) == 0

    events = json.loads((run_dir / "trace.json").read_text())["traceEvents"]
    moments = [event["ts"] / 1e6 for event in events if event["ph"] == "X"]
    assert (min(moments), max(moments)) == (pytest.approx(2.0), pytest.approx(4.25))
    assert "2.5 s from 2.000 s" in (run_dir / "timeline.html").read_text()


@pytest.mark.parametrize("flags", [["--from", "11"], ["--from", "3", "--to", "2"], ["--to", "nan"]])
def test_a_window_outside_the_run_is_refused(run_dir, flags, capsys):
    assert main(["timeline", str(run_dir), *flags]) == 2

    assert "from 0 to 10.000" in capsys.readouterr().err
    assert not (run_dir / "timeline.html").exists()


def test_a_run_without_a_timeline_is_told_how_to_get_one(run_dir, capsys):
    (run_dir / "timeline.jsonl").unlink()

    assert main(["timeline", str(run_dir)]) == 2
    assert "report.timeline=true" in capsys.readouterr().err


def test_what_is_no_run_is_refused(tmp_path, capsys):
    assert main(["timeline", str(tmp_path)]) == 2
    assert "is not a run folder" in capsys.readouterr().err


def test_a_place_that_cannot_be_written_is_refused(run_dir, tmp_path, capsys):
    (tmp_path / "file").write_text("")

    assert main(["timeline", str(run_dir), "--out", str(tmp_path / "file" / "t.html")]) == 2
    assert "choose another file with --out" in capsys.readouterr().err
