"""Ray Tune and Optuna are not rebuilt: a trial calls `rookery.train`, and reports evaluations."""

import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from eventually import eventually

EXAMPLES = Path(__file__).parents[2] / "examples"

pytestmark = pytest.mark.timeout(270)


@pytest.mark.parametrize(
    ("example", "expected"),
    [
        pytest.param(
            "tune.py",
            [
                "lr 0.003: complete, score 0.93",
                "lr 1e-06: pruned",
                "lr 1e-07: pruned",
                "best lr: 0.00",
            ],
            marks=pytest.mark.cluster,
        ),
        pytest.param(
            "tune_optuna.py",
            [
                "lr 3e-03: complete after 3,000 env steps",
                "lr 1e-06: pruned after 1,024 env steps",
                "lr 1e-07: pruned after 1,024 env steps",
                "best score 0.93",
            ],
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_search_finds_a_rate_that_learns_prunes_the_others_and_leaves_nothing(
    example, expected, tmp_path
):
    mark = f"ROOKERY_TUNE_EXAMPLE={uuid.uuid4().hex}"
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / example)],
        cwd=tmp_path,
        env=os.environ | dict([mark.split("=")]),
        capture_output=True,
        text=True,
        timeout=240,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert [line for line in expected if line not in done.stdout] == [], done.stdout
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
