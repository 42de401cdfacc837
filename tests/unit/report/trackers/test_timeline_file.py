"""timeline.jsonl: what goes in comes out, resumed runs are cut back, the file stays small."""

import json
from dataclasses import replace

import pytest

from rookery.config.schema import Config, ReportConfig
from rookery.event import Activity, Counters, Logged, Span, Started, Traced
from rookery.report.trackers import timeline_file, whole_lines
from rookery.report.trackers.rewind import cut
from rookery.report.trackers.sinks import make_sinks
from rookery.report.trackers.timeline_file import (
    NAME,
    WINDOW_S,
    Timeline,
    joined,
    read,
    thin,
    thinned,
)

PLAY, LEARN, WAIT = Activity.PLAY, Activity.LEARN, Activity.WAIT
QUIET = ReportConfig(tensorboard=False)


def started(env_steps=0):
    return Started("", Counters(env_steps), env_steps > 0, {})


def traced(began, *, process="actor-0", env_steps=0, took=1.0, activity=PLAY):
    spans = (Span(activity, began, began + took / 2), Span(WAIT, began + took / 2, began + took))
    totals = {str(activity): took / 2, "wait": took / 2}
    ended = began + took
    counters = Counters(env_steps)
    return Traced(counters, process, began, ended, spans, totals, {str(activity): 10.0}, 0)


def written(run_dir, *events, **options):
    sink = Timeline(run_dir, **options)
    for event in events:
        sink.write(event)
    sink.close()
    return list(read(run_dir / NAME))


def near(event):
    """Rounds to the microseconds of the file."""
    spans = tuple(Span(s.activity, round(s.began, 6), round(s.ended, 6)) for s in event.spans)
    return replace(event, spans=spans, began=round(event.began, 6), ended=round(event.ended, 6))


def test_what_was_traced_is_read_back_to_the_microsecond(tmp_path):
    events = [started(), traced(8123.2512345), traced(8124.2512345, process="learner <&>")]

    found = written(tmp_path, *events)

    assert found[0] == events[0]
    assert [near(event) for event in found[1:]] == [near(event) for event in events[1:]]


def test_a_line_is_json_with_small_spans(tmp_path):
    written(tmp_path, traced(100.0, env_steps=7))

    assert json.loads((tmp_path / NAME).read_text()) == {
        "event": "traced",
        "env_steps": 7,
        "learner_steps": 0,
        "episodes": 0,
        "process": "actor-0",
        "began": 100.0,
        "ended": 101.0,
        "spans": [["play", 0, 500_000], ["wait", 500_000, 500_000]],
        "totals": {"play": 0.5, "wait": 0.5},
        "amounts": {"play": 10.0},
        "dropped": 0,
    }


def test_nothing_traced_leaves_no_file(tmp_path):
    written(tmp_path, started(), Logged(Counters(5), 1.0, {}))

    assert not (tmp_path / NAME).exists()
    assert list(read(tmp_path / NAME)) == []


def test_each_session_is_announced_once(tmp_path):
    written(tmp_path, started(), traced(5.0), traced(6.0))
    found = written(tmp_path, started(9), traced(1.0))

    kinds = [type(event) for event in found]
    assert kinds == [Started, Traced, Traced, Started, Traced]


def test_a_mark_written_twice_is_read_once(tmp_path):
    marks = [traced(5.0), traced(5.0, process="learner"), traced(6.0)]

    assert written(tmp_path, *marks, *marks[1:]) == marks


@pytest.mark.parametrize(
    "junk",
    [
        "null",
        "{}",
        '{"event":"traced","env_steps":1}',
        '{"event":"started","env_steps":1,"learner_steps":"x","episodes":0,"resumed":true}',
        '{"event":"other","env_steps":1}',
        "\x00",
    ],
)
def test_what_is_no_entry_is_left_out(tmp_path, junk):
    written(tmp_path, traced(5.0))
    with (tmp_path / NAME).open("a") as file:
        file.write(f"{junk}\n")

    assert written(tmp_path, traced(6.0)) == [traced(5.0), traced(6.0)]


