"""The run of a loop: evaluates, reports, saves and ends as any run does (`training/run.py`).

The agent evaluates itself, and the sinks of runs write events, both in the process of the loop.
"""

import contextlib
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rookery.actors.actor_group import epsilons_of
from rookery.checkpoints import run_folder
from rookery.components.environment import ENDLESS
from rookery.components.loop_parts import LoopPlan
from rookery.config.load import RUN_FILE
from rookery.config.schema import Config
from rookery.evaluation.backend import RunRequest
from rookery.evaluation.evaluation_process import EvaluationSnapshot, SnapshotEvaluated
from rookery.event import Ask, Counters, Event, IterationEnded, Reason, Saved, Started, Warned
from rookery.report.console.plain_lines import is_terminal
from rookery.report.metrics.trace import Trace
from rookery.report.trackers import rewind
from rookery.report.trackers.sinks import Sinks, make_sinks
from rookery.runtime.signals import Interrupts
from rookery.schedule import Decay, Schedule
from rookery.training import LOOPS
from rookery.training.build import Parts
from rookery.training.launch import about_of, conclude, context_of
from rookery.training.run import BaseRun, RunContext, StepInterval
from rookery.training.steps import count, epsilon_now
from rookery.types import Weights

if TYPE_CHECKING:
    from rookery.components.main_loop import MainLoop

LOOK_S = 0.05  # between two looks while it is paused


class LoopRun(BaseRun):
    """Trains the components of a loop; iterating over `events()` does it."""

    def __init__(self, loop: "MainLoop", plan: LoopPlan, config: Config, context: RunContext):
        super().__init__(config, context, Trace("learner"))
        self._loop, self._plan = loop, plan
        self._log = StepInterval(config.report.log_period, loop.env_steps)
        self._evaluation = StepInterval(plan.evaluation or ENDLESS, self._done)
        self._saving = StepInterval(plan.saving or ENDLESS, self._done)
        self._seen = self._done  # at the last turn
        self._began = 0.0  # minus what earlier trainings took

    @property
    def counters(self) -> Counters:
        return self._loop.counters

    @property
    def version(self) -> int:
        return max(0, self._loop.version)

    @property
    def train_s(self) -> float:
        return self.meter.wall_s

    def weights(self) -> Weights:
        return Weights(self.version, self._loop.agent.get_policy_parameters())

    @property
    def _done(self) -> int:
        """Episodes or env steps so far, whichever the plan counts."""
        return int(getattr(self.counters, self._plan.unit))

    def _limits(self) -> Sequence[tuple[Reason, float, float | None]]:
        return ((Reason(self._plan.unit), self._done, self._plan.total),)

    def _keep_best(self, snapshot: EvaluationSnapshot, score: float) -> None:
        """Does nothing: checkpoints of a loop are of its newest parameters."""

    def _events(self) -> Iterator[Event]:
        loop, resumed = self._loop, self.counters.env_steps > 0
        loop.join()
        loop.parts = parts = loop.build(self._plan)
        try:
            self.interrupts.begin()
            yield Started(str(self.run_dir), self.counters, resumed, self.about)
            yield from self._trained(parts)
        finally:
            loop.parts = None
            parts.close()
        loop.pull()
        if self.interrupts.reason is not None or self._plan.saving:
            yield from self._saved()
        stopped = self._stopped()
        yield stopped
        if self._loop.config.run_dir is not None:
            conclude(self.run_dir, stopped)

    def _trained(self, parts: Parts) -> Iterator[Event]:
        self._began = time.monotonic() - self._loop.seconds
        self._look_for_the_end()
        for event in LOOPS[parts.config.run.mode](parts) if self.reason is None else ():
            self._loop.note(event)
            yield event
            if isinstance(event, IterationEnded):
                yield from self._turn(parts)
            if self.reason is not None:
                return

    def _turn(self, parts: Parts) -> Iterator[Event]:
        """Evaluates, saves and writes what is due, with the newest parameters."""
        loop = self._loop
        loop.seconds = time.monotonic() - self._began
        if self._evaluation.passed(self._done):
            loop.pull()
            yield from self._asked_agent()
        if self._saving.passed(self._done):
            loop.pull()
            yield from self._saved()
        if self._done > self._seen and loop.config.callback is not None:
            loop.config.callback(loop.get_training_progress())
        self._seen = self._done
        for warning in parts.actors.warnings():
            yield Warned(self.counters, "actor", warning)
        if self._log.passed(self.counters.env_steps):
            yield from self._logged(parts)
        self._rest(parts)
        if loop.stopped.is_set():
            self._asked.add(Ask.STOP)
        self._look_for_the_end()
        self._heed_requests()
        if parts.actors.asynchronous() is None:
            epsilon = float(getattr(loop.agent, "epsilon", 0.0))
            parts.epsilon = Schedule(epsilon, epsilon, Decay.CONSTANT)

    def _asked_agent(self) -> Iterator[Event]:
        """Has the agent evaluate itself, which may know no more than the mean reward."""
        found = self._loop.evaluate_policy(self._loop.config.evaluation_episodes)
        returns = tuple(getattr(found, "returns", (float(found.reward),)))
        lengths = tuple(getattr(found, "lengths", (0,)))
        result = SnapshotEvaluated(returns, lengths, None)
        yield from self._evaluated(self._snapshot(), result)

    def _logged(self, parts: Parts) -> Iterator[Event]:
        buffer = self._loop.replay_buffer
        stored = buffer.get_total_experiences()
        extra = {
            "replay/fill": stored / int(getattr(buffer, "capacity", stored or 1)),
            "replay/samples_per_insert": parts.limiter.ratio,
            "train/refused_gradients": float(self._loop.refused),
        }
        event = self.meter.logged(self.counters, self.version, extra)
        self.evaluation_client.write(event)
        yield event
        yield parts.trace.take(self.counters)

    def _saved(self) -> Iterator[Event]:
        if (folder := self._loop.save_if_new()) is not None:
            yield Saved(self.counters, str(folder), 0.0)

    def _rest(self, parts: Parts) -> None:
        """Waits while training is paused; actors that play by themselves are supervised."""
        actors = parts.actors.asynchronous()
        while not self._loop.running.is_set() and self.interrupts.reason is None:
            if actors is not None:
                epsilon = epsilon_now(parts)
                actors.allow(False, epsilons_of(epsilon, parts.config), 0)
                ended = [episode for report in actors.reports() for episode in report.ended]
                self._loop.note(count(parts, 0, ended, epsilon, self.version))
            self._loop.running.wait(LOOK_S)


