"""The learner: takes gradient steps on an algorithm's losses.

learned = learner.learn(batch)     # one gradient step on each of the algorithm's losses
learner.due()                      # whether to publish the weights to actors now
"""

import contextlib
import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from rookery import seeding
from rookery.algorithms import Algorithm
from rookery.algorithms.algorithm import Loss
from rookery.config.schema import EnvConfig, LearnerConfig, Optimizer
from rookery.errors import ConfigError, LostError
from rookery.learner.optimizer_backup import OptimizerBackup
from rookery.networks.encoders import EPSILON, Normalize, normalizers, observe
from rookery.networks.named_arrays import (
    arrays_of,
    fingerprint,
    load_arrays,
    load_optimizer,
    optimizer_arrays,
)
from rookery.schedule import Schedule
from rookery.seeding import Role
from rookery.types import (
    Array,
    Batch,
    Floats,
    Json,
    LearnResult,
    SampledBatch,
    SavedState,
    TensorBatch,
    below,
    prefixed,
)

OPTIMIZERS: dict[Optimizer, Callable[..., torch.optim.Optimizer]] = {  # type: ignore[explicit-any]  # settings of the user
    Optimizer.ADAM: torch.optim.Adam,
    Optimizer.ADAMW: torch.optim.AdamW,
    Optimizer.RMSPROP: torch.optim.RMSprop,
    Optimizer.SGD: torch.optim.SGD,
}
FUSED = (Optimizer.ADAM, Optimizer.ADAMW, Optimizer.SGD)
CRITIC = "critic"  # parameter group with a learning rate of its own, `learner.critic_lr`
NEWEST = "newest_statistics"  # of observations, in the networks of a learner; not in use yet


class FlatParameters:
    """Moves parameters to one flat tensor, and gradients to another; the originals become views.

    For a small network, most of the time of an optimizer step is overhead per parameter tensor.
    With one flat tensor this overhead occurs once.

    Set `alone` if the losses depend on no other trained parameters, which makes `descend` slightly
    faster. If `alone` is False, `descend` excludes all other parameters from backpropagation.
    """

    def __init__(self, parameters: list[nn.Parameter], *, alone: bool = False):
        _refuse_mixture(parameters)
        self.data = nn.Parameter(torch.cat([p.detach().reshape(-1) for p in parameters]))
        self.grad = torch.zeros_like(self.data)
        self.data.grad = self.grad
        self._inputs = None if alone else parameters  # naming them costs 1 % of a small update
        sizes = [p.numel() for p in parameters]
        values, grads = torch.split(self.data.detach(), sizes), torch.split(self.grad, sizes)
        for parameter, value, grad in zip(parameters, values, grads, strict=True):
            parameter.data, parameter.grad = value.view_as(parameter), grad.view_as(parameter)

    def descend(self, loss: Tensor) -> Tensor:
        """Computes the gradient of a loss by backpropagation; takes no optimizer step.

        Returns the gradient's norm (a scalar tensor).
        """
        self.grad.zero_()
        loss.backward(inputs=self._inputs)  # type: ignore[no-untyped-call]
        return torch.linalg.vector_norm(self.grad)  # type: ignore[no-any-return]


def _refuse_mixture(parameters: list[nn.Parameter]) -> None:
    kinds = {f"{p.dtype} on {p.device}" for p in parameters}
    if len(kinds) != 1:
        raise ConfigError(
            f"a network's parameters must be of one kind, got {', '.join(sorted(kinds)) or 'none'};"
            " give net.custom parameters of one dtype"
        )


