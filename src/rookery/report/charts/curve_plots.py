"""Curves and intervals of groups, as SVG.

`curves` shows scores over env steps, `intervals` one number for each group. A group has the same
colour in all of them, and a dash besides: no reader depends on colour alone.
"""

from collections.abc import Collection, Mapping, Sequence
from math import ceil
from typing import NamedTuple

from rookery.report.charts import svg
from rookery.report.charts.gantt import Scale, ticks
from rookery.report.statistics.bootstrap import Estimate
from rookery.report.statistics.learning_curve import Curve

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#333333")
DASHES = ("none", "8 4", "2 3", "10 3 2 3")
LEFT, TOP, WIDTH, HEIGHT, RIGHT = 90.0, 14.0, 760.0, 300.0, 40.0  # pixels
NAMES, LINE, AXIS = 190.0, 30.0, 46.0  # of `intervals`: room for names, a row; for the axis below
COLUMNS, KEY = 4, 24.0  # of the legend: groups in a row; a row
MARKED = 40  # marks; on longer curves single ones are not shown
SIGNS = 24  # of a group's name
STYLE = (
    ".rule { stroke: #ddd; stroke-width: 1 } .frame { stroke: #555; stroke-width: 1 } "
    ".goal { stroke: #555; stroke-dasharray: 6 4 } .mean { fill: none; stroke-width: 2.2 } "
    ".band { fill-opacity: 0.16; stroke: none } .spine { stroke-width: 3 } .small { fill: #555 }"
)


class Goal(NamedTuple):
    """A line to be compared with."""

    value: float
    label: str


class Frame(NamedTuple):
    """From values to pixels, inside the axes."""

    across: tuple[float, float]
    up: tuple[float, float]
    left: float = LEFT
    height: float = HEIGHT

    def x(self, value: float) -> float:
        low, high = self.across
        return self.left + WIDTH * (value - low) / (high - low)

    def y(self, value: float) -> float:
        low, high = self.up
        return TOP + self.height * (high - value) / (high - low)


class Look(NamedTuple):
    """How a group is drawn."""

    colour: str
    dash: str


def looks(groups: Sequence[str]) -> dict[str, Look]:
    """Gives each group a look; those that share a colour differ in dash."""
    rounds = [divmod(i, len(COLOURS)) for i in range(len(groups))]
    return {
        group: Look(COLOURS[i], DASHES[(i + turn) % len(DASHES)])
        for group, (turn, i) in zip(groups, rounds, strict=True)
    }


def curves(
    found: Mapping[str, Curve],
    styles: Mapping[str, Look],
    *,
    title: str,
    up: str,
    goal: Goal | None,
) -> str:
    """Draws the curve of each group with its interval as a band."""
    frame = _room(list(found.values()), goal)
    bands = [_band(curve, frame, styles[group]) for group, curve in found.items()]
    means = [_mean(group, curve, frame, styles[group]) for group, curve in found.items()]
    aim = [_across(goal, frame)] if goal else []
    foot = TOP + HEIGHT + AXIS
    key = _legend({group: styles[group] for group in found}, foot + KEY / 2)
    name = svg.element("title", svg.safe(title))
    parts = [name, *_grid(frame, up), *aim, *bands, *means, *key]
    size = LEFT + WIDTH + RIGHT, foot + KEY * ceil(len(found) / COLUMNS)
    return svg.document(*size, STYLE, *parts, role="img", aria_label=title)


def intervals(
    found: Mapping[str, Estimate],
    styles: Mapping[str, Look],
    *,
    title: str,
    across: str,
    goal: Goal | None = None,
    within: tuple[float, float] | None = None,
    beyond: Collection[str] = (),
) -> str:
    """Draws an estimate of each group with its interval, one below the other.

    An arrow on the intervals of the groups `beyond` says that they may end further right.
    """
    room = within or _spanned(list(found.values()), goal)
    frame = Frame(room, (0.0, 1.0), NAMES, LINE * len(found))
    rows = [
        _row(group, estimate, TOP + LINE * (i + 0.5), frame, styles[group])
        for i, (group, estimate) in enumerate(found.items())
    ]
    aim = [_upright(goal, frame)] if goal else []
    tips = [
        _tip(estimate, TOP + LINE * (i + 0.5), frame, styles[group])
        for i, (group, estimate) in enumerate(found.items())
        if group in beyond
    ]
    name = svg.element("title", svg.safe(title))
    size = NAMES + WIDTH + RIGHT, TOP + frame.height + AXIS
    parts = [name, *_verticals(frame, across), *aim, *rows, *tips]
    return svg.document(*size, STYLE, *parts, role="img", aria_label=title)


