"""Lanes of coloured spans over time, as SVG.

`overview` shows a whole run: for each process and slice of time, how the time was divided.
`closeup` shows single spans between two moments.
"""

from collections.abc import Iterable, Iterator
from itertools import groupby
from math import ceil, floor, log10
from typing import NamedTuple

from rookery.event import Activity, Span
from rookery.report.charts import svg
from rookery.report.charts.timeline_lanes import History, Lane

COLOURS = {
    Activity.PLAY: "#009e73",
    Activity.WRITE: "#56b4e9",
    Activity.DRAIN: "#0072b2",
    Activity.LEARN: "#e69f00",
    Activity.PUBLISH: "#d55e00",
    Activity.EVALUATE: "#cc79a7",
    Activity.SAVE: "#333333",
    Activity.WAIT: "#dcdcdc",
}  # all but the greys from Okabe and Ito: told apart by most colour-blind eyes

LEFT, PLOT, RIGHT = 130.0, 1040.0, 30.0  # pixels: names, time, room for the last label
LANE, GAP, TOP, AXIS = 22.0, 6.0, 4.0, 34.0
FINEST = 0.5  # pixels; what is shorter is drawn together
SLICES = 260  # of a whole run
STYLE = "".join(f".{name} {{ fill: {colour} }} " for name, colour in COLOURS.items()) + (
    ".rule { stroke: #bbb; stroke-width: 0.5 } .session { stroke: #a00; stroke-dasharray: 3 3 } "
    ".window { fill: none; stroke: #a00; stroke-width: 1.5 } .lane { fill: #fafafa }"
)


class Box(NamedTuple):
    """What is drawn: a span, or several too short to be told apart."""

    activity: Activity  # the one that took longest
    began: float
    ended: float
    spans: int


class Scale(NamedTuple):
    """From moments to pixels."""

    began: float
    ended: float

    @property
    def pixel_s(self) -> float:
        return (self.ended - self.began) / PLOT

    def x(self, moment: float) -> float:
        return LEFT + (moment - self.began) / self.pixel_s

    def width(self, took: float) -> float:
        return took / self.pixel_s


def closeup(history: History, began: float, ended: float) -> str:
    """Draws every span between two moments."""
    scale = Scale(began, ended)
    lanes = [
        [_drawn(box, scale, lane.process) for box in boxes(lane.spans, scale)]
        for lane in history.lanes
    ]
    return _picture(history, scale, lanes)


def overview(history: History, began: float, ended: float) -> str:
    """Draws a whole run and a frame around the window between two moments."""
    scale = Scale(0.0, history.seconds)
    lanes = [list(_stacked(lane, scale)) for lane in history.lanes]
    height = len(lanes) * (LANE + GAP)
    frame = svg.element(
        "rect",
        class_="window",
        x=scale.x(began) - 1,
        y=TOP - 2,
        width=scale.width(ended - began) + 2,
        height=height,
    )
    return _picture(history, scale, lanes, frame)


def legend() -> str:
    """Draws the colours with their names."""
    step = 110.0
    items = [
        svg.element("rect", class_=name, x=1 + i * step, y=4.0, width=14, height=14)
        + svg.words(i * step + 20, 15.0, str(name))
        for i, name in enumerate(COLOURS)
    ]
    return svg.document(step * len(items), 22.0, STYLE, *items)


