"""SVG chart of a tournament of weight snapshots (past policies of a self-play run).

    ladder_chart.write(path, Chart(...))

On the left are Elo ratings over learner steps: each snapshot has an error bar of one standard
deviation, and players that do not learn are horizontal lines. On the right is the pay-off matrix of
rows against columns in the order of training. With steady progress all cells below the diagonal
have the colour of a win.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from rookery.report.charts.gantt import Scale, ticks
from rookery.report.charts.svg import box, document, element, safe, words
from rookery.report.trackers.whole_lines import replace

LEARNED, LINES = "#0072b2", ("#777777", "#d55e00", "#009e73", "#cc79a7")
LOSS, EVEN, WIN = (213, 94, 0), (247, 247, 247), (0, 114, 178)  # colours of 0, half, all points
TITLE, TOP, PLOT, FOOT = 22.0, 54.0, 400.0, 62.0  # pixels, vertical; PLOT is a minimum
LEFT, WIDTH, GAP, RIGHT = 74.0, 460.0, 84.0, 24.0  # pixels, horizontal: axis, plot, gap, margin
CELL, LEAST, SIDE = 40.0, 26.0, 448.0  # matrix: largest and smallest cell; width of all cells
NAME, SIGNS, SHORT = 8.0, 14, 9  # pixels per character of a name; characters in matrix and gap
KEY, STEPS, KEY_TEXT = 132.0, 11, 250.0  # colour key: width, number of colours, width of its text
HEAD, SMALL = 60, 6.2  # characters of the title; pixels per small character
AIR = 16.0  # pixels between two labels
STYLE = (
    ".rule { stroke: #e3e3e3; stroke-width: 1 } .frame { stroke: #555; stroke-width: 1 } "
    f".bar {{ stroke: {LEARNED}; stroke-width: 1.6 }} .dot {{ fill: {LEARNED} }} "
    f".way {{ stroke: {LEARNED}; stroke-width: 1; stroke-opacity: 0.35; fill: none }} "
    ".anchor { stroke-width: 1.6; stroke-dasharray: 7 4 } .small { fill: #555; font-size: 11px } "
    ".head { font-size: 14px; font-weight: 600 } .card { fill: #fff } "
    ".share { font-size: 11px; font-variant-numeric: tabular-nums } .light { fill: #fff } "
    ".self { fill: #ddd }"
)


class ChartEntry(NamedTuple):
    """A player in a tournament's chart: name, rating, and when its weights were stored."""

    name: str
    elo: float
    deviation: float
    steps: int | None  # learner steps; None: does not learn


class Chart(NamedTuple):
    """Data of a tournament's chart: players with their ratings, and the pay-off matrix.

    Rows and columns of the matrix are in the order of the players.
    """

    title: str
    entries: Sequence[ChartEntry]
    share: Sequence[Sequence[float | None]]  # [K, K] share of the points that i won against j
    note: str  # text below the chart


class _Frame(NamedTuple):
    """Conversion of learner steps and Elo ratings to pixels of the tournament's chart."""

    steps: tuple[float, float]
    elo: tuple[float, float]
    height: float

    def x(self, steps: float) -> float:
        low, high = self.steps
        return LEFT + WIDTH * (steps - low) / (high - low)

    def y(self, elo: float) -> float:
        low, high = self.elo
        return TOP + self.height * (high - elo) / (high - low)


def write(path: Path, chart: Chart) -> None:
    """Writes a tournament's chart of Elo ratings and pay-off matrix to an SVG file, atomically."""
    replace(path, [draw(chart)])


def draw(chart: Chart) -> str:
    """Returns a tournament's chart of Elo ratings and pay-off matrix as SVG text."""
    cell = min(CELL, max(LEAST, SIDE / len(chart.entries)))
    side = cell * len(chart.entries)
    label = NAME * max(min(len(entry.name), SIGNS) for entry in chart.entries) + 10
    frame = _frame(chart.entries, max(PLOT, side + label))
    left = LEFT + WIDTH + GAP + label
    width = left + max(side, KEY + KEY_TEXT) + RIGHT
    height = TOP + frame.height + FOOT
    return document(
        width,
        height,
        STYLE,
        element("title", safe(chart.title)),
        element("rect", class_="card", width=width, height=height),
        words(LEFT, TITLE, chart.title, most=HEAD, class_="head"),
        words(LEFT, height - 8, chart.note, most=int((width - LEFT) / SMALL), class_="small"),
        *_axes(frame),
        *_anchors(chart.entries, frame),
        *_snapshots(chart.entries, frame),
        *_matrix(chart, left, TOP + label, cell),
        *_key(left, TITLE - 10),
        role="img",
        aria_label=chart.title,
    )


def remarks(spearman: float | None, cyclic: int, triples: int) -> list[str]:
    """Returns two lines of text about a tournament of weight snapshots.

    The first is the rank correlation of snapshot number and rating. The second is the number of
    intransitive triples of snapshots (i beats j, j beats k, k beats i), called circles.
    """
    order = "too few snapshots for an order" if spearman is None else f"{spearman:.2f}"
    circles = "no three snapshots to find circles among"
    if triples:
        share = f"{cyclic / triples:.1%}"
        circles = (
            f"{cyclic} of {triples} triples of snapshots beat each other in a circle ({share})"
        )
    return [f"Spearman of snapshot number and rating: {order}", circles]


def _frame(entries: Sequence[ChartEntry], height: float) -> _Frame:
    steps = [entry.steps for entry in entries if entry.steps is not None] or [0]
    ends = [e.elo + side * e.deviation for e in entries for side in (-1, 1)]
    low, high = min(ends), max(ends)
    air = 0.06 * (high - low) or 50.0
    last = max(steps) or 1
    return _Frame((0.0, 1.04 * last), (low - air, high + air), height)


