"""Draws a path-finding episode of many agents on a grid as an animation in one SVG file.

    episode_svg.write(path, RecordedEpisode(map, goals, places, links))

Coordinates are in cells, scaled once by a transform. The animation is SMIL, which browsers play
also in an <img> of a page. A viewer without animation shows the first step. Colours follow the
light or dark mode of the reader's system.
"""

from collections.abc import Iterable, Sequence
from math import cos, radians, sin
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from rookery.report.charts.svg import document, element, safe
from rookery.report.trackers.whole_lines import replace
from rookery.types import Array, Bools

Colour: TypeAlias = tuple[int, int, int]
Pair: TypeAlias = tuple[int, int]

SIDE, MARGIN, FOOT = 600.0, 20.0, 46.0  # pixels: the map's longer side, around it, below it
DISC, RING, EDGE, TALK = 0.32, 0.42, 0.08, 0.055  # cells: an agent, its goal, widths of lines
CORNER, GAP = 0.26, 0.06  # cells: corners of obstacles, and the gap around them
REST = 6  # steps for which the end is shown
PACE = 4.0  # steps a second
GOLDEN = 137.508  # degrees between two hues: the golden angle keeps any number of them apart
LIGHTS = (0.66, 0.58, 0.74)  # lightness of colours, in turn

LIGHT = {"card": "#f4f3ef", "floor": "#ffffff", "wall": "#c6ccd5", "mesh": "#eeedea"}
LIGHT |= {"ink": "#4b5261", "talk": "#5d6677", "bar": "#8d97a8"}
DARK = {"card": "#191d24", "floor": "#222831", "wall": "#414b5a", "mesh": "#292f39"}
DARK |= {"ink": "#bcc5d3", "talk": "#aeb9ca", "bar": "#76839a"}


class CellBox(NamedTuple):
    """A rectangle of cells in a grid map."""

    left: int
    top: int
    width: int
    height: int


class RecordedEpisode(NamedTuple):
    """Positions and messages of N agents in T steps on a map of H rows and W columns."""

    map: Array  # [H, W] 1: blocked
    goals: Array  # [N, 2] row and column; -1: an absent agent
    places: Array  # [T + 1, N, 2]
    links: Array | None = None  # [T, N, K] senders of each agent; -1 and itself are not drawn

    @property
    def steps(self) -> int:
        return len(self.places) - 1

    @property
    def present(self) -> npt.NDArray[np.intp]:
        """Indices of the agents that take part; others are padding, with goal -1."""
        return np.flatnonzero(self.goals[:, 0] >= 0)

    @property
    def home(self) -> Bools:
        """Mask [T + 1, N]: whether each of N agents is on its goal at each time.

        Times are the start of the episode and the ends of its T steps.
        """
        there: Bools = (self.places == self.goals).all(-1)
        return there


def write(path: Path, episode: RecordedEpisode, pace: float = PACE) -> None:
    """Writes a path-finding episode as an animated SVG file, atomically.

    `pace` is the number of env steps shown per second.
    """
    replace(path, [draw(episode, pace=pace)])


def draw(episode: RecordedEpisode, *, pace: float = PACE) -> str:
    """Returns an episode as SVG text; the animation loops at `pace` steps per second."""
    rows, columns = episode.map.shape
    cell = SIDE / max(rows, columns)
    width, height = columns * cell + 2 * MARGIN, rows * cell + MARGIN + FOOT
    clock = _Clock(episode.steps, pace)
    return document(
        width,
        height,
        _style(),
        element("title", safe(headline(episode))),
        element("rect", class_="card", width=width, height=height, rx=16),
        element(
            "g",
            *_ground(episode.map),
            element("g", *_rings(episode), class_="ring"),
            *_talk(episode, clock),
            element("g", *_discs(episode, clock), class_="disc"),
            transform=f"translate({MARGIN:g} {MARGIN:g}) scale({cell:.4f})",
        ),
        *_foot(episode, clock, width, height),
    )


def headline(episode: RecordedEpisode) -> str:
    """Returns the title of the animation: number of agents and map size."""
    rows, columns = episode.map.shape
    return f"{len(episode.present)} agents on a map of {rows} x {columns}"


def captions(episode: RecordedEpisode) -> list[str]:
    """Returns the captions of an episode's animation: for the start and after each step.

    A caption says how many agents are on their goals.
    """
    present = episode.present
    there = episode.home[:, present].sum(1)
    texts = [f"step {t}, {home} of {len(present)} home" for t, home in enumerate(there)]
    if there[-1] == len(present):
        texts[-1] = f"all {len(present)} home after {episode.steps} steps"
    return texts


def pairs(links: Array) -> list[Pair]:
    """Returns the pairs of agents with a communication edge in one step, each pair once.

    `links` [N, K] are the senders of each agent's messages; -1: no edge.
    """
    who, slot = np.nonzero((links >= 0) & (links != np.arange(len(links))[:, None]))
    both = np.sort(np.stack((who, links[who, slot]), axis=1), axis=1)
    return [(a, b) for a, b in np.unique(both, axis=0).tolist()]


