"""The timeline's pictures: lanes on one clock, every name escaped, files their readers take."""

import json
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from rookery.event import Activity, Counters, Span, Started, Traced
from rookery.report.charts import perfetto
from rookery.report.charts.data_flow import MOST, flow
from rookery.report.charts.gantt import (
    COLOURS,
    FINEST,
    LANE,
    PLOT,
    Box,
    Scale,
    boxes,
    closeup,
    overview,
    ticks,
)
from rookery.report.charts.timeline_lanes import UNITS, busiest, load
from rookery.report.charts.timeline_page import LEGIBLE, legible, page
from rookery.report.trackers.timeline_file import Timeline

PLAY, WAIT, LEARN, DRAIN = Activity.PLAY, Activity.WAIT, Activity.LEARN, Activity.DRAIN
SVG = "{http://www.w3.org/2000/svg}"
VOID = {"meta", "rect", "line", "path", "br"}
EVIL = "<b>&\"'\x00"


def mark(process, *spans, amounts=None, dropped=0):
    totals: dict[str, float] = {}
    for span in spans:
        totals[str(span.activity)] = totals.get(str(span.activity), 0) + span.ended - span.began
    began, ended = spans[0].began, spans[-1].ended
    return Traced(Counters(), process, began, ended, spans, totals, amounts or {}, dropped)


def turns(process, began, seconds, *activities, each=0.01, amount=1.0):
    """A mark of activities that take turns."""
    count = round(seconds / each)
    spans = [
        Span(activities[i % len(activities)], began + i * each, began + (i + 1) * each)
        for i in range(count)
    ]
    amounts = {str(activity): amount * seconds for activity in activities if activity in UNITS}
    return mark(process, *spans, amounts=amounts)


def history(run_dir, *marks):
    sink = Timeline(run_dir)
    for event in marks:
        sink.write(event)
    sink.close()
    return load(run_dir)


@pytest.fixture
def run(tmp_path):
    """Two seconds of two actors, a learner and an evaluator."""
    return history(
        tmp_path,
        turns("learner", 100.0, 2.0, DRAIN, LEARN, Activity.PUBLISH, WAIT, amount=50),
        turns("actor-10", 100.0, 2.0, PLAY, Activity.WRITE, amount=640),
        turns("actor-2", 100.5, 1.5, PLAY, WAIT, amount=320),
        turns("evaluator", 101.0, 1.0, Activity.EVALUATE, WAIT, each=0.5, amount=2),
    )


def shapes(picture, tag="rect"):
    return list(ElementTree.fromstring(picture).iter(f"{SVG}{tag}"))


def texts(picture):
    return [node.text for node in ElementTree.fromstring(picture).iter(f"{SVG}text")]


def drawn(picture, activity):
    return [shape for shape in shapes(picture) if shape.get("class") == str(activity)]


# Lanes.


def test_lanes_are_ordered_along_the_data_path_and_by_number(run):
    assert [lane.process for lane in run.lanes] == ["actor-2", "actor-10", "learner", "evaluator"]


def test_time_begins_with_the_first_span(run):
    firsts = {lane.process: next(lane.spans).began for lane in run.lanes}

    assert run.seconds == pytest.approx(2.0)
    assert firsts["learner"] == 0.0
    assert firsts["actor-2"] == pytest.approx(0.5)


def test_sessions_lie_end_to_end(tmp_path):
    found = history(
        tmp_path,
        Started("", Counters(), False, {}),
        turns("a", 9000.0, 2.0, PLAY),
        Started("", Counters(5), True, {}),
        turns("a", 10.0, 1.0, PLAY),
    )

    assert found.sessions == [0.0, pytest.approx(2.0)]
    assert found.seconds == pytest.approx(3.0)
    assert [mark.began for mark in found.lanes[0].marks] == [0.0, pytest.approx(2.0)]


def test_getting_ready_is_not_part_of_the_run(tmp_path):
    slow = Traced(Counters(), "a", 50.0, 101.0, (Span(PLAY, 100.0, 101.0),), {"play": 1.0}, {}, 0)

    found = history(tmp_path, slow)

    assert found.seconds == pytest.approx(1.0)
    assert found.lanes[0].shares == {"play": pytest.approx(1.0)}


