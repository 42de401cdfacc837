"""A user's own policy where an algorithm is expected: actors ask it for one action at a time.

It travels over the board like weights, as bytes: whoever plays has the newest one. They come from
the process that started the players and from nowhere else.
"""

from dataclasses import dataclass
from typing import Any

import cloudpickle
import numpy as np
import torch
from torch import Tensor, nn

from rookery.algorithms.algorithm import Acted, Algorithm
from rookery.config.algorithms import AlgoConfig
from rookery.config.schema import EnvConfig, NetConfig
from rookery.envs.spaces import SpaceCodec
from rookery.errors import ConfigError
from rookery.types import Array, EnvSpec, Floats, Obs

NAME = "rookery.components.custom_policy:Guest"
LEAST_ROOM = 1 << 16  # bytes


@dataclass(frozen=True, kw_only=True)
class GuestConfig(AlgoConfig):
    """What it is built from."""

    name: str = NAME
    codec: SpaceCodec | None = None  # between what is stored and what the policy sees
    room: int = LEAST_ROOM  # bytes that a policy may have


class Parcel(nn.Module):
    """Bytes as a network's state."""

    size: Tensor
    raw: Tensor

    def __init__(self, room: int):
        super().__init__()
        self.register_buffer("size", torch.zeros(1, dtype=torch.int64))
        self.register_buffer("raw", torch.zeros(room, dtype=torch.uint8))


class Guest(Algorithm):
    """Asks a policy of the user's what to do. It has nothing that could be learned."""

    Settings = GuestConfig

    def __init__(self, config: GuestConfig, net: NetConfig, env: EnvConfig, spec: EnvSpec):
        assert config.codec is not None, "whoever invites a guest gives it"
        self.spec, self.codec = spec, config.codec
        self._parcel = Parcel(config.room)
        self.acting = self._parcel
        self.networks = nn.ModuleDict({"parcel": self._parcel})
        self._known, self._policy = b"", None

    def act(
        self,
        obs: Obs,
        rng: np.random.Generator,
        *,
        epsilon: float = 0.0,
        noise: bool = True,
        values: bool = False,
        memory: Floats | None = None,
    ) -> Acted:
        """Asks for each environment's action in turn; exploring is the policy's own matter."""
        policy = self._unpacked()
        count = len(next(iter(self.spec.unpack(obs).values())))
        actions = [answer(policy, self._one(obs, i)) for i in range(count)]
        return Acted(self.codec.encode_action(np.stack([np.asarray(a) for a in actions])))

    def _one(self, obs: Obs, index: int) -> Any:
        one = {k: leaf[index : index + 1] for k, leaf in self.spec.unpack(obs).items()}
        return _first(self.codec.decode(self.spec.pack(one)))

    def _unpacked(self) -> Any:
        raw = self._parcel.raw[: int(self._parcel.size)].numpy().tobytes()
        if raw != self._known:
            self._known, self._policy = raw, cloudpickle.loads(raw)
        return self._policy


def answer(policy: Any, obs: Any) -> Any:
    """Asks a policy, which is a function or has a method `act`, for one action."""
    return policy.act(obs) if hasattr(policy, "act") else policy(obs)


def packed(policy: Any) -> bytes:
    """Returns a policy as bytes; refuses what is none, or cannot travel."""
    if not (hasattr(policy, "act") or callable(policy)):
        raise ConfigError(
            f"a policy has act(obs), or is a function of an observation, got {policy!r}; give an "
            "agent, an InferencePolicy, or an object of yours"
        )
    try:
        raw: bytes = cloudpickle.dumps(policy)
    except Exception as error:  # a user's object may refuse to be pickled in any way
        raise ConfigError(
            f"this policy cannot be sent to other processes ({type(error).__name__}: {error}); "
            "leave out what holds files, locks or devices"
        ) from error
    return raw


def arrays_for(raw: bytes, room: int) -> dict[str, Array]:
    """Returns what a board of that room publishes."""
    bytes_ = np.zeros(room, dtype=np.uint8)
    bytes_[: len(raw)] = np.frombuffer(raw, dtype=np.uint8)
    return {"size": np.array([len(raw)]), "raw": bytes_}


def room_for(raw: bytes) -> int:
    """Returns a room that the policy may still grow in."""
    return max(LEAST_ROOM, 2 * len(raw))


def _first(batch: Any) -> Any:
    if isinstance(batch, dict):
        return {name: _first(part) for name, part in batch.items()}
    return batch[0]
