"""Reports of a loop with a `run_dir`: console, metrics, TensorBoard and events.

They are written by the same sinks as those of a run, here in the process of the loop.
"""

import contextlib
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rookery.checkpoints import run_folder
from rookery.components.loop_parts import LoopPlan
from rookery.config.load import RUN_FILE
from rookery.config.schema import Config
from rookery.event import Evaluated, Event, Reason, Saved, Started, Stopped, Warned
from rookery.networks.named_arrays import fingerprint
from rookery.report.console.plain_lines import is_terminal
from rookery.report.metrics.meter import Meter
from rookery.report.trackers import rewind
from rookery.report.trackers.sinks import Sinks, make_sinks
from rookery.training.build import Parts
from rookery.training.launch import conclude
from rookery.training.run import StepInterval

if TYPE_CHECKING:
    from rookery.components.main_loop import MainLoop


class LoopReport:
    """Writes a loop's events to its run folder; without one, does nothing."""

    def __init__(self, loop: "MainLoop", config: Config, run_dir: Path | None, sinks: Sinks):
        self._loop, self._run_dir, self._sinks = loop, run_dir, sinks
        self._meter = Meter(config.report, time.monotonic)
        self._log = StepInterval(config.report.log_period, loop.env_steps)
        self._best: float | None = None

    def observe(self, event: Event) -> None:
        """Counts an event for the metrics, and writes it if it is of those that sinks write."""
        self._meter.observe(event)
        if isinstance(event, Started | Evaluated | Saved | Warned | Stopped):
            self._sinks.write(event)

    def look(self, parts: Parts) -> None:
        """Writes warnings, and metrics once `report.log_period` env steps have passed."""
        if self._run_dir is None:
            return
        counters, buffer = self._loop.counters, self._loop.replay_buffer
        for warning in parts.actors.warnings():
            self.observe(Warned(counters, "actor", warning))
        if not self._log.passed(counters.env_steps):
            return
        stored = buffer.get_total_experiences()
        logged = self._meter.logged(
            counters,
            max(0, self._loop.version),
            {
                "replay/fill": stored / int(getattr(buffer, "capacity", stored or 1)),
                "replay/samples_per_insert": parts.limiter.ratio,
                "train/refused_gradients": float(self._loop.refused),
            },
        )
        self._sinks.write(logged)
        self._sinks.write(parts.trace.take(counters))

    def evaluated(self, found: Any) -> None:
        """Writes an evaluation by the agent, which may know no more than the mean reward."""
        reward, target = float(found.reward), self._loop.config.target
        best = self._best is None or reward > self._best
        self._best = reward if best else self._best
        self.observe(
            Evaluated(
                self._loop.counters,
                max(0, self._loop.version),
                self._meter.wall_s,
                tuple(getattr(found, "returns", (reward,))),
                tuple(getattr(found, "lengths", (0,))),
                None,
                best,
                target is not None and reward >= target,
            )
        )

    def saved(self, folder: Path) -> None:
        self.observe(Saved(self._loop.counters, str(folder), 0.0))

    def stopped(self, reason: Reason) -> None:
        """Writes the end of training, and the result unless a signal ended it."""
        if self._run_dir is None:
            return
        wall_s = self._meter.wall_s
        event = Stopped(
            self._loop.counters,
            reason,
            wall_s,
            train_s=wall_s,
            best_score=self._best,
            solved=reason is Reason.TARGET,
            weights_sha256=fingerprint(self._loop.agent.get_policy_parameters()),
        )
        self.observe(event)
        conclude(self._run_dir, event)


@contextlib.contextmanager
def reporting(loop: "MainLoop", plan: LoopPlan) -> Iterator[LoopReport]:
    """Context with the report of a training; a loop that has trained before continues its run."""
    config = _planned(getattr(loop.agent, "config", None) or Config(name="loop"), plan)
    if loop.config.run_dir is None:
        yield LoopReport(loop, config, None, Sinks({}))
        return
    run_dir, counters = Path(loop.config.run_dir), loop.counters
    run_dir.mkdir(parents=True, exist_ok=True)
    with run_folder.locked(run_dir):
        resumed = counters.env_steps > 0 and (run_dir / RUN_FILE).exists()
        if resumed:
            rewind.cut(run_dir, counters.env_steps)
            (run_dir / run_folder.RESULT).unlink(missing_ok=True)
        else:
            run_folder.describe(run_dir, config)
        sinks = make_sinks(
            run_dir,
            config,
            resumed_at=counters.env_steps if resumed else None,
            stream=sys.stdout if loop.config.console else None,
            terminal=is_terminal(sys.stdout),
        )
        about = {"scenario": config.name, "seed": config.run.seed, "device": config.learner.device}
        with contextlib.closing(sinks):
            report = LoopReport(loop, config, run_dir, sinks)
            report.observe(Started(str(run_dir), counters, resumed, about))
            yield report


def _planned(config: Config, plan: LoopPlan) -> Config:
    """Returns the settings with the plan's end, which consoles show."""
    episodes = plan.total if plan.unit == "episodes" else None
    env_steps = max(plan.total * (plan.max_steps or 1), config.replay.learning_starts)
    return replace(config, run=replace(config.run, env_steps=env_steps, episodes=episodes))
