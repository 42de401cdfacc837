"""A run whose algorithm has a loop of its own: Stable-Baselines3 as a run of ours.

The same folder, events, evaluations and answer as any run. What it leaves is SB3's own model.zip;
there are no checkpoints, and such a run does not go on after it has stopped.
"""

import contextlib
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rookery.config.schema import SB3_OFF_POLICY, Backend, Config
from rookery.errors import ConfigError
from rookery.event import (
    Ask,
    Collected,
    Counters,
    Evaluated,
    Event,
    Reason,
    Saved,
    Started,
    Stopped,
    Turned,
    Warned,
)
from rookery.loops.desk import Judgement, Snapshot
from rookery.loops.driver import Callback, Mark, announced
from rookery.loops.manager import Manager
from rookery.loops.wiring import Factory
from rookery.manage.interrupts import Interrupts
from rookery.nets.arrays import arrays_of, fingerprint, load_arrays
from rookery.report.meter import Meter

if TYPE_CHECKING:
    import torch

    from rookery.loops.learning import Learning

MODEL = "model.zip"


def refuse_to_open(config: Config, run_dir: Path) -> None:
    """Refuses to go on from what SB3 has saved, and says who can."""
    if config.backend is not Backend.SB3:
        return
    name = config.sb3.algorithm
    raise ConfigError(
        f"{run_dir} was trained by Stable-Baselines3, whose {MODEL} holds pickles, and Rookery "
        f"opens none; load it with SB3:\n"
        f"  from stable_baselines3 import {name}\n"
        f'  model = {name}.load("{run_dir / MODEL}")'
    )


def prepare(
    config: Config,
    factory: Factory | None,
    device: "torch.device",
    run_dir: Path,
    stack: contextlib.ExitStack,
) -> "Learning":
    """Makes the environments and the model; `stack` closes what was opened."""
    from rookery.loops import sb3
    from rookery.loops.learning import Learning

    envs = sb3.environments(config, factory, config.sb3.envs)
    stack.callback(envs.close)
    sb3.refuse_masks(config, envs)
    sb3.refuse_what_cannot_fit(config, envs)
    replay = stack.enter_context(sb3.lent(config, _run_id(run_dir)))
    capacity, seed = config.replay.capacity, config.run.seed
    model = sb3.build(config, envs, capacity=capacity, device=device, seed=seed, replay=replay)
    learning = Learning(model, config)
    stack.callback(learning.close)
    return learning


def _run_id(run_dir: Path) -> str:
    """Returns the folder's name as a pool takes it."""
    return re.sub(r"[^A-Za-z0-9_.-]", "_", run_dir.absolute().name)[:80].lstrip("._-") or "run"


