"""A training run: consumes the training loop's events; evaluates, logs, saves and stops.

At the end of every loop iteration it handles, in this order: results of evaluations, logging, a new
evaluation, a checkpoint, the stopping conditions. All are scheduled by env steps, so that a run
does the same things at the same steps at any speed.
"""

import os
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import NamedTuple

import torch

from rookery.checkpoints.checkpoint import Content
from rookery.checkpoints.saver import Saver
from rookery.config.schema import Config, Mode
from rookery.errors import CheckpointError, ConfigError
from rookery.evaluation.backend import Callback
from rookery.evaluation.evaluation_client import EvaluationClient
from rookery.evaluation.evaluation_process import EvaluationSnapshot, SnapshotEvaluated
from rookery.event import (
    Activity,
    Ask,
    Counters,
    Evaluated,
    Event,
    IterationEnded,
    Reason,
    Saved,
    Started,
    Stopped,
    Traced,
    Warned,
)
from rookery.networks.named_arrays import fingerprint
from rookery.report.metrics.bottleneck import ActivityLedger
from rookery.report.metrics.meter import Meter
from rookery.report.metrics.trace import Trace
from rookery.runtime.signals import Interrupts
from rookery.runtime.supervision import LossKind
from rookery.training import LOOPS
from rookery.training.build import Parts
from rookery.training.run_state import Rest, capture, flush_period, flush_rows
from rookery.training.steps import progress
from rookery.types import EnvSpec, Json, Weights

WRITTEN = (Started, Evaluated, Saved, Warned, Traced, Stopped)  # `Logged` where it is made


class StepInterval:
    """Schedule by env steps: `passed` returns True when a new multiple of `period` is reached."""

    def __init__(self, period: int, passed: int):
        self._period, self._count = period, passed // period

    def passed(self, env_steps: int) -> bool:
        count = env_steps // self._period
        fresh, self._count = count > self._count, count
        return fresh


class RunContext(NamedTuple):
    """What every run has besides its training, also a run that Stable-Baselines3 trains."""

    run_dir: Path
    evaluation_client: EvaluationClient
    meter: Meter
    interrupts: Interrupts
    callbacks: Sequence[Callback]
    about: dict[str, Json]  # what `Started` tells of the run


