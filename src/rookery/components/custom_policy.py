"""A user's own policy where an algorithm is expected: actors ask it for one action at a time.

It is published like weights, as bytes in the weight store, so that actors have the newest one. The
bytes come only from the process that started the actors.
"""

from dataclasses import dataclass
from typing import Any

import cloudpickle
import numpy as np
import torch
from torch import nn

from rookery.algorithms.algorithm import Acted, Algorithm
from rookery.config.algorithms import AlgoConfig
from rookery.config.schema import EnvConfig, NetConfig
from rookery.engines.pickling import pickled
from rookery.envs.spaces import SpaceCodec
from rookery.errors import ConfigError
from rookery.types import Array, EnvSpec, Floats, Obs

NAME = "rookery.components.custom_policy:UserPolicy"
LEAST_ROOM = 1 << 16  # bytes
RAW = "raw"  # name of the bytes among the weights


@dataclass(frozen=True, kw_only=True)
class UserPolicyConfig(AlgoConfig):
    """What it is built from."""

    name: str = NAME
    codec: SpaceCodec | None = None  # between what is stored and what the policy sees
    room: int = LEAST_ROOM  # bytes that a policy may have


class UserPolicy(Algorithm):
    """Asks a policy of the user's what to do. It has nothing that could be learned."""

    Settings = UserPolicyConfig

    def __init__(self, config: UserPolicyConfig, net: NetConfig, env: EnvConfig, spec: EnvSpec):
        assert config.codec is not None, "the environment gives it"
        self.spec, self.codec = spec, config.codec
        self.acting = nn.Module()  # bytes as a network's state
        self.acting.register_buffer(RAW, torch.zeros(config.room, dtype=torch.uint8))
        self.networks = nn.ModuleDict({"pickled": self.acting})
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
        raw = self.acting.get_buffer(RAW).numpy().tobytes()
        if raw != self._known:
            self._known, self._policy = raw, cloudpickle.loads(raw)  # which ignores the rest
        return self._policy


def answer(policy: Any, obs: Any) -> Any:
    """Asks a policy, which is a function or has a method `act`, for one action."""
    return policy.act(obs) if hasattr(policy, "act") else policy(obs)


def packed(policy: Any) -> dict[str, Array]:
    """Returns a policy as the weights that are published: its pickle, padded with zeros.

    The size is a power of two, so that a policy that grows a little needs no other workers. Raises
    ConfigError for what is no policy or cannot be pickled.
    """
    if not (hasattr(policy, "act") or callable(policy)):
        raise ConfigError(
            f"a policy has act(obs), or is a function of an observation, got {policy!r}; give an "
            "agent, an InferencePolicy, or an object of yours"
        )
    raw = pickled(policy, "this policy")
    room = max(LEAST_ROOM, 2 << len(raw).bit_length())
    return {RAW: np.frombuffer(bytearray(raw.ljust(room, b"\0")), dtype=np.uint8)}
