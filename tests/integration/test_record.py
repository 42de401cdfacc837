"""Films of real runs, opened again: as long, as large and as lively as what was played."""

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.error import DependencyNotInstalled
from PIL import Image, ImageSequence

import rookery
from inline_runs import TINY, Inline
from rookery.cli.main import main
from rookery.envs.toy import basic
from rookery.errors import ConfigError
from rookery.evaluation.record_run import record_run
from rookery.report import video
from rookery.report.video import write_mp4
from rookery.training import launch

pytest.importorskip("pygame")
OVERRIDES = [
    f"{key}={json.dumps(value)}"
    for key, value in {**TINY, "run.env_steps": 300, "net.hidden": [16]}.items()
]


@pytest.fixture(autouse=True)
def without_a_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"SDL_VIDEODRIVER": "dummy", "MUJOCO_GL": "egl"}.items():
        monkeypatch.setenv(name, value)


def trained(run_dir: Path, scenario: str, **given: Any) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch, "EvaluationClient", Inline)
        return rookery.train(scenario, overrides=OVERRIDES, run_dir=run_dir, **given).run_dir


@pytest.fixture(scope="module")
def cartpole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("runs") / "cartpole", "cartpole")


def recorded(capsys: pytest.CaptureFixture[str], run_dir: Path, *flags: str) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["record", str(run_dir), "--json", *flags]) == 0
    answer: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return answer


def frames_of(film: Path, width: int, height: int) -> Any:
    """Decodes a video: [T, height, width, 3]."""
    exe = pytest.importorskip("imageio_ffmpeg").get_ffmpeg_exe()
    words = ["-loglevel", "error", "-i", str(film), "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    raw = subprocess.run([exe, *words], capture_output=True, timeout=60, check=True).stdout
    return np.frombuffer(raw, np.uint8).reshape(-1, height, width, 3)


def test_a_gif_shows_every_step_of_the_episodes_that_were_played(cartpole, capsys):
    answer = recorded(capsys, cartpole, "--episodes", "2")

    assert answer["file"] == str(cartpole / "episode.gif")
    assert answer["frames"] == sum(answer["lengths"])
    assert answer["returns"] == answer["lengths"]  # a point for each step
    assert answer["fps"] == 50  # as CartPole says
    with Image.open(answer["file"]) as gif:
        assert gif.size == (600, 400)
        frames = [frame.convert("RGB") for frame in ImageSequence.Iterator(gif)]
        shown_ms = sum(frame.info["duration"] for frame in ImageSequence.Iterator(gif))
    # frames that look alike become one that is shown for longer
    assert 2 < len(frames) <= answer["frames"]
    assert shown_ms == 20 * answer["frames"]
    assert len({frame.tobytes() for frame in frames}) > 2


def test_a_video_has_the_frames_that_were_played(cartpole, tmp_path, capsys):
    out = tmp_path / "new" / "film.mp4"
    answer = recorded(capsys, cartpole, "--out", str(out), "--max-steps", "7", "--fps", "20")

    pictures = frames_of(out, 600, 400)
    assert answer["lengths"] == [7]
    assert (answer["fps"], len(pictures)) == (20, 7)
    assert not np.array_equal(pictures[0], pictures[-1])
    assert [path.name for path in out.parent.iterdir()] == ["film.mp4"]


def test_a_video_keeps_its_colours_and_an_odd_side(tmp_path):
    red = np.zeros((33, 47, 3), np.uint8) + np.array([200, 0, 0], np.uint8)

    write_mp4(tmp_path / "a.mp4", [red] * 5, 10)

    pictures = frames_of(tmp_path / "a.mp4", 48, 34)
    assert len(pictures) == 5
    assert np.abs(pictures.mean(axis=(0, 1, 2)) - [200, 0, 0]).max() < 12


def test_where_ffmpeg_fails_its_reason_is_told_and_no_film_is_left(tmp_path, monkeypatch):
    def broken(path: Path, width: int, height: int, fps: float) -> list[str]:
        return [*command(path, width, height, fps)[:-1], "-fs", "x", str(path)]

    command = video._command
    monkeypatch.setattr(video, "_command", broken)
    with pytest.raises(OSError, match=r"ffmpeg ended with \d+: .*x"):
        write_mp4(tmp_path / "a.mp4", [np.zeros((400, 600, 3), np.uint8)] * 20, 10)

    assert not list(tmp_path.iterdir())


def test_the_same_seed_gives_the_same_film(cartpole, tmp_path):
    films = [tmp_path / name for name in ("a.gif", "b.gif", "c.gif")]
    for path, seed in zip(films, (3, 3, 4), strict=True):
        record_run(cartpole, path, seed=seed, max_steps=9)

    first, again, other = (path.read_bytes() for path in films)
    assert first == again
    assert first != other


def test_a_limit_may_cut_an_episode_and_never_prolongs_one(tmp_path):
    run_dir = trained(tmp_path / "run", "corridor")  # is cut after 100 steps, or arrives

    short = record_run(run_dir, tmp_path / "short.gif", max_steps=3)
    whole = record_run(run_dir, tmp_path / "whole.gif", max_steps=5_000)
    free = record_run(run_dir, tmp_path / "free.gif")

    assert short["lengths"] == [3]
    assert whole["lengths"] == free["lengths"]
    assert 7 <= whole["lengths"][0] <= 100


def test_an_environment_without_pictures_is_refused_with_what_would_help(tmp_path, capsys):
    run_dir = trained(tmp_path / "run", "corridor", env=basic.Echo)

    assert main(["record", str(run_dir)]) == 2
    said = capsys.readouterr().err
    assert "rookery.envs.toy.basic:Echo renders no frames" in said
    assert "render_mode='rgb_array'" in said
    assert "rookery evaluate" in said
    assert not (run_dir / "episode.gif").exists()


class Undrawn(basic.Corridor):
    """Draws with a package that is not there."""

    def render(self) -> Any:
        raise DependencyNotInstalled("pygame is not installed")


def test_a_package_that_an_environment_draws_with_is_named(tmp_path):
    run_dir = trained(tmp_path / "run", "corridor", env=Undrawn)

    said = r"pygame is not installed; pip install 'rookery\[video\]'"
    with pytest.raises(ConfigError, match=said):
        record_run(run_dir, tmp_path / "film.gif", factory=Undrawn)
    assert not (tmp_path / "film.gif").exists()


class Shy(basic.Corridor):
    """Says that it can be drawn, and cannot."""

    def render(self) -> Any:
        return None


def test_an_environment_that_draws_nothing_is_refused_too(tmp_path):
    run_dir = trained(tmp_path / "run", "corridor", env=Shy)

    with pytest.raises(rookery.RookeryError, match="renders no frames"):
        record_run(run_dir, tmp_path / "a.gif", factory=Shy)