class HostWeights:
    """The weights of a module, as arrays by name.

    From a GPU, parameters that are views of a flat tensor come in one transfer, into memory that is
    reused.
    """

    def __init__(self, module: nn.Module, flats: Sequence[Tensor]):
        """`flats` are the flat tensors of which the module's parameters are views."""
        self.arrays: dict[str, Array] = {}  # on the CPU always current, on a GPU as read last
        self._transfers: list[tuple[Tensor, Tensor]] = []  # from the device, to the host
        self._flats = {flat.untyped_storage().data_ptr(): flat.detach() for flat in flats}
        self._hosts: dict[int, Tensor] = {}  # of flat tensors
        for name, tensor in module.state_dict().items():
            self.arrays[name] = self._on_host(tensor).numpy()

    def _on_host(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage().data_ptr()
        if tensor.device.type == "cpu":
            return tensor
        if storage not in self._flats:
            return self._destination(tensor)
        if storage not in self._hosts:
            self._hosts[storage] = self._destination(self._flats[storage])
        first = tensor.storage_offset()
        return self._hosts[storage][first : first + tensor.numel()].view(tensor.shape)

    def _destination(self, tensor: Tensor) -> Tensor:
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
        self._transfers.append((tensor, host))
        return host

    def read(self) -> dict[str, Array]:
        """Returns the present weights by name; waits for the device if they are on one.

        On the CPU, later gradient steps change the arrays; on a GPU, later calls do.
        """
        for tensor, host in self._transfers:
            host.copy_(tensor, non_blocking=True)
        if self._transfers:
            torch.cuda.current_stream().synchronize()
        return self.arrays


class Learner:
    """Takes gradient steps on an algorithm's losses.

    It owns the optimizers and the running statistics that normalise observations and rewards.
    """

    prioritized = True  # TD errors are needed on the host, for priorities of replay

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
        if device.type == "cuda":
            torch.cuda.set_device(device)  # streams and graphs are those of the present device
        self.rng = torch.Generator(device)
        self.rng.manual_seed(seeding.integer(seed, Role.LEARNER))
        self.normalize = env
        self.scale = Normalize(1)  # statistics of returns, for env.normalize_reward
        algorithm.networks["return_scale"] = self.scale
        self._used = normalizers(algorithm.acting)
        self._newest = self._used
        if self._used and algorithm.compares_policies:
            self._newest = {copy.deepcopy(norm): name for norm, name in self._used.items()}
            algorithm.networks[NEWEST] = nn.ModuleList(self._newest)
        algorithm.networks.to(device)
        self._on_cpu = device.type == "cpu"
        if config.compile:
            _compile(algorithm.networks)
        groups = algorithm.groups()
        alone = len(groups) == 1
        self._flat = {name: FlatParameters(own, alone=alone) for name, own in groups.items()}
        self._host_weights = HostWeights(algorithm.acting, [f.data for f in self._flat.values()])
        self.learner_steps = 0
        self.bad_steps = 0  # in a row
        self.skipped = 0  # in the whole run
        self.lr = Schedule(config.lr, config.lr_end, config.lr_decay)
        self.optimizers = self._optimizers()
        self._backups = {
            name: OptimizerBackup(self._flat[name].data, optimizer)
            for name, optimizer in (() if alone else self.optimizers.items())
        }

    def learn(self, batch: SampledBatch) -> LearnResult:
        """Takes one gradient step on each loss of the algorithm, for one batch.

        If a loss or its gradient is not finite, the batch is skipped: parameters and optimizers are
        as before it, also those of the earlier losses, and there are no TD errors. Raises LostError
        after `learner.max_bad_steps` such batches in a row.
        """
        with self._explaining_out_of_memory():
            for backup in self._backups.values():
                backup.save()
            learned = self._descend_finite(batch, lambda group: self.optimizers[group].step())
        if learned is None:
            for backup in self._backups.values():
                backup.restore()
            self._skip()
            return LearnResult(None, {})
        self._update_targets(1)
        return LearnResult(*learned)

    @contextlib.contextmanager
    def _explaining_out_of_memory(self) -> Iterator[None]:
        try:
            yield
        except torch.OutOfMemoryError as error:
            raise LostError(
                f"{self.device} ran out of memory in a learner step; lower replay.batch_size or "
                "net.hidden, or resume with learner.device=cpu from the last checkpoint"
            ) from error

    def _descend_finite(
        self, batch: SampledBatch, apply: Callable[[str], None]
    ) -> tuple[Array | None, dict[str, Tensor]] | None:
        """Computes and clips the gradient of each loss, then calls `apply` with its group.

        Returns TD errors and metrics; None as soon as a loss or gradient is not finite.
        """

        def descend(own: Loss) -> Loss | None:
            loss, norm = self._descend(own)
            if not self._clip(loss, norm):
                return None
            apply(loss.group)
            return loss

        learned = self._on_losses(self._to_device(batch), self.learner_steps + 1, descend)
        if learned is None:
            return None
        self.bad_steps, (td_error, metrics) = 0, learned
        return None if td_error is None else td_error.cpu().numpy(), metrics  # a sync point

    def _on_losses(
        self, batch: TensorBatch, step: int, descend: Callable[[Loss], Loss | None]
    ) -> tuple[Tensor | None, dict[str, Tensor]] | None:
        """Calls `descend` with each loss of a batch; returns TD errors and metrics.

        Returns None as soon as `descend` returns no loss.
        """
        td_error: Tensor | None = None
        metrics: dict[str, Tensor] = {}
        for own in self.algorithm.losses(batch, step=step, rng=self.rng):
            if (loss := descend(own)) is None:
                return None
            td_error = loss.td_error if loss.td_error is not None else td_error
            metrics[f"loss_{loss.group}" if metrics else "loss"] = loss.value.detach()
            metrics.update(loss.metrics)
        return td_error, metrics

    def _update_targets(self, learner_steps: int) -> None:
        for _ in range(learner_steps):
            self.learner_steps += 1
            self.algorithm.update_targets(self.learner_steps)

    def count_skipped(self) -> None:
        """Updates `skipped`, the number of steps skipped for a non-finite loss or gradient.

        Does nothing in this class, since `learn` counts them; `CapturedLearner` overrides it. The
        loops call it after each insertion of env steps.
        """

    def _descend(self, loss: Loss) -> tuple[Loss, Tensor]:
        """Computes the gradient of a loss; takes no optimizer step.

        Returns the loss and the gradient's norm (a scalar tensor).
        """
        return loss, self._flat[loss.group].descend(loss.value)

    def _clip(self, loss: Loss, norm: Tensor) -> bool:
        """Clips the gradient to `max_grad_norm`; returns False if it or the loss is not finite."""
        size, limit = norm.item(), self.config.max_grad_norm  # a sync point; TD errors are one too
        # the Huber loss may be infinite while its gradient is finite
        if not math.isfinite(size + loss.value.item()):
            return False
        if limit is not None and size > limit:
            self._flat[loss.group].grad.mul_(limit / size)
        return True

    def _skip(self) -> None:
        """Counts a batch whose loss or gradient is not finite; raises LostError for too many."""
        self.bad_steps += 1
        self.skipped += 1
        if self.bad_steps >= self.config.max_bad_steps:
            raise self._too_many_bad_steps()

    def _too_many_bad_steps(self) -> LostError:
        return LostError(
            f"{self.bad_steps} learner steps in a row had a loss or gradient that is not "
            f"finite (after {self.learner_steps} good ones); lower learner.lr "
            f"({self.config.lr}), scale rewards, or set learner.max_grad_norm"
        )

    def _schedule(self, group: str) -> Schedule:
        """Returns the learning rate of a parameter group; critics may have one of their own."""
        if group != CRITIC or self.config.critic_lr is None:
            return self.lr
        return Schedule(self.config.critic_lr, self.lr.last, self.lr.decay)

    def _optimizers(self) -> dict[str, torch.optim.Optimizer]:
        """Returns the optimizer of each parameter group; none where steps are taken elsewhere."""
        return {
            name: self._optimizer(flat, self._schedule(name).first)
            for name, flat in self._flat.items()
        }

    def _optimizer(self, flat: FlatParameters, lr: float) -> torch.optim.Optimizer:
        return make_optimizer(replace(self.config, lr=lr), flat)

    def _to_device(self, batch: SampledBatch) -> TensorBatch:
        """Returns a batch as tensors on the learner's device, with normalised rewards."""
        return self._scaled(Batch(*map(self._tensor, batch))._replace(rows=batch.rows))

    def _scaled(self, batch: TensorBatch) -> TensorBatch:
        """Returns the batch with normalised rewards, if `env.normalize_reward` is set."""
        if not self.normalize.normalize_reward:
            return batch
        return batch._replace(reward=self._clipped(batch.reward / self.deviation()))

    def normalized(self, reward: Floats) -> Floats:
        """Returns normalised rewards, as the learner sees them."""
        return self._clipped(torch.from_numpy(reward) / self.deviation().cpu()).numpy()

    def _clipped(self, reward: Tensor) -> Tensor:
        limit = self.normalize.normalized_reward_clip
        return reward if limit is None else reward.clamp(-limit, limit)

    def deviation(self) -> Tensor:
        """Returns the standard deviation of returns, by which rewards are normalised."""
        return torch.sqrt(self.scale.variance + EPSILON)

    def _tensor(self, value: Any) -> Any:  # type: ignore[explicit-any]  # nested as its field is
        if value is None:
            return None
        if isinstance(value, dict):
            return {name: self._tensor(leaf) for name, leaf in value.items()}
        tensor = torch.from_numpy(value)
        return tensor if self._on_cpu else tensor.to(self.device, non_blocking=True)

    def observe(self, leaves: dict[str, Array], returns: Array) -> None:
        """Updates the running statistics that normalise observations and rewards.

        `leaves` (observation arrays by name) and `returns` (discounted returns of the episodes so
        far) are those of the steps that were newly inserted into replay. If the algorithm compares
        its policy with the one that acted (A2C, PPO, IMPALA), `adopt_statistics` puts the new
        statistics of observations into use; otherwise they are in use at once.
        """
        if len(returns) == 0:
            return
        if self.normalize.normalize_obs:
            tensors = {name: torch.from_numpy(leaf) for name, leaf in leaves.items()}
            observe(self._newest, tensors)
        if self.normalize.normalize_reward:
            self.scale.observe(torch.from_numpy(returns[:, None]))

    def adopt_statistics(self) -> None:
        """Puts the newest statistics of observations into use; called before publishing weights.

        Actors then act with the statistics with which the learner computes probabilities, as long
        as these weights are the newest ones.
        """
        if self._newest is not self._used:
            for used, newest in zip(self._used, self._newest, strict=True):
                used.load_state_dict(newest.state_dict())

    def advance(self, share: float) -> None:
        """Sets the learning rates, and scheduled settings of the algorithm.

        `share` is the finished fraction of the run, 0 to 1.
        """
        self.algorithm.progress = share
        if self.lr.constant:
            return
        for name, optimizer in self.optimizers.items():
            for group in optimizer.param_groups:
                group["lr"] = self._schedule(name).at(share)

    def due(self) -> bool:
        """Returns whether to publish weights to actors now.

        They are published after every `learner.publish_period` gradient steps.
        """
        return self.learner_steps % self.config.publish_period == 0

    def weights(self) -> dict[str, Array]:
        """Returns the weights that actors need, as arrays by name.

        The arrays are valid until the next gradient step, on the CPU, or the next call, on a GPU.
        """
        return self._host_weights.read()

    def weights_sha256(self) -> str:
        """Returns the SHA-256 of the weights that actors need."""
        return fingerprint(self.weights())

    def state(self) -> tuple[dict[str, Json], dict[str, Array]]:
        """Returns the learner's state for a checkpoint: JSON data, and copied arrays."""
        arrays = {f"net.{k}": v.copy() for k, v in arrays_of(self.algorithm.networks).items()}
        for name, optimizer in self.optimizers.items():
            arrays |= prefixed(f"opt.{name}.", optimizer_arrays(optimizer))
        arrays["rng"] = self.rng.get_state().numpy().copy()
        numbers: dict[str, Json] = {"learner_steps": self.learner_steps, "skipped": self.skipped}
        return numbers, arrays

    def restore(self, numbers: SavedState, arrays: Mapping[str, Array]) -> None:
        self.learner_steps, self.skipped = numbers["learner_steps"], numbers["skipped"]
        self._restore_networks(below("net.", arrays))
        for name, optimizer in self.optimizers.items():
            load_optimizer(optimizer, below(f"opt.{name}.", arrays))
        if "rng" in arrays:
            self.rng.set_state(torch.from_numpy(arrays["rng"].copy()))

    def _restore_networks(self, arrays: Mapping[str, Array]) -> None:
        own = arrays_of(self.algorithm.networks)
        kept = {name: own[name] for name in own if name.startswith(f"{NEWEST}.")}
        if kept.keys() <= arrays.keys():
            load_arrays(self.algorithm.networks, arrays)
            return
        load_arrays(self.algorithm.networks, {**kept, **arrays})  # a checkpoint of an older release
        for used, newest in zip(self._used, self._newest, strict=True):
            newest.load_state_dict(used.state_dict())

    @property
    def pids(self) -> dict[str, int]:
        """Process ids of the other learners of a data-parallel run, by process name.

        Empty for a single learner.
        """
        return {}

    def close(self) -> None:
        """Ends the other learners of a data-parallel run; does nothing for a single learner."""


def _compile(networks: nn.Module) -> None:
    """Applies torch.compile to each network, in place."""
    for module in networks.children():
        if isinstance(module, nn.ModuleDict | nn.ModuleList):
            _compile(module)
        else:
            module.compile()


def trained(algorithm: Algorithm) -> dict[str, nn.Parameter]:
    """Returns the parameters that optimizers train, by name, in the order of the optimizers."""
    names = {id(parameter): name for name, parameter in algorithm.networks.named_parameters()}
    return {names[id(p)]: p for group in algorithm.groups().values() for p in group}


def make_optimizer(config: LearnerConfig, flat: FlatParameters) -> torch.optim.Optimizer:
    """Builds the optimizer that the learner's settings select, for one group of parameters.

    Raises ConfigError if `learner.optimizer_kwargs` do not fit the optimizer.
    """
    settings: dict[str, object] = {"lr": config.lr, **config.optimizer_kwargs}
    if config.optimizer in FUSED:
        settings.setdefault("fused", True)
    try:
        return OPTIMIZERS[config.optimizer]([flat.data], **settings)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"learner.optimizer_kwargs {config.optimizer_kwargs} do not fit "
            f"{config.optimizer}: {error}"
        ) from error