class Hosted:
    """One run on its way. `events()` is the run."""

    def __init__(
        self,
        learning: "Learning",
        *,
        run_dir: Path,
        manager: Manager,
        meter: Meter,
        interrupts: Interrupts,
        callbacks: Sequence[Callback] = (),
        about: dict[str, Any] | None = None,
    ):
        self.learning, self.model, self.config = learning, learning.model, learning.config
        self.run_dir, self.manager, self.meter = run_dir, manager, meter
        self.interrupts, self.callbacks, self.about = interrupts, list(callbacks), about or {}
        self.best_score: float | None = None
        self.reason: Reason | None = None
        self.winner: Snapshot | None = None  # the first snapshot that reached the target
        self.faults: Counter[str] = Counter()  # warnings by kind
        self.paused_s = 0.0  # spent waiting for evaluations
        self._began = 0.0
        self._log = Mark(self.config.report.log_period, 0)
        self._eval = Mark(self.config.eval.period, 0)
        self._submitted = self._written = Counters()
        self._asked: set[Ask] = set()

    @property
    def train_s(self) -> float:
        """Seconds since the first env step, without those spent waiting for evaluations."""
        return time.monotonic() - self._began - self.paused_s

    def events(self) -> Iterator[Event]:
        """Yields everything that happens, `Stopped` last."""
        return announced(
            self._events(), self.meter, self.manager, self.faults, self.callbacks, self._asked
        )

    def _events(self) -> Iterator[Event]:
        yield Started(str(self.run_dir), Counters(), False, self.about)
        yield from self._notices()
        self._began = time.monotonic()
        for counters in self.learning.marks():
            yield from self._news() if counters is None else self._turn(counters)
            self.learning.over = self._is_over() or self.learning.over
        yield from self._finish()

    def _notices(self) -> Iterator[Event]:
        name = self.config.sb3.algorithm
        if self.config.sharing.pool is not None and name not in SB3_OFF_POLICY:
            yield Warned(
                Counters(),
                "sharing",
                f"{name} is on-policy and learns only from what its present policy did; it neither "
                "lends nor borrows: leave sharing.pool out, or use an off-policy algorithm",
            )

    def _turn(self, counters: Counters) -> Iterator[Event]:
        self.manager.counters = counters
        yield self._collected(counters)
        yield Turned(counters)
        yield from self._news()
        if self._log.passed(counters.env_steps):
            yield from self._logged(counters)
        if self._eval.passed(counters.env_steps):
            yield from self._submit(counters)

    def _collected(self, counters: Counters) -> Collected:
        return Collected(counters, self.learning.take_ended(), 0.0, counters.learner_steps)

    def _is_over(self) -> bool:
        """Looks at signals, callbacks and the clock, wherever SB3 is."""
        minutes = self.config.run.minutes
        if self.reason is None:
            if self.interrupts.reason:
                self.reason = self.interrupts.reason
            elif Ask.STOP in self._asked:
                self.reason = Reason.CALLBACK
            elif minutes is not None and self.meter.wall_s >= 60 * minutes:
                self.reason = Reason.MINUTES
        return self.reason is not None

    def _logged(self, counters: Counters) -> Iterator[Event]:
        from rookery.loops import sb3

        self._written = counters
        batch = getattr(self.model, "batch_size", 0)
        event = self.meter.logged(
            counters,
            replay_fill=sb3.fill(self.model),
            samples_per_insert=counters.learner_steps * batch / max(1, counters.env_steps),
            version=counters.learner_steps,
            extra={
                "rollout/exploration_rate": None,  # of those that explore by noise
                **sb3.figures(self.model),
                **sb3.borrowed(self.model),
                **self.meter.processes({"learner": os.getpid(), "manage": self.manager.pid}),
                **{f"faults/{kind}": float(count) for kind, count in self.faults.items()},
            },
        )
        self.manager.write(event)
        yield event

    def _submit(self, counters: Counters) -> Iterator[Event]:
        self._submitted = counters
        weights = {name: array.copy() for name, array in arrays_of(self.model.policy).items()}
        self.manager.submit(
            Snapshot(counters, counters.learner_steps, self.meter.wall_s, self.train_s, weights)
        )
        yield from self._wait(lambda: len(self.manager.pending) <= self.config.eval.queue)

    def _wait(self, until: Callable[[], bool]) -> Iterator[Event]:
        began = time.monotonic()
        while not until() and self.winner is None and not self.interrupts.reason:
            yield from self._news(timeout_s=0.1)
        self.paused_s += time.monotonic() - began

    def _news(self, timeout_s: float = 0.0) -> Iterator[Event]:
        for news in self.manager.news(timeout_s):
            if isinstance(news, Warned):
                yield news
            elif self.winner is None:
                yield self._judged(*news)

    def _judged(self, snapshot: Snapshot, judged: Judgement) -> Event:
        if judged.error is not None:
            return Warned(snapshot.counters, "evaluation", judged.error)
        score = sum(judged.returns) / len(judged.returns)
        target = self.config.eval.target
        best = self.best_score is None or score > self.best_score
        passed = target is not None and score >= target
        if best:
            self.best_score = score
        if passed:
            self.winner, self.reason = snapshot, Reason.TARGET
        counters, version, wall_s, *_ = snapshot
        returns, lengths = judged.returns, judged.lengths
        return Evaluated(
            counters, version, wall_s, returns, lengths, judged.success_rate, best, passed
        )

    def _finish(self) -> Iterator[Event]:
        """Judges what is left, saves, and says how it ended."""
        counters = self.learning.counters
        yield self._collected(counters)
        if self.reason is None:
            done = counters.env_steps >= self.config.run.env_steps
            self.reason = Reason.ENV_STEPS if done else Reason.EPISODES
        if self.winner is None and self._written != counters:
            yield from self._logged(counters)
        if not self.interrupts.reason and self.winner is None:
            if self._submitted != counters:
                yield from self._submit(counters)
            yield from self._wait(lambda: not self.manager.pending)
            if self.interrupts.reason and self.manager.pending and self.winner is None:
                self.reason = self.interrupts.reason
        yield from self._save(self.winner.counters if self.winner else counters)
        yield self._stopped()

    def _save(self, counters: Counters) -> Iterator[Event]:
        from rookery.loops import sb3

        if self.winner is not None:
            load_arrays(self.model.policy, self.winner.arrays)
        sb3.save(self.model, self.run_dir / MODEL)
        yield Saved(counters, str(self.run_dir / MODEL), 0.0)

    def _stopped(self) -> Stopped:
        end = self.winner
        assert self.reason is not None, "set before anything is saved"
        return Stopped(
            counters=end.counters if end else self.learning.counters,
            reason=self.reason,
            wall_s=self.meter.wall_s,
            train_s=end.train_s if end else self.train_s,
            best_score=self.best_score,
            solved=end is not None,
            weights_sha256=fingerprint(arrays_of(self.model.policy)),
        )
