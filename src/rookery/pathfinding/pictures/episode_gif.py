"""Draws a path-finding episode of many agents on a grid as an animated GIF.

    episode_gif.write(path, episode)

The pictures look like those of `episode_svg`.
"""

from pathlib import Path
from typing import Any

import numpy as np

from rookery.pathfinding.pictures.episode_svg import (
    CORNER,
    DISC,
    EDGE,
    GAP,
    LIGHT,
    PACE,
    REST,
    RING,
    TALK,
    Colour,
    Pair,
    RecordedEpisode,
    boxes,
    captions,
    colours,
    pairs,
)
from rookery.report import gif
from rookery.types import Array

SIDE, MARGIN, FOOT = 480, 16, 34  # pixels: the map's longer side, around it, below it
FINE = 2  # supersampling factor, for smooth edges
BETWEEN = 4  # frames of a step
MOST = 600  # frames: all of them are held in memory


def write(path: Path, episode: RecordedEpisode, pace: float = PACE) -> None:
    """Writes an episode as an animated GIF that shows `pace` steps per second."""
    each = between(episode)
    gif.write_gif(path, frames(episode, each), pace * each)


def between(episode: RecordedEpisode) -> int:
    """Returns the number of animation frames per env step; fewer for long episodes.

    All frames are held in memory, so their total number is limited.
    """
    return max(1, min(BETWEEN, MOST // (episode.steps + REST)))


def frames(episode: RecordedEpisode, each: int) -> list[Array]:
    """Returns the frames of an episode's animation, `each` frames per env step.

    A frame is uint8 [height, width, 3]. The last frame is repeated, so that the end of the episode
    is shown for a while.
    """
    gif.require()
    renderer, texts, places = (
        _FrameRenderer(episode),
        captions(episode),
        episode.places.astype(float),
    )
    moving = [
        renderer.draw(
            places[t] + (places[t + 1] - places[t]) * part / each, _talk(episode, t), texts[t]
        )
        for t in range(episode.steps)
        for part in range(each)
    ]
    return moving + [renderer.draw(places[-1], [], texts[-1])] * (REST * each)


def _talk(episode: RecordedEpisode, step: int) -> list[Pair]:
    return [] if episode.links is None else pairs(episode.links[step])


class _FrameRenderer:
    """Draws frames of one episode on a background of map and goals, which is drawn only once."""

    def __init__(self, episode: RecordedEpisode):
        from PIL import Image, ImageDraw, ImageFont

        rows, columns = episode.map.shape
        self._cell: float = FINE * SIDE / max(rows, columns)
        width = FINE * (2 * MARGIN) + round(columns * self._cell)
        height = FINE * (MARGIN + FOOT) + round(rows * self._cell)
        self._pen, self._height = ImageDraw.Draw, height
        self._font = ImageFont.load_default(13 * FINE)
        self._present = episode.present
        self._colours = colours(len(episode.goals))
        self._ground = Image.new("RGB", (width, height), LIGHT["card"])
        self._prepare(episode)

    def draw(self, places: Array, talk: list[Pair], caption: str) -> Array:
        """Draws one frame of an episode's animation.

        `places` [N, 2] are rows and columns of N agents, which may lie between cells. Lines connect
        the pairs of agents in `talk`, the communication edges. Returns uint8 [height, width, 3].
        """
        picture = self._ground.copy()
        pen, middle = self._pen(picture), places + 0.5
        for a, b in talk:
            pen.line((self._at(*middle[a]), self._at(*middle[b])), "#a3a9b4", self._px(TALK))
        for i in self._present:
            self._circle(pen, middle[i], DISC + 0.03, fill="#ffffff")
            self._circle(pen, middle[i], DISC, fill=self._colours[i])
        foot = (FINE * MARGIN, self._height - FINE * 25)
        pen.text(foot, caption, fill=LIGHT["ink"], font=self._font)
        return np.asarray(picture.reduce(FINE))

    def _prepare(self, episode: RecordedEpisode) -> None:
        pen, (rows, columns) = self._pen(self._ground), episode.map.shape
        pen.rounded_rectangle(self._box(0, 0, rows, columns), self._px(0.3), LIGHT["floor"])
        for y in range(1, rows):
            pen.line((self._at(y, 0), self._at(y, columns)), LIGHT["mesh"], FINE)
        for x in range(1, columns):
            pen.line((self._at(0, x), self._at(rows, x)), LIGHT["mesh"], FINE)
        for x, y, width, height in boxes(episode.map):
            ends = self._box(y + GAP, x + GAP, y + height - GAP, x + width - GAP)
            pen.rounded_rectangle(ends, self._px(CORNER), LIGHT["wall"])
        for i in self._present:
            hue = self._colours[i]
            self._circle(pen, episode.goals[i] + 0.5, RING + EDGE / 2, outline=hue)

    def _circle(
        self,
        pen: Any,
        middle: Array,
        radius: float,
        fill: Colour | str | None = None,
        outline: Colour | None = None,
    ) -> None:
        y, x = middle
        ends = self._box(y - radius, x - radius, y + radius, x + radius)
        pen.ellipse(ends, fill, outline, self._px(EDGE))

    def _box(self, top: float, left: float, bottom: float, right: float) -> tuple[float, ...]:
        return (*self._at(top, left), *self._at(bottom, right))

    def _at(self, row: float, column: float) -> tuple[float, float]:
        edge = FINE * MARGIN
        return edge + float(column) * self._cell, edge + float(row) * self._cell

    def _px(self, cells: float) -> int:
        return max(1, int(cells * self._cell + 0.5))
