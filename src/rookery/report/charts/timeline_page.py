"""The page of a timeline: the whole run, a window of it, data flow, and shares of time."""

import numpy as np

from rookery.report.charts.flow_chart import flow_chart
from rookery.report.charts.page import Chart, Heading, Json, Option, Page, Table, Text
from rookery.report.charts.timeline_lanes import LOOKS, History, Lane, busiest
from rookery.report.metrics.bottleneck import bottleneck
from rookery.report.number_format import clock, count
from rookery.types import Floats

PLACES = {activity: place for place, activity in enumerate(LOOKS)}
SLICES = 260  # of a whole run
LEGIBLE = 60  # spans of the fullest lane in a part of the window
VISIBLE = 0.005  # shares below are not drawn
NOTICE = 0.0005  # shares below are not written
LANE, AXES = 28, 90  # pixels: a process, and what is above and below


def timeline_page(name: str, history: History, began: float, ended: float) -> Page:
    """Returns the timeline page of a run, with a closer look at the time between two moments."""
    height = AXES + LANE * len(history.lanes)
    return Page(
        f"{name}: timeline",
        [
            Text(_facts(history)),
            Heading("The whole run"),
            Text(
                "How each process divided its time; blank is time without a recorded activity. The "
                "frame is the window below."
            ),
            Chart("Shares of time", overview(history, began, ended), height),
            Heading(_between(began, ended)),
            Text("Move or pull the slider to see another part of the window."),
            Chart("Activities", closeup(history, began, ended), height + 40),
            Heading("Data flow"),
            flow_chart(history),
            Heading("Shares of time"),
            _table(history),
        ],
    )


def overview(history: History, began: float, ended: float) -> Option:
    """Returns a chart of the whole run: for each slice of time, the share of each activity."""
    edges = np.linspace(0.0, history.seconds, SLICES + 1)
    rows: list[Json] = []
    for lane in history.lanes:
        tops = _shares(lane, edges).cumsum(axis=1).clip(max=1.0).round(3)
        bottoms = np.column_stack((np.zeros(SLICES), tops[:, :-1]))
        for at, place in zip(*np.nonzero(tops - bottoms >= VISIBLE), strict=True):
            low, high = bottoms[at, place], tops[at, place]
            where = round(float(edges[at]), 4), round(float(edges[at + 1]), 4)
            rows.append([lane.process, *where, int(place), float(low), float(high)])
    frame: Json = {
        "silent": True,
        "itemStyle": {"color": "transparent", "borderColor": "#d00", "borderWidth": 1.5},
        "data": [[{"xAxis": began}, {"xAxis": ended}]],
    }
    return _option(history, rows, (0.0, history.seconds), frame)


def closeup(history: History, began: float, ended: float) -> Option:
    """Returns a chart of all spans between two moments; a slider zooms into a part."""
    rows: list[Json] = [
        [lane.process, round(start, 6), round(end, 6), PLACES[activity]]
        for lane in history.lanes
        for activity, start, end in lane.spans
        if start < ended and end > began
    ]
    first, last = legible(history, began, ended)
    zoom: Json = [
        {"type": kind, "startValue": first, "endValue": last, "filterMode": "weakFilter"}
        for kind in ("slider", "inside")
    ]
    option = _option(history, rows, (began, ended), {})
    return option | {"renderer": "canvas", "dataZoom": zoom, "grid": {"bottom": 90}}


def legible(history: History, began: float, ended: float) -> tuple[float, float]:
    """Returns the part of a window that the chart opens with, in which spans are legible."""
    fullest = max(
        sum(span.began < ended and span.ended > began for span in lane.spans)
        for lane in history.lanes
    )
    if fullest <= 2 * LEGIBLE:
        return began, ended
    return busiest(history, began, ended, (ended - began) * LEGIBLE / fullest)


def _option(history: History, rows: list[Json], window: tuple[float, float], frame: Json) -> Option:
    pieces: Json = [
        {"value": place, "label": str(activity), "color": look.colour}
        for place, (activity, look) in enumerate(LOOKS.items())
    ]
    began, ended = window
    spans: Json = {
        "type": "custom",
        "renderItem": "span",
        "encode": {"x": [1, 2], "y": 0},
        "data": rows,
        "markLine": {
            "label": {"show": False},
            "lineStyle": {"color": "#d00", "type": "dashed"},
            "data": [{"xAxis": at} for at in history.sessions[1:]],
        },
        "markArea": frame,
    }
    return {
        "tooltip": {"formatter": "span"},
        "visualMap": {
            "type": "piecewise",
            "dimension": 3,
            "pieces": pieces,
            "orient": "horizontal",
            "top": 0,
            "left": "center",
        },
        "xAxis": {
            "name": "seconds since the first span",
            "min": began,
            "max": ended,
            "axisLabel": {"showMinLabel": False, "showMaxLabel": False},
        },
        "yAxis": {"type": "category", "data": [lane.process for lane in history.lanes]},
        "series": [spans],
    }


def _shares(lane: Lane, edges: Floats) -> Floats:
    """Returns [SLICES, activities]: each mark's totals, spread evenly over its time."""
    seconds = np.zeros((SLICES, len(LOOKS)))
    for mark in lane.marks:
        inside = np.minimum(mark.ended, edges[1:]) - np.maximum(mark.began, edges[:-1])
        if mark.ended > mark.began:
            share = inside.clip(min=0.0) / (mark.ended - mark.began)
            seconds += np.outer(share, [mark.totals.get(name, 0.0) for name in LOOKS])
    shares: Floats = seconds / (edges[1] - edges[0])
    return shares


def _facts(history: History) -> str:
    sessions = len(history.sessions)
    dropped = sum(lane.dropped for lane in history.lanes)
    facts = [
        f"{len(history.lanes)} processes",
        f"{clock(history.seconds)} traced" + (f" in {sessions} sessions" if sessions > 1 else ""),
        bottleneck(history.shares).sentence,
    ]
    if dropped:
        facts.append(f"{count(dropped)} spans are only in the sums")
    return "; ".join(facts) + "."


def _between(began: float, ended: float) -> str:
    length = ended - began
    shown = f"{length:.1f} s" if length >= 1 else f"{1e3 * length:.3g} ms"
    return f"{shown} from {began:.3f} s"


def _table(history: History) -> Table:
    names = [*map(str, LOOKS), "other"]
    rows = [["process", "seconds", *names]]
    for lane in history.lanes:
        shares = lane.shares
        shares["other"] = max(0.0, 1.0 - sum(shares.values()))
        cells = [_percent(shares.get(name, 0.0)) for name in names]
        rows.append([lane.process, f"{lane.seconds:.1f}", *cells])
    return Table("", rows)


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %" if share >= NOTICE else ""