def _legend(styles: Mapping[str, Look], top: float) -> list[str]:
    """Draws the looks with their names, in rows of `COLUMNS`."""
    step = WIDTH / COLUMNS
    places = [(LEFT + step * (i % COLUMNS), top + KEY * (i // COLUMNS)) for i in range(len(styles))]
    return [
        _stroke(f"M{x:g} {y:g}h34", look)
        + _dot(x + 17, y, look)
        + svg.words(x + 42, y + 4, group, most=SIGNS)
        for (x, y), (group, look) in zip(places, styles.items(), strict=True)
    ]


def _room(found: Sequence[Curve], goal: Goal | None) -> Frame:
    steps = [step for curve in found for step in curve.env_steps]
    up = _spanned([estimate for curve in found for estimate in curve.iqm], goal)
    first, last = min(steps, default=0), max(steps, default=1)
    return Frame((first, last) if first < last else (first - 1.0, first + 1.0), up)


def _spanned(found: Sequence[Estimate], goal: Goal | None) -> tuple[float, float]:
    """Returns a range that holds all of them, with some air."""
    values = [value for estimate in found for value in estimate if value is not None]
    values += [goal.value] if goal else []
    low, high = min(values, default=0.0), max(values, default=1.0)
    air = 0.06 * (high - low) or 0.05 * max(1.0, abs(high))
    return low - air, high + air


def _band(curve: Curve, frame: Frame, look: Look) -> str:
    ends = [
        (frame.x(step), frame.y(point.low), frame.y(point.high))
        for step, point in zip(curve.env_steps, curve.iqm, strict=True)
        if point.low is not None and point.high is not None
    ]
    outline = [(x, low) for x, low, _ in ends] + [(x, high) for x, _, high in reversed(ends)]
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in outline)
    return svg.element("polygon", class_="band", points=points, fill=look.colour) if ends else ""


def _mean(group: str, curve: Curve, frame: Frame, look: Look) -> str:
    places = [
        (frame.x(step), frame.y(point.value))
        for step, point in zip(curve.env_steps, curve.iqm, strict=True)
    ]
    if not places:
        return ""
    path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
    dots = [_dot(x, y, look) for x, y in places] if len(places) <= MARKED else []
    return svg.element("g", svg.element("title", svg.safe(group)), _stroke(path, look), *dots)


def _row(group: str, estimate: Estimate, y: float, frame: Frame, look: Look) -> str:
    name = svg.words(NAMES - 12, y + 4, group, most=SIGNS, text_anchor="end")
    dot = _dot(frame.x(estimate.value), y, look, 5.0)
    if estimate.low is None or estimate.high is None:
        return name + dot
    ends = f"M{frame.x(estimate.low):.1f} {y:g}H{frame.x(estimate.high):.1f}"
    return name + svg.element("path", class_="spine", d=ends, stroke=look.colour) + dot


def _tip(estimate: Estimate, y: float, frame: Frame, look: Look) -> str:
    end = estimate.value if estimate.high is None else estimate.high
    hover = svg.element("title", "at least")
    path = f"M{frame.x(end):.1f} {y - 7:g}l12 7l-12 7z"
    return svg.element("path", hover, d=path, fill=look.colour)


def _stroke(path: str, look: Look) -> str:
    return svg.element(
        "path", class_="mean", d=path, stroke=look.colour, stroke_dasharray=look.dash
    )


def _dot(x: float, y: float, look: Look, radius: float = 3.0) -> str:
    return svg.element("circle", cx=x, cy=y, r=radius, fill=look.colour)


def _across(goal: Goal, frame: Frame) -> str:
    y = frame.y(goal.value)
    line = svg.element("line", class_="goal", x1=LEFT, x2=LEFT + WIDTH, y1=y, y2=y)
    return line + svg.words(LEFT + 6, y - 5, goal.label, class_="small")


def _upright(goal: Goal, frame: Frame) -> str:
    x = frame.x(goal.value)
    line = svg.element("line", class_="goal", x1=x, x2=x, y1=TOP, y2=TOP + frame.height)
    return line + svg.words(x, TOP - 3, goal.label, class_="small", text_anchor="middle")


def _grid(frame: Frame, up: str) -> list[str]:
    foot = TOP + frame.height
    rules = [
        svg.element("line", class_="rule", x1=LEFT, x2=LEFT + WIDTH, y1=frame.y(v), y2=frame.y(v))
        + svg.words(LEFT - 8, frame.y(v) + 4, label, text_anchor="end")
        for v, label in ticks(Scale(*frame.up), 8)
    ]
    axis = svg.element("line", class_="frame", x1=LEFT, x2=LEFT, y1=TOP, y2=foot)
    middle = TOP + frame.height / 2
    name = svg.words(18.0, middle, up, text_anchor="middle", transform=f"rotate(-90 18 {middle:g})")
    return [*rules, *_verticals(frame, "env steps"), axis, name]


def _verticals(frame: Frame, across: str) -> list[str]:
    foot = TOP + frame.height
    rules = [
        svg.element("line", class_="rule", x1=frame.x(v), x2=frame.x(v), y1=TOP, y2=foot + 4)
        + svg.words(frame.x(v), foot + 18, _grouped(label), text_anchor="middle")
        for v, label in ticks(Scale(*frame.across), 8)
    ]
    ends = frame.left, frame.left + WIDTH
    axis = svg.element("line", class_="frame", x1=ends[0], x2=ends[1], y1=foot, y2=foot)
    name = svg.words(sum(ends) / 2, foot + 38, across, text_anchor="middle")
    return [*rules, axis, name]


def _grouped(label: str) -> str:
    """12500 → 12,500."""
    return f"{int(label):,}" if label.lstrip("-").isdigit() else label
