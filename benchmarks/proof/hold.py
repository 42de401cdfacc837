"""A callback that stops a run once it has played all its env steps, while its replay is still lent.

    rookery train ... --set run.callbacks=[benchmarks.proof.hold:until_released]

The run writes the file `HOLD`.held and goes on as soon as `HOLD`.released is there. It plays no
further step meanwhile, so that what other runs borrow from it never changes.
"""

import os
import time
from pathlib import Path
from typing import Any

HOLD = "ROOKERY_PROOF_HOLD"  # a path without its ending
STEPS = "ROOKERY_PROOF_STEPS"  # env steps after which the run is held
MOST_S = 240.0  # a buffer that is silent for 300 s is not lent any more


def until_released(event: Any) -> None:
    """Waits at the first event that has seen all env steps."""
    held, released = (Path(os.environ[HOLD] + ending) for ending in (".held", ".released"))
    if event.counters.env_steps < int(os.environ[STEPS]) or held.exists():
        return
    held.touch()
    deadline = time.monotonic() + MOST_S
    while not released.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
