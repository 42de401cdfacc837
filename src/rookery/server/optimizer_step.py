"""Optimizer steps of a parameter server: its parameters, and a torch optimizer."""

import copy
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor, nn

from rookery.errors import CheckpointError, ConfigError
from rookery.server.flat_layout import Layout
from rookery.types import Array, Floats

if TYPE_CHECKING:
    from rookery.server.server_rules import Rules

Maker: TypeAlias = Callable[..., torch.optim.Optimizer]
UNFIT = ("Optimizer", "LBFGS", "SparseAdam")  # no method; needs a closure; needs sparse gradients


def optimizers() -> dict[str, Maker]:
    """Returns torch's optimizers that need only a gradient, by their lower-case names."""
    return {
        name.lower(): made
        for name, made in vars(torch.optim).items()
        if isinstance(made, type) and issubclass(made, torch.optim.Optimizer) and name not in UNFIT
    }


class Stepper:
    """Takes optimizer steps on a vector of parameters.

    Fused optimizers get the vector in one piece, as the learner's do; any other one gets the
    parameters in their shapes.
    """

    def __init__(self, start: Floats, layout: Layout, rules: "Rules"):
        self.values: Floats = start  # [P], moved in place
        self._grad = torch.zeros(layout.total)
        maker = _maker(rules.optimizer)
        settings: dict[str, Any] = {"lr": rules.lr, **rules.optimizer_kwargs}
        takes = inspect.signature(maker).parameters if isinstance(maker, type) else ()
        fused = "fused" in takes and "foreach" not in settings
        if fused:
            settings.setdefault("fused", True)
        shapes = [(layout.total,)] if fused else [*layout.shapes.values()]
        try:
            self.optimizer = maker(self._parameters(shapes), **settings)
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"optimizer {rules.optimizer} does not take {settings}: {error}; change lr or "
                "optimizer_kwargs"
            ) from error
        self.name = type(self.optimizer).__name__
        self.lrs = [float(group["lr"]) for group in self.optimizer.param_groups]

    def _parameters(self, shapes: Sequence[tuple[int, ...]]) -> list[nn.Parameter]:
        values, made = torch.from_numpy(self.values), []
        sizes = [math.prod(shape) for shape in shapes]
        parts = zip(torch.split(values, sizes), torch.split(self._grad, sizes), shapes, strict=True)
        for value, grad, shape in parts:
            parameter = nn.Parameter(value.view(shape))
            parameter.grad = grad.view(shape)
            made.append(parameter)
        return made

    def step(self, gradient: Floats, lrs: Sequence[float], *, keep: bool = True) -> bool:
        """Takes one optimizer step with these learning rates; `lrs` are the optimizer's own.

        Returns False where parameters or the optimizer's tensors would not be finite after it.
        Everything is then as it was before, as it is without `keep`.
        """
        values, slots = self.values.copy(), copy.deepcopy(self._slots())
        self._move(gradient, lrs)
        finite = self._is_finite(slots)
        if not (finite and keep):
            self.values[:] = values
            self._load_slots(slots)
        return finite

    def _slots(self) -> dict[int, dict[str, Any]]:
        """Returns the optimizer's state, such as moments, by the number of the parameter."""
        slots: dict[int, dict[str, Any]] = self.optimizer.state_dict()["state"]
        return slots

    def _load_slots(self, slots: Mapping[int, Mapping[str, Any]]) -> None:
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": slots})

    def _is_finite(self, before: Mapping[int, Mapping[str, Any]]) -> bool:
        """Looks at all tensors but those that were not finite before, as some optimizers begin."""
        return _finite(torch.from_numpy(self.values)) and all(
            _finite(value) or not _finite(before.get(index, {}).get(key))
            for index, slots in self._slots().items()
            for key, value in slots.items()
        )

    def _move(self, gradient: Floats, lrs: Sequence[float]) -> None:
        self._grad.numpy()[:] = gradient  # the two share their memory
        for group, lr in zip(self.optimizer.param_groups, lrs, strict=True):
            group["lr"] = lr
        self.optimizer.step()

    def state(self) -> dict[str, Array]:
        """Returns copied arrays that `restore` goes on from exactly."""
        slots = {f"{i}.{key}": v for i, own in self._slots().items() for key, v in own.items()}
        try:
            return {n: torch.as_tensor(v).detach().cpu().numpy().copy() for n, v in slots.items()}
        except (TypeError, ValueError, RuntimeError) as error:
            raise CheckpointError(
                f"{self.name} keeps what cannot be saved ({error}); numbers and tensors can: "
                "choose another optimizer"
            ) from error

    def restore(self, name: str, arrays: Mapping[str, Array]) -> None:
        """Goes on from a saved state of the same optimizer; learning rates stay the new ones."""
        if name != self.name:
            raise CheckpointError(
                f"the checkpoint is of optimizer {name}, this server has {self.name}; give it the "
                "same one (--mode, --server-rule), or another checkpoint_path (--run-dir)"
            )
        found: dict[int, dict[str, Any]] = {}
        for slot, array in arrays.items():
            index, _, key = slot.partition(".")
            found.setdefault(int(index), {})[key] = torch.from_numpy(array.copy())
        self._load_slots(found)


def _finite(value: Any) -> bool:
    """Returns False for a tensor with NaN or infinity."""
    if not isinstance(value, Tensor) or not value.is_floating_point() or not value.numel():
        return True
    return all(math.isfinite(end) for end in torch.aminmax(value))  # one pass, no memory


def _maker(optimizer: str | Maker) -> Maker:
    found = optimizers().get(optimizer.lower()) if isinstance(optimizer, str) else optimizer
    if found is None or getattr(found, "__name__", "") in UNFIT:
        raise ConfigError(
            f"optimizer {optimizer!r} cannot step from a gradient alone, or torch.optim has none "
            f"of that name; choose one of {', '.join(sorted(optimizers()))}, or give a callable"
        )
    return found
