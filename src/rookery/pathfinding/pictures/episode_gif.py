"""Draws a path-finding episode of many agents on a grid as an animated GIF.

    episode_gif.write(path, episode)

A frame is the image of the world that the environments render, one for each step.
"""

from pathlib import Path

from rookery.pathfinding.pictures.episode_svg import PACE, REST, RecordedEpisode
from rookery.pathfinding.world.world_image import picture
from rookery.report import video
from rookery.types import Array

SIDE = 480  # pixels of the map's longer side, at least half of that


def write(path: Path, episode: RecordedEpisode, pace: float = PACE) -> None:
    """Writes an episode as an animated GIF that shows `pace` steps per second."""
    video.write_gif(path, frames(episode), pace)


def frames(episode: RecordedEpisode) -> list[Array]:
    """Returns the frames of an episode's animation, uint8 [height, width, 3].

    The last one is repeated, so that the end of the episode is shown for a while.
    """
    tile = max(1, SIDE // max(episode.map.shape))
    drawn = [picture(episode.map, places, episode.goals, tile) for places in episode.places]
    return drawn + drawn[-1:] * REST
