"""Runs that share on a cluster, each with a shard on every host, one of which is cut off."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eventually import eventually
from hosts import Host, hosts, missing
from watched import BACK_S, END_S, UP_S, Watched, both_play, both_up, ours

pytest.importorskip("ray")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(missing() is not None, reason=str(missing())),
]

POOL = "/dev/shm/pool"
CUT_S = 5.0
SHARED: dict[str, Any] = {"sharing.pool": POOL, "sharing.cross_sample_ratio": 0.25}


@pytest.fixture
def pair() -> Iterator[tuple[Host, Host]]:
    with hosts(2) as (a, b):
        a.start_head(cpus=2)
        b.join(a, cpus=2)
        yield a, b


def pool(host: Host) -> Path:
    return host.root / POOL[1:]


def buffers(host: Host) -> list[str]:
    """Returns the run ids in the pool of a host."""
    notes = [note for note in pool(host).glob("*.json") if note.stem not in ("pool", "terms")]
    return sorted(json.loads(note.read_text())["run_id"] for note in notes)


def foreign(status: dict[str, Any]) -> float:
    return float(status["sharing"]["sharing/foreign_rows"])


def borrows(run: Watched, rows: int) -> dict[str, Any]:
    """Waits until it has borrowed so many more rows."""
    goal = foreign(run.status) + rows
    return run.until(lambda s: foreign(s) >= goal, BACK_S)


def test_runs_share_on_every_host_and_go_on_when_one_was_cut_off(pair):
    """F49, and F50: both have the same name, and each buffer an id of its own."""
    a, b = pair
    runs = [Watched(a, a, settings=SHARED) for _ in range(2)]
    for run in runs:
        run.until(lambda s: both_play(s) and s["sharing"]["sharing/peers"] == 2, UP_S)
        borrows(run, 100)
    lending = [buffers(host) for host in (a, b)]

    b.cut()
    healed = time.monotonic() + CUT_S
    for run in runs:
        run.until(lambda s: s["stations"][1]["absent"], BACK_S)
        borrows(run, 50)
    assert eventually(lambda: time.monotonic() >= healed, 2 * CUT_S)
    b.heal()
    for run in runs:
        run.until(both_up, BACK_S)
        borrows(run, 300)
    reports = [run.finish() for run in runs]

    assert lending == [["run", "run"], ["run.1", "run.1"]]
    for report in reports:
        assert report["restarts"] == report["lost_rows"] == 0
        assert report["sharing"]["sharing/foreign_share"] < 0.26
    said = [line for report in reports for line in report["said"]]
    assert any("run 'run' is in the pool already" in line for line in said)
    assert eventually(lambda: not ours(a) and not ours(b), END_S)
    assert not pool(a).exists()
    assert not pool(b).exists()
