"""The skeletons of `rookery new` are complete: the tests that come with them pass."""

import subprocess
import sys

import pytest

from rookery.cli.main import main
from rookery.cli.new import KINDS


@pytest.mark.fresh  # pytest in a process of its own, as its user starts it
@pytest.mark.timeout(400)
def test_the_tests_of_all_skeletons_pass(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for kind in KINDS:
        assert main(["new", kind, f"my-{kind}"]) == 0

    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)

    assert done.returncode == 0, done.stdout
    assert "7 passed" in done.stdout
