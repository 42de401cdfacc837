"""Followers: the data-parallel learners of rank 1 and up, which learn from a slice of every batch.

The leader (rank 0) sends a follower its initial state, then a slice of each batch. Each learner
computes the gradients of its slice. The gradients are averaged over all learners, which take the
same step, so their weights stay equal bit for bit. The leader also sends running statistics and
learning rates with each slice. A follower's random numbers depend on the seed, rank and step.
"""

import json
import os
from collections.abc import Mapping
from enum import IntEnum
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from rookery import seeding
from rookery.algorithms import build_algorithm
from rookery.algorithms.algorithm import Loss
from rookery.config.load import leaves
from rookery.config.schema import Config
from rookery.envs.make import make
from rookery.errors import ConfigError, LostError
from rookery.learner.data_parallel.collectives import FIRST, Collectives, FollowerHeartbeat, connect
from rookery.learner.data_parallel.serialization import batch_of, unpack
from rookery.learner.learner import Learner
from rookery.networks.device import pick_device
from rookery.networks.named_arrays import arrays_of, fingerprint
from rookery.replay.shared_arrays import ArrayLayout
from rookery.seeding import Role
from rookery.types import Array, EnvSpec, JsonObject, LearnResult, SampledBatch

HEADER: dict[str, tuple[tuple[int, ...], str]] = {  # arrays of every message of the leader
    "header/kind": ((), "int64"),
    "header/number": ((), "int64"),  # of the step, skipped ones included
    "header/size": ((), "int64"),  # bytes of the state that is broadcast next
    "header/lr": ((), "float64"),
    "header/digest": ((32,), "uint8"),  # of all weights, in steps that compare them
}
BUFFER = "buffer/"  # prefix of the names of buffers, such as running statistics
NO_DIGEST = bytes(32)
PING = 10  # polls between two checks that the leader still answers
FOREVER_S = 86_400.0 * 365  # a run may pause; when it ends, its connections close
SAME_SECTIONS = ("algo", "net", "env", "learner")  # in which all learners must agree
SAME_KEYS = ("run.seed", "replay.batch_size")


class MessageKind(IntEnum):
    """Kinds of messages from the leader (learner of rank 0) to followers (the other learners)."""

    LEARN = 1  # a slice of a batch, with running statistics
    LOAD_STATE = 2  # the leader's whole state is broadcast next
    CLOSE = 3


class FollowerSetup(NamedTuple):
    """Constructor arguments of a follower process: config, spec, rank and the leader's address."""

    config: Config
    spec: EnvSpec
    rank: int
    address: str  # rendezvous of the learners


class LearnerGroupLostError(LostError):
    """Raised in a follower that lost its connection to the leader or another follower.

    The process at the other end of the connection reports why it failed.
    """


class DataParallelLearner(Learner):
    """Base class of data-parallel learners, whose gradients are averaged over all learners."""

    collectives: Collectives

    def _descend(self, loss: Loss) -> tuple[Loss, Tensor]:
        """Computes the gradient of a loss, and averages it over all data-parallel learners.

        Loss value and metrics are averaged in the same all-reduce. If the loss has an `amount` (its
        number of averaged elements), learners are weighted by it. Returns the averaged loss and the
        norm of the averaged gradient.
        """
        flat, names = self._flat[loss.group], list(loss.metrics)
        flat.descend(loss.value)
        value = loss.value.detach()
        scalars = [torch.ones_like(value), value, *loss.metrics.values()]
        tail = torch.stack([part.to(value) for part in scalars]).to(flat.grad)
        sums = torch.cat([flat.grad, tail])
        if loss.amount is not None:
            sums *= loss.amount
        self.collectives.all_reduce(sums)
        sums /= sums[len(flat.grad)].clamp(min=1.0)
        flat.grad.copy_(sums[: len(flat.grad)])
        _, value, *metrics = sums[len(flat.grad) :].unbind()
        mean = loss._replace(value=value, metrics=dict(zip(names, metrics, strict=True)))
        return mean, torch.linalg.vector_norm(flat.grad)

    def learn(self, batch: SampledBatch) -> LearnResult:
        """Takes a gradient step on this learner's slice of a batch.

        All learners call it at the same time and average their gradients. On the leader, the result
        holds the TD errors of the whole batch.
        """
        learned = super().learn(batch)
        if learned.td_error is None:  # then it is None in all learners
            return learned
        gathered = self.collectives.gather(torch.from_numpy(learned.td_error))
        return learned if gathered is None else learned._replace(td_error=gathered.numpy())

    @cached_property
    def buffers(self) -> dict[str, Tensor]:
        """The networks' saved tensors that are not parameters (running statistics)."""
        networks = self.algorithm.networks
        trained = {name for name, _ in networks.named_parameters(remove_duplicate=False)}
        return {k: v for k, v in networks.state_dict().items() if k not in trained}

    def digest(self) -> bytes:
        """Returns the SHA-256 of all weights, to check that they are equal in all learners."""
        return bytes.fromhex(fingerprint(arrays_of(self.algorithm.networks)))


