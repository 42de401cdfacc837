"""A replica: a learner beside the run's own, with the same weights and a slice of every batch.

It waits for what the first learner deals: a slice to learn from, or a whole state to begin with.
All of them compute the gradients of their own rows, add them up, and take the same step, so that
weights stay equal to the last bit. A replica holds nothing that the first one does not: statistics
and learning rates come with each slice, and its noise follows from the seed, its rank and the
number of the step.
"""

import json
import os
import struct
from collections.abc import Callable
from enum import IntEnum
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rookery import seeding
from rookery.algos import build_algorithm
from rookery.algos.interface import Loss
from rookery.config.load import as_dict
from rookery.config.schema import Config
from rookery.envs.make import make
from rookery.errors import ConfigError, LostError
from rookery.learner import Learner, pick_device
from rookery.loops.peers import FIRST, Peers, call
from rookery.loops.slices import Layout, batch_of, unpacked
from rookery.nets.arrays import arrays_of, fingerprint
from rookery.seeding import Role
from rookery.types import Array, Batch, EnvSpec, Learned

HEAD = struct.Struct("<qqqd32s")  # kind, number of the step, bytes that follow, rate, digest
BUFFER = "buffer/"  # before the names of what is no gradient: running statistics
NO_DIGEST = bytes(32)
PING = 10  # stretches of waiting between two looks at whether the run is still there
FOREVER_S = 86_400.0 * 365  # a run may pause for as long as it likes: its end closes connections
SAME = ("algo", "net", "env")  # sections in which all learners must agree


class Kind(IntEnum):
    """What a dealt message is."""

    LEARN = 1  # a slice, and statistics
    TELL = 2  # a state is told next
    CLOSE = 3


class Head(NamedTuple):
    """The first bytes of every message."""

    kind: int
    number: int = 0  # of the step: those that were skipped count
    size: int = 0  # of what is told
    lr: float = 0.0
    digest: bytes = NO_DIGEST  # of all weights, where they are to be compared


class Setup(NamedTuple):
    """What a replica is built from."""

    config: Config
    spec: EnvSpec
    rank: int
    address: str  # where the learners meet


class BereftError(LostError):
    """A replica's run is gone, or another replica of it: the cause is elsewhere."""


class Together(Learner):
    """Takes its steps with others: everybody's gradient is the mean over all their rows."""

    peers: Peers

    def _descend(self, loss: Loss) -> tuple[Loss, Tensor]:
        """One sum for each loss: gradient, loss and metrics travel side by side."""
        flat, names = self._flat[loss.group], list(loss.metrics)
        flat.descend(loss.value)
        value = loss.value.detach()
        said = [torch.ones_like(value), value, *loss.metrics.values()]
        sums = torch.cat([flat.grad, torch.stack([part.to(value) for part in said]).to(flat.grad)])
        if loss.amount is not None:
            sums *= loss.amount
        self.peers.add_up(sums)
        sums /= sums[len(flat.grad)].clamp(min=1.0)
        flat.grad.copy_(sums[: len(flat.grad)])
        _, value, *metrics = sums[len(flat.grad) :].unbind()
        mean = loss._replace(value=value, metrics=dict(zip(names, metrics, strict=True)))
        return mean, torch.linalg.vector_norm(flat.grad)

    def learn(self, batch: Batch) -> Learned:
        """Learns from this one's slice; the first learner gets the TD errors of all of them."""
        learned = super().learn(batch)
        if learned.td_error is None:  # for everybody alike
            return learned
        every = self.peers.gather(torch.from_numpy(learned.td_error))
        return learned if every is None else learned._replace(td_error=every.numpy())

    def buffers(self) -> dict[str, Tensor]:
        """Returns what is saved of the networks and is not trained."""
        networks = self.algorithm.networks
        trained = {name for name, _ in networks.named_parameters(remove_duplicate=False)}
        return {k: v for k, v in networks.state_dict().items() if k not in trained}

    def digest(self) -> bytes:
        """Returns a fingerprint of everything that must be equal."""
        return bytes.fromhex(fingerprint(arrays_of(self.algorithm.networks)))


