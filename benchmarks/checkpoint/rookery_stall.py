"""Rookery's checkpoints: how long training waits for one, with a million rows in replay.

    python benchmarks/checkpoint/rookery_stall.py --seed 0

A run with prioritised replay and rows of 8 floats is asked for two checkpoints where most has to
be copied: just before it would have written rows early, and when the unsaved rows lie across the
ring's end. The clock runs from the end of a turn to the end of the next chunk, so that nothing
that training waits for is left out. TMPDIR says on which disk. The last line on stdout is
`{"value": the longer of the two in ms, "first", "later", "other"}`; the last is the longest of
all other turns, those that write rows early included.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

import rookery
from rookery.checkpoints import checkpoint
from rookery.checkpoints.saver import CHECKPOINTS
from rookery.config.schema import (
    ActorConfig,
    CheckpointConfig,
    Config,
    Draw,
    EnvConfig,
    EvalConfig,
    NetConfig,
    ReplayConfig,
    ReportConfig,
    RunConfig,
)
from rookery.event import Ask, Collected, Event, IterationEnded

ROWS = 1_000_000
MARKS = (1_500_000, 2_200_000)  # env steps; of a segment, 64 MiB, nearly all is unsaved at each
NEVER = 10**12  # env steps


class Watch:
    """A callback: asks for a checkpoint at each mark, and times every turn."""

    def __init__(self) -> None:
        self.stalls: list[float] = []  # ms, of turns with a checkpoint
        self.others: list[float] = []  # ms, of all other turns
        self._turned, self._asked = 0.0, False

    def __call__(self, event: Event) -> Ask | None:
        if isinstance(event, IterationEnded):
            self._turned = time.perf_counter()
        if not isinstance(event, Collected):
            return None
        turns = self.stalls if self._asked else self.others
        turns.append(round(1e3 * (time.perf_counter() - self._turned), 1))
        self._asked = not self.over and event.counters.env_steps >= MARKS[len(self.stalls)]
        return Ask.CHECKPOINT if self._asked else None

    @property
    def over(self) -> bool:
        return len(self.stalls) == len(MARKS)


def settings(seed: int) -> Config:
    return Config(
        run=RunConfig(seed=seed, env_steps=NEVER),
        env=EnvConfig(id="Flood-v0", imports=("flood",)),
        replay=ReplayConfig(capacity=ROWS, sampling=Draw.PRIORITIZED, samples_per_insert=0.1),
        net=NetConfig(hidden=(64, 64)),
        actor=ActorConfig(envs=256, chunk=1024),
        eval=EvalConfig(period=NEVER),
        checkpoint=CheckpointConfig(period=NEVER),
        report=ReportConfig(log_period=NEVER),
    )


def measure(seed: int, run_dir: Path) -> dict[str, float]:
    """Runs until both checkpoints stand."""
    watch = Watch()
    run = rookery.events(settings(seed), run_dir=run_dir, callbacks=[watch])
    while not watch.over:
        next(run)
    run.close()
    if len(checkpoint.folders(run_dir / CHECKPOINTS)) != len(MARKS):
        raise SystemExit(f"{len(MARKS)} checkpoints were asked for and are not all there")
    first, later = watch.stalls
    other = max(watch.others[1:])  # the first one loads what is compiled
    return {"value": max(first, later), "first": first, "later": later, "other": other}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", help="ignored: two checkpoints take as long as they take")
    seed = parser.parse_args().seed
    with tempfile.TemporaryDirectory(prefix="rookery-bench-") as folder:
        print(json.dumps(measure(seed, Path(folder) / "run")))


if __name__ == "__main__":
    main()