def test_waiting_for_the_others_to_get_up_is_not_part_of_the_run(tmp_path):
    early = mark("learner", Span(WAIT, 90.0, 95.0), Span(WAIT, 96.0, 103.0), Span(LEARN, 103, 104))
    never = mark("evaluator", Span(WAIT, 90.0, 99.0))

    found = history(tmp_path, early, never, turns("actor-0", 100.0, 4.0, PLAY, each=1.0))
    lanes = {lane.process: lane for lane in found.lanes}

    assert found.seconds == pytest.approx(4.0)
    spans = [(s.activity, s.began, s.ended) for s in lanes["learner"].spans]
    assert spans == [
        (WAIT, pytest.approx(0.0), pytest.approx(3.0)),
        (LEARN, pytest.approx(3.0), pytest.approx(4.0)),
    ]
    assert lanes["learner"].shares == {"wait": pytest.approx(0.75), "learn": pytest.approx(0.25)}
    assert (list(lanes["evaluator"].spans), lanes["evaluator"].seconds) == ([], 0.0)


def test_a_run_that_only_waits_is_shown_waiting(tmp_path):
    found = history(tmp_path, mark("learner", Span(WAIT, 90.0, 95.0)))

    assert found.seconds == pytest.approx(5.0)
    assert found.lanes[0].shares == {"wait": pytest.approx(1.0)}


def test_shares_and_rates_count_what_was_dropped(tmp_path):
    first = Traced(
        Counters(), "a", 0.0, 4.0, (Span(PLAY, 0.0, 1.0),), {"play": 3.0}, {"play": 60.0}, 9
    )
    second = mark("a", Span(WAIT, 4.0, 6.0))

    (lane,) = history(tmp_path, first, second).lanes

    assert lane.shares == {"play": pytest.approx(0.5), "wait": pytest.approx(1 / 3)}
    assert lane.rates == {"play": pytest.approx(10.0)}
    assert lane.dropped == 9


def test_the_window_is_where_most_processes_do_most(tmp_path):
    found = history(
        tmp_path,
        turns("a", 0.0, 30.0, PLAY, each=0.5),
        turns("b", 10.0, 5.0, LEARN, WAIT, each=0.5),
        turns("a", 30.0, 1.0, PLAY, WAIT, each=0.004),
    )

    began, ended = busiest(found, 0.0, found.seconds, 3.0)

    assert ended - began == pytest.approx(3.0)
    assert 10.0 <= began <= ended <= 15.0


def test_the_window_ends_with_the_run_at_the_latest(tmp_path):
    found = history(
        tmp_path, turns("a", 0.0, 9.5, PLAY, each=9.5), turns("a", 9.5, 0.5, PLAY, LEARN)
    )

    assert busiest(found, 0.0, 10.0, 3.0) == (pytest.approx(7.0), pytest.approx(10.0))


def test_a_window_longer_than_the_run_is_the_run(run):
    assert busiest(run, 0.0, run.seconds, 3.0) == (0.0, run.seconds)


def test_everything_that_handles_something_has_a_unit_and_all_a_colour():
    assert set(UNITS) == set(Activity) - {WAIT}
    assert set(COLOURS) == set(Activity)


# Gantt.


def test_a_span_is_drawn_where_it_was(tmp_path):
    found = history(
        tmp_path, mark("a", Span(PLAY, 7.0, 9.0), Span(WAIT, 9.0, 15.0), Span(PLAY, 15.0, 17.0))
    )

    one, two = drawn(closeup(found, 0.0, 10.0), PLAY)
    (wait,) = drawn(closeup(found, 0.0, 10.0), WAIT)

    assert float(one.get("x")) + float(one.get("width")) == pytest.approx(float(wait.get("x")))
    assert float(wait.get("width")) == pytest.approx(0.6 * PLOT, abs=0.01)
    assert float(two.get("x")) - float(one.get("x")) == pytest.approx(0.8 * PLOT, abs=0.01)


def test_spans_are_cut_at_the_window(tmp_path):
    found = history(tmp_path, mark("a", Span(PLAY, 0.0, 4.0), Span(WAIT, 4.0, 8.0)))

    (wait,) = drawn(closeup(found, 5.0, 6.0), WAIT)

    assert drawn(closeup(found, 5.0, 6.0), PLAY) == []
    assert float(wait.get("width")) == pytest.approx(PLOT)


def test_pointing_at_a_span_says_what_it_is(run):
    title = drawn(closeup(run, 0.0, 2.0), LEARN)[0].find(f"{SVG}title").text

    assert title == "learner: learn, 10 ms from 0.0100 s"


def test_each_process_has_a_lane_of_its_own(run):
    groups = [g for g in shapes(closeup(run, 0.0, 2.0), "g") if g.get("transform")]

    assert [g.find(f"{SVG}text").text for g in groups] == [lane.process for lane in run.lanes]
    assert len({g.get("transform") for g in groups}) == 4


