"""Writes the frames of episodes as a GIF, or as an mp4 (H.264) with imageio-ffmpeg's ffmpeg."""

import importlib.util
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from rookery.errors import ConfigError, EnvError
from rookery.files import replacing
from rookery.types import Array

FASTEST = 50  # frames a second of a GIF: viewers slow down what claims to be faster


def write_gif(path: Path, frames: Sequence[Array], fps: float) -> None:
    """Writes [H, W, 3] uint8 frames in one step, so that no reader opens an unfinished file.

    Above 50 frames a second some are left out, so that the film keeps its speed.
    """
    require("gif")
    from PIL import Image

    check(frames)
    stride = int(np.ceil(fps / FASTEST))
    first, *rest = [Image.fromarray(frame) for frame in frames[::stride]]
    with replacing(path) as scratch, scratch.open("wb") as file:
        first.save(
            file,
            format="GIF",
            save_all=True,
            append_images=rest,
            duration=round(1000 * stride / fps),
            loop=0,
        )


def write_mp4(path: Path, frames: Sequence[Array], fps: float) -> None:
    """Writes [H, W, 3] uint8 frames in one step, so that no reader opens an unfinished file."""
    require("mp4")
    check(frames)
    height, width = _even(frames[0]).shape[:2]
    with replacing(path) as scratch:
        command = _command(scratch, width, height, fps)
        with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as ffmpeg:
            assert ffmpeg.stdin is not None, "a pipe was asked for"
            with suppress(BrokenPipeError):  # ffmpeg has ended; its reason follows
                for frame in frames:
                    ffmpeg.stdin.write(_even(frame).tobytes())
            reason = ffmpeg.communicate()[1].decode(errors="replace").strip()
        if ffmpeg.returncode:
            raise OSError(f"ffmpeg ended with {ffmpeg.returncode}: {reason or 'no reason given'}")


def _command(path: Path, width: int, height: int, fps: float) -> list[str]:
    """Returns the ffmpeg command that encodes raw frames so that all browsers play the file."""
    import imageio_ffmpeg

    frames = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}", "-r", f"{fps:g}"]
    film = ["-c:v", "libx264", "-pix_fmt", "yuv420p", "-movflags", "+faststart", "-f", "mp4"]
    exe: str = imageio_ffmpeg.get_ffmpeg_exe()
    return [exe, "-y", "-loglevel", "error", *frames, "-i", "pipe:0", *film, f"file:{path}"]


def _even(frame: Array) -> Array:
    """Repeats the last row or column where a side is odd, since H.264 needs even sides."""
    height, width = frame.shape[:2]
    return np.pad(frame, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")


def check(frames: Sequence[Array]) -> None:
    """Raises `EnvError` if there are no frames, or frames of different shape or dtype."""
    if not len(frames):
        raise EnvError("a recording has no frames; does the environment render 'rgb_array'?")
    for at, frame in enumerate(frames):
        if frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape != (*frames[0].shape[:2], 3):
            raise EnvError(
                f"frame {at} of a recording is {frame.dtype} {frame.shape}; all frames must be "
                "uint8 [H, W, 3] of one size: check what render() of the environment returns"
            )


WRITERS: dict[str, Callable[[Path, Sequence[Array], float], None]] = {
    "gif": write_gif,
    "mp4": write_mp4,
}
NEEDED = {
    "gif": ("PIL", "a recording", "pillow", "go without (eval.record=false)"),
    "mp4": ("imageio_ffmpeg", "an mp4", "imageio-ffmpeg", "choose gif"),
}  # format → module, what was asked for, package, what else to do


def require(name: str) -> None:
    """Raises `ConfigError` if the package for a video format is missing."""
    module, wanted, package, otherwise = NEEDED[name]
    if importlib.util.find_spec(module) is None:
        raise ConfigError(
            f"{wanted} was asked for but {package} is not installed; "
            f"pip install 'rookery[video]', or {otherwise}"
        )
