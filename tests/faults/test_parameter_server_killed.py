"""A killed parameter server loses nothing that it acknowledged, and applies nothing twice."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from killed_parameter_server import DIED, SIZES, WORKERS, serve, settled, truth, update
from run_processes import ALONE, SUPPORT

LIVES = 25
MODES = ("asynchronous", "synchronous")


@pytest.fixture
def forker(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[str]]:
    """A process whose children are servers in the folder `served`."""
    started = subprocess.Popen(
        [
            sys.executable,
            str(SUPPORT / "killed_parameter_server.py"),
            str(tmp_path / "served"),
            request.param,
        ],
        env=os.environ | ALONE,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    yield started
    started.kill()
    started.communicate()


class Witness:
    """Remembers what was acknowledged."""

    def __init__(self) -> None:
        self.numbers = dict.fromkeys(WORKERS, 0)  # the next push of each
        self.version = 0
        self.acks = 0

    def live(self, forker: Any, life: int, acks: int) -> None:
        """Lets a server live until it has acknowledged so much, and listens until it is dead."""
        forker.stdin.write(f"{life} {' '.join(map(str, self.numbers.values()))}\n")
        forker.stdin.flush()
        pid, heard = 0, 0
        for line in forker.stdout:
            kind, *said = line.split()
            if kind == "dead":
                return
            pid = int(said[0]) if kind == "born" else pid
            heard += kind != "born" and self.hear(kind, said)
            if pid and heard >= acks:
                os.kill(pid, signal.SIGKILL)
                acks = 10**9
        raise AssertionError("the forker died")

    def hear(self, kind: str, said: list[str]) -> bool:
        """What was seen or acknowledged must not be taken back."""
        version = int(said[-1])
        assert version >= self.version
        self.version = version
        if kind == "ack":
            assert int(said[1]) == self.numbers[said[0]]
            self.numbers[said[0]] += 1
            self.acks += 1
        return True


@pytest.mark.parametrize("forker", MODES, indirect=True)
def test_what_was_acknowledged_is_applied_exactly_once_whenever_it_was_killed(
    forker, tmp_path, request
):
    witness, rng = Witness(), np.random.default_rng(0)
    mode = request.node.callspec.params["forker"]
    for life in range(LIVES):
        witness.live(forker, life, acks=int(rng.integers(1, 40)))

    server = serve(tmp_path / "served", mode, LIVES)
    assert server.version >= witness.version
    pushed = {}
    for worker, number in witness.numbers.items():  # the last of each may have been on its way
        receipt = server.push_gradients(worker, update(worker, number), push_id=str(number))
        pushed[worker] = list(range(number + receipt.accepted))
    expected, found = truth(pushed), settled(server)

    assert witness.acks > 5 * LIVES
    for name in SIZES:
        assert np.array_equal(found[name], expected[name])
    server.close()


@pytest.mark.parametrize("mode", MODES)
def test_killed_at_any_request_to_the_kernel_it_has_what_it_acknowledged(mode, tmp_path):
    done = subprocess.run(
        [sys.executable, str(SUPPORT / "killed_parameter_server.py"), str(tmp_path), mode, "fused"],
        env=os.environ | ALONE,
        capture_output=True,
        text=True,
        timeout=170,
    )
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]

    assert [each["status"] for each in found] == [DIED] * (len(found) - 1) + [0]
    assert len(found) > 50  # requests
    for each in found:
        assert each["right"], each
        acked = [(worker, number) for worker, number, _ in each["acks"]]
        assert all(number in each["has"][worker] for worker, number in acked), each
        assert sum(len(numbers) for numbers in each["has"].values()) <= 12 + len(acked) + 1
        assert each["version"] >= max([v for *_, v in each["acks"]], default=4), each
        kinds = {name[:17] for name in each["left"]}
        assert len(kinds) == 3, each["left"]  # lock, checkpoint, one journal
