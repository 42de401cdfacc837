"""Videos refuse what cannot be one; what is written is read back in tests/integration."""

import importlib.util

import numpy as np
import pytest

from rookery.errors import ConfigError, EnvError
from rookery.report.video import _even, write_mp4

FRAME = np.arange(5 * 3 * 3, dtype=np.uint8).reshape(5, 3, 3)


def test_without_ffmpeg_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)

    with pytest.raises(ConfigError, match=r"rookery\[video\]', or choose gif"):
        write_mp4(tmp_path / "a.mp4", [FRAME], 10)


@pytest.mark.parametrize("frames", [[], [FRAME.astype(np.float32)], [FRAME, FRAME[:4]]])
def test_what_is_not_a_film_is_refused(tmp_path, frames):
    with pytest.raises(EnvError, match=r"rgb_array|render\(\)"):
        write_mp4(tmp_path / "a.mp4", frames, 10)

    assert not list(tmp_path.iterdir())


def test_odd_sides_get_their_last_line_twice():
    even = _even(FRAME)

    assert even.shape == (6, 4, 3)
    assert (even[:5, :3] == FRAME).all()
    assert (even[5, :3] == FRAME[4]).all()
    assert (even[:5, 3] == FRAME[:, 2]).all()
    assert _even(even).shape == even.shape