@contextlib.contextmanager
def loop_run(loop: "MainLoop", plan: LoopPlan, interrupts: Interrupts) -> Iterator[LoopRun]:
    """Context with a run of a loop; a loop that has trained before continues in its run folder."""
    config = _planned(getattr(loop.agent, "config", None) or Config(name="loop"), loop, plan)
    run_dir, sinks = Path(config.run.run_dir or ""), Sinks({})
    with contextlib.ExitStack() as stack:
        if config.run.run_dir is not None:
            sinks = stack.enter_context(contextlib.closing(_sinks(loop, config, interrupts, stack)))
        client: Any = sinks  # in the place of the evaluation process, which writes events too
        about = about_of(config)
        context = context_of(config, RunRequest(), run_dir, client, interrupts, about)
        yield LoopRun(loop, plan, config, context)


def _sinks(
    loop: "MainLoop", config: Config, interrupts: Interrupts, stack: contextlib.ExitStack
) -> Sinks:
    """Locks the run folder of a loop, makes it or cuts it back to the loop, and opens its sinks."""
    run_dir, counters = Path(str(config.run.run_dir)), loop.counters
    resumed = counters.env_steps > 0 and (run_dir / RUN_FILE).exists()
    if resumed:
        stack.enter_context(run_folder.locked(run_dir))
        rewind.cut(run_dir, counters.env_steps)
        (run_dir / run_folder.RESULT).unlink(missing_ok=True)
    else:
        stack.enter_context(run_folder.claimed(config, interrupts))
    return make_sinks(
        run_dir,
        config,
        resumed_at=counters.env_steps if resumed else None,
        stream=sys.stdout if loop.config.console else None,
        terminal=is_terminal(sys.stdout),
    )


def _planned(config: Config, loop: "MainLoop", plan: LoopPlan) -> Config:
    """Returns the settings with the plan's end, which consoles show, and the loop's target."""
    run = replace(
        config.run,
        run_dir=None if loop.config.run_dir is None else str(loop.config.run_dir),
        env_steps=max(plan.total * (plan.max_steps or 1), config.replay.learning_starts),
        episodes=plan.total if plan.unit == "episodes" else None,
    )
    return replace(config, run=run, eval=replace(config.eval, target=loop.config.target))
