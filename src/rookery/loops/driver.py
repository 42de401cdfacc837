"""The driver: consumes a loop's events and does everything the loop knows nothing of.

At the end of every turn it looks at the marks, in this order: news from the manage process, a log
line, an evaluation, a checkpoint, a reason to stop. Marks are counted in env steps, so that a run
does the same things at the same places however fast it is.
"""

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rookery.config.schema import Config, Engine, Mode
from rookery.errors import CheckpointError, ConfigError
from rookery.event import (
    Activity,
    Ask,
    Counters,
    Evaluated,
    Event,
    Reason,
    Saved,
    Started,
    Stopped,
    Traced,
    Turned,
    Warned,
)
from rookery.loops import LOOPS
from rookery.loops.desk import Judgement, Snapshot
from rookery.loops.manager import Manager
from rookery.loops.restore import capture, flush_rows
from rookery.loops.wiring import Parts
from rookery.manage.checkpoint import Content
from rookery.manage.interrupts import Interrupts
from rookery.manage.saver import Saver
from rookery.nets.arrays import fingerprint
from rookery.report.ledger import Ledger
from rookery.report.meter import Meter
from rookery.report.trace import Trace

Callback = Callable[[Event], Ask | str | None]

WRITTEN = (Started, Evaluated, Saved, Warned, Traced, Stopped)  # `Logged` where it is made


class Mark:
    """Says once for each multiple of `period` that it has been passed."""

    def __init__(self, period: int, passed: int):
        self._period, self._count = period, passed // period

    def passed(self, env_steps: int) -> bool:
        count = env_steps // self._period
        fresh, self._count = count > self._count, count
        return fresh