@pytest.mark.parametrize(
    ("given", "put"), [("100.0", "NaN"), ('"play",0', '"fly",0'), ("0.5", '"a"'), ("[[", "[[[")]
)
def test_an_entry_with_a_wrong_value_is_left_out(given, put):
    good = timeline_file.line(traced(100.0))

    assert timeline_file.parse(good) is not None
    assert timeline_file.parse(good.replace(given, put, 1)) is None


def test_resuming_cuts_the_timeline_back(tmp_path):
    written(tmp_path, started(), *(traced(n, env_steps=n) for n in (10, 20, 30)))

    cut(tmp_path, 20)

    found = list(read(tmp_path / NAME))
    assert [event.counters.env_steps for event in found] == [0, 10, 20]


def test_the_file_stays_below_its_limit_and_the_sums_stay_exact(tmp_path):
    sink = Timeline(tmp_path, limit=4_000)
    sizes = []
    for n in range(150):
        sink.write(traced(float(n), process=f"actor-{n % 2}", took=1.0))
        sizes.append((tmp_path / NAME).stat().st_size)
    sink.close()

    found = list(read(tmp_path / NAME))
    assert max(sizes) <= 4_000
    assert sum(event.totals["play"] for event in found) == pytest.approx(75.0)
    assert sum(event.amounts["play"] for event in found) == pytest.approx(1500.0)
    assert sum(len(event.spans) + event.dropped for event in found) == 300
    assert any(event.spans for event in found)


def test_thinning_keeps_the_same_windows_of_every_process():
    events = [
        traced(n * 0.5, process=process, took=0.5)
        for n in range(200)
        for process in ("actor-0", "learner")
    ]

    thinner = list(thin(thin(events, 2), 4))

    kept = {
        process: {
            int(span.began // WINDOW_S)
            for event in thinner
            if event.process == process
            for span in event.spans
        }
        for process in ("actor-0", "learner")
    }
    touched = {number for first in range(0, 25, 4) for number in (first - 1, first)}
    assert kept["actor-0"] == kept["learner"]
    assert {0, 4, 8} <= kept["learner"] <= touched  # a span may end where a window begins
    assert len(thinner) == 2 * 7  # 100 s are 7 times 4 windows


def test_a_long_span_is_kept_while_it_reaches_into_a_kept_window():
    def one(began, ended):
        return replace(traced(began), spans=(Span(WAIT, began, ended),))

    assert thinned(one(WINDOW_S, WINDOW_S * 2.5), 2).spans
    assert not thinned(one(WINDOW_S, WINDOW_S * 1.5), 2).spans
    assert thinned(one(WINDOW_S, WINDOW_S * 1.5), 2).dropped == 1


def test_sessions_are_thinned_apart():
    events = [started(), traced(0.0), started(3), traced(0.0)]

    assert list(thin(events, 4)) == events


def test_joined_marks_cover_both():
    both = joined(traced(1.0), traced(2.0, activity=LEARN))

    assert (both.began, both.ended, len(both.spans)) == (1.0, 3.0, 4)
    assert both.totals == {"play": 0.5, "wait": 1.0, "learn": 0.5}


@pytest.mark.parametrize("wanted", [True, False])
def test_the_timeline_is_written_where_it_is_wanted(tmp_path, wanted):
    config = Config(report=replace(QUIET, timeline=wanted))
    sinks = make_sinks(tmp_path, config, resumed_at=None, stream=None, terminal=False)

    assert sinks.write(traced(1.0)) == []
    sinks.close()

    assert (tmp_path / NAME).exists() is wanted
    assert whole_lines.read(tmp_path / "metrics.jsonl") == []
    assert whole_lines.read(tmp_path / "progress.csv")[1:] == []
