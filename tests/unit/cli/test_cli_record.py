"""`rookery record`: which file, in which format, and what is refused before anything is played."""

import os
from pathlib import Path

import pytest

from rookery.cli.main import main
from rookery.cli.record import FORMATS, need_no_screen, summary
from rookery.config.load import RUN_FILE, dump
from rookery.config.schema import Config
from rookery.terminal import arguments


@pytest.mark.parametrize(
    ("out", "format", "file", "found"),
    [
        (None, None, "runs/a/episode.gif", "gif"),
        (None, "mp4", "runs/a/episode.mp4", "mp4"),
        ("b.mp4", None, "b.mp4", "mp4"),
        ("b.GIF", None, "b.GIF", "gif"),
        ("b.gif", "gif", "b.gif", "gif"),
        ("b", "mp4", "b", "mp4"),
        ("b.film", "gif", "b.film", "gif"),
    ],
)
def test_the_format_is_what_the_name_or_the_flag_says(out, format, file, found):
    usual = Path("runs/a/episode")
    assert arguments.target(usual, out, format, FORMATS) == (Path(file), found)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--out", "b.avi"], "does not end in .gif or .mp4"),
        (["--out", "b"], "--format"),
        (["--out", "b.gif", "--format", "mp4"], "drop one of them"),
        (["--format", "avi"], "invalid choice"),
        (["--episodes", "0"], "above 0"),
        (["--max-steps", "0"], "above 0"),
        (["--checkpoint", "newest"], "best, last or a number"),
        (["--seed", "-1"], "at least 0"),
        (["--fps", "0"], "from 0.1 to 1000"),
        (["--fps", "nan"], "from 0.1 to 1000"),
        (["--fps", "fast"], "from 0.1 to 1000"),
        ([], "no run folder 'runs/absent'"),
    ],
)
def test_a_wrong_request_is_one_line_and_exit_code_2(flags, said, capsys):
    assert main(["record", "runs/absent", *flags]) == 2

    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert said in err


@pytest.mark.parametrize(
    ("place", "said"),
    [("folder", "is a folder; a video is a file"), ("file/film", "cannot write .*choose another")],
)
def test_a_place_that_holds_no_file_is_refused_before_anything_is_played(place, said, tmp_path):
    from rookery.errors import ConfigError
    from rookery.evaluation.record_run import record_run

    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=said):
        record_run(tmp_path / "no run", tmp_path / place)


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({}, ("dummy", "egl")),
        ({"DISPLAY": ":0"}, ("dummy", None)),
        ({"SDL_VIDEODRIVER": "x11", "MUJOCO_GL": "osmesa"}, ("x11", "osmesa")),
    ],
)
def test_pictures_need_no_screen_and_what_is_set_stays(given, found, monkeypatch):
    monkeypatch.setattr("os.environ", dict(given))

    need_no_screen()

    assert (os.environ.get("SDL_VIDEODRIVER"), os.environ.get("MUJOCO_GL")) == found


def test_a_run_without_a_checkpoint_is_refused(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("rookery.cli.record.need_no_screen", lambda: None)
    (tmp_path / RUN_FILE).write_text(dump(Config()))

    assert main(["record", str(tmp_path)]) == 3
    assert "no checkpoint that verifies" in capsys.readouterr().err


def test_every_format_has_a_writer():
    assert tuple(FORMATS) == FORMATS


def test_the_answer_says_where_the_film_is_and_what_it_shows():
    answer = {"file": "a.gif", "frames": 30, "fps": 50.0, "returns": [9.0, 21.5], "version": 4}

    assert summary(answer) == [
        "a.gif: 30 frames at 50 per second",
        "  return 9.00, 21.50 with version 4",
    ]