class Driver:
    """One run on its way. `events()` is the run."""

    def __init__(
        self,
        parts: Parts,
        *,
        run_dir: Path,
        manager: Manager,
        saver: Saver,
        meter: Meter,
        interrupts: Interrupts,
        callbacks: Sequence[Callback] = (),
        resumed: bool = False,
        about: dict[str, Any] | None = None,
    ):
        self.parts, self.run_dir, self.resumed = parts, run_dir, resumed
        self.manager, self.saver, self.meter = manager, saver, meter
        self.interrupts, self.callbacks = interrupts, list(callbacks)
        self.about = about or {}
        self.best_score: float | None = None
        self.reason: Reason | None = None
        self.winner: Snapshot | None = None  # the first snapshot that reached the target
        self.paused_s = 0.0  # spent waiting for evaluations
        self.faults: Counter[str] = Counter()  # warnings by kind
        self.train_s_before = 0.0  # in earlier sessions
        self._first_step: float | None = None
        self._began_at = parts.counters.env_steps
        self._asked: set[Ask] = set()
        self._set_marks(0)
        self._submitted = self._written = Counters()  # of the last snapshot and log line
        self._saved: list[Saved] = []  # by the saver's thread
        self._owed = False  # an evaluation, in async, where the evaluator was busy at its mark
        self._judging = Trace("evaluator")
        self._ledger = Ledger(
            actors=self.config.actor.num, alone=self.config.engine is Engine.INLINE
        )

    @property
    def _newest_only(self) -> bool:
        """In async nobody waits for the evaluator: it judges the newest weights when it can."""
        return self.config.run.mode in (Mode.ASYNC, Mode.DEVICE)

    def _set_marks(self, env_steps: int) -> None:
        config, self._looked = self.config, env_steps
        self._log = Mark(config.report.log_period, env_steps)
        self._eval = Mark(config.eval.period, env_steps)
        self._save = Mark(config.checkpoint.period, env_steps)

    @property
    def config(self) -> Config:
        return self.parts.config

    @property
    def train_s(self) -> float:
        """Seconds since the first env step, without those spent waiting for evaluations."""
        if self._first_step is None:
            return self.train_s_before
        return self.train_s_before + time.monotonic() - self._first_step - self.paused_s

    def events(self) -> Iterator[Event]:
        """Yields everything that happens, `Stopped` last."""
        return announced(
            self._events(), self.meter, self.manager, self.faults, self.callbacks, self._asked
        )

    def _events(self) -> Iterator[Event]:
        yield Started(str(self.run_dir), self.parts.counters, self.resumed, self.about)
        for event in LOOPS[self.config.run.mode](self.parts):
            yield event
            if isinstance(event, Turned):
                yield from self._turn()
            if self.reason is None and (self.interrupts.reason or Ask.STOP in self._asked):
                self.reason = self.interrupts.reason or Reason.CALLBACK
            if self.reason is not None:
                break
        yield from self._finish()

    def _turn(self) -> Iterator[Event]:
        counters = self.manager.counters = self.parts.counters
        self._looked, self.parts.minutes = counters.env_steps, self.meter.wall_s / 60
        played = counters.env_steps > self._began_at
        if self._first_step is None and (played or self.parts.crew.actors):  # no one is starting
            self._first_step = time.monotonic()
        yield from self._news()
        if self._log.passed(counters.env_steps):
            yield from self._logged()
        self._owed = self._eval.passed(counters.env_steps) or self._owed
        if self._owed and not (self._newest_only and self.manager.pending):
            self._owed = False
            yield from self._submit()
        if self._save.passed(counters.env_steps):
            self._asked.add(Ask.CHECKPOINT)
        if Ask.CHECKPOINT in self._asked and (self.parts.crew.complete or not self._newest_only):
            self._asked.discard(Ask.CHECKPOINT)
            self._checkpoint()
        else:
            flush_rows(self.parts, self.saver)
        self._look_for_the_end()

    def _logged(self) -> Iterator[Event]:
        parts = self.parts
        self._written = parts.counters
        event = self.meter.logged(
            parts.counters,
            replay_fill=parts.pool.fill,
            samples_per_insert=parts.limiter.ratio,
            version=parts.board.version,
            extra={
                "train/learning_rate": parts.learner.lr.at(parts.share),
                "faults/skipped_steps": float(parts.learner.skipped),
                "faults/stale_rows": float(parts.pool.stale),
                **parts.freshness.metrics(),
                **parts.crew.metrics(),
                **(parts.member.stats() if parts.member else {}),
                **(parts.opponents.stats() if parts.opponents else {}),
                **self._taken(),
                **{f"faults/{kind}": float(count) for kind, count in self.faults.items()},
            },
        )
        self._write_traces()
        event = replace(event, limit=self._ledger.verdict)
        self.manager.write(event)
        yield event

    def _write_traces(self) -> None:
        parts = self.parts
        for trace in (parts.trace, self._judging):
            parts.keep(trace.take(self._written))
        for traced in parts.traced:
            self._ledger.add(traced)
            self.manager.write(replace(traced, counters=self._written))
        parts.traced.clear()

    def _taken(self) -> dict[str, float | None]:
        """What each process takes of the machine."""
        others = {**self.parts.learner.pids, **self.parts.crew.pids}
        names = {"learner": os.getpid(), "manage": self.manager.pid, **others}
        taken = self.meter.processes(names)
        if self.parts.learner.device.type == "cuda":
            import torch

            taken["system/gpu_memory_mb"] = torch.cuda.memory_allocated() / 2**20
        return taken

    def _submit(self) -> Iterator[Event]:
        """Takes a snapshot. Only where the evaluator is hopelessly behind, training waits."""
        parts = self.parts
        self._submitted = parts.counters
        weights = {name: array.copy() for name, array in parts.learner.weights().items()}
        self.manager.submit(
            Snapshot(parts.counters, parts.board.version, self.meter.wall_s, self.train_s, weights)
        )
        yield from self._wait(lambda: len(self.manager.pending) <= self.config.eval.queue)

    def _wait(self, until: Callable[[], bool]) -> Iterator[Event]:
        began = time.monotonic()
        while not until() and self.winner is None and not self.interrupts.reason:
            yield from self._news(timeout_s=0.1)
        now = time.monotonic()
        self.paused_s += now - began
        self.parts.trace.note(Activity.EVALUATE, began, now)

    def _news(self, timeout_s: float = 0.0) -> Iterator[Event]:
        for news in self.manager.news(timeout_s):
            if isinstance(news, Warned):
                yield news
            else:
                yield from self._judged(*news)
        for complaint in self.parts.crew.complaints():
            yield Warned(self.parts.counters, "actor", complaint)
        yield from self._saver_news()

    def _saver_news(self) -> Iterator[Event]:
        for complaint in self.saver.complaints():
            yield Warned(self.parts.counters, "checkpoint", complaint)
        while self._saved:
            yield self._saved.pop(0)

    def _judged(self, snapshot: Snapshot, judged: Judgement) -> Iterator[Event]:
        if judged.error is not None:
            yield Warned(snapshot.counters, "evaluation", judged.error)
            return
        self._judging.note(Activity.EVALUATE, judged.began, judged.ended, 1)
        score = sum(judged.returns) / len(judged.returns)
        target = self.config.eval.target
        best = self.best_score is None or score > self.best_score
        passed = target is not None and score >= target
        if self.winner is not None:
            return  # the run was over at an earlier mark
        if best:
            self.best_score = score
            self.saver.best(self._weights_only(snapshot, score))
        if passed:
            self.winner, self.reason = snapshot, Reason.TARGET
        yield Evaluated(
            snapshot.counters,
            snapshot.version,
            snapshot.wall_s,
            judged.returns,
            judged.lengths,
            judged.success_rate,
            best,
            passed,
            judged.elo,
            judged.elo_deviation,
        )

    def _look_for_the_end(self) -> None:
        run, counters = self.config.run, self.parts.counters
        limits = (
            (Reason.ENV_STEPS, counters.env_steps, run.env_steps),
            (Reason.EPISODES, counters.episodes, run.episodes),
            (Reason.MINUTES, self.meter.wall_s / 60, run.minutes),
        )
        for reason, value, limit in limits:
            if self.reason is None and limit is not None and value >= limit:
                self.reason = reason

    def _finish(self) -> Iterator[Event]:
        """Judges what is left, saves, and says how it ended."""
        if self.winner is None and self._written.env_steps < self.parts.counters.env_steps:
            yield from self._logged()
        stopped_early = self.reason in (Reason.INTERRUPTED, Reason.TERMINATED)
        if not stopped_early and self.winner is None:
            if self._submitted != self.parts.counters:
                yield from self._submit()
            yield from self._wait(lambda: not self.manager.pending)
            if self.manager.pending and self.winner is None:
                self.reason = self.interrupts.reason  # it is not over: a resumed run judges them
        yield from self._save_the_end()
        self._write_traces()
        yield self._stopped()

    def _save_the_end(self) -> Iterator[Event]:
        end = self.winner.counters if self.winner else self.parts.counters
        if self.winner is None and self.interrupts.reason and not self.parts.crew.complete:
            yield Warned(
                end, "checkpoint", "no last checkpoint: a part of replay cannot be reached now"
            )
        elif self.winner is None:
            self._checkpoint()
        else:
            self.saver.save(
                self._weights_only(self.winner, self.best_score),
                oldest=[extent.oldest for extent in self.parts.pool.extents],
                done=self._note(end),
            )
        self.saver.flush(timeout_s=600.0)
        news = list(self._saver_news())
        yield from news
        saved = any(isinstance(event, Saved) and event.counters == end for event in news)
        if not saved and not self.interrupts.reason:
            raise CheckpointError(
                f"the last checkpoint of {self.run_dir} could not be written; make room, then "
                f"`rookery train --resume {self.run_dir}` goes on from the one before"
            )

    def _stopped(self) -> Stopped:
        end = self.winner
        counters = end.counters if end else self.parts.counters
        weights = end.arrays if end else self.parts.learner.weights()
        return Stopped(
            counters=counters,
            reason=self.reason or Reason.FAILED,
            wall_s=self.meter.wall_s,
            train_s=end.train_s if end else self.train_s,
            best_score=self.best_score,
            solved=end is not None,
            weights_sha256=fingerprint(weights),
        )

    def _checkpoint(self) -> None:
        """Copies the run's state now; the saver writes it while training goes on."""
        began = time.monotonic()
        content = capture(
            self.parts,
            self.saver,
            driver=self._state(),
            pending=self.manager.pending,
            unwritten=self.manager.unwritten,
            interrupted=self.reason in (Reason.INTERRUPTED, Reason.TERMINATED),
        )
        self.saver.save(
            content,
            oldest=[extent.oldest for extent in self.parts.pool.extents],
            done=self._note(self.parts.counters, time.monotonic() - began),
        )
        self.parts.trace.note(Activity.SAVE, began, time.monotonic())

    def _note(self, counters: Counters, stall_s: float = 0.0) -> Callable[[Path], None]:
        return lambda folder: self._saved.append(Saved(counters, str(folder), stall_s))

    def _weights_only(self, snapshot: Snapshot, score: float | None) -> Content:
        about = {
            "counters": asdict(snapshot.counters),
            "spec": asdict(self.parts.spec),
            "score": score,
        }
        return Content(
            env_steps=snapshot.counters.env_steps,
            version=snapshot.version,
            exact=True,
            final=True,
            about=about,
            weights=snapshot.arrays,
        )

    def _state(self) -> dict[str, Any]:
        return {
            "meter": self.meter.state(),
            "best_score": self.best_score,
            "train_s": self.train_s,
            "faults": dict(self.faults),
            "looked": self._looked,
            "submitted": asdict(self._submitted),
            "written": asdict(self._written),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Goes on where `_state` was taken."""
        self.meter.restore(state["meter"])
        self.best_score, self.train_s_before = state["best_score"], state["train_s"]
        self.faults = Counter(state["faults"])
        self._set_marks(state["looked"])  # not where the run is: it may have stopped before a look
        self._submitted = Counters(**state["submitted"])
        self._written = Counters(**state["written"])
        self._began_at = self.parts.counters.env_steps


def announced(
    events: Iterator[Event],
    meter: Meter,
    manager: Manager,
    faults: Counter[str],
    callbacks: Sequence[Callback],
    asked: set[Ask],
) -> Iterator[Event]:
    """Shows a run's events to everybody who looks at them, and notes what they ask for."""
    for event in events:
        meter.observe(event)
        if isinstance(event, Warned):
            faults[event.kind] += 1
        if isinstance(event, WRITTEN):
            manager.write(event)
        for callback in callbacks:
            if ask := callback(event):
                asked.add(understood(ask))
        yield event


def understood(ask: Ask | str) -> Ask:
    """Returns what a callback asked for, or refuses it."""
    try:
        return Ask(ask)
    except ValueError as error:
        allowed = ", ".join(Ask)
        raise ConfigError(
            f"a callback returned {ask!r}; it may return None or one of {allowed}"
        ) from error
