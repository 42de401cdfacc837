"""Training run of a Stable-Baselines3 (SB3) algorithm, which has its own training loop.

The run has the same folder, events, evaluations and final JSON result as any other run. It saves
SB3's model.zip instead of checkpoints, and cannot be resumed.
"""

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from rookery.config.schema import SB3_OFF_POLICY, Config
from rookery.envs.make import Factory
from rookery.evaluation.evaluation_process import EvaluationSnapshot
from rookery.event import (
    Collected,
    Counters,
    Event,
    IterationEnded,
    Reason,
    Saved,
    Started,
    Warned,
)
from rookery.networks.named_arrays import arrays_of, load_arrays
from rookery.sb3 import models
from rookery.sb3.backend import MODEL
from rookery.sb3.learn_iterator import LearnIterator
from rookery.sharing.registry import run_id_of
from rookery.training.run import BaseRun, RunContext
from rookery.types import Weights


def prepare(
    config: Config,
    factory: Factory | None,
    device: torch.device,
    run_dir: Path,
    stack: contextlib.ExitStack,
) -> LearnIterator:
    """Makes the environments and SB3's model; returns the model's `learn()` as an iterator.

    `stack` closes the environments and the iterator at the end of the run.
    """
    envs = models.environments(config, factory, config.sb3.envs)
    stack.callback(envs.close)
    models.refuse_masks(config, envs)
    models.refuse_what_cannot_fit(config, envs)
    replay = stack.enter_context(models.pooled_replay(config, run_id_of(run_dir.absolute().name)))
    capacity, seed = config.replay.capacity, config.run.seed
    model = models.build(config, envs, capacity=capacity, device=device, seed=seed, replay=replay)
    learning = LearnIterator(model, config)
    stack.callback(learning.close)
    return learning


class Sb3Run(BaseRun):
    """A run of an SB3 algorithm; iterating over `events()` trains it."""

    def __init__(self, learning: LearnIterator, context: RunContext):
        super().__init__(learning.config, context)
        self.learning, self.model = learning, learning.model
        self._last_snapshots: list[EvaluationSnapshot] = []  # taken when `run.env_steps` were over

    @property
    def counters(self) -> Counters:
        return self.learning.counters

    def weights(self) -> Weights:
        return Weights(self.learning.counters.learner_steps, arrays_of(self.model.policy))

    def _events(self) -> Iterator[Event]:
        yield Started(str(self.run_dir), Counters(), False, self.about)
        yield from self._notices()
        self._first_step = time.monotonic()
        for counters in self.learning.pauses():
            yield from self._news() if counters is None else self._turn(counters)
            self._look_for_the_end()
            self._heed_requests()
            self.learning.over = self.reason is not None or self.learning.over
        yield from self._finish()

    def _notices(self) -> Iterator[Event]:
        name = self.config.sb3.algorithm
        if self.config.sharing.pool is not None and name not in SB3_OFF_POLICY:
            yield Warned(
                Counters(),
                "sharing",
                f"{name} is on-policy and cannot learn from other runs' rows; it neither lends nor "
                "borrows: leave sharing.pool out, or use an off-policy algorithm",
            )

    def _turn(self, counters: Counters) -> Iterator[Event]:
        self.evaluation_client.counters = counters
        yield self._collected(counters)
        yield IterationEnded(counters)
        yield from self._news()
        log, evaluate = (due.passed(counters.env_steps) for due in (self._log, self._eval))
        if counters.env_steps >= self.config.run.env_steps:
            # SB3 may learn once more without another env step; `_finish` logs and evaluates that.
            self._last_snapshots += [self._snapshot()] if evaluate else []
            return
        if log:
            yield from self._logged(counters)
        if evaluate:
            yield from self._submit()

    def _collected(self, counters: Counters) -> Collected:
        return Collected(counters, self.learning.take_ended(), 0.0, counters.learner_steps)

    def _limits(self) -> Sequence[tuple[Reason, float, float | None]]:
        """Returns the limits that this class checks: only the time limit of the run.

        SB3's `learn()` limits env steps, and `LearnIterator` limits episodes.
        """
        return ((Reason.MINUTES, self.meter.wall_s / 60, self.config.run.minutes),)

    def _logged(self, counters: Counters) -> Iterator[Event]:
        self._written = counters
        sampled = counters.learner_steps * getattr(self.model, "batch_size", 0)
        event = self.meter.logged(
            counters,
            counters.learner_steps,
            {
                "replay/fill": models.replay_fill(self.model),
                "replay/samples_per_insert": sampled / max(1, counters.env_steps),
                "rollout/exploration_rate": None,  # algorithms with action noise have none
                **models.logged_values(self.model),
                **models.sharing_metrics(self.model),
                **self.meter.processes(
                    {"learner": os.getpid(), "eval": self.evaluation_client.pid}
                ),
                **{f"faults/{kind}": float(count) for kind, count in self.faults.items()},
            },
        )
        self.evaluation_client.write(event)
        yield event

    def _keep_best(self, snapshot: EvaluationSnapshot, score: float) -> None:
        """Does nothing: an SB3 run does not save its best policy.

        Its `model.zip` holds the policy that reached the target score, otherwise the last policy.
        """

    def _finish(self) -> Iterator[Event]:
        """Evaluates the final policy and saves the model; yields the events, `Stopped` last."""
        counters = self.learning.counters
        yield self._collected(counters)
        if self.reason is None:
            done = counters.env_steps >= self.config.run.env_steps
            self.reason = Reason.ENV_STEPS if done else Reason.EPISODES
        if self.winner is None and self._written != counters:
            yield from self._logged(counters)
        yield from self._evaluate_the_end()
        yield from self._save(self.winner.counters if self.winner else counters)
        yield self._stopped()

    def _evaluate_the_end(self) -> Iterator[Event]:
        """Evaluates the final policy, and those of earlier env steps that are not evaluated yet."""
        ended = self.reason in (Reason.INTERRUPTED, Reason.TERMINATED) or self.winner is not None
        for snapshot in () if ended else self._last_snapshots:
            if snapshot.counters.env_steps < self.counters.env_steps:
                yield from self._submit(snapshot)
        yield from super()._evaluate_the_end()

    def _save(self, counters: Counters) -> Iterator[Event]:
        if self.winner is not None:
            load_arrays(self.model.policy, self.winner.arrays)
        models.save(self.model, self.run_dir / MODEL)
        yield Saved(counters, str(self.run_dir / MODEL), 0.0)