class Replica:
    """The role of a learner that is not the first."""

    def __init__(self, setup: Setup):
        config, self.rank = setup.config, setup.rank
        self.roaming, self.config = True, config
        torch.set_num_threads(config.learner.threads)
        device = place_of(config, setup.rank)
        if device.type == "cuda":
            torch.cuda.set_device(device)  # or a context on the first one would be made as well
        algorithm = build_algorithm(config, setup.spec)
        self.learner = Together(algorithm, config.learner, config.env, device, seed=config.run.seed)
        self._buffers = self.learner.buffers()
        self._layout = Layout({})
        self._meet(setup.address, device)

    def _meet(self, address: str, device: torch.device) -> None:
        """Says what it is, hears whether that fits, and joins the others."""
        try:
            self._store = call(address)
            if self._store.add(f"seat/{self.rank}", 1) > 1:
                raise ConfigError(f"RANK {self.rank} is taken at {address}; use another one")
            self._store.set(f"ready/{self.rank}", json.dumps(terms_of(self.config)))
            said = self._store.get("verdict").decode()
            self._store.set(f"heard/{self.rank}", "")
            if said:
                raise ConfigError(said)
        except RuntimeError as error:
            raise self._gone(error) from error
        self.learner.peers = Peers(
            self._store,
            self.rank,
            self.config.learner.replicas,
            device,
            timeout_s=FOREVER_S,
            look=self._look,
            lost=self._gone,
        )

    def do(self, order: Any) -> Any:
        raise NotImplementedError(f"a replica takes no orders, got {order!r}")

    def roam(self) -> None:
        """Waits for the next message, and does what it says."""
        raw = self.learner.peers.take(HEAD.size + self._layout.size).numpy()
        head = Head(*HEAD.unpack(raw[: HEAD.size].tobytes()))
        HEARD[Kind(head.kind)](self, head, raw[HEAD.size :])

    def learn(self, head: Head, raw: Array) -> None:
        """Takes a step on a slice."""
        arrays, learner = self._layout.views(raw), self.learner
        for name, buffer in self._buffers.items():
            buffer.copy_(torch.from_numpy(arrays[BUFFER + name]))
        if head.digest not in (NO_DIGEST, learner.digest()):
            raise LostError(
                f"learner {self.rank} no longer has the weights of the first one, after "
                f"{learner.learner_steps} steps; use the same kind of processor or GPU, and the "
                "same version of torch, for all of them"
            )
        for optimizer in learner.optimizers.values():
            for group in optimizer.param_groups:
                group["lr"] = head.lr
        seed, rank = self.config.run.seed, self.rank
        learner.rng.manual_seed(
            seeding.integer(seed, Role.LEARNER, index=rank, incarnation=head.number)
        )
        learner.learn(batch_of(arrays))

    def hear(self, head: Head, raw: Array) -> None:
        """Takes over the first learner's state, and how its slices will look."""
        told = torch.empty(head.size, dtype=torch.uint8)
        self.learner.peers.tell(told)
        note, arrays = unpacked(told.numpy())
        self.learner.restore(note["numbers"], arrays)
        self._layout = Layout.read(note["layout"])

    def leave(self, head: Head, raw: Array) -> None:
        self.roaming = False

    def close(self) -> None:
        self.learner.peers.close()

    def _look(self, waited_s: float) -> None:
        """A host that lost its power closes no connection: it does not answer, though."""
        if waited_s % PING == 0:
            try:
                self._store.check(["verdict"])
            except RuntimeError as error:
                raise self._gone(error) from error

    def _gone(self, error: Exception) -> BereftError:
        where = self.config.learner.rendezvous or "this machine"
        return BereftError(
            f"learner {self.rank} lost the run at {where}: {_first_line(error)}; see what the run "
            "itself says, then start all of its learners again"
        )


HEARD: dict[Kind, Callable[[Replica, Head, Array], None]] = {
    Kind.LEARN: Replica.learn,
    Kind.TELL: Replica.hear,
    Kind.CLOSE: Replica.leave,
}


def place_of(config: Config, rank: int) -> torch.device:
    """Returns a learner's device: of several on one machine each has the next one."""
    device = pick_device(config.learner.device)
    if device.type != "cuda" or config.learner.rendezvous is not None:
        return device
    return torch.device("cuda", ((device.index or 0) + rank) % torch.cuda.device_count())


def refuse_learners(config: Config) -> None:
    """Refuses more learners than this machine has GPUs, where they are to have one each."""
    if rank := rank_of(config):
        raise ConfigError(
            f"RANK is {rank}: this process is a learner of a run elsewhere, which `rookery train` "
            "alone can be; leave RANK out where the run itself is to be"
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


def terms_of(config: Config) -> dict[str, Any]:
    """Returns the settings in which all learners must agree, as JSON has them."""
    settings = as_dict(config)
    learner = {k: v for k, v in settings["learner"].items() if k not in ("device", "rendezvous")}
    agreed = {section: settings[section] for section in SAME} | {
        "learner": learner,
        "run.seed": config.run.seed,
        "replay.batch": config.replay.batch,
        "torch": str(torch.__version__),
    }
    plain: dict[str, Any] = json.loads(json.dumps(agreed))
    return plain


def rank_of(config: Config) -> int:
    """Returns which learner this process is, by RANK as torchrun sets it; 0: the run itself.

    Where all learners are of one machine the run starts them, and nobody looks at RANK.
    """
    said = os.environ.get("RANK", str(FIRST))
    if config.learner.rendezvous is None or said == str(FIRST):
        return FIRST
    count = config.learner.replicas
    if not said.isdigit() or int(said) >= count:
        raise ConfigError(
            f"RANK is {said!r}, and {count} learners have the numbers 0 to {count - 1}; 0, or "
            "none, is the run itself"
        )
    return int(said)


def follow(config: Config) -> int:
    """Is a replica of a run on another host, until that is over; returns the exit code."""
    envs = make(config.env, 1)
    spec = envs.spec
    envs.close()
    assert config.learner.rendezvous is not None
    replica = Replica(Setup(config, spec, rank_of(config), config.learner.rendezvous))
    try:
        while replica.roaming:
            replica.roam()
    finally:
        replica.close()
    return 0


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0] or type(error).__name__
