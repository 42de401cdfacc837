"""Draws a path-finding episode of many agents on a grid as an animation in one SVG file.

    episode_svg.write(path, RecordedEpisode(map, goals, places, links))

Coordinates are in cells, scaled once by a transform. The animation is SMIL, which browsers play
also in an <img> of a page. A viewer without animation shows the first step. Colours follow the
light or dark mode of the reader's system.
"""

from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from rookery.pathfinding.world.world_image import colour
from rookery.report.trackers.whole_lines import replace
from rookery.types import Array, Bools

Pair: TypeAlias = tuple[int, int]

SIDE, MARGIN, FOOT = 600.0, 20.0, 46.0  # pixels: the map's longer side, around it, below it
DISC, RING = 0.32, 0.42  # cells: radius of an agent, of its goal
REST = 6  # steps for which the end is shown
PACE = 4.0  # steps a second
STYLE = "episode.css"  # in this package


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
    discs = (_disc(i, episode.places[:, i], clock) for i in episode.present.tolist())
    return _element(
        "svg",
        _element("style", (files(__package__) / STYLE).read_text()),
        _element("title", f"{len(episode.present)} agents on a map of {rows} x {columns}"),
        _element("rect", class_="card", width=width, height=height, rx=16),
        _element(
            "g",
            *_ground(episode.map),
            _element("g", *_rings(episode), class_="ring"),
            *_talk(episode, clock),
            _element("g", *discs, class_="disc"),
            transform=f"translate({MARGIN:g} {MARGIN:g}) scale({cell:.4f})",
        ),
        *_foot(episode, clock, width, height),
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {_plain(width)} {_plain(height)}",
        width=width,
        height=height,
    )


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


def runs(blocked: Array) -> Iterable[tuple[int, int, int]]:
    """Yields row, first column and length of each run of blocked cells in a row of a map."""
    for row, line in enumerate(blocked):
        edges = np.flatnonzero(np.diff(line != 0, prepend=False, append=False))
        for begin, end in edges.reshape(-1, 2).tolist():
            yield row, begin, end - begin


class _Clock:
    """Converts env steps to times of an SVG animation, which shows T steps and a pause in a loop.

    Times are fractions of the loop's duration, from 0 to 1.
    """

    def __init__(self, steps: int, pace: float):
        self.steps, self.ticks = steps, steps + REST
        self._round = {"dur": f"{self.ticks / pace:.3f}s", "repeatCount": "indefinite"}

    def at(self, step: float) -> str:
        return f"{step / self.ticks:.5f}".rstrip("0").rstrip(".") or "0"

    def animate(
        self, attribute: str, values: Iterable[str], tag: str = "animate", **more: object
    ) -> str:
        """Returns an SVG element that sets an attribute to each of `values` in one loop.

        `more` are further attributes of the element; unless they include `keyTimes`, the values are
        evenly spaced in time.
        """
        shown = {"attributeName": attribute, "values": ";".join(values)}
        return _element(tag, **shown, **more, **self._round)

    def move(self, places: Array) -> str:
        """Returns an SVG animation that moves an element along an agent's path.

        `places` [T + 1, 2] are the rows and columns of the path. The element stays at the last cell
        during the pause at the end of the loop.
        """
        stops = [f"{column} {row}" for row, column in places.tolist()]
        stops += stops[-1:] * REST
        return self.animate("transform", stops, "animateTransform", type="translate")

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
    walls = [f"M{column} {row}h{n}v1h{-n}z" for row, column, n in runs(blocked)]
    return [
        _element("rect", class_="floor", width=columns, height=rows, rx=0.3),
        _element("path", class_="mesh", d="".join(mesh)),
        _element("path", class_="wall", d="".join(walls)),
    ]


def _rings(episode: RecordedEpisode) -> list[str]:
    centres = (episode.goals + 0.5).tolist()
    return [
        _element("circle", cx=centres[i][1], cy=centres[i][0], r=RING, stroke=_hex(i))
        for i in episode.present.tolist()
    ]


def _disc(number: int, places: Array, clock: _Clock) -> str:
    row, column = places[0].tolist()
    return _element(
        "circle",
        _element("title", f"agent {number}"),
        clock.move(places),
        cx=0.5,
        cy=0.5,
        r=DISC,
        fill=_hex(number),
        transform=f"translate({column} {row})",
    )


def _hex(number: int) -> str:
    return "#{:02x}{:02x}{:02x}".format(*colour(number))


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
    return [_element("path", motion, class_="talk", d=lines[0], transform="translate(.5 .5)")]


def _lines(places: Array, talk: Sequence[Pair], count: int) -> str:
    at = [f"{column} {row}" for row, column in places.tolist()]
    drawn = [f"M{at[a]}L{at[b]}" for a, b in talk]
    return "".join(drawn) + "M0 0L0 0" * (count - len(talk))


def _foot(episode: RecordedEpisode, clock: _Clock, width: float, height: float) -> list[str]:
    bar = f"{width - 2 * MARGIN:g}"
    times = ";".join(("0", clock.at(clock.steps), "1"))
    return [
        *(_caption(text, step, height, clock) for step, text in enumerate(captions(episode))),
        _element(
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
    inside = (escape(text), clock.show(step))
    return _element("text", *inside, class_="caption", x=MARGIN, y=height - 20, visibility=seen)


def _element(tag: str, *inside: str, **attributes: object) -> str:
    """Returns an SVG element around finished ones; `stroke_width` is written stroke-width."""
    given = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{escape(_plain(value))}"'
        for name, value in attributes.items()
    )
    return f"<{tag}{given}>{''.join(inside)}</{tag}>" if inside else f"<{tag}{given}/>"


def _plain(value: object) -> str:
    """Returns a number or word as text; hundredths of a pixel are enough."""
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
