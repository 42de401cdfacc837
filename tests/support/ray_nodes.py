"""A Ray cluster of two nodes on this machine, for tests of runs that join one."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from namespace_hosts import QUICK
from run_processes import SUPPORT


@contextlib.contextmanager
def two_nodes() -> Iterator["Nodes"]:
    """Starts one, and ends it; Ray's sockets need a short path."""
    folder = Path(tempfile.mkdtemp(prefix="c-", dir="/tmp"))
    cluster = Nodes(folder)
    yield cluster
    cluster.close()
    shutil.rmtree(folder)


class Nodes:
    """A cluster in a process of its own, which adds and removes nodes when it is told to."""

    def __init__(self, folder: Path):
        self.token = folder / "token"
        self.token.touch(0o600)
        self.token.write_text("d" * 64)
        bare = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        self._process = subprocess.Popen(
            [sys.executable, str(SUPPORT / "two_ray_nodes.py"), str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=bare
            | QUICK
            | {
                "RAY_AUTH_MODE": "token",
                "RAY_AUTH_TOKEN_PATH": str(self.token),
                "RAY_USAGE_STATS_ENABLED": "0",
                "RAY_worker_niceness": "0",  # by default 15: too late beside other tests
            },
        )
        self.address: str = self._says()

    def ask(self, what: str) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{what}\n")
        self._process.stdin.flush()
        return self._says()

    def _says(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        self._process.communicate(timeout=60.0)
