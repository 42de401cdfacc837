"""Recordings are whole, keep their speed, and refuse what is not a frame."""

import importlib.util

import numpy as np
import pytest
from PIL import Image

from rookery.errors import ConfigError, EnvError
from rookery.report.video import write_gif


def film(n, shape=(8, 6, 3), dtype=np.uint8):
    return [np.full(shape, 20 * i, dtype=dtype) for i in range(n)]


@pytest.mark.parametrize(
    ("fps", "frames", "duration_ms"), [(10, 5, 100), (50, 5, 20), (100, 3, 20)]
)
def test_a_film_has_its_frames_size_and_speed(tmp_path, fps, frames, duration_ms):
    write_gif(tmp_path / "a.gif", film(5), fps)

    with Image.open(tmp_path / "a.gif") as image:
        assert (image.n_frames, image.size) == (frames, (6, 8))
        assert image.info["duration"] == duration_ms


def test_only_the_finished_film_is_in_the_folder(tmp_path):
    write_gif(tmp_path / "a.gif", film(2), 10)
    write_gif(tmp_path / "a.gif", film(3), 10)

    assert [path.name for path in tmp_path.iterdir()] == ["a.gif"]


@pytest.mark.parametrize(
    "frames",
    [
        [],
        film(2, (8, 6)),
        film(2, (8, 6, 4)),
        film(2, dtype=np.float32),
        film(1) + film(1, (9, 6, 3)),
    ],
)
def test_what_is_not_a_film_is_refused(tmp_path, frames):
    with pytest.raises(EnvError, match=r"rgb_array|render\(\)"):
        write_gif(tmp_path / "a.gif", frames, 10)


def test_without_pillow_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)

    with pytest.raises(ConfigError, match=r"rookery\[video\]"):
        write_gif(tmp_path / "a.gif", film(1), 10)
