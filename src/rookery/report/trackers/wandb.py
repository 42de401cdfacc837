"""Weights & Biases, the extra `wandb`. Offline by default: `wandb sync` sends a run later."""

import hashlib
import importlib.util
import queue
import threading
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

from rookery.config import Config
from rookery.errors import ConfigError
from rookery.event import Evaluated, Event, Logged, Stopped
from rookery.report.metrics.metric_names import evaluation

OPEN_S, FINISH_S = 30.0, 30.0  # the longest a tracker out of reach is waited for
BACKLOG = 10_000  # rows waiting for a slow tracker before it counts as failed


def require() -> None:
    """Raises `ConfigError` if wandb is not installed."""
    if importlib.util.find_spec("wandb") is None:
        raise ConfigError(
            "report.wandb is on but wandb is not installed; "
            "pip install 'rookery[wandb]', or set report.wandb to false"
        )


class Wandb:
    """Logs events to W&B from its own thread, since opening a run online may take 30 seconds."""

    def __init__(self, run_dir: Path, config: Config):
        require()
        self._rows: queue.Queue[dict[str, Any] | None] = queue.Queue(BACKLOG)
        self._failure: Exception | None = None
        self._thread = threading.Thread(
            target=self._track, args=(run_dir, config), name="wandb", daemon=True
        )
        self._thread.start()

    def write(self, event: Event) -> None:
        if self._failure is not None:
            raise self._failure
        row = _row(event)
        if row:
            self._rows.put_nowait({**asdict(event.counters), **row})

    def close(self) -> None:
        if self._thread.is_alive():
            self._rows.put(None, timeout=FINISH_S)
        self._thread.join(timeout=OPEN_S + FINISH_S)
        if self._thread.is_alive():
            raise TimeoutError(f"wandb did not finish within {OPEN_S + FINISH_S:.0f} s")
        if self._failure is not None:
            raise self._failure

    def _track(self, run_dir: Path, config: Config) -> None:
        try:
            run = _open(run_dir, config)
            while (row := self._rows.get()) is not None:
                run.log(row)
            run.finish()
        except Exception as failure:  # a tracker may fail in any way; `write` reports it
            self._failure = failure


def _open(run_dir: Path, config: Config) -> Any:
    import wandb

    limits = {"init_timeout": OPEN_S, "finish_timeout": FINISH_S}
    known = {name: s for name, s in limits.items() if name in wandb.Settings.model_fields}
    run = wandb.init(
        project="rookery",
        dir=run_dir,
        id=_identity(run_dir),
        name=run_dir.name,
        group=config.name,
        tags=[config.report.tag] if config.report.tag else None,
        mode=cast(Any, config.report.wandb_mode),
        resume="allow",
        config=asdict(config),
        # the terminal belongs to the console; usage is one of our own metrics
        settings=wandb.Settings(
            console="off", silent=True, disable_git=True, x_disable_stats=True, **known
        ),
    )
    # its own step may not go back, as late evaluations do
    run.define_metric("*", step_metric="env_steps")
    run.define_metric("eval/mean_reward_by_second", step_metric="wall_s")
    return run


def _row(event: Event) -> dict[str, float]:
    if isinstance(event, Logged):
        return {"wall_s": event.wall_s, **event.metrics}
    if isinstance(event, Evaluated):
        by_second = {"wall_s": event.wall_s, "eval/mean_reward_by_second": event.score}
        return {**evaluation(event), **by_second}
    return {"solved": float(event.solved)} if isinstance(event, Stopped) else {}


def _identity(run_dir: Path) -> str:
    """Returns an id of the run folder, so that a resumed run continues the same W&B run."""
    place = str(run_dir.resolve())
    return "rookery-" + hashlib.sha256(place.encode()).hexdigest()[:16]
