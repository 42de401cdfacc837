"""The learner: the only place where weights change.

learned = learner.learn(batch)     # one gradient step on each of the algorithm's losses
learner.due()                      # is it time to publish?
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from rookery import seeding
from rookery.algos import Algorithm
from rookery.algos.interface import Loss
from rookery.config.schema import EnvConfig, LearnerConfig, Optimizer
from rookery.errors import ConfigError, LostError
from rookery.nets.arrays import arrays_of, fingerprint, load_arrays
from rookery.nets.capture import Capture
from rookery.nets.features import EPSILON, Normalize, observe
from rookery.nets.flat import Flat
from rookery.schedule import Schedule
from rookery.seeding import Role
from rookery.types import Array, Batch, Learned

OPTIMIZERS: dict[Optimizer, Callable[..., torch.optim.Optimizer]] = {
    Optimizer.ADAM: torch.optim.Adam,
    Optimizer.ADAMW: torch.optim.AdamW,
    Optimizer.RMSPROP: torch.optim.RMSprop,
    Optimizer.SGD: torch.optim.SGD,
}
FUSED = (Optimizer.ADAM, Optimizer.ADAMW, Optimizer.SGD)
CAPTURABLE = (Optimizer.ADAM, Optimizer.ADAMW)  # those that have to be told of being recorded


class Learner:
    """Takes gradient steps on an algorithm's losses."""

    def __init__(
        self,
        algorithm: Algorithm,
        config: LearnerConfig,
        env: EnvConfig,
        device: torch.device,
        *,
        seed: int = 0,
    ):
        self.algorithm, self.config, self.device = algorithm, config, device
        self.rng = torch.Generator(device)
        self.rng.manual_seed(seeding.integer(seed, Role.LEARNER))
        self.normalize = env
        self.scale = Normalize(1)  # of returns; divides rewards where env.normalize_reward asks
        algorithm.networks["return_scale"] = self.scale
        algorithm.networks.to(device)
        self._on_cpu = device.type == "cpu"
        if config.compile:
            _compile(algorithm.networks)
        groups = algorithm.groups()
        self._flat = {name: Flat(group, alone=len(groups) == 1) for name, group in groups.items()}
        self._views = arrays_of(algorithm.acting) if self._on_cpu else None  # updated in place
        self.learner_steps = 0
        self.bad_steps = 0  # in a row
        self.skipped = 0  # in the whole run
        self.lr = Schedule(config.lr, config.lr_end, config.lr_decay)
        self.optimizers = {name: self._optimizer(flat) for name, flat in self._flat.items()}

    def learn(self, batch: Batch) -> Learned:
        """Takes one gradient step on each loss. A step that is not finite is skipped, not taken."""
        td_error: Tensor | None = None
        metrics: dict[str, Tensor] = {}
        try:
            step = self.learner_steps + 1
            for own in self.algorithm.losses(self._here(batch), step=step, rng=self.rng):
                loss, norm = self._descend(own)
                if not self._step(loss, norm):
                    return self._skip()
                td_error = loss.td_error if loss.td_error is not None else td_error
                metrics[f"loss_{loss.group}" if metrics else "loss"] = loss.value.detach()
                metrics.update(loss.metrics)
        except torch.OutOfMemoryError as error:
            raise LostError(
                f"{self.device} ran out of memory in a learner step; lower replay.batch or "
                "net.hidden, or go on with learner.device=cpu from the last checkpoint"
            ) from error
        self.bad_steps = 0
        self.learner_steps += 1
        self.algorithm.settle(self.learner_steps)
        return Learned(_host(td_error), metrics)

    def _descend(self, loss: Loss) -> tuple[Loss, Tensor]:
        """Computes the gradient to step by; returns the loss that it is of, and its norm, []."""
        return loss, self._flat[loss.group].descend(loss.value)

    def _step(self, loss: Loss, norm: Tensor) -> bool:
        flat, limit = self._flat[loss.group], self.config.max_grad_norm
        size = norm.item()  # a sync point; TD errors are one anyway
        # Huber's gradient may be finite where its loss is not
        if not math.isfinite(size + loss.value.item()):
            return False
        if limit is not None and size > limit:
            flat.grad.mul_(limit / size)
        self.optimizers[loss.group].step()
        return True

    def _skip(self) -> Learned:
        self.bad_steps += 1
        self.skipped += 1
        if self.bad_steps >= self.config.max_bad_steps:
            raise self._hopeless()
        return Learned(None, {})

    def _hopeless(self) -> LostError:
        return LostError(
            f"{self.bad_steps} learner steps in a row had a loss or gradient that is not "
            f"finite (after {self.learner_steps} good ones); lower learner.lr "
            f"({self.config.lr}), scale rewards, or set learner.max_grad_norm"
        )

    def _optimizer(self, flat: Flat) -> torch.optim.Optimizer:
        return _optimizer(self.config, flat)

    def _here(self, batch: Batch) -> Batch:
        """Gives a batch's arrays to torch, on the learner's device."""
        to = self._tensor
        here = Batch(
            obs=to(batch.obs),
            action=to(batch.action),
            reward=to(batch.reward),
            discount=to(batch.discount),
            next_obs=to(batch.next_obs),
            weight=to(batch.weight),
            rows=batch.rows,
            mask=to(batch.mask),
            extras=to(batch.extras),
        )
        if not self.normalize.normalize_reward:
            return here
        return here._replace(reward=here.reward / self.deviation())

    def deviation(self) -> Tensor:
        """Returns what rewards are divided by where they are normalised, [1]."""
        return torch.sqrt(self.scale.variance + EPSILON)

    def _tensor(self, value: Any) -> Any:
        if value is None:
            return None
        if isinstance(value, dict):
            return {name: self._tensor(leaf) for name, leaf in value.items()}
        tensor = torch.from_numpy(value)
        return tensor if self._on_cpu else tensor.to(self.device, non_blocking=True)

    def observe(self, leaves: dict[str, Array], returns: Array) -> None:
        """Updates running statistics from rows just drained."""
        if len(returns) == 0:
            return
        if self.normalize.normalize_obs:
            seen = {name: torch.from_numpy(leaf) for name, leaf in leaves.items()}
            observe(self.algorithm.acting, seen)
        if self.normalize.normalize_reward:
            self.scale.observe(torch.from_numpy(returns[:, None]))

    def advance(self, share: float) -> None:
        """Sets what depends on how much of the run is over (0 to 1)."""
        if self.lr.constant:
            return
        for optimizer in self.optimizers.values():
            for group in optimizer.param_groups:
                group["lr"] = self.lr.at(share)

    def due(self) -> bool:
        """Is it time to publish?"""
        return self.learner_steps % self.config.publish_period == 0

    def weights(self) -> dict[str, Array]:
        """Returns what actors need, as views where the learner is on the CPU."""
        return self._views or arrays_of(self.algorithm.acting)

    def weights_sha256(self) -> str:
        """Returns a fingerprint of the weights that act."""
        return fingerprint(self.weights())

    def state(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """Returns JSON-ready numbers and copied arrays that `restore` goes on from exactly."""
        arrays = {f"net.{k}": v.copy() for k, v in arrays_of(self.algorithm.networks).items()}
        for name, optimizer in self.optimizers.items():
            for index, slots in optimizer.state_dict()["state"].items():
                for key, value in slots.items():
                    arrays[f"opt.{name}.{index}.{key}"] = (
                        torch.as_tensor(value).cpu().numpy().copy()
                    )
        arrays["rng"] = self.rng.get_state().numpy().copy()
        numbers = {"learner_steps": self.learner_steps, "skipped": self.skipped}
        return numbers, arrays

    def restore(self, numbers: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
        self.learner_steps, self.skipped = numbers["learner_steps"], numbers["skipped"]
        load_arrays(
            self.algorithm.networks, {k[4:]: v for k, v in arrays.items() if k.startswith("net.")}
        )
        for name, optimizer in self.optimizers.items():
            state = optimizer.state_dict()
            state["state"] = _slots(arrays, f"opt.{name}.")
            optimizer.load_state_dict(state)
        if "rng" in arrays:
            self.rng.set_state(torch.from_numpy(arrays["rng"].copy()))

    @property
    def pids(self) -> dict[str, int]:
        """The processes that learn with it, by name."""
        return {}

    def close(self) -> None:
        """Ends whatever learns with it elsewhere."""


class Recorded(Learner):
    """Takes the same steps without waiting for the device: each is one recorded piece of work.

    For algorithms with one loss that look at no value. Batches are tensors on the learner's device,
    always of the same shapes. A step that is not finite is left out by the optimizer itself;
    `look` counts those.
    """

    def __init__(self, *given: Any, **more: Any):
        super().__init__(*given, **more)
        self._bad = torch.zeros((), device=self.device)
        self._names: list[str] = []
        self._like: Batch | None = None
        self._work = Capture(self._worked, self.device)

    def learn(self, batch: Batch) -> Learned:
        """Takes a gradient step; what was learned is overwritten by the next one."""
        self._like = batch
        loss, td_error, *metrics = self._work(*tensors_of(batch))
        self.learner_steps += 1
        self.algorithm.settle(self.learner_steps)
        named = dict(zip(self._names, metrics, strict=True))
        return Learned(td_error, {"loss": loss, **named})

    def _worked(self, *tensors: Tensor) -> tuple[Tensor, ...]:
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

    def look(self) -> None:
        """Counts the steps that were left out since the last look; too many end the run."""
        before, self.skipped = self.skipped, int(self._bad)  # a sync point
        self.bad_steps = self.skipped - before
        if self.bad_steps >= self.config.max_bad_steps:
            raise self._hopeless()

    def advance(self, share: float) -> None:
        for optimizer in self.optimizers.values():
            for group in optimizer.param_groups:
                group["lr"].fill_(self.lr.at(share))

    def _optimizer(self, flat: Flat) -> torch.optim.Optimizer:
        kwargs = {
            **self.config.optimizer_kwargs,
            "lr": torch.tensor(self.config.lr).to(self.device),
        }
        if self.config.optimizer in CAPTURABLE:
            kwargs["capturable"] = not self._on_cpu
        return _optimizer(replace(self.config, optimizer_kwargs=kwargs), flat)

    def restore(self, numbers: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
        super().restore(numbers, arrays)
        self._bad.fill_(self.skipped)


def tensors_of(batch: Any) -> list[Tensor]:
    """Returns all tensors of a batch, in order."""
    if isinstance(batch, Tensor):
        return [batch]
    parts = batch if isinstance(batch, tuple) else ()
    return [tensor for part in parts for tensor in tensors_of(part)]


def rebuilt(like: Any, tensors: Iterator[Tensor]) -> Any:
    """Returns a batch like another one, with other tensors."""
    if isinstance(like, Tensor):
        return next(tensors)
    if not isinstance(like, tuple):
        return like
    return type(like)(*(rebuilt(part, tensors) for part in like))


def _compile(networks: nn.Module) -> None:
    """Compiles, in place, whatever is called as a whole; lists and dicts of modules never are."""
    for module in networks.children():
        if isinstance(module, nn.ModuleDict | nn.ModuleList):
            _compile(module)
        else:
            module.compile()


def trained(algorithm: Algorithm) -> dict[str, nn.Parameter]:
    """Returns what gradient steps change, by its names in `networks`, in the optimizers' order."""
    names = {id(parameter): name for name, parameter in algorithm.networks.named_parameters()}
    return {names[id(p)]: p for group in algorithm.groups().values() for p in group}


def pick_device(wanted: str, setting: str = "learner.device") -> torch.device:
    """Returns the device a config asks for; `auto` takes the first GPU where there is one."""
    if wanted == "auto":
        return torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    device = torch.device(wanted)
    present = torch.cuda.device_count()
    if device.type == "cuda" and (device.index or 0) >= present:
        raise ConfigError(
            f"{setting} is {wanted!r}, but this machine has {present} CUDA devices; use auto or cpu"
        )
    return device


def _host(td_error: Tensor | None) -> Array | None:
    return None if td_error is None else td_error.cpu().numpy()  # the learner's one sync point


def _optimizer(config: LearnerConfig, flat: Flat) -> torch.optim.Optimizer:
    settings: dict[str, Any] = {"lr": config.lr, **config.optimizer_kwargs}
    if config.optimizer in FUSED:
        settings.setdefault("fused", True)
    try:
        return OPTIMIZERS[config.optimizer]([flat.data], **settings)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"learner.optimizer_kwargs {config.optimizer_kwargs} do not fit "
            f"{config.optimizer}: {error}"
        ) from error


def _slots(arrays: Mapping[str, Array], prefix: str) -> dict[int, dict[str, Tensor]]:
    slots: dict[int, dict[str, Tensor]] = {}
    for name, value in arrays.items():
        if name.startswith(prefix):
            index, _, key = name[len(prefix) :].partition(".")
            slots.setdefault(int(index), {})[key] = torch.from_numpy(value.copy())
    return slots