class BaseRun(ABC):
    """Base class of training runs, also of loops and of runs that Stable-Baselines3 trains.

    It handles evaluations, the target score, the best score, reasons to stop, and the result.
    Subclasses train: their `_events` yields the events of the training.
    """

    def __init__(self, config: Config, context: RunContext, trace: Trace):
        self.config, self.run_dir, self.about = config, context.run_dir, context.about
        self.evaluation_client, self.meter = context.evaluation_client, context.meter
        self.interrupts, self.callbacks = context.interrupts, context.callbacks
        self.best_score: float | None = None
        self.reason: Reason | None = None
        self.winner: EvaluationSnapshot | None = None  # the first snapshot that reached the target
        self.paused_s = 0.0  # spent waiting for evaluations
        self.train_s_before = 0.0  # in earlier sessions
        self._first_step: float | None = None  # when training began
        self.faults: Counter[str] = Counter()  # warnings by kind
        self._asked: set[Ask] = set()
        self._submitted = self._written = Counters()  # of the last snapshot and log line
        self.trace, self._evaluator_trace = trace, Trace("evaluator")

    @property
    @abstractmethod
    def counters(self) -> Counters:
        """Env steps, learner steps and episodes so far."""

    @abstractmethod
    def weights(self) -> Weights:
        """Returns the learner's weights, which are not a copy, and their version number."""

    @abstractmethod
    def _keep_best(self, snapshot: EvaluationSnapshot, score: float) -> None:
        """Called with the weights that have scored best so far."""

    @abstractmethod
    def _events(self) -> Iterator[Event]:
        """Trains; yields the events of the run, `Stopped` last."""

    @property
    def train_s(self) -> float:
        """Training time in seconds, without the start-up of actors and waiting for evaluations."""
        if self._first_step is None:
            return self.train_s_before
        return self.train_s_before + time.monotonic() - self._first_step - self.paused_s

    def events(self) -> Iterator[Event]:
        """Runs the training; yields all events of the run, `Stopped` last.

        Before each event, updates metrics, log and warning counts from it, and passes it to all
        callbacks, whose requests (stop, checkpoint) the run meets at the next opportunity.
        """
        for event in self._events():
            self.meter.observe(event)
            if isinstance(event, Warned):
                self.faults[event.kind] += 1
            if isinstance(event, WRITTEN):
                self.evaluation_client.write(event)
            for callback in self.callbacks:
                if ask := callback(event):
                    self._asked.add(understood(ask))
            yield event

    # Evaluations.

    def _snapshot(self) -> EvaluationSnapshot:
        version, weights = self.weights()
        copied = {name: array.copy() for name, array in weights.items()}
        return EvaluationSnapshot(self.counters, version, self.meter.wall_s, self.train_s, copied)

    def _submit(self, snapshot: EvaluationSnapshot | None = None) -> Iterator[Event]:
        """Submits weights for evaluation, by default the current ones.

        Training waits while more than `eval.queue` evaluations are pending.
        """
        snapshot = snapshot or self._snapshot()
        self._submitted = snapshot.counters
        self.evaluation_client.submit(snapshot)
        yield from self._wait(lambda: len(self.evaluation_client.pending) <= self.config.eval.queue)

    def _wait(self, until: Callable[[], bool]) -> Iterator[Event]:
        began = time.monotonic()
        while not until() and self.winner is None and not self.interrupts.reason:
            yield from self._news(timeout_s=0.1)
        ended = time.monotonic()
        self.paused_s += ended - began
        self.trace.note(Activity.EVALUATE, began, ended)

    def _news(self, timeout_s: float = 0.0) -> Iterator[Event]:
        """Yields the results of evaluations, and warnings of the evaluation process."""
        client = self.evaluation_client
        awaited = client.pending or client.unconfirmed  # else the process owes no answer
        for news in client.poll(timeout_s) if awaited else ():
            if isinstance(news, Warned):
                yield news
            else:
                yield from self._evaluated(*news)

    def _evaluated(
        self, snapshot: EvaluationSnapshot, evaluation: SnapshotEvaluated
    ) -> Iterator[Event]:
        if evaluation.error is not None:
            yield Warned(snapshot.counters, "evaluation", evaluation.error)
            return
        self._evaluator_trace.note(Activity.EVALUATE, evaluation.began, evaluation.ended, 1)
        if self.winner is not None:
            return  # the run ended with an earlier evaluation
        score = sum(evaluation.returns) / len(evaluation.returns)
        target = self.config.eval.target
        best = self.best_score is None or score > self.best_score
        passed = target is not None and score >= target
        if best:
            self.best_score = score
            self._keep_best(snapshot, score)
        if passed:
            self.winner, self.reason = snapshot, Reason.TARGET
        weighed = snapshot.counters, snapshot.version, snapshot.wall_s
        played = evaluation.returns, evaluation.lengths, evaluation.success_rate
        elo, deviation = (evaluation.figures.get(name) for name in ("elo", "elo_deviation"))
        yield Evaluated(*weighed, *played, best, passed, elo, deviation)

    # The end.

    def _limits(self) -> Sequence[tuple[Reason, float, float | None]]:
        """Returns the limits that end a run: reason to stop, present value, and limit of each.

        A limit of None never ends the run.
        """
        run = self.config.run
        return (
            (Reason.ENV_STEPS, self.counters.env_steps, run.env_steps),
            (Reason.EPISODES, self.counters.episodes, run.episodes),
            (Reason.MINUTES, self.meter.wall_s / 60, run.minutes),
        )

    def _look_for_the_end(self) -> None:
        for reason, value, limit in self._limits():
            if self.reason is None and limit is not None and value >= limit:
                self.reason = reason

    def _heed_requests(self) -> None:
        """Ends the run if a signal or a callback asked for it."""
        if self.reason is None and (self.interrupts.reason or Ask.STOP in self._asked):
            self.reason = self.interrupts.reason or Reason.CALLBACK

    def _evaluate_the_end(self) -> Iterator[Event]:
        """Evaluates the final weights and waits for the results of all pending evaluations.

        Does nothing if a signal ended the run, or if an evaluation has reached the target score.
        """
        if self.reason in (Reason.INTERRUPTED, Reason.TERMINATED) or self.winner is not None:
            return
        if self._submitted != self.counters:
            yield from self._submit()
        yield from self._wait(lambda: not self.evaluation_client.pending)
        if self.evaluation_client.pending and self.winner is None:
            self.reason = self.interrupts.reason  # not over: a resumed run evaluates them

    def _stopped(self) -> Stopped:
        end = self.winner
        return Stopped(
            counters=end.counters if end else self.counters,
            reason=self.reason or Reason.FAILED,
            wall_s=self.meter.wall_s,
            train_s=end.train_s if end else self.train_s,
            best_score=self.best_score,
            solved=end is not None,
            weights_sha256=fingerprint((end or self.weights()).arrays),
            faults=self.survived(),
        )

    def survived(self) -> dict[str, int]:
        """Returns the failures that the run has survived, by kind; warnings count as failures."""
        return dict(self.faults)


