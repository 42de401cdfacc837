"""Options of charts that several pages show: lines with bands, and intervals.

An option says what is drawn; `static/kit.js` adds how all charts look. A name has the same colour
in all charts of a page, and a dash besides: no reader depends on colour alone.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rookery.report.charts.page import Chart, Json, Option
from rookery.report.statistics.bootstrap import Estimate

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#777777")
DASHES: tuple[Json, ...] = ("solid", [8, 4], [2, 3], [10, 3, 2, 3])
LABELS = {"xAxis": "start", "yAxis": "insideStartTop"}  # of a goal
MARKED = 40  # points; longer lines are drawn without their points
DIGITS = 6  # significant digits of a number in a chart
ROW, AXES = 30, 80  # pixels of a chart of intervals: a name, and what is above and below


class Look(NamedTuple):
    """Colour and dash of a line."""

    colour: str
    dash: Json


class Goal(NamedTuple):
    """A reference value, drawn as a dashed line with a label."""

    value: float
    label: str


class Interval(NamedTuple):
    """An estimate with its text in the chart; `at_least` marks a lower bound."""

    text: str
    estimate: Estimate
    at_least: bool = False


def looks(names: Sequence[str]) -> dict[str, Look]:
    """Returns colour and dash for each name; names that share a colour differ in dash."""
    rounds = [divmod(i, len(COLOURS)) for i in range(len(names))]
    return {
        name: Look(COLOURS[i], DASHES[(i + turn) % len(DASHES)])
        for name, (turn, i) in zip(names, rounds, strict=True)
    }


def lines(
    found: Mapping[str, Mapping[int, Estimate]],
    styles: Mapping[str, Look],
    *,
    across: str,
    up: str,
    goal: Goal | None = None,
) -> Option:
    """Returns lines over a common axis, each with its interval as a band; points by their x."""
    series = [one for name, points in found.items() for one in _line(name, points, styles[name])]
    first = min((at for points in found.values() for at in points), default=0.0)
    return {
        "tooltip": {"trigger": "axis"},
        "legend": {"show": True, "data": list(found)},
        "xAxis": {"name": across},
        "yAxis": {"name": up},
        "series": [*series, *([goal_line(goal, "yAxis", first, goal.value)] if goal else [])],
    }


def intervals(
    caption: str,
    found: Mapping[str, Interval],
    styles: Mapping[str, Look],
    *,
    across: str,
    goal: Goal | None = None,
    within: tuple[float, float] | None = None,
) -> Chart:
    """Returns a chart with a point and an interval for each name, one below the other."""
    data: list[Json] = [
        {
            "name": f"{name}: {one.text}",
            "value": _ends(one, row),
            "itemStyle": {"color": styles[name].colour},
        }
        for row, (name, one) in enumerate(found.items())
    ]
    low, high = within or (None, None)
    goals = [goal_line(goal, "xAxis", goal.value, 0)] if goal else []
    option: Option = {
        "tooltip": {"formatter": "{b}"},
        "xAxis": {"name": across, "min": low, "max": high, "boundaryGap": ["3%", "3%"]},
        "yAxis": {"type": "category", "data": list(found)},
        "series": [interval_series(data), *goals],
    }
    return Chart(caption, option, AXES + ROW * len(found))


def interval_series(data: Sequence[Json]) -> dict[str, Json]:
    """Returns points with intervals: x and y of the point, of the low and of the high end."""
    encode: Json = {"x": [0, 2, 4], "y": [1, 3, 5]}
    return {"type": "custom", "renderItem": "interval", "encode": encode, "data": data}


def goal_line(goal: Goal, axis: str, x: float, y: float) -> Json:
    """Returns a dashed line across the chart; the point without a size keeps it within the axes."""
    label: Json = {"formatter": goal.label, "color": "#888", "position": LABELS[axis]}
    return {
        "type": "scatter",
        "symbolSize": 0,
        "data": [[x, y]],
        "tooltip": {"show": False},
        "markLine": {"label": label, "data": [{axis: goal.value}]},
    }


def rounded(x: float) -> float:
    """Rounds a number to six significant digits, so that pages stay small."""
    return float(f"{x:.{DIGITS}g}")


def _line(name: str, points: Mapping[int, Estimate], look: Look) -> list[Json]:
    ends: list[Json] = [
        [at, rounded(low), rounded(high)]
        for at, (_, low, high) in points.items()
        if low is not None and high is not None
    ]
    line: Json = {
        "type": "line",
        "name": name,
        "color": look.colour,
        "lineStyle": {"type": look.dash, "width": 2.2},
        "showSymbol": len(points) <= MARKED,
        "sampling": "lttb",  # of more points than pixels: those that keep the line's shape
        "dimensions": ["at", "value", "low", "high"],
        "encode": {"x": 0, "y": 1, "tooltip": [1, 2, 3] if ends else [1]},
        "data": [[at, *(rounded(x) for x in p if x is not None)] for at, p in points.items()],
    }
    band: Json = {
        "type": "custom",
        "renderItem": "band",
        "name": name,  # of one entry in the legend with the line
        "color": look.colour,
        "silent": True,
        "z": 1,  # below all lines
        "tooltip": {"show": False},
        "encode": {"x": 0, "y": [1, 2]},
        "data": ends,
    }
    return [line, band] if ends else [line]


def _ends(one: Interval, row: int) -> Json:
    xs = (one.estimate.value if x is None else x for x in one.estimate)
    return [*(cell for x in xs for cell in (rounded(x), row)), one.at_least]