def test_spans_too_short_to_see_are_drawn_together_as_the_longest():
    scale = Scale(0.0, PLOT)  # a pixel is a second
    crowd = [Span(LEARN if i % 3 else PLAY, i / 100, (i + 1) / 100) for i in range(400)]

    found = list(boxes([*crowd, Span(WAIT, 4.0, 9.0)], scale))

    assert len(found) == pytest.approx(4 / FINEST + 1, abs=1)
    assert all(box.ended - box.began <= FINEST + 0.01 for box in found[:-1])
    assert sum(box.spans for box in found) == 401
    assert {box.activity for box in found[:-1]} == {LEARN}
    assert found[-1] == Box(WAIT, 4.0, 9.0, 1)


def test_ten_thousand_spans_stay_a_picture():
    scale = Scale(0.0, 1.0)
    crowd = (Span(PLAY if i % 2 else WAIT, i * 1e-4, (i + 1) * 1e-4) for i in range(10_000))

    assert len(list(boxes(crowd, scale))) <= 2 * PLOT / FINEST


def test_the_overview_divides_each_slice_of_time(run):
    picture = overview(run, 0.5, 1.0)
    learner = [
        shape
        for shape in shapes(picture)
        if (title := shape.find(f"{SVG}title")) is not None and "learner: learn " in title.text
    ]

    assert sum(float(shape.get("width")) for shape in learner) == pytest.approx(PLOT, rel=0.01)
    assert all("learner: learn 25 %" in shape.find(f"{SVG}title").text for shape in learner)
    assert all(float(shape.get("height")) == pytest.approx(LANE / 4) for shape in learner)
    (frame,) = [shape for shape in shapes(picture) if shape.get("class") == "window"]
    assert float(frame.get("width")) == pytest.approx(PLOT / 4, abs=3)


def test_activities_of_a_slice_stand_on_top_of_each_other(run):
    picture = overview(run, 0.0, 2.0)
    boxes = [shape for shape in shapes(picture) if shape.find(f"{SVG}title") is not None]
    slices: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for shape in boxes:
        process = shape.find(f"{SVG}title").text.partition(":")[0]
        tops = slices.setdefault((process, shape.get("x")), [])
        tops.append((float(shape.get("y")), float(shape.get("height"))))

    assert any(len(tops) == 4 for tops in slices.values())
    for tops in slices.values():
        below = [LANE, *(y for y, _ in tops)]
        for (y, height), foot in zip(tops, below, strict=False):
            assert y + height == pytest.approx(foot, abs=0.02)


def test_where_a_session_begins_there_is_a_line(tmp_path):
    found = history(
        tmp_path,
        turns("a", 0.0, 1.0, PLAY),
        Started("", Counters(), True, {}),
        turns("a", 0, 1, PLAY),
    )

    (line,) = [x for x in shapes(closeup(found, 0.0, 2.0), "line") if x.get("class") == "session"]
    assert float(line.get("x1")) == pytest.approx(Scale(0.0, 2.0).x(1.0), abs=0.01)


@pytest.mark.parametrize(
    ("began", "ended", "first", "step"),
    [
        (0.0, 10.0, "0", 1.0),
        (2.0, 5.0, "2.0", 0.5),
        (0.0, 3600.0, "0", 500.0),
        (7.01, 7.02, "7.010", 0.001),
    ],
)
def test_ticks_are_round_and_labelled(began, ended, first, step):
    found = ticks(Scale(began, ended))

    assert found[0][1] == first
    assert found[1][0] - found[0][0] == pytest.approx(step)
    assert all(began - 1e-6 <= moment <= ended + 1e-6 for moment, _ in found)
    assert len({label for _, label in found}) == len(found) <= 13


# The page.


class Strict(HTMLParser):
    """Fails where tags do not match."""

    def __init__(self):
        super().__init__()
        self.open, self.seen, self.words = [], [], []

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


def parsed(html):
    parser = Strict()
    parser.feed(html)
    parser.close()
    assert parser.open == []
    return parser


def test_the_page_is_whole_and_asks_for_nothing(run):
    found = parsed(page("run", run, 0.0, 2.0))

    tags = [tag for tag, _ in found.seen]
    assert not {"script", "link", "img", "iframe"} & set(tags)
    assert not any(name in ("src", "href") for _, attrs in found.seen for name in attrs)
    assert tags.count("svg") == 4 - (legible(run, 0.0, 2.0) is None)


def test_the_table_has_a_row_for_each_process_and_its_shares(run):
    found = parsed(page("run", run, 0.0, 2.0))

    words = [word.strip() for word in found.words]
    at = words.index("learner", words.index("Shares of time"))
    assert words[at : at + 6] == ["learner", "2.0", "25.0 %", "25.0 %", "25.0 %", "25.0 %"]
    assert [tag for tag, _ in found.seen].count("tr") == 5


