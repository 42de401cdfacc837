"""Training run of a Stable-Baselines3 (SB3) algorithm, which has its own training loop.

The run has the same folder, events, evaluations, checkpoints and final JSON result as any other
run. At its end it also saves SB3's model.zip.
"""

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm

from rookery import seeding
from rookery.checkpoints.checkpoint import Content, VerifiedCheckpoint
from rookery.config.schema import SB3_OFF_POLICY
from rookery.envs.spaces import spec_of
from rookery.evaluation.backend import RunRequest
from rookery.evaluation.evaluation_process import EvaluationSnapshot
from rookery.event import (
    Ask,
    Collected,
    Counters,
    Event,
    IterationEnded,
    Reason,
    Saved,
    Started,
    Warned,
)
from rookery.networks.device import pick_device
from rookery.networks.named_arrays import arrays_of, load_arrays
from rookery.report.metrics.bottleneck import ActivityLedger
from rookery.sb3 import models
from rookery.sb3.backend import MODEL
from rookery.sb3.learn_iterator import LearnIterator
from rookery.sb3.model_state import model_state, restore_model
from rookery.sb3.replay_rows import ReplayRows
from rookery.seeding import Role
from rookery.sharing.registry import run_id_of
from rookery.training.launch import OpenFolder
from rookery.training.run import RunContext, SavedRun
from rookery.training.run_state import Rest, reports_state, rest_of
from rookery.types import EnvSpec, Weights, below, prefixed


class Sb3Trainer:
    """What an SB3 run trains with: environments, model, its replay and its `learn()`."""

    def __init__(self, opened: OpenFolder, request: RunRequest, stack: contextlib.ExitStack):
        """Makes environments and model; `stack` closes them at the end of the run."""
        config, run_dir, _, self.saver, about = opened
        about["backend"] = config.algorithm
        self.config = config
        envs = self.envs = models.environments(config, request.factory, config.sb3.envs)
        stack.callback(envs.close)
        models.refuse_masks(config, envs)
        models.refuse_what_cannot_fit(config, envs)
        self.spec = spec_of(config.env.id, envs.observation_space, envs.action_space)
        run_id = run_id_of(run_dir.absolute().name)
        self.model = models.build(
            config,
            envs,
            capacity=config.replay.capacity,
            device=pick_device(config.learner.device),
            seed=config.run.seed,
            replay=stack.enter_context(models.pooled_replay(config, run_id)),
        )
        if request.init_from is not None:
            models.load_weights(self.model, config, Path(request.init_from))
        self.rows: ReplayRows | None = None  # on-policy algorithms have no replay
        if isinstance(self.model, OffPolicyAlgorithm):
            self.rows = ReplayRows(self.model)
        self.learning = LearnIterator(self.model, config)
        stack.callback(self.learning.close)

    def run(self, context: RunContext, *, resumed: bool) -> "Sb3Run":
        return Sb3Run(self, context, resumed=resumed)

    def restore(self, found: VerifiedCheckpoint) -> Rest:
        """Restores model, replay and generators from a checkpoint; returns the run's own state.

        The environments begin new episodes, with other seeds than the run began with.
        """
        numbers, arrays, model = found.state(), found.arrays(), self.model
        restore_model(model, numbers["model"], below("model:", arrays))
        self.learning.episodes = numbers["counters"]["episodes"]
        steps = model.num_timesteps
        self.envs.seed(seeding.integer(self.config.run.seed, Role.ENVS, incarnation=steps))
        segments = []
        if self.rows is not None and found.manifest["about"]["replay"]:
            segments = self.rows.restore(numbers["replay"], found.segments())
        elif isinstance(model, OffPolicyAlgorithm):
            model.learning_starts += steps  # replay is empty
        return rest_of(numbers, arrays, segments)