def colours(count: int) -> list[Colour]:
    """Returns `count` colours for agents; consecutive colours differ clearly."""
    return [_colour(LIGHTS[i % len(LIGHTS)], 0.125, 20 + i * GOLDEN) for i in range(count)]


def _colour(light: float, chroma: float, hue: float) -> Colour:
    """Converts a colour from Oklch (Ottosson 2020), which has uniform lightness, to sRGB."""
    a, b = chroma * cos(radians(hue)), chroma * sin(radians(hue))
    long = (light + 0.3963377774 * a + 0.2158037573 * b) ** 3
    middle = (light - 0.1055613458 * a - 0.0638541728 * b) ** 3
    short = (light - 0.0894841775 * a - 1.2914855480 * b) ** 3
    return (
        _channel(4.0767416621 * long - 3.3077115913 * middle + 0.2309699292 * short),
        _channel(-1.2684380046 * long + 2.6097574011 * middle - 0.3413193965 * short),
        _channel(-0.0041960863 * long - 0.7034186147 * middle + 1.7076147010 * short),
    )


def _channel(linear: float) -> int:
    linear = min(max(linear, 0.0), 1.0)
    bent = 12.92 * linear if linear <= 0.0031308 else 1.055 * linear ** (1 / 2.4) - 0.055
    return round(255 * bent)


def boxes(blocked: Array) -> list[CellBox]:
    """Returns rectangles that cover all blocked cells of a map.

    They are the runs of blocked cells along both axes, and all blocked 2 x 2 squares. Rectangles
    are drawn slightly smaller, with round corners; the squares fill the gaps between runs.
    """
    across = [CellBox(x, y, n, 1) for y, row in enumerate(blocked) for x, n in _runs(row)]
    down = [CellBox(x, y, 1, n) for x, column in enumerate(blocked.T) for y, n in _runs(column)]
    taken = {(box.left, box.top) for box in across if box.width == 1}
    square = blocked[:-1, :-1] & blocked[1:, :-1] & blocked[:-1, 1:] & blocked[1:, 1:]
    return [
        *(box for box in across if box.width > 1),
        *(box for box in down if box.height > 1 or (box.left, box.top) in taken),
        *(CellBox(int(x), int(y), 2, 2) for y, x in np.argwhere(square)),
    ]