def test_the_page_says_what_limits_the_run(tmp_path):
    found = history(
        tmp_path,
        turns("actor-0", 0.0, 1.0, PLAY, PLAY, PLAY, WAIT),
        turns("learner", 0.0, 1.0, LEARN),
    )

    assert "limited by learner: the actors wait 25 % of the time" in page("run", found, 0.0, 1.0)


def test_a_crowded_window_is_shown_closer_where_something_happens(tmp_path):
    found = history(
        tmp_path, turns("a", 0.0, 0.2, PLAY, WAIT, each=0.001), turns("a", 2.9, 0.1, WAIT, each=0.1)
    )

    began, ended = legible(found, 0.0, 3.0)

    assert 0.0 <= began < ended <= 1.0
    assert legible(found, 0.0, 0.001 * LEGIBLE) is None


def test_names_are_escaped_wherever_they_are_shown(tmp_path):
    found = history(tmp_path, turns(EVIL, 0.0, 1.0, PLAY, LEARN, amount=5))

    html = page(EVIL, found, 0.0, 1.0)
    pictures = [closeup(found, 0.0, 1.0), overview(found, 0.0, 1.0), flow(EVIL, found)]

    assert "<b>" not in html
    assert "\x00" not in html
    assert any("<b>&" in word for word in parsed(html).words)
    for picture in pictures:
        assert any("<b>&\"'?" in text for text in texts(picture))


# Flow.


def test_the_flow_shows_every_process_and_the_measured_rates(run):
    shown = texts(flow("run", run))

    assert {"actor-2", "actor-10", "replay", "learner", "board", "evaluator"} <= set(shown)
    for rate in ("320 rows/s", "640 rows/s", "50 rows/s in", "50 batches/s", "50 versions/s"):
        assert rate in shown
    assert "120 snapshots/min" in shown


def test_one_process_for_everything_has_two_roles_in_the_flow(tmp_path):
    shown = texts(flow("run", history(tmp_path, turns("training", 0.0, 1.0, PLAY, DRAIN, LEARN))))

    assert {"actor (training)", "learner (training)"} <= set(shown)
    assert "evaluator" not in shown


def test_many_actors_share_a_box(tmp_path):
    many = [turns(f"actor-{i}", 0.0, 1.0, PLAY, amount=100) for i in range(MOST + 1)]

    shown = texts(flow("run", history(tmp_path, *many)))

    assert f"{MOST + 1} actors" in shown
    assert f"{100 * (MOST + 1)} rows/s" in shown
    assert "actor-0" not in shown


# Perfetto. https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU


def events(run, began=0.0, ended=None):
    text = "\n".join(perfetto.lines(run, began, run.seconds if ended is None else ended))
    return json.loads(text)["traceEvents"]


def test_every_trace_event_has_the_documented_fields(run):
    for event in events(run):
        assert event["ph"] in ("X", "M", "C")
        assert isinstance(event["name"], str)
        assert type(event["pid"]) is int
        assert type(event["tid"]) is int
        assert event["ts"] >= 0
        if event["ph"] == "X":
            assert event["dur"] >= 0
        else:
            assert isinstance(event["args"], dict)


def test_processes_are_named_once_and_in_order(run):
    found = [event for event in events(run) if event["name"] == "process_name"]

    assert [event["args"]["name"] for event in found] == [lane.process for lane in run.lanes]
    assert len({event["pid"] for event in found}) == 4
    named = {e["pid"] for e in events(run) if e["name"] == "thread_name"}
    assert named == {event["pid"] for event in events(run)}


def test_spans_are_complete_events_in_microseconds(run):
    spans = [event for event in events(run) if event["ph"] == "X"]
    learner = [event for event in spans if event["pid"] == 3]

    assert len(spans) == sum(1 for lane in run.lanes for _ in lane.spans)
    assert [(e["name"], e["ts"], e["dur"]) for e in learner[:2]] == [
        ("drain", pytest.approx(0, abs=1), pytest.approx(10_000, abs=1)),
        ("learn", pytest.approx(10_000, abs=1), pytest.approx(10_000, abs=1)),
    ]


def test_rates_are_counters(run):
    counters = {event["name"]: event["args"] for event in events(run) if event["ph"] == "C"}

    assert counters["learn: batches/s"] == {"batches": pytest.approx(50.0)}


def test_a_window_leaves_out_what_lies_outside(run):
    spans = [event for event in events(run, 0.995, 1.015) if event["ph"] == "X"]

    assert spans
    assert all(e["ts"] < 1_015_000 and e["ts"] + e["dur"] > 995_000 for e in spans)
