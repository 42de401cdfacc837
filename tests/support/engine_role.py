"""A role for tests of engines, `engine_role:EngineRole`, in any process."""

import os
import struct
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from rookery.errors import ConfigError

FOREVER_S = 3600.0


class RoleSetup(NamedTuple):
    """What a clerk is built from."""

    closed: str = ""  # a file it makes when it is closed
    wrong: str = ""  # raised by its constructor


class EngineRole:
    """Does what the order names; counts by itself while it roams."""

    def __init__(self, setup: RoleSetup):
        if setup.wrong:
            raise ConfigError(setup.wrong)
        self.setup, self.self_driven, self.count = setup, False, 0

    def do(self, order: Any) -> Any:
        job, *rest = order
        return getattr(self, job)(*rest)

    def work(self) -> int | None:
        self.count += 1
        time.sleep(0.0005)
        return self.count if self.count % 5 == 0 else None

    def close(self) -> None:
        if self.setup.closed:
            Path(self.setup.closed).touch()

    def echo(self, what: Any) -> Any:
        return what

    def walk(self) -> str:
        self.self_driven = True
        return "walking"

    def stay(self) -> int:
        self.self_driven = False
        return self.count

    def fall(self, kind: str) -> None:
        kinds: dict[str, type[Exception]] = {"RuntimeError": RuntimeError, "EOFError": EOFError}
        raise kinds[kind]("over the cable")

    def look(self) -> dict[str, Any]:
        """What can be seen of a process from inside."""
        import torch

        return {
            "pid": os.getpid(),
            "group": os.getpgrp(),
            "name": Path("/proc/self/comm").read_text().strip(),
            "threads": torch.get_num_threads(),
            "main": getattr(sys.modules["__main__"], "__file__", ""),
        }

    def mumble(self) -> None:
        """Sends half a message to the parent, then nothing."""
        os.write(int(sys.argv[2]), struct.pack("!i", 1_000) + b"half")
        time.sleep(FOREVER_S)

    def hang(self) -> None:
        time.sleep(FOREVER_S)
