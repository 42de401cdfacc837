"""The timeline's page: lanes on one clock, every span where it was, files their readers take."""

import json

import pytest

from page_parts import PageParser
from rookery.event import Activity, Counters, Span, Started, Traced
from rookery.report.charts import perfetto
from rookery.report.charts.flow_chart import MOST, flow_chart
from rookery.report.charts.timeline_lanes import LOOKS, busiest, load
from rookery.report.charts.timeline_page import (
    LEGIBLE,
    PLACES,
    SLICES,
    closeup,
    legible,
    overview,
    timeline_page,
)
from rookery.report.trackers.timeline_file import Timeline

PLAY, WAIT, LEARN, DRAIN = Activity.PLAY, Activity.WAIT, Activity.LEARN, Activity.DRAIN
EVIL = "</script><b>&\"'"


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
    amounts = {str(activity): amount * seconds for activity in activities if LOOKS[activity].unit}
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


def rows(option, *activities):
    """Returns the parts of a chart, those of some activities only."""
    places = [PLACES[activity] for activity in activities or LOOKS]
    return [row for row in option["series"][0]["data"] if row[3] in places]


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
    assert set(LOOKS) == set(Activity)
    assert [activity for activity, look in LOOKS.items() if not look.unit] == [WAIT]


# Charts.


def test_a_span_is_drawn_where_it_was(tmp_path):
    found = history(
        tmp_path, mark("a", Span(PLAY, 7.0, 9.0), Span(WAIT, 9.0, 15.0), Span(PLAY, 15.0, 17.0))
    )

    option = closeup(found, 0.0, 10.0)

    assert rows(option, PLAY) == [["a", 0.0, 2.0, PLACES[PLAY]], ["a", 8.0, 10.0, PLACES[PLAY]]]
    assert rows(option, WAIT) == [["a", 2.0, 8.0, PLACES[WAIT]]]
    assert (option["xAxis"]["min"], option["xAxis"]["max"]) == (0.0, 10.0)


def test_spans_outside_the_window_are_left_out(tmp_path):
    found = history(tmp_path, mark("a", Span(PLAY, 0.0, 4.0), Span(WAIT, 4.0, 8.0)))

    assert rows(closeup(found, 5.0, 6.0)) == [["a", 4.0, 8.0, PLACES[WAIT]]]


def test_each_process_has_a_lane_of_its_own_and_each_activity_a_colour(run):
    for option in (closeup(run, 0.0, 2.0), overview(run, 0.0, 2.0)):
        assert option["yAxis"]["data"] == [lane.process for lane in run.lanes]
        pieces = option["visualMap"]["pieces"]
        assert [(p["label"], p["color"]) for p in pieces] == [
            (str(activity), look.colour) for activity, look in LOOKS.items()
        ]


def test_the_overview_divides_each_slice_of_time(run):
    option = overview(run, 0.5, 1.0)
    learner = [row for row in rows(option, LEARN) if row[0] == "learner"]

    assert len(learner) == SLICES
    assert sum(ended - began for _, began, ended, *_ in learner) == pytest.approx(2.0, rel=0.01)
    assert all(high - low == pytest.approx(0.25) for *_, low, high in learner)
    [[began, ended]] = option["series"][0]["markArea"]["data"]
    assert (began["xAxis"], ended["xAxis"]) == (0.5, 1.0)


def test_activities_of_a_slice_stand_on_top_of_each_other(run):
    slices: dict[tuple[str, float], list[list[float]]] = {}
    for process, began, _, _, low, high in rows(overview(run, 0.0, 2.0)):
        slices.setdefault((process, began), []).append([low, high])

    assert any(len(parts) == 4 for parts in slices.values())
    for parts in slices.values():
        bottoms = [0.0, *(high for _, high in parts)]
        for (low, high), bottom in zip(parts, bottoms, strict=False):
            assert bottom == pytest.approx(low)
            assert low < high <= 1.0