class Sb3Run(SavedRun):
    """A run of an SB3 algorithm; iterating over `events()` trains it."""

    def __init__(self, trainer: Sb3Trainer, context: RunContext, *, resumed: bool):
        self.trainer, self.learning, self.model = trainer, trainer.learning, trainer.model
        ledger = ActivityLedger(actors=0, alone=True)
        super().__init__(
            trainer.config,
            context,
            trainer.saver,
            resumed=resumed,
            trace=self.learning.trace,
            ledger=ledger,
        )
        self._last_snapshots: list[EvaluationSnapshot] = []  # taken when `run.env_steps` were over

    @property
    def counters(self) -> Counters:
        return self.learning.counters

    def weights(self) -> Weights:
        return Weights(self.learning.counters.learner_steps, arrays_of(self.model.policy))

    def _events(self) -> Iterator[Event]:
        yield Started(str(self.run_dir), self.counters, self.resumed, self.about)
        yield from self._notices()
        self._first_step = time.monotonic()
        for counters in self.learning.pauses():
            if counters is None:
                yield from self._news()
            elif self.learning.between_rollouts:
                yield self._collected(counters)
                self._checkpoint()
            else:
                yield from self._turn(counters)
            self._look_for_the_end()
            self._heed_requests()
            self.learning.save_next = self.learning.save_next or Ask.CHECKPOINT in self._asked
            self._asked.discard(Ask.CHECKPOINT)
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
        self.evaluation_client.counters, self._looked = counters, counters.env_steps
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
                "replay/samples_per_insert": sampled / max(1, counters.env_steps),
                **models.metrics(self.model),
                **self.meter.processes(
                    {"learner": os.getpid(), "eval": self.evaluation_client.pid}
                ),
                **{f"faults/{kind}": float(count) for kind, count in self.faults.items()},
            },
        )
        self._write_traces()
        event = replace(event, limit=self._ledger.verdict)
        self.evaluation_client.write(event)
        yield event

    def _news(self, timeout_s: float = 0.0) -> Iterator[Event]:
        yield from super()._news(timeout_s)
        yield from self._saver_news()

    def _finish(self) -> Iterator[Event]:
        """Evaluates and saves the final policy; yields the events, `Stopped` last."""
        counters = self.learning.counters
        yield self._collected(counters)
        if self.reason is None:
            done = counters.env_steps >= self.config.run.env_steps
            self.reason = Reason.ENV_STEPS if done else Reason.EPISODES
        if self.winner is None and self._written != counters:
            yield from self._logged(counters)
        yield from self._evaluate_the_end()
        yield from self._save_the_end()
        self._write_traces()
        yield from self._save_model(self.winner.counters if self.winner else counters)
        yield self._stopped()

    def _evaluate_the_end(self) -> Iterator[Event]:
        """Evaluates the final policy, and those of earlier env steps that are not evaluated yet."""
        ended = self.reason in (Reason.INTERRUPTED, Reason.TERMINATED) or self.winner is not None
        for snapshot in () if ended else self._last_snapshots:
            if snapshot.counters.env_steps < self.counters.env_steps:
                yield from self._submit(snapshot)
        yield from super()._evaluate_the_end()

    def _save_model(self, counters: Counters) -> Iterator[Event]:
        if self.winner is not None:
            load_arrays(self.model.policy, self.winner.arrays)
        models.save(self.model, self.run_dir / MODEL)
        yield Saved(counters, str(self.run_dir / MODEL), 0.0)

    # Checkpoints.

    @property
    def _spec(self) -> EnvSpec:
        return self.trainer.spec

    @property
    def _oldest(self) -> list[int]:
        return [0 if self.trainer.rows is None else self.trainer.rows.oldest]

    def _content(self) -> Content:
        """Copies the whole state but that of the environments, so it is never exact."""
        client, rows = self.evaluation_client, self.trainer.rows
        saved = rows is not None and self.config.checkpoint.replay
        if rows is not None and saved:
            for block in rows.blocks(self.saver.saved_rows[0]):
                self.saver.rows(block.first, block.columns)
        numbers, arrays = model_state(self.model)
        reports, snapshots = reports_state(client.pending, client.unwritten)
        counters = asdict(self.counters)
        return Content(
            env_steps=self.counters.env_steps,
            version=self.counters.learner_steps,
            exact=False,
            final=False,
            about={"counters": counters, "spec": asdict(self._spec), "replay": saved},
            weights={name: array.copy() for name, array in self.weights().arrays.items()},
            state={
                "counters": counters,
                "run": self._state(),
                "actors": {},
                "model": numbers,
                "replay": {} if rows is None else rows.state(),
                **reports,
            },
            arrays=prefixed("model:", arrays) | dict(snapshots),
        )