def _axes(frame: _Frame) -> list[str]:
    foot, end = TOP + frame.height, LEFT + WIDTH
    across = [
        element("line", class_="rule", x1=LEFT, x2=end, y1=frame.y(v), y2=frame.y(v))
        + words(LEFT - 8, frame.y(v) + 4, label, text_anchor="end")
        for v, label in ticks(Scale(*frame.elo), 10)
    ]
    down = [
        element("line", class_="rule", x1=frame.x(v), x2=frame.x(v), y1=TOP, y2=foot + 4)
        + words(frame.x(v), foot + 17, f"{float(label):,g}", text_anchor="middle")
        for v, label in ticks(Scale(*frame.steps), 6)
    ]
    middle = TOP + frame.height / 2
    return [
        *across,
        *down,
        element("line", class_="frame", x1=LEFT, x2=LEFT, y1=TOP, y2=foot),
        element("line", class_="frame", x1=LEFT, x2=end, y1=foot, y2=foot),
        words(LEFT + WIDTH / 2, foot + 35, "learner steps", text_anchor="middle"),
        words(18.0, middle, "Elo", text_anchor="middle", transform=f"rotate(-90 18 {middle:g})"),
        words(LEFT, TOP - 12, "rating, with one deviation to each side", class_="small"),
    ]


def _anchors(entries: Sequence[ChartEntry], frame: _Frame) -> Iterator[str]:
    """Draws the players that do not learn, such as the random player, as horizontal lines.

    Their names are moved apart where they would overlap.
    """
    still = sorted((entry for entry in entries if entry.steps is None), key=lambda e: e.elo)
    above = float("inf")
    for i, entry in enumerate(still):
        colour, y = LINES[i % len(LINES)], frame.y(entry.elo)
        above = min(y + 4, above - AIR)
        hover = element("title", safe(_label(entry)))
        line = {"x1": LEFT, "x2": LEFT + WIDTH, "y1": y, "y2": y, "stroke": colour}
        yield element("line", hover, class_="anchor", **line)
        yield words(LEFT + WIDTH + 6, above, entry.name, most=SHORT, style=f"fill: {colour}")


def _snapshots(entries: Sequence[ChartEntry], frame: _Frame) -> Iterator[str]:
    """Draws the Elo ratings of weight snapshots over learner steps, with error bars."""
    found = [(entry, frame.x(entry.steps)) for entry in entries if entry.steps is not None]
    if found:
        way = "M" + "L".join(f"{x:.1f} {frame.y(entry.elo):.1f}" for entry, x in found)
        yield element("path", class_="way", d=way)
    for entry, x in found:
        top, bottom = (frame.y(entry.elo + side * entry.deviation) for side in (1, -1))
        bar = f"M{x:.1f} {top:.1f}V{bottom:.1f}M{x - 4:.1f} {top:.1f}h8M{x - 4:.1f} {bottom:.1f}h8"
        yield element(
            "g",
            element("title", safe(_label(entry))),
            element("path", class_="bar", d=bar),
            element("circle", class_="dot", cx=x, cy=frame.y(entry.elo), r=4),
        )


def _label(entry: ChartEntry) -> str:
    return f"{entry.name}: {entry.elo:.0f} ± {entry.deviation:.0f}"


def _matrix(chart: Chart, left: float, top: float, cell: float) -> Iterator[str]:
    names = [entry.name for entry in chart.entries]
    for i, name in enumerate(names):
        middle = (i + 0.5) * cell
        yield words(left - 8, top + middle + 4, name, most=SIGNS, text_anchor="end")
        x, y = left + middle + 4, top - 8
        yield words(x, y, name, most=SIGNS, transform=f"rotate(-90 {x:g} {y:g})")
        for j, share in enumerate(chart.share[i]):
            yield from _cell(names[i], names[j], share, left + j * cell, top + i * cell, cell)


def _cell(
    one: str, other: str, share: float | None, x: float, y: float, cell: float
) -> Iterator[str]:
    size = cell - 1.5
    if share is None:
        yield element("rect", class_="self", x=x, y=y, width=size, height=size, rx=2)
        return
    hover = f"{one} takes {share:.1%} of the points from {other}"
    yield box(x, size, hover, y=y, height=size, rx=2, fill=colour_of(share))
    shade = "share light" if abs(share - 0.5) > 0.38 else "share"
    at = x + size / 2, y + size / 2 + 4
    yield words(*at, f"{100 * share:.0f}", class_=shade, text_anchor="middle")


def _key(left: float, top: float) -> list[str]:
    """Draws the colour key of the pay-off matrix."""
    step = KEY / STEPS
    text = "row's points against column, in %"
    return [
        words(left, top + 10, "0"),
        *(
            element("rect", x=left + 12 + i * step, y=top, width=step, height=12, fill=fill)
            for i, fill in enumerate(colour_of(i / (STEPS - 1)) for i in range(STEPS))
        ),
        words(left + KEY + 18, top + 10, "100"),
        words(left + KEY + 52, top + 10, text, class_="small"),
    ]


def colour_of(share: float) -> str:
    """Returns the colour of a cell of the pay-off matrix, from a share of points (0 to 1).

    The scale has white in the middle, at 0.5.
    """
    end, far = (WIN if share > 0.5 else LOSS), min(1.0, 2 * abs(share - 0.5))
    mixed = [round(even + far * (hue - even)) for even, hue in zip(EVEN, end, strict=True)]
    return "#{:02x}{:02x}{:02x}".format(*mixed)