def test_where_a_session_begins_there_is_a_line(tmp_path):
    found = history(
        tmp_path,
        turns("a", 0.0, 1.0, PLAY),
        Started("", Counters(), True, {}),
        turns("a", 0, 1, PLAY),
    )

    [line] = closeup(found, 0.0, 2.0)["series"][0]["markLine"]["data"]
    assert line["xAxis"] == pytest.approx(1.0)


def test_a_crowded_window_is_first_shown_where_something_happens(tmp_path):
    found = history(
        tmp_path, turns("a", 0.0, 0.2, PLAY, WAIT, each=0.001), turns("a", 2.9, 0.1, WAIT, each=0.1)
    )

    began, ended = legible(found, 0.0, 3.0)
    slider, _ = closeup(found, 0.0, 3.0)["dataZoom"]

    assert 0.0 <= began < ended <= 1.0
    assert (slider["startValue"], slider["endValue"]) == (began, ended)
    assert legible(found, 0.0, 0.001 * LEGIBLE) == (0.0, 0.001 * LEGIBLE)


# The page.


def test_the_table_has_a_row_for_each_process_and_its_shares(run):
    found = PageParser(timeline_page("run", run, 0.0, 2.0).html())

    at = found.words.index("learner", found.words.index("Shares of time"))
    assert found.words[at : at + 6] == ["learner", "2.0", "25.0 %", "25.0 %", "25.0 %", "25.0 %"]
    assert found.tags.count("tr") == 5
    assert len(found.options) == 3  # the whole run, the window, the data flow


def test_the_page_says_what_limits_the_run(tmp_path):
    found = history(
        tmp_path,
        turns("actor-0", 0.0, 1.0, PLAY, PLAY, PLAY, WAIT),
        turns("learner", 0.0, 1.0, LEARN),
    )

    page = timeline_page("run", found, 0.0, 1.0).html()

    assert "limited by learner: the actors wait 25 % of the time" in page


def test_names_are_escaped_wherever_they_are_shown(tmp_path):
    found = history(tmp_path, turns(EVIL, 0.0, 1.0, PLAY, LEARN, amount=5))

    page = PageParser(timeline_page(EVIL, found, 0.0, 1.0).html())

    assert "b" not in page.tags
    assert page.scripts == 2
    assert [option["yAxis"].get("data") for option in page.options[:2]] == [[EVIL], [EVIL]]
    assert any(EVIL in node["name"] for node in page.options[2]["series"][0]["data"])


# Flow.


def shown(history):
    """Returns the texts of the boxes and of the edges of a run's data flow."""
    [graph] = flow_chart(history).option["series"]
    boxes = {line for node in graph["data"] for line in node["name"].split("\n")}
    return boxes, {link["label"]["formatter"] for link in graph["links"]}


def test_the_flow_shows_every_process_and_the_measured_rates(run):
    boxes, edges = shown(run)

    names = {"actor-2", "actor-10", "replay", "learner", "weight store", "evaluator"}
    assert names | {"50 rows/s in"} <= boxes
    assert {"320 rows/s", "640 rows/s", "50 batches/s", "50 versions/s"} <= edges
    assert "120 snapshots/min" in edges


def test_the_flow_s_edges_join_boxes_that_are_there(run):
    [graph] = flow_chart(run).option["series"]

    ids = [node["id"] for node in graph["data"]]
    assert len(set(ids)) == len(ids)
    assert {end for link in graph["links"] for end in (link["source"], link["target"])} == set(ids)


def test_a_run_without_evaluations_has_no_evaluator_in_the_flow(tmp_path):
    boxes, _ = shown(history(tmp_path, turns("learner", 0.0, 1.0, DRAIN, LEARN)))

    assert "learner" in boxes
    assert "evaluator" not in boxes


def test_many_actors_share_a_box(tmp_path):
    many = [turns(f"actor-{i}", 0.0, 1.0, PLAY, amount=100) for i in range(MOST + 1)]

    boxes, edges = shown(history(tmp_path, *many))

    assert f"{MOST + 1} actors" in boxes
    assert f"{100 * (MOST + 1)} rows/s" in edges
    assert "actor-0" not in boxes


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