def boxes(spans: Iterable[Span], scale: Scale) -> Iterator[Box]:
    """Cuts spans to the window and joins those that share less than half a pixel."""
    finest, few = FINEST * scale.pixel_s, list[Span]()
    for kind, start, end in spans:
        began, ended = max(start, scale.began), min(end, scale.ended)
        if began >= ended:
            continue
        wide = ended - began >= finest
        if few and (wide or began // finest != few[0].began // finest):
            yield _joined(few)
            few = []
        if wide:
            yield Box(kind, began, ended, 1)
        else:
            few.append(Span(kind, began, ended))
    if few:
        yield _joined(few)


def _joined(spans: list[Span]) -> Box:
    took = dict.fromkeys((span.activity for span in spans), 0.0)
    for span in spans:
        took[span.activity] += span.ended - span.began
    longest = max(took, key=took.__getitem__)
    return Box(longest, spans[0].began, spans[-1].ended, len(spans))


def _drawn(box: Box, scale: Scale, process: str) -> str:
    took = box.ended - box.began
    what = str(box.activity) if box.spans == 1 else f"{box.spans} spans, mostly {box.activity}"
    hover = f"{process}: {what}, {1e3 * took:.3g} ms from {box.began:.4f} s"
    width = max(0.3, scale.width(took))
    return svg.box(scale.x(box.began), width, hover, class_=box.activity, height=LANE)


def _stacked(lane: Lane, scale: Scale) -> Iterator[str]:
    """Yields columns in which the shares of the activities stand on top of each other."""
    slice_s = (scale.ended - scale.began) / SLICES
    first = 0
    for shares, alike in groupby(_shares(spent, slice_s) for spent in _slices(lane, slice_s)):
        count = len(list(alike))
        place = f"{first * slice_s:.1f} to {(first + count) * slice_s:.1f} s"
        x, y, width = scale.x(first * slice_s), LANE, count * PLOT / SLICES
        for activity, share in shares:
            height = min(y, share * LANE)
            y -= height
            hover = f"{lane.process}: {activity} {100 * share:.0f} % from {place}"
            yield svg.box(x, width, hover, class_=activity, y=y, height=height)
        first += count


def _shares(spent: dict[str, float], slice_s: float) -> list[tuple[Activity, float]]:
    """Rounds to what can be seen, so that like slices are drawn as one."""
    shares = [(activity, round(spent.get(activity, 0.0) / slice_s, 2)) for activity in COLOURS]
    return [(activity, min(1.0, share)) for activity, share in shares if share > 0]


def _slices(lane: Lane, slice_s: float) -> list[dict[str, float]]:
    """Spreads each mark's totals evenly over the slices it covers."""
    slices: list[dict[str, float]] = [{} for _ in range(SLICES)]
    for mark in lane.marks:
        took = mark.ended - mark.began
        if took <= 0:
            continue
        first, last = int(mark.began / slice_s), min(SLICES - 1, int(mark.ended / slice_s))
        for i in range(first, last + 1):
            inside = min(mark.ended, (i + 1) * slice_s) - max(mark.began, i * slice_s)
            for name, seconds in mark.totals.items():
                slices[i][name] = slices[i].get(name, 0.0) + seconds * inside / took
    return slices


def _picture(history: History, scale: Scale, lanes: list[list[str]], *above: str) -> str:
    """Puts lanes under each other, with their names and the axis of time."""
    rows = [
        _lane(lane.process, TOP + i * (LANE + GAP), drawn)
        for i, (lane, drawn) in enumerate(zip(history.lanes, lanes, strict=True))
    ]
    foot = TOP + len(rows) * (LANE + GAP)
    rules = [_rule(scale.x(moment), foot, label) for moment, label in ticks(scale)]
    breaks = [
        svg.element("line", class_="session", x1=scale.x(at), x2=scale.x(at), y1=0, y2=foot)
        for at in history.sessions[1:]
        if scale.began < at < scale.ended
    ]
    axis = svg.words(
        LEFT + PLOT / 2, foot + 30, "seconds since the first span", text_anchor="middle"
    )
    width = LEFT + PLOT + RIGHT
    return svg.document(width, foot + AXIS, STYLE, *rules, *rows, *breaks, *above, axis)


def _lane(process: str, y: float, drawn: list[str]) -> str:
    name = svg.words(LEFT - 8, 15.0, process, most=18, text_anchor="end")
    back = svg.element("rect", class_="lane", x=LEFT, width=PLOT, height=LANE)
    return svg.element("g", name, back, *drawn, transform=f"translate(0 {y:g})")


def _rule(x: float, foot: float, label: str) -> str:
    line = svg.element("line", class_="rule", x1=x, x2=x, y1=0, y2=foot + 3)
    return line + svg.words(x, foot + 15, label, text_anchor="middle")


def ticks(scale: Scale, most: int = 12) -> list[tuple[float, str]]:
    """Returns round moments inside the scale, 1, 2 or 5 times a power of ten apart, with labels."""
    least = (scale.ended - scale.began) / most
    power = 10.0 ** floor(log10(least))
    step = next(power * times for times in (1, 2, 5, 10) if power * times >= least * (1 - 1e-9))
    digits = max(0, -floor(log10(step) + 1e-9))
    first, last = ceil(scale.began / step - 1e-6), floor(scale.ended / step + 1e-6)
    return [(n * step, f"{n * step:.{digits}f}") for n in range(first, last + 1)]
