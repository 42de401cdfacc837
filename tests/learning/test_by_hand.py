"""The loops written out by hand learn what the library's own loops learn."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "by_hand.py"


@pytest.mark.learning
def test_the_loops_by_hand_find_the_way_through_the_corridor(tmp_path: Path) -> None:
    """The optimum is 0.93; epsilon costs the actors a little of it."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLE)], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )

    means = [float(mean) for mean in re.findall(r"last 20 returns (\S+)", done.stdout)]
    began = re.search(r"first 20 episodes returned (\S+);", done.stdout)
    assert began is not None, done.stderr
    assert float(began[1]) < 0.5
    assert means[-1] > 0.85