class SavedRun(BaseRun):
    """Base class of runs that write checkpoints, from which they can be resumed."""

    def __init__(
        self,
        config: Config,
        context: RunContext,
        saver: Saver,
        *,
        resumed: bool,
        trace: Trace,
        ledger: ActivityLedger,
    ):
        super().__init__(config, context, trace)
        self.saver, self.resumed, self._ledger = saver, resumed, ledger
        self._saved: list[Saved] = []  # by the saver's thread
        self._set_intervals(0)

    def _set_intervals(self, env_steps: int) -> None:
        config, self._looked = self.config, env_steps
        self._log = StepInterval(config.report.log_period, env_steps)
        self._eval = StepInterval(config.eval.period, env_steps)
        self._save = StepInterval(config.checkpoint.period, env_steps)

    @abstractmethod
    def _content(self) -> Content:
        """Returns a copy of the run's whole state, for a checkpoint."""

    @property
    @abstractmethod
    def _oldest(self) -> list[int]:
        """Number of the oldest replay row (stored env step) of each shard of replay."""

    @property
    @abstractmethod
    def _spec(self) -> EnvSpec:
        """Observations and actions of the environment, as networks and replay use them."""

    def _keep_best(self, snapshot: EvaluationSnapshot, score: float) -> None:
        self.saver.best(self._weights_only(snapshot, score))

    # Traces of what the processes do.

    def _traces(self) -> list[Traced]:
        """Returns what the processes of the run have done since the last call."""
        return [trace.take(self._written) for trace in (self.trace, self._evaluator_trace)]

    def _write_traces(self) -> None:
        for traced in self._traces():
            self._ledger.add(traced)
            self.evaluation_client.write(replace(traced, counters=self._written))

    # Checkpoints.

    def _saver_news(self) -> Iterator[Event]:
        if self.saver.removed:
            raise CheckpointError(
                f"the run folder {self.run_dir} was removed, or its settings, while the run was "
                "training, so it cannot be saved; start a new run, and remove its folder after its "
                "end only"
            )
        for complaint in self.saver.take_failures() if self.saver.failures else ():
            yield Warned(self.counters, "checkpoint", complaint)
        while self._saved:
            yield self._saved.pop(0)

    def _checkpoint(self) -> None:
        """Copies the run's state for a checkpoint; the saver thread writes it during training."""
        began = time.monotonic()
        content = self._content()
        self._save_content(content, self.counters, time.monotonic() - began)
        self.trace.note(Activity.SAVE, began, time.monotonic())

    @property
    def _can_be_saved(self) -> bool:
        """True unless a part of the run's state cannot be reached now."""
        return True

    def _save_the_end(self) -> Iterator[Event]:
        end = self.winner.counters if self.winner else self.counters
        if self.winner is None and self.interrupts.reason and not self._can_be_saved:
            yield Warned(end, "checkpoint", "no last checkpoint: a replay shard cannot be reached")
        elif self.winner is None:
            self._checkpoint()
        else:
            self._save_content(self._weights_only(self.winner, self.best_score), end)
        self.saver.flush(timeout_s=600.0)
        news = list(self._saver_news())
        yield from news
        saved = any(isinstance(event, Saved) and event.counters == end for event in news)
        if not saved and not self.interrupts.reason:
            newest = self.saver.newest
            goes_on = "starts again" if newest is None else f"resumes from {newest.name}"
            raise CheckpointError(
                f"the last checkpoint of {self.run_dir} could not be written; free disk space, "
                f"then `rookery train --resume {self.run_dir}` {goes_on}"
            )

    def _save_content(self, content: Content, counters: Counters, stall_s: float = 0.0) -> None:
        def done(folder: Path) -> None:  # called by the saver's thread
            self._saved.append(Saved(counters, str(folder), stall_s))
            self.interrupts.kept = f"{folder.name} is intact"

        self.saver.save(content, oldest=self._oldest, done=done)

    def _weights_only(self, snapshot: EvaluationSnapshot, score: float | None) -> Content:
        counters, spec = asdict(snapshot.counters), asdict(self._spec)
        return Content(
            env_steps=snapshot.counters.env_steps,
            version=snapshot.version,
            exact=True,
            final=True,
            about={"counters": counters, "spec": spec, "score": score},
            weights=snapshot.arrays,
        )

    def _state(self) -> dict[str, Json]:
        return {
            "meter": self.meter.state(),
            "best_score": self.best_score,
            "train_s": self.train_s,
            "faults": dict(self.faults),
            "looked": self._looked,
            "submitted": asdict(self._submitted),
            "written": asdict(self._written),
        }

    def restore(self, rest: Rest) -> None:
        """Restores the run's own state from a checkpoint: best score, elapsed time, what is due.

        Due are the next log, evaluation and checkpoint, also those that were not finished. Weights
        and replay are restored elsewhere.
        """
        state = rest.run
        self.saver.adopt(rest.segments)
        self.meter.restore(state["meter"])
        self.best_score, self.train_s_before = state["best_score"], state["train_s"]
        self.faults = Counter(state["faults"])
        self._set_intervals(state["looked"])  # not the run's steps: it may have stopped in a turn
        self._submitted = Counters(**state["submitted"])
        self._written = Counters(**state["written"])
        for event in rest.unwritten:
            self.evaluation_client.write(event, again=True)
        for snapshot in rest.pending:
            self.evaluation_client.submit(snapshot)


