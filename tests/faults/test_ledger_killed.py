"""A killed ledger: what was spent is not forgotten, and nothing is shown that is not paid."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from killed_ledger import BEFORE, LIFE, NAME
from run_processes import ALONE, SUPPORT

pytest.importorskip("dp_accounting")


def deaths(folder: Path, way: str) -> list[dict[str, Any]]:
    """Returns what was found after a kill -9 at each request, and after the life that ended."""
    done = subprocess.run(
        [sys.executable, str(SUPPORT / "killed_ledger.py"), str(folder), way],
        env=os.environ | ALONE,
        capture_output=True,
        text=True,
        timeout=170,
    )
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [each["status"] for each in found] == [-signal.SIGKILL] * (len(found) - 1) + [0]
    assert max(version for each in found for version, *_ in each["shown"]) == BEFORE + LIFE
    return found


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return deaths(tmp_path_factory.mktemp("alone"), "alone")


def test_killed_at_any_request_a_ledger_knows_every_round_that_was_shown(alone):
    assert len(alone) > 30  # requests
    for each in alone:
        shown = BEFORE + len(each["shown"])
        assert shown <= each["rounds"] <= shown + 1, each  # one may be paid and never shown
        assert each["after"] == each["rounds"] + 1, each
        assert NAME in each["left"], each


def test_nothing_is_shown_while_a_power_cut_could_still_undo_its_charge(alone):
    for each in alone:
        for version, _, on_disk in each["shown"]:
            assert on_disk >= version, each


def test_a_killed_private_server_shows_no_version_that_is_not_paid_and_none_in_two_ways(tmp_path):
    """Two noises under one version would be two releases for one price."""
    found = deaths(tmp_path, "served")

    assert len(found) > 60
    for each in found:
        known = {version: looked for version, looked, _ in each["shown"]}
        version, looked = each["first"]
        assert version <= each["rounds"] <= max(known, default=BEFORE) + 1, each
        assert version >= max(known, default=BEFORE), each
        assert known.get(version, looked) == looked, each
        assert each["after"] == each["rounds"] + 1, each
        assert all(on_disk >= v for v, _, on_disk in each["shown"]), each