def _runs(line: Array) -> Iterable[tuple[int, int]]:
    """Returns start and length of each run of blocked cells in one row or column of a map."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], line != 0, [0])).astype(np.int8)))
    return [(int(a), int(b - a)) for a, b in zip(edges[::2], edges[1::2], strict=True)]


class _Clock:
    """Converts env steps to times of an SVG animation, which shows T steps and a pause in a loop.

    Times are fractions of the loop's duration, from 0 to 1.
    """

    def __init__(self, steps: int, pace: float):
        self.steps, self.ticks = steps, steps + REST
        self._round = {"dur": f"{self.ticks / pace:.3f}s", "repeatCount": "indefinite"}

    def at(self, step: float) -> str:
        return f"{step / self.ticks:.5f}".rstrip("0").rstrip(".") or "0"

    def animate(self, attribute: str, values: Iterable[str], **more: object) -> str:
        """Returns an SVG <animate> element that sets an attribute to each of `values` in one loop.

        `more` are further attributes of the element; unless they include `keyTimes`, the values are
        evenly spaced in time.
        """
        return element(
            "animate", attributeName=attribute, values=";".join(values), **more, **self._round
        )

    def move(self, places: Array) -> str:
        """Returns an SVG animation that moves an element along an agent's path.

        `places` [T + 1, 2] are the rows and columns of the path. The element stays at the last cell
        during the pause at the end of the loop.
        """
        stops = [f"{column} {row}" for row, column in places.tolist()]
        return element(
            "animateTransform",
            attributeName="transform",
            type="translate",
            values=";".join(stops + stops[-1:] * REST),
            **self._round,
        )

    def show(self, step: int) -> str:
        """Returns an SVG animation that shows an element only during one env step of the episode.

        At the last step it stays visible until the end of the loop.
        """
        marks = [(0, step == 0), (step, True), (step + 1, False)]
        kept = [mark for mark in marks[step == 0 :] if mark[0] <= self.steps]
        return self.animate(
            "visibility",
            ["visible" if seen else "hidden" for _, seen in kept],
            keyTimes=";".join(self.at(at) for at, _ in kept),
            calcMode="discrete",
        )


def _ground(blocked: Array) -> list[str]:
    rows, columns = blocked.shape
    mesh = [f"M{x} 0v{rows}" for x in range(1, columns)]
    mesh += [f"M0 {y}h{columns}" for y in range(1, rows)]
    inset = CORNER + GAP  # half of the stroke, which makes the corners round, and the gap
    walls = [
        f"M{x + inset:.2f} {y + inset:.2f}h{w - 2 * inset:.2f}v{h - 2 * inset:.2f}"
        f"h{2 * inset - w:.2f}z"
        for x, y, w, h in boxes(blocked)
    ]
    return [
        element("rect", class_="floor", width=columns, height=rows, rx=0.3),
        element("path", class_="mesh", d="".join(mesh)),
        element("path", class_="wall", d="".join(walls)),
    ]


def _rings(episode: RecordedEpisode) -> list[str]:
    found = colours(len(episode.goals))
    return [
        element("circle", cx=column + 0.5, cy=row + 0.5, r=RING, stroke=_hex(found[i]))
        for i, (row, column) in enumerate(episode.goals.tolist())
        if row >= 0
    ]


def _discs(episode: RecordedEpisode, clock: _Clock) -> list[str]:
    found = colours(len(episode.goals))
    return [_disc(int(i), episode.places[:, i], _hex(found[i]), clock) for i in episode.present]


def _disc(number: int, places: Array, colour: str, clock: _Clock) -> str:
    row, column = places[0].tolist()
    return element(
        "circle",
        element("title", f"agent {number}"),
        clock.move(places),
        cx=0.5,
        cy=0.5,
        r=DISC,
        fill=colour,
        transform=f"translate({column} {row})",
    )


def _hex(colour: Colour) -> str:
    return "#{:02x}{:02x}{:02x}".format(*colour)


def _talk(episode: RecordedEpisode, clock: _Clock) -> list[str]:
    """Draws all communication edges as one SVG path whose line ends move with the agents.

    SVG interpolates a path only between values with the same number of lines. So the path has as
    many lines in every step as the largest number of edges in one step; unused lines have length 0.
    """
    if episode.links is None:
        return []
    talks = [pairs(step) for step in episode.links]
    most = max(map(len, talks), default=0)
    if not most:
        return []
    lines: list[str] = []
    for step, talk in enumerate(talks):
        lines += [_lines(episode.places[at], talk, most) for at in (step, step + 1)]
    lines += [_lines(episode.places[-1], [], most)] * 2
    times = [clock.at(at) for step in range(clock.steps) for at in (step, step + 1)]
    times += [clock.at(clock.steps), "1"]
    motion = clock.animate("d", lines, keyTimes=";".join(times))
    return [element("path", motion, class_="talk", d=lines[0], transform="translate(.5 .5)")]


def _lines(places: Array, talk: Sequence[Pair], count: int) -> str:
    at = [f"{column} {row}" for row, column in places.tolist()]
    drawn = [f"M{at[a]}L{at[b]}" for a, b in talk]
    return "".join(drawn) + "M0 0L0 0" * (count - len(talk))


def _foot(episode: RecordedEpisode, clock: _Clock, width: float, height: float) -> list[str]:
    bar = f"{width - 2 * MARGIN:g}"
    times = ";".join(("0", clock.at(clock.steps), "1"))
    return [
        *(_caption(text, step, height, clock) for step, text in enumerate(captions(episode))),
        element(
            "rect",
            clock.animate("width", ("0", bar, bar), keyTimes=times),
            class_="bar",
            x=MARGIN,
            y=height - 10,
            width=0,
            height=3,
            rx=1.5,
        ),
    ]


def _caption(text: str, step: int, height: float, clock: _Clock) -> str:
    seen = "hidden" if step else "visible"
    inside = (safe(text), clock.show(step))
    return element("text", *inside, class_="caption", x=MARGIN, y=height - 20, visibility=seen)


def _style() -> str:
    dark = _shades(DARK)
    return f"{_shades(LIGHT)} {_SHAPES} @media (prefers-color-scheme: dark) {{ {dark} }}"


def _shades(shade: dict[str, str]) -> str:
    return (
        f".card {{ fill: {shade['card']} }} .floor {{ fill: {shade['floor']} }} "
        f".wall {{ fill: {shade['wall']}; stroke: {shade['wall']} }} "
        f".mesh {{ stroke: {shade['mesh']} }} .talk {{ stroke: {shade['talk']} }} "
        f".disc circle {{ stroke: {shade['floor']} }} .bar {{ fill: {shade['bar']} }} "
        f".caption {{ fill: {shade['ink']} }}"
    )


_SHAPES = (
    f".mesh {{ stroke-width: 0.03 }} .ring circle {{ fill: none; stroke-width: {EDGE} }} "
    f".wall {{ stroke-width: {2 * CORNER}; stroke-linejoin: round }} "
    f".talk {{ fill: none; stroke-width: {TALK}; opacity: 0.55 }} "
    ".disc circle { stroke-width: 0.05 } "
    ".caption { font-size: 15px; font-variant-numeric: tabular-nums }"
)