class FollowerWorker:
    """Worker process of a data-parallel learner of rank > 0: handles messages of the leader."""

    def __init__(self, setup: FollowerSetup):
        config, self.rank = setup.config, setup.rank
        self.self_driven, self.config = True, config
        torch.set_num_threads(config.learner.threads)
        device = device_of(config, setup.rank)
        if device.type == "cuda":
            torch.cuda.set_device(device)  # otherwise torch would also use memory of the first GPU
        algorithm = build_algorithm(config, setup.spec)
        self.learner = DataParallelLearner(
            algorithm, config.learner, config.env, device, seed=config.run.seed
        )
        self._layout = ArrayLayout(HEADER)  # of a message
        self._join(setup.address, device)

    def _join(self, address: str, device: torch.device) -> None:
        """Joins the data-parallel learners, after the leader (rank 0) has checked the settings.

        Raises ConfigError if the settings differ or the rank is taken already.
        """
        try:
            self._store = connect(address)
            if self._store.add(f"seat/{self.rank}", 1) > 1:
                raise ConfigError(f"RANK {self.rank} is taken at {address}; use another one")
            self._store.set(f"ready/{self.rank}", json.dumps(shared_settings(self.config)))
            refusal = self._store.get("verdict").decode()
            self._store.set(f"heard/{self.rank}", "")
            if refusal:
                raise ConfigError(refusal)
        except RuntimeError as error:
            raise self.lost(error) from error
        self._heartbeat = FollowerHeartbeat(connect(address), self.rank)
        count = self.config.learner.replicas
        self.learner.collectives = Collectives(
            self._store, self.rank, count, device, FOREVER_S, others=self
        )

    def do(self, order: object) -> None:
        raise NotImplementedError(f"a follower takes no orders, got {order!r}")

    def work(self) -> None:
        """Waits for the leader's (rank 0) next message, e.g. a slice of a batch, and handles it."""
        message = self._layout.views(self.learner.collectives.receive(self._layout.size).numpy())
        match MessageKind(int(message["header/kind"])):
            case MessageKind.LEARN:
                self._learn(message)
            case MessageKind.LOAD_STATE:
                self._load_state(int(message["header/size"]))
            case MessageKind.CLOSE:
                self.self_driven = False

    def _learn(self, message: Mapping[str, Array]) -> None:
        """Takes a gradient step on this follower's slice of a batch.

        First sets the running statistics and the learning rate to those of the leader.
        """
        learner, digest = self.learner, message["header/digest"].tobytes()
        for name, buffer in learner.buffers.items():
            buffer.copy_(torch.from_numpy(message[BUFFER + name]))
        if digest != NO_DIGEST and digest != learner.digest():
            raise LostError(
                f"learner {self.rank} no longer has the weights of learner 0, after "
                f"{learner.learner_steps} steps; use the same kind of processor or GPU, and the "
                "same version of torch, for all learners"
            )
        for optimizer in learner.optimizers.values():
            for group in optimizer.param_groups:
                group["lr"] = float(message["header/lr"])
        seed, number = self.config.run.seed, int(message["header/number"])
        learner.rng.manual_seed(
            seeding.integer(seed, Role.LEARNER, index=self.rank, incarnation=number)
        )
        learner.learn(batch_of(message))

    def _load_state(self, size: int) -> None:
        """Receives and loads the leader's state, and the memory layout of its next messages."""
        state = torch.empty(size, dtype=torch.uint8)
        self.learner.collectives.broadcast(state)
        note, arrays = unpack(state.numpy())
        self.learner.restore(note["numbers"], arrays)
        self._layout = ArrayLayout.read(note["layout"])

    def close(self) -> None:
        self._heartbeat.close()
        self.learner.collectives.close()

    def check(self, waited_s: float) -> None:
        """Raises an error if the leader's TCP store no longer answers a request.

        The follower sends such requests regularly while it waits for the leader, because a host
        that loses power does not close its connections.
        """
        if waited_s % PING == 0:
            try:
                self._store.check(["verdict"])
            except RuntimeError as error:
                raise self.lost(error) from error

    def lost(self, error: Exception) -> LearnerGroupLostError:
        where = self.config.learner.rendezvous or "this machine"
        return LearnerGroupLostError(
            f"learner {self.rank} lost the run at {where}: {first_line(error)}; see the run's own "
            "error, then start all of its learners again"
        )


