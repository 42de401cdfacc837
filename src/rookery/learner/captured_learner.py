"""A learner whose gradient steps are captured as CUDA graphs and then replayed.

A gradient step of a small network is hundreds of small kernels, and launching them takes far longer
than running them. A graph is one launch. The host does not wait for the device in a gradient step,
except for TD errors that a replay buffer on the host needs for its priorities, and every
`LOOK_PERIOD` steps for the counts of skipped steps.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rookery.algorithms.algorithm import Loss
from rookery.config.schema import Optimizer
from rookery.learner.learner import FlatParameters, Learner, make_optimizer
from rookery.learner.optimizer_backup import OptimizerBackup
from rookery.networks.cuda_graph import CapturedFunction
from rookery.replay.batches import arrays_in, replaced
from rookery.replay.shared_arrays import padded
from rookery.types import Array, Batch, Json, LearnResult, SampledBatch, SavedState, TensorBatch

LOOK_PERIOD = 100  # learner steps between two looks at the counts of skipped steps
# those that need capturable=True inside a CUDA graph
CAPTURABLE = (Optimizer.ADAM, Optimizer.ADAMW, Optimizer.RMSPROP)
BUFFERS = 4  # batches that may be on their way to the device


class StagedBatch:
    """Memory on a device for one batch, and pinned memory on the host from which it is copied.

    staged = StagedBatch(batch, device)   # allocates, for batches of these shapes
    staged.load(batch)                    # one copy, which the host does not wait for
    staged.batch                          # the same tensors every time, on the device
    """

    def __init__(self, batch: SampledBatch, device: torch.device):
        arrays = arrays_in(batch)
        size = sum(padded(array.nbytes) for array in arrays)
        self._memory = torch.empty(size, dtype=torch.uint8, device=device)
        views = iter(_views(self._memory, arrays))
        self.batch: TensorBatch = Batch(**replaced(batch, lambda array: next(views)))
        on_gpu = device.type == "cuda"
        self._pinned = [
            torch.empty(size, dtype=torch.uint8, pin_memory=on_gpu) for _ in range(BUFFERS)
        ]
        self._places = [
            [view.numpy() for view in _views(memory, arrays)] for memory in self._pinned
        ]
        self._copied: list[torch.cuda.Event] = (
            [torch.cuda.Event() for _ in range(BUFFERS)] if on_gpu else []  # type: ignore[no-untyped-call]
        )
        self._loads = 0

    def load(self, batch: SampledBatch) -> None:
        """Copies a batch to the device; waits only if `BUFFERS` earlier copies are not done yet."""
        turn = self._loads % BUFFERS
        if self._copied:
            self._copied[turn].synchronize()
        for place, array in zip(self._places[turn], arrays_in(batch), strict=True):
            np.copyto(place, array)
        self._memory.copy_(self._pinned[turn], non_blocking=True)
        if self._copied:
            self._copied[turn].record()
        self._loads += 1


def _views(memory: Tensor, arrays: Sequence[Array]) -> list[Tensor]:
    """Returns tensors in a block of memory, with the shapes and dtypes of the arrays."""
    found, first = list[Tensor](), 0
    for array in arrays:
        dtype = torch.from_numpy(np.empty(0, array.dtype)).dtype
        found.append(memory[first : first + array.nbytes].view(dtype).view(array.shape))
        first += padded(array.nbytes)
    return found


class CapturedStep(NamedTuple):
    """A gradient step of one phase of the algorithm, for batches of the same shapes."""

    function: CapturedFunction
    metrics: list[str]  # their names, in the order of its outputs after the TD errors
    staged: StagedBatch | None  # memory on the device for batches from the host


class CapturedLearner(Learner):
    """A learner whose gradient step is one launch of a CUDA graph, without waiting for the GPU.

    For algorithms that are `capturable`. Batches are arrays on the host, or tensors on the
    learner's device. A step of which any loss or gradient is not finite changes no parameters and
    no optimizer; the device counts these steps, and `count_skipped` reads the counts every
    `LOOK_PERIOD` steps. Without `prioritized`, TD errors are not copied to the host.
    """

    _looked_at = 0  # learner step of the last look at the counts

    @cached_property
    def _steps(self) -> dict[tuple[object, ...], CapturedStep]:
        """The captured gradient steps, by the algorithm's phase and the shapes of the batch."""
        self._backups.clear()
        for name, optimizer in self.optimizers.items():
            backup = OptimizerBackup(self._flat[name].data, optimizer)
            if not optimizer.state:
                backup.create_state()
            if len(self._flat) > 1 or not optimizer.defaults.get("fused"):
                self._backups[name] = backup  # a fused optimizer skips steps by itself
        return {}

    @cached_property
    def _counts(self) -> Tensor:
        """Skipped steps on the device [3]: in all, in a row now, and most in a row since a look."""
        return torch.zeros(3, device=self.device)

    def learn(self, batch: SampledBatch) -> LearnResult:
        """Takes a gradient step on a batch. The next call overwrites TD errors on the device."""
        given = tensors_of(batch)
        key = (self.algorithm.phase(self.learner_steps + 1), *_shapes(batch, given))
        with self._explaining_out_of_memory():
            if key not in self._steps:
                self._steps[key] = self._new_step(batch, on_host=not given)
            step = self._steps[key]
            if step.staged is not None:
                step.staged.load(batch)
            td_error, metrics = step.function(*given)
        self.learner_steps += 1
        named = dict(zip(step.metrics, metrics.clone().unbind(), strict=True))
        return LearnResult(td_error if given else self._priorities(td_error), named)

    def _priorities(self, td_error: Tensor | None) -> Array | None:
        """Copies TD errors to the host if replay needs them there; None after a skipped step."""
        if td_error is None or not self.prioritized:
            return None
        errors: Array = td_error.cpu().numpy()  # a sync point
        return errors if np.isfinite(errors).all() else None

    def _new_step(self, batch: SampledBatch, *, on_host: bool) -> CapturedStep:
        names: list[str] = []
        staged = StagedBatch(batch, self.device) if on_host else None
        like = batch if staged is None else staged.batch
        compute = partial(self._compute, self.learner_steps + 1, names, like)
        return CapturedStep(CapturedFunction(compute, self.device, [self.rng]), names, staged)

    def _compute(
        self, step: int, names: list[str], like: "SampledBatch | TensorBatch", *given: Tensor
    ) -> tuple[Tensor | None, Tensor]:
        """Takes a gradient step on each loss, and updates the target networks.

        The batch is `like`, with the tensors `given` if there are any. Returns the TD errors, NaN
        for a skipped step, and the metrics whose names it writes to `names`.
        """
        batch = self._scaled(rebuilt(like, iter(given)) if given else like)
        for backup in self._backups.values():
            backup.save()
        bad = torch.zeros((), device=self.device)
        learned = self._on_losses(batch, step, partial(self._descend_on_device, bad))
        assert learned is not None, "on a device, all losses are computed"
        td_error, metrics = learned
        for backup in self._backups.values():
            backup.restore_where(bad)
        self._count(bad)
        self.algorithm.update_targets(step)
        names[:] = metrics
        if td_error is not None:
            td_error = torch.where(bad > 0, torch.nan, td_error)
        return td_error, torch.stack([value.float() for value in metrics.values()])

    def _count(self, bad: Tensor) -> None:
        skipped, in_a_row, most = self._counts.unbind()
        skipped.add_(bad)
        in_a_row.add_(bad).mul_(bad)
        torch.maximum(most, in_a_row, out=most)

    def _descend_on_device(self, bad: Tensor, loss: Loss) -> Loss:
        """Takes an optimizer step, unless `bad` is 1 or this loss or its gradient is not finite.

        In the latter case it sets the scalar tensor `bad` to 1.
        """
        flat, optimizer = self._flat[loss.group], self.optimizers[loss.group]
        norm = flat.descend(loss.value)
        torch.maximum(bad, (~torch.isfinite(norm + loss.value.detach())).float(), out=bad)
        if self.config.max_grad_norm is not None:
            flat.grad.mul_((self.config.max_grad_norm / norm).clamp(max=1.0))
        if optimizer.defaults.get("fused"):  # others are undone by their backups
            optimizer.grad_scale, optimizer.found_inf = None, bad  # type: ignore[attr-defined]
        optimizer.step()
        return loss

    def count_skipped(self) -> None:
        """Reads the counts of skipped steps from the device, if the last look was long ago."""
        if self.learner_steps - self._looked_at >= LOOK_PERIOD:
            self.read_skipped()

    def read_skipped(self) -> None:
        """Updates `skipped`, the number of steps whose loss or gradient was not finite.

        Raises LostError if `max_bad_steps` or more in a row were skipped since the last look.
        """
        self._looked_at = self.learner_steps
        self.skipped, now, self.bad_steps = map(int, self._counts.tolist())  # a sync point
        self._counts[2] = now
        if self.bad_steps >= self.config.max_bad_steps:
            raise self._too_many_bad_steps()

    def advance(self, share: float) -> None:
        if self.lr.constant:
            return
        for name, optimizer in self.optimizers.items():
            for group in optimizer.param_groups:
                group["lr"].fill_(self._schedule(name).at(share))

    def _optimizer(self, flat: FlatParameters, lr: float) -> torch.optim.Optimizer:
        kwargs: dict[str, object] = {
            **self.config.optimizer_kwargs,
            "lr": torch.tensor(lr).to(self.device),
        }
        if self.config.optimizer in CAPTURABLE:
            kwargs["capturable"] = not self._on_cpu
        return make_optimizer(replace(self.config, optimizer_kwargs=kwargs), flat)

    def state(self) -> tuple[dict[str, Json], dict[str, Array]]:
        self.read_skipped()
        return super().state()

    def restore(self, numbers: SavedState, arrays: Mapping[str, Array]) -> None:
        self.__dict__.pop("_steps", None)  # they were captured with the optimizers' old state
        super().restore(numbers, arrays)
        self._counts.zero_()
        self._counts[0] = self.skipped


def _shapes(batch: SampledBatch, given: Sequence[Tensor]) -> tuple[object, ...]:
    """Returns what tells batches apart that need graphs of their own: fields, shapes, dtypes."""
    parts: Sequence[Tensor | Array] = given or arrays_in(batch)
    fields = tuple(name for name, value in batch._asdict().items() if value is not None)
    return (fields, *((part.shape, part.dtype) for part in parts))


def tensors_of(batch: object) -> list[Tensor]:
    """Returns all tensors of a batch (nested tuples) as a list, in order."""
    if isinstance(batch, Tensor):
        return [batch]
    parts = batch if isinstance(batch, tuple) else ()
    return [tensor for part in parts for tensor in tensors_of(part)]


def rebuilt(like: object, tensors: Iterator[Tensor]) -> Any:  # type: ignore[explicit-any]  # of the type of `like`
    """Returns a batch like `like`, with its tensors replaced by `tensors`, in order.

    It is the inverse of `tensors_of`.
    """
    if isinstance(like, Tensor):
        return next(tensors)
    if not isinstance(like, tuple):
        return like
    return type(like)(*(rebuilt(part, tensors) for part in like))