class TrainingRun(SavedRun):
    """A run with Rookery's own training loop; iterating over `events()` executes it."""

    def __init__(self, parts: Parts, context: RunContext, *, saver: Saver, resumed: bool):
        self.parts = parts
        ledger = ActivityLedger(actors=parts.config.actor.num, alone=parts.inline)
        super().__init__(
            parts.config, context, saver, resumed=resumed, trace=parts.trace, ledger=ledger
        )
        self._began_at = parts.counters.env_steps
        self._lost_before: Counter[str] = Counter()  # actors, by kind, in earlier sessions
        self._owed = False  # an evaluation that was due while the evaluation process was busy

    @property
    def _newest_only(self) -> bool:
        """True in async and device mode: training does not wait for evaluations in progress.

        An evaluation that comes due during another one starts after that one has finished, with the
        weights of that time.
        """
        return self.config.run.mode in (Mode.ASYNC, Mode.DEVICE)

    def _set_intervals(self, env_steps: int) -> None:
        super()._set_intervals(env_steps)
        self._flush = StepInterval(flush_period(self.parts), env_steps)

    @property
    def counters(self) -> Counters:
        return self.parts.counters

    def weights(self) -> Weights:
        return Weights(self.parts.weight_store.version, self.parts.learner.weights())

    def _events(self) -> Iterator[Event]:
        yield Started(str(self.run_dir), self.parts.counters, self.resumed, self.about)
        for event in LOOPS[self.config.run.mode](self.parts):
            yield event
            if isinstance(event, IterationEnded):
                yield from self._turn()
            self._heed_requests()
            if self.reason is not None:
                break
        yield from self._finish()

    def _turn(self) -> Iterator[Event]:
        counters = self.evaluation_client.counters = self.parts.counters
        self._looked, self.parts.minutes = counters.env_steps, self.meter.wall_s / 60
        # actors in this process play at once; the start-up of others is not training time
        plays = self.parts.inline and self.config.run.mode is not Mode.DEVICE
        if self._first_step is None and (plays or counters.env_steps > self._began_at):
            self._first_step = time.monotonic()
        yield from self._news()
        if self._log.passed(counters.env_steps):
            yield from self._logged()
        self._owed = self._eval.passed(counters.env_steps) or self._owed
        if self._owed and not (self._newest_only and self.evaluation_client.pending):
            self._owed = False
            yield from self._submit()
        if self._save.passed(counters.env_steps):
            self._asked.add(Ask.CHECKPOINT)
        if Ask.CHECKPOINT in self._asked and (self.parts.actors.complete or not self._newest_only):
            self._asked.discard(Ask.CHECKPOINT)
            self._checkpoint()
        elif self._flush.passed(counters.env_steps):
            flush_rows(self.parts, self.saver)
        self._look_for_the_end()

    def _logged(self) -> Iterator[Event]:
        parts = self.parts
        self._written = parts.counters
        event = self.meter.logged(
            parts.counters,
            parts.weight_store.version,
            {
                "replay/fill": parts.replay.fill,
                "replay/samples_per_insert": parts.limiter.ratio,
                "train/learning_rate": parts.learner.lr.at(progress(parts)),
                "faults/skipped_steps": float(parts.learner.skipped),
                "faults/stale_rows": float(parts.replay.stale),
                **parts.freshness.metrics(),
                **parts.actors.metrics(),
                **(parts.peers.stats() if parts.peers else {}),
                **(parts.opponents.stats() if parts.opponents else {}),
                **self._taken(),
                **{f"faults/{kind}": float(count) for kind, count in self.faults.items()},
            },
        )
        self._write_traces()
        event = replace(event, limit=self._ledger.verdict)
        self.evaluation_client.write(event)
        yield event

    def _traces(self) -> list[Traced]:
        found = [*self.parts.traced, *super()._traces()]
        self.parts.traced.clear()
        return found

    def _taken(self) -> dict[str, float | None]:
        """Returns CPU and memory use of each process of the run, as metrics."""
        others = {**self.parts.learner.pids, **self.parts.actors.pids}
        names = {"learner": os.getpid(), "eval": self.evaluation_client.pid, **others}
        taken = self.meter.processes(names)
        if self.parts.learner.device.type == "cuda":
            taken["system/gpu_memory_mb"] = torch.cuda.memory_allocated() / 2**20
        return taken

    def _news(self, timeout_s: float = 0.0) -> Iterator[Event]:
        yield from super()._news(timeout_s)
        for warning in self.parts.actors.warnings():
            yield Warned(self.parts.counters, "actor", warning)
        yield from self._saver_news()

    def survived(self) -> dict[str, int]:
        """Returns the failures that the run has survived: lost actors by kind, other warnings.

        Those of earlier sessions are counted too.
        """
        now = self.parts.actors.metrics()
        lost = {k: int(now.get(f"faults/{k}", 0)) + self._lost_before[k] for k in LossKind}
        return lost | {kind: count for kind, count in self.faults.items() if kind != "actor"}

    def _finish(self) -> Iterator[Event]:
        """Waits for pending evaluations, writes the last checkpoint, and yields `Stopped`."""
        if self.winner is None and self._written.env_steps < self.parts.counters.env_steps:
            yield from self._logged()
        yield from self._evaluate_the_end()
        yield from self._save_the_end()
        self._write_traces()
        yield self._stopped()

    def _content(self) -> Content:
        return capture(
            self.parts,
            self.saver,
            run=self._state(),
            pending=self.evaluation_client.pending,
            unwritten=self.evaluation_client.unwritten,
            interrupted=self.reason in (Reason.INTERRUPTED, Reason.TERMINATED),
        )

    @property
    def _can_be_saved(self) -> bool:
        return self.parts.actors.complete

    @property
    def _oldest(self) -> list[int]:
        return [extent.oldest for extent in self.parts.replay.extents]

    @property
    def _spec(self) -> EnvSpec:
        return self.parts.spec

    def _state(self) -> dict[str, Json]:
        return super()._state() | {"lost": {kind: self.survived()[kind] for kind in LossKind}}

    def restore(self, rest: Rest) -> None:
        super().restore(rest)
        self._lost_before = Counter(rest.run.get("lost", {}))
        self._began_at = self.parts.counters.env_steps


def understood(ask: Ask | str) -> Ask:
    """Returns a callback's request as `Ask`; raises ConfigError if it is not a valid one."""
    try:
        return Ask(ask)
    except ValueError as error:
        allowed = ", ".join(Ask)
        raise ConfigError(
            f"a callback returned {ask!r}; it may return None or one of {allowed}"
        ) from error