def device_of(config: Config, rank: int) -> torch.device:
    """Returns the torch device of the learner with this rank.

    Learners that share a machine get one GPU each, counted from `learner.device`. On the CPU, or if
    `learner.rendezvous` is set, every learner uses `learner.device` itself.
    """
    device = pick_device(config.learner.device)
    if device.type != "cuda" or config.learner.rendezvous is not None:
        return device
    return torch.device("cuda", ((device.index or 0) + rank) % torch.cuda.device_count())


def check_learners(config: Config) -> None:
    """Raises `ConfigError` if a run asks for more GPU learners than this machine has GPUs.

    Also raises `ConfigError` if the environment variable RANK makes this process a follower (rank
    above 0), because only `rookery train` can run one.
    """
    if rank := rank_of(config):
        raise ConfigError(
            f"RANK is {rank}, which makes this process a follower of another run, and only "
            "`rookery train` can be one; unset RANK to start the run itself"
        )
    count, device = config.learner.replicas, pick_device(config.learner.device)
    if config.learner.rendezvous is not None or device.type != "cuda":
        return
    present = torch.cuda.device_count()
    if count > present:
        raise ConfigError(
            f"{count} learners need a GPU each, and this machine has {present}; lower --learners, "
            "use --device cpu, or let other hosts join with learner.rendezvous"
        )


def shared_settings(config: Config) -> JsonObject:
    """Returns the settings that must be equal in all learners, as JSON data by dotted key."""
    agreed = {
        key: value
        for key, value in leaves(config)
        if key.partition(".")[0] in SAME_SECTIONS or key in SAME_KEYS
    }
    agreed["torch"] = str(torch.__version__)
    for own in ("learner.device", "learner.rendezvous"):
        del agreed[own]
    plain: JsonObject = json.loads(json.dumps(agreed))
    return plain


def rank_of(config: Config) -> int:
    """Returns this learner's rank from the environment variable RANK (torchrun); 0 is the leader.

    Without `learner.rendezvous` the leader starts its followers itself, and RANK is ignored. Raises
    ConfigError if RANK is not a rank of the run.
    """
    rank = os.environ.get("RANK", str(FIRST))
    if config.learner.rendezvous is None or rank == str(FIRST):
        return FIRST
    count = config.learner.replicas
    if not rank.isdigit() or int(rank) >= count:
        raise ConfigError(
            f"RANK is {rank!r}, and {count} learners have the ranks 0 to {count - 1}; 0, or no "
            "RANK, is the run itself"
        )
    return int(rank)


def run_follower(config: Config) -> int:
    """Runs this process as a follower (rank > 0) of a data-parallel run until the run ends.

    Returns the exit code.
    """
    envs = make(config.env, 1)
    spec = envs.spec
    envs.close()
    assert config.learner.rendezvous is not None
    worker = FollowerWorker(FollowerSetup(config, spec, rank_of(config), config.learner.rendezvous))
    try:
        while worker.self_driven:
            worker.work()
    finally:
        worker.close()
    return 0


def first_line(error: Exception) -> str:
    """Returns the first line of an error's message, or the error's type if that line is empty."""
    return str(error).partition("\n")[0] or type(error).__name__
