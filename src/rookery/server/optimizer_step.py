"""The parameters, and the torch optimizer that moves them."""

import copy
import inspect
import math
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from rookery.errors import CheckpointError, ConfigError
from rookery.server.flat_layout import Layout
from rookery.types import Array, Floats

Maker: TypeAlias = Callable[..., torch.optim.Optimizer]
UNFIT = ("Optimizer", "LBFGS", "SparseAdam")  # no method; needs a closure; needs sparse gradients


def optimizers() -> dict[str, Maker]:
    """Returns the optimizers of torch that can work from a gradient alone, by their words."""
    classes = {name: made for name, made in vars(torch.optim).items() if isinstance(made, type)}
    return {
        name.lower(): made
        for name, made in classes.items()
        if issubclass(made, torch.optim.Optimizer) and name not in UNFIT
    }


class Stepper:
    """Moves a vector of parameters against gradients.

    Fused optimizers get the vector in one piece, as the learner's do; any other one gets the
    parameters in their shapes.
    """

    def __init__(
        self,
        start: Floats,
        layout: Layout,
        optimizer: str | Maker,
        lr: float,
        kwargs: Mapping[str, Any],
    ):
        self.values: Floats = start  # [P], moved in place
        self._grad = torch.zeros(layout.total)
        self._before = Snapshot(start)
        maker = _maker(optimizer)
        settings: dict[str, Any] = {"lr": lr, **kwargs}
        fused = _fusible(maker) and "foreach" not in kwargs
        if fused:
            settings.setdefault("fused", True)
        parameters = self._parameters(layout if not fused else None)
        try:
            self.optimizer = maker(parameters, **settings)
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"optimizer {_name(maker)} does not take {settings}: {error}; change lr or "
                "optimizer_kwargs"
            ) from error
        self.name = _name(type(self.optimizer))

    def _parameters(self, layout: Layout | None) -> list[nn.Parameter]:
        values = torch.from_numpy(self.values)
        shapes = [values.shape] if layout is None else layout.shapes
        sizes = [int(np.prod(shape, dtype=np.int64)) for shape in shapes]
        made = []
        parts = zip(torch.split(values, sizes), torch.split(self._grad, sizes), shapes, strict=True)
        for value, grad, shape in parts:
            parameter = nn.Parameter(value.view(shape))
            parameter.grad = grad.view(shape)
            made.append(parameter)
        return made

    @property
    def lrs(self) -> list[float]:
        """Returns the learning rate of each of the optimizer's groups."""
        return [float(group["lr"]) for group in self.optimizer.param_groups]

    def step(self, gradient: Floats, lrs: list[float]) -> bool:
        """Takes one step with these learning rates; the optimizer's own stay what they were.

        Returns False where parameters or the optimizer's tensors would not be finite after it:
        everything is then as it was before.
        """
        self._before.take(self.values, self.optimizer.state)
        self._move(gradient, lrs)
        if self._overflowed():
            self._before.put_back(self.values, self.optimizer.state)
            return False
        return True

    def survives(self, gradient: Floats) -> bool:
        """Says whether a step would leave everything finite, and takes none."""
        self._before.take(self.values, self.optimizer.state)
        self._move(gradient, self.lrs)
        overflowed = self._overflowed()
        self._before.put_back(self.values, self.optimizer.state)
        return not overflowed

    def _overflowed(self) -> bool:
        """A tensor that was not finite before the step, as some optimizers begin, is none of it."""
        if not _finite(torch.from_numpy(self.values)):
            return True
        before = self._before.slots
        return any(
            not _finite(value) and _finite(before.get(parameter, {}).get(key))
            for parameter, state in self.optimizer.state.items()
            for key, value in state.items()
        )

    def _move(self, gradient: Floats, lrs: list[float]) -> None:
        own = [group["lr"] for group in self.optimizer.param_groups]
        self._grad.numpy()[:] = gradient  # the two share their memory
        self._set(lrs)
        try:
            self.optimizer.step()
        finally:
            self._set(own)

    def _set(self, lrs: list[Any]) -> None:
        for group, lr in zip(self.optimizer.param_groups, lrs, strict=True):
            group["lr"] = lr

    def state(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """Returns JSON-ready numbers and copied arrays that `restore` goes on from exactly."""
        numbers: dict[str, Any] = {}
        arrays = {}
        for name, value in self._slots():
            if isinstance(value, Tensor):
                arrays[name] = value.detach().cpu().numpy().copy()
            elif value is None or isinstance(value, bool | int | float | str):
                numbers[name] = value
            else:
                raise CheckpointError(
                    f"{self.name} keeps a {type(value).__name__} in {name!r}, which cannot be "
                    "saved; numbers, strings and tensors can: choose another optimizer"
                )
        return {"optimizer": self.name, "slots": numbers}, arrays

    def _slots(self) -> Iterator[tuple[str, Any]]:
        for index, slots in self.optimizer.state_dict()["state"].items():
            for key, value in slots.items():
                yield f"{index}.{key}", value

    def restore(self, numbers: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
        """Goes on from a saved state of the same optimizer; learning rates stay the new ones."""
        if numbers["optimizer"] != self.name:
            raise CheckpointError(
                f"the checkpoint is of optimizer {numbers['optimizer']}, this server has "
                f"{self.name}; give it the same one (--mode, --server-rule), or another "
                "checkpoint_path (--run-dir)"
            )
        found: dict[int, dict[str, Any]] = {}
        tensors = {name: torch.from_numpy(value.copy()) for name, value in arrays.items()}
        for name, value in {**numbers["slots"], **tensors}.items():
            index, _, key = name.partition(".")
            found.setdefault(int(index), {})[key] = value
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": found})


class Snapshot:
    """Parameters and an optimizer's state at one moment, in memory that is used again."""

    def __init__(self, values: Floats):
        self._values = np.empty_like(values)  # [P]
        self.slots: dict[Any, dict[str, Any]] = {}  # by parameter

    def take(self, values: Floats, state: Mapping[Any, Mapping[str, Any]]) -> None:
        self._values[:] = values
        self.slots = {
            parameter: {
                key: _copied(value, self.slots.get(parameter, {}).get(key))
                for key, value in slots.items()
            }
            for parameter, slots in state.items()
        }

    def put_back(self, values: Floats, state: MutableMapping[Any, Any]) -> None:
        """Gives its own memory away; the next `take` finds other."""
        values[:] = self._values
        state.clear()
        state.update(self.slots)
        self.slots = {}


def _copied(value: Any, room: Any) -> Any:
    """Returns a copy of a slot, in `room` where that is a tensor like it."""
    if not isinstance(value, Tensor):
        return copy.deepcopy(value)
    if isinstance(room, Tensor) and (room.shape, room.dtype) == (value.shape, value.dtype):
        return room.copy_(value)
    return value.detach().clone()


def _finite(value: Any) -> bool:
    """Is it anything but a tensor with NaN or infinity?"""
    if not isinstance(value, Tensor) or not value.is_floating_point() or not value.numel():
        return True
    return all(math.isfinite(end) for end in torch.aminmax(value))  # one pass, no memory


def _maker(optimizer: str | Maker) -> Maker:
    if not isinstance(optimizer, str):
        found: Maker | None = optimizer
    else:
        found = optimizers().get(optimizer.lower())
    if found is None or found in (torch.optim.LBFGS, torch.optim.SparseAdam):
        raise ConfigError(
            f"optimizer {optimizer!r} cannot step from a gradient alone, or torch.optim has none "
            f"of that name; choose one of {', '.join(sorted(optimizers()))}, or give a callable"
        )
    return found


def _fusible(maker: Maker) -> bool:
    return isinstance(maker, type) and "fused" in inspect.signature(maker).parameters


def _name(maker: Any) -> str:
    return str(getattr(maker, "__name__", maker))
