"""Functions that a run on another host is launched with, instead of `rookery.training.launch`."""

import os
import signal
import time
from typing import Any

LETTERS = 3 << 20
PATIENCE_S = 60.0


def talkative(*_: Any, **__: Any) -> tuple[dict[str, int], int]:
    """Prints three MiB and ends."""
    os.write(2, b"x" * LETTERS)
    return {"env_steps": 7}, 0


def waiting(*_: Any, **__: Any) -> tuple[dict[str, int], int]:
    """Waits for a signal, as a run that is being built."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        time.sleep(0.01)
    return {}, 0


def __getattr__(name: str) -> Any:
    """Receives a signal while the function is loaded, as if that took long."""
    if name.startswith("SIG"):
        signal.raise_signal(getattr(signal, name))
    raise AttributeError(name)
