"""Ray Tune is not rebuilt: a trial calls `rookery.train`."""

import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from eventually import eventually

EXAMPLE = Path(__file__).parents[2] / "examples" / "tune.py"

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]


def test_a_search_over_two_learning_rates_finds_the_one_that_learns_and_leaves_nothing(tmp_path):
    mark = f"ROOKERY_TUNE_EXAMPLE={uuid.uuid4().hex}"
    done = subprocess.run(
        [sys.executable, str(EXAMPLE)],
        cwd=tmp_path,
        env=os.environ | dict([mark.split("=")]),
        capture_output=True,
        text=True,
        timeout=150,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "lr 1e-06: best score -1.00\nlr 0.003: best score 0.93\nbest lr: 0.003" in done.stdout
    assert list(tmp_path.iterdir()) == []
    assert eventually(lambda: _marked(mark) == [], 10.0), _marked(mark)


def _marked(mark: str) -> list[str]:
    """Returns the command lines of the processes that have this in their environment."""
    return [_read(path.parent / "cmdline") for path in _environs() if mark in _read(path)]


def _environs() -> list[Path]:
    return list(Path("/proc").glob("[0-9]*/environ"))


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:  # it has ended meanwhile, or is somebody else's
        return ""
