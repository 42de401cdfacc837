"""A learner whose gradient step is captured once as a CUDA graph and then replayed."""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from rookery.algorithms import Algorithm
from rookery.config.schema import EnvConfig, LearnerConfig
from rookery.learner.learner import (
    CAPTURABLE,
    FlatParameters,
    Learner,
    make_optimizer,
    rebuilt,
    tensors_of,
)
from rookery.networks.cuda_graph import CapturedFunction
from rookery.types import Array, LearnResult, SampledBatch, SavedState


class CapturedLearner(Learner):
    """A learner whose gradient step is one launch of a CUDA graph, without waiting for the GPU.

    For algorithms with one loss and without control flow that depends on tensor values. Batches are
    tensors on the learner's device, always of the same shapes. The optimizer skips a step whose
    loss or gradient is not finite; `count_skipped` counts these steps.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        config: LearnerConfig,
        env: EnvConfig,
        device: torch.device,
        *,
        seed: int = 0,
    ):
        super().__init__(algorithm, config, env, device, seed=seed)
        self._bad = torch.zeros((), device=self.device)
        self._names: list[str] = []
        self._like: SampledBatch | None = None
        self._captured_step = CapturedFunction(self._compute_step, self.device)

    def learn(self, batch: SampledBatch) -> LearnResult:
        """Takes a gradient step on a batch. The next call overwrites the returned tensors."""
        self._like = batch
        loss, td_error, *metrics = self._captured_step(*tensors_of(batch))
        self.learner_steps += 1
        self.algorithm.update_targets(self.learner_steps)
        named = dict(zip(self._names, metrics, strict=True))
        return LearnResult(td_error, {"loss": loss, **named})

    def _compute_step(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        (loss,) = self.algorithm.losses(
            rebuilt(self._like, iter(tensors)), step=self.learner_steps + 1, rng=self.rng
        )
        assert loss.td_error is not None
        flat, optimizer = self._flat[loss.group], self.optimizers[loss.group]
        norm = flat.descend(loss.value)
        bad = (~torch.isfinite(norm + loss.value.detach())).float()
        if self.config.max_grad_norm is not None:
            flat.grad.mul_((self.config.max_grad_norm / norm).clamp(max=1.0))
        optimizer.grad_scale, optimizer.found_inf = None, bad  # type: ignore[attr-defined]
        optimizer.step()
        self._bad += bad
        self._names = list(loss.metrics)
        return loss.value.detach(), loss.td_error, *loss.metrics.values()

    def count_skipped(self) -> None:
        """Reads from the device how many gradient steps were skipped, and updates `skipped`.

        A step is skipped if its loss or gradient is not finite. Raises LostError if `max_bad_steps`
        or more steps were skipped since the last call.
        """
        before, self.skipped = self.skipped, int(self._bad)  # a sync point
        self.bad_steps = self.skipped - before
        if self.bad_steps >= self.config.max_bad_steps:
            raise self._too_many_bad_steps()

    def advance(self, share: float) -> None:
        for optimizer in self.optimizers.values():
            for group in optimizer.param_groups:
                group["lr"].fill_(self.lr.at(share))

    def _optimizer(self, flat: FlatParameters) -> torch.optim.Optimizer:
        kwargs = {
            **self.config.optimizer_kwargs,
            "lr": torch.tensor(self.config.lr).to(self.device),
        }
        if self.config.optimizer in CAPTURABLE:
            kwargs["capturable"] = not self._on_cpu
        return make_optimizer(replace(self.config, optimizer_kwargs=kwargs), flat)

    def restore(self, numbers: SavedState, arrays: Mapping[str, Array]) -> None:
        super().restore(numbers, arrays)
        self._bad.fill_(self.skipped)
