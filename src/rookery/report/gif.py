"""Moving pictures of an episode."""

import importlib.util
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from rookery.errors import ConfigError, EnvError
from rookery.types import Array

FASTEST = 50  # frames a second: viewers slow down what claims to be faster


def require() -> None:
    """Refuses recordings where they cannot be made."""
    if importlib.util.find_spec("PIL") is None:
        raise ConfigError(
            "a recording was asked for but pillow is not installed; "
            "pip install 'rookery[video]', or go without (eval.record=false)"
        )


def write_gif(path: Path, frames: Sequence[Array], fps: float) -> None:
    """Writes [H, W, 3] uint8 frames in one step: nobody ever opens half a film.

    Above 50 frames a second some are left out, so that the film keeps its speed.
    """
    require()
    from PIL import Image

    check(frames)
    stride = int(np.ceil(fps / FASTEST))
    first, *rest = [Image.fromarray(frame) for frame in frames[::stride]]
    fresh = path.with_name(f"{path.name}.tmp-{os.getpid()}")  # `rookery clean` knows the name
    with fresh.open("wb") as file:
        first.save(
            file,
            format="GIF",
            save_all=True,
            append_images=rest,
            duration=round(1000 * stride / fps),
            loop=0,
        )
    fresh.replace(path)


def check(frames: Sequence[Array]) -> None:
    """Refuses what is not a film: no frames, or frames that differ in form."""
    if not len(frames):
        raise EnvError("a recording has no frames; does the environment render 'rgb_array'?")
    for at, frame in enumerate(frames):
        if frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape != (*frames[0].shape[:2], 3):
            raise EnvError(
                f"frame {at} of a recording is {frame.dtype} {frame.shape}; all frames must be "
                "uint8 [H, W, 3] of one size: check what render() of the environment returns"
            )
