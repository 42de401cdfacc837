"""A user's own policy where an algorithm is expected: actors ask it for one action at a time.

It is published like weights, as bytes in the weight store, so that actors have the newest one. The
bytes come only from the process that started the actors.
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
from rookery.engines.pickling import pickled
from rookery.envs.spaces import SpaceCodec
from rookery.errors import ConfigError
from rookery.types import Array, EnvSpec, Floats, Obs

NAME = "rookery.components.custom_policy:UserPolicy"
LEAST_ROOM = 1 << 16  # bytes


@dataclass(frozen=True, kw_only=True)
class UserPolicyConfig(AlgoConfig):
    """What it is built from."""

    name: str = NAME
    codec: SpaceCodec | None = None  # between what is stored and what the policy sees
    room: int = LEAST_ROOM  # bytes that a policy may have


class PickledPolicy(nn.Module):
    """Bytes as a network's state."""

    size: Tensor
    raw: Tensor

    def __init__(self, room: int):
        super().__init__()
        self.register_buffer("size", torch.zeros(1, dtype=torch.int64))
        self.register_buffer("raw", torch.zeros(room, dtype=torch.uint8))


class UserPolicy(Algorithm):
    """Asks a policy of the user's what to do. It has nothing that could be learned."""

    Settings = UserPolicyConfig

    def __init__(self, config: UserPolicyConfig, net: NetConfig, env: EnvConfig, spec: EnvSpec):
        assert config.codec is not None, "the environment gives it"
        self.spec, self.codec = spec, config.codec
        self._pickled = PickledPolicy(config.room)
        self.acting = self._pickled
        self.networks = nn.ModuleDict({"pickled": self._pickled})
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
        return self.codec.decode_one(self.spec.pack(one))

    def _unpacked(self) -> Any:
        raw = self._pickled.raw[: int(self._pickled.size)].numpy().tobytes()
        if raw != self._known:
            self._known, self._policy = raw, cloudpickle.loads(raw)
        return self._policy


def answer(policy: Any, obs: Any) -> Any:
    """Asks a policy, which is a function or has a method `act`, for one action."""
    return policy.act(obs) if hasattr(policy, "act") else policy(obs)


def packed(policy: Any) -> bytes:
    """Returns a policy as bytes; raises ConfigError for what is none or cannot be pickled."""
    if not (hasattr(policy, "act") or callable(policy)):
        raise ConfigError(
            f"a policy has act(obs), or is a function of an observation, got {policy!r}; give an "
            "agent, an InferencePolicy, or an object of yours"
        )
    return pickled(policy, "this policy")


def arrays_for(raw: bytes, room: int) -> dict[str, Array]:
    """Returns what a weight store with that room publishes."""
    bytes_ = np.zeros(room, dtype=np.uint8)
    bytes_[: len(raw)] = np.frombuffer(raw, dtype=np.uint8)
    return {"size": np.array([len(raw)]), "raw": bytes_}


def room_for(raw: bytes) -> int:
    """Returns a power of two, so that a policy that grows a little needs no other workers."""
    return max(LEAST_ROOM, 2 << len(raw).bit_length())
