"""Films for players and browsers: H.264, through the ffmpeg that imageio-ffmpeg brings along."""

import importlib.util
import os
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from rookery.errors import ConfigError
from rookery.report.gif import check
from rookery.types import Array


def require() -> None:
    """Refuses a film that cannot be made here."""
    if importlib.util.find_spec("imageio_ffmpeg") is None:
        raise ConfigError(
            "an mp4 was asked for but imageio-ffmpeg is not installed; "
            "pip install 'rookery[video]', or choose gif"
        )


def write_mp4(path: Path, frames: Sequence[Array], fps: float) -> None:
    """Writes [H, W, 3] uint8 frames in one step: nobody ever opens half a film."""
    require()
    check(frames)
    height, width = _even(frames[0]).shape[:2]
    fresh = path.with_name(f"{path.name}.tmp-{os.getpid()}")  # `rookery clean` knows the name
    command = _command(fresh, width, height, fps)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as ffmpeg:
        assert ffmpeg.stdin is not None, "a pipe was asked for"
        with suppress(BrokenPipeError):  # it has gone already, and says why below
            for frame in frames:
                ffmpeg.stdin.write(_even(frame).tobytes())
        said = ffmpeg.communicate()[1].decode(errors="replace")
    if ffmpeg.returncode:
        fresh.unlink(missing_ok=True)
        raise OSError(f"ffmpeg ended with {ffmpeg.returncode}: {said.strip() or 'it did not say'}")
    fresh.replace(path)


def _command(path: Path, width: int, height: int, fps: float) -> list[str]:
    """Returns ffmpeg's words: bare frames in, and out what every player and browser shows."""
    import imageio_ffmpeg

    frames = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}", "-r", f"{fps:g}"]
    film = ["-c:v", "libx264", "-pix_fmt", "yuv420p", "-movflags", "+faststart", "-f", "mp4"]
    exe: str = imageio_ffmpeg.get_ffmpeg_exe()
    return [exe, "-y", "-loglevel", "error", *frames, "-i", "pipe:0", *film, f"file:{path}"]


def _even(frame: Array) -> Array:
    """Repeats the last line where a side is odd: colours are stored for squares of four pixels."""
    height, width = frame.shape[:2]
    return np.pad(frame, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")
