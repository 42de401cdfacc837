"""Policies that only act: from weights, or from a trained run.

    policy = InferencePolicy.of(weights, "CartPole-v1")       # no optimizer, no replay
    policy.act(obs, epsilon=0.1)
    for trajectory in rollout_worker(policy, episodes=4, epsilon=0.1, seed=3): ...

`InferencePolicy` is built from weights, `Policy` from a trained run.
"""

from collections.abc import Callable, Mapping
from itertools import count, takewhile
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
import torch
from beartype import BeartypeConf, beartype

from rookery.algorithms import Algorithm, build_algorithm
from rookery.config.checks import check_arguments
from rookery.config.load import load
from rookery.config.schema import Config, Recurrent
from rookery.envs.action_masks import refuse_empty
from rookery.envs.frame_stack import remember
from rookery.envs.lookup import name_of
from rookery.envs.make import Envs, Factory, make
from rookery.envs.spaces import SpaceCodec
from rookery.networks.forward import tensors
from rookery.networks.named_arrays import arrays_of, load_arrays
from rookery.types import Array, EnvSpec, Floats, Obs

NONE: Mapping[str, object] = MappingProxyType({})
_typed = beartype(conf=BeartypeConf(is_pep484_tower=True))  # 1 will do for a float

F = TypeVar("F", bound=Callable[..., Any])  # type: ignore[explicit-any]  # any function


def checked(function: F) -> F:  # type: ignore[explicit-any]  # any function
    """Decorator: checks the types of a function's arguments, and their limits if they have any."""
    return _typed(check_arguments(function))


PolicyState: TypeAlias = tuple[dict[str, Array] | None, Floats | None]  # frames, memory


class Recipe(NamedTuple):
    """Settings, and optionally an environment factory, from which a policy is built."""

    config: Config
    factory: Factory | None = None  # the user's environment, where it is more than a name

    def shown(self) -> Envs:
        """Returns an environment that is already closed: only its spaces can be read."""
        envs = make(self.config.env, 1, factory=self.factory)
        envs.close()
        return envs

    def spaces(self) -> tuple[EnvSpec, SpaceCodec]:
        envs = self.shown()
        return envs.spec, envs.codec


def recipe(env: str | Factory, settings: Mapping[str, object]) -> Recipe:
    """Returns a `Recipe` for an environment (id, class or function) and settings by dotted name."""
    changes = {"name": "train_dqn", **settings, "env.id": name_of(env)}
    return Recipe(load(changes=changes), None if isinstance(env, str) else env)


class Acting:
    """An algorithm that acts in an environment's own format, with frame stack and recurrence."""

    def __init__(self, algorithm: Algorithm, codec: SpaceCodec, spec: EnvSpec, seed: int):
        self.algorithm, self.codec, self.spec = algorithm, codec, spec
        self._rng = np.random.default_rng(seed)

    def _act(  # type: ignore[explicit-any]  # in the environment's own form
        self, obs: object, state: PolicyState | None, epsilon: float, noise: bool
    ) -> tuple[Any, PolicyState | None]:
        """Returns the action for one observation, and the policy state for the next one."""
        seen, frames, memory = self._look(obs, state)
        refuse_empty(seen, self.spec)
        acted = self.algorithm.act(seen, self._rng, epsilon=epsilon, noise=noise, memory=memory)
        action = self.codec.decode_action(acted.action)[0]
        return action, None if frames is None and acted.memory is None else (frames, acted.memory)

    def _look(
        self, obs: object, state: PolicyState | None
    ) -> tuple[Obs, dict[str, Array] | None, Floats | None]:
        """Returns the network's input for an observation, the last frames, and the recurrent state.

        The frames are part of the policy state that is passed with the next observation.
        """
        leaves = self.spec.unpack(self.codec.encode_one(obs))
        frames, memory = state or (None, None)
        if self.spec.frame_stack > 1:
            frames = leaves = remember(frames, leaves, self.spec.frame_stack)
        if memory is None and self.algorithm.memory:
            memory = np.zeros((1, self.algorithm.memory), dtype=np.float32)
        return self.spec.pack(leaves), frames, memory


class InferencePolicy(Acting):
    """A policy built from weights, for acting only (no training), on the CPU."""

    def __init__(self, made_from: Recipe, spec: EnvSpec, codec: SpaceCodec):
        config = made_from.config
        super().__init__(build_algorithm(config, spec), codec, spec, config.run.seed)
        self.recipe = made_from
        self._state: PolicyState | None = None

    @classmethod
    @checked
    def of(  # type: ignore[explicit-any]  # weights and environments of the user
        cls,
        weights: Mapping[str, Any],
        env: Any = "CartPole-v1",
        *,
        settings: Mapping[str, object] = NONE,
    ) -> "InferencePolicy":
        """Builds a policy from network weights; infers layer widths and dueling from them.

        Settings that cannot be inferred, such as the activation or a custom network, go into
        `settings`, by their dotted names.
        """
        spec, codec = recipe(env, settings).spaces()
        made_from = recipe(env, {**_network(weights, spec), **settings})
        policy = cls(made_from, spec, codec)
        policy.set_weights(weights)
        return policy

    @checked
    def act(  # type: ignore[explicit-any]  # in the environment's own form
        self, obs: Any, epsilon: float = 0.0, noise: bool = False
    ) -> Any:
        """Returns the action for one observation; random with probability `epsilon`.

        With `noise` it also explores as the algorithm does, for example samples from the policy.

        With a frame stack or a recurrent network the policy keeps state between calls: call
        `reset()` when an episode begins.
        """
        action, self._state = self._act(obs, self._state, epsilon, noise)
        return action

    def reset(self) -> None:
        """Clears frame stack and recurrent state: call it when an episode begins."""
        self._state = None

    def get_weights(self) -> dict[str, Array]:
        """Returns a copy of the policy's weights, by name."""
        return {name: array.copy() for name, array in arrays_of(self.algorithm.acting).items()}

    @checked
    def set_weights(  # type: ignore[explicit-any]  # arrays or tensors
        self, weights: Mapping[str, Any]
    ) -> None:
        """Loads network weights into the policy.

        Raises CheckpointError, which names the differences, if names or shapes do not fit.
        """
        load_arrays(self.algorithm.acting, weights)


def _network(weights: Mapping[str, Array], spec: EnvSpec) -> dict[str, object]:
    """Infers network settings (layer widths, dueling, recurrence) from a policy's weights."""
    layers = takewhile(weights.__contains__, (f"body.hidden.{i}.weight" for i in count()))
    widths = [len(weights[layer]) for layer in layers]
    remembers = "core.layer.weight_hh_l0" in weights
    out = weights.get("head.bias" if remembers else "body.out.bias")
    found: dict[str, object] = {
        "net.hidden": widths,
        "algo.dueling": out is not None and len(out) == spec.action.n + 1,
        "env.normalize_obs": any(name.endswith(".norm.mean") for name in weights),
    }
    return found | (_recurrent(weights["core.layer.weight_hh_l0"]) if remembers else {})


def _recurrent(weight: Array) -> dict[str, object]:
    """Infers the settings of a recurrent layer (LSTM or GRU, width) from its weight matrix."""
    gates, width = len(weight) // weight.shape[1], weight.shape[1]
    kind = Recurrent.LSTM if gates == 4 else Recurrent.GRU
    return {"algo.name": "r2d2", "net.recurrent": kind.value, "net.memory": width}


class Policy(Acting):
    """A trained policy on the CPU; observations and actions are in the environment's own format."""

    def __init__(self, algorithm: Algorithm, codec: SpaceCodec, spec: EnvSpec, epsilon: float):
        super().__init__(algorithm, codec, spec, seed=0)
        self._epsilon = epsilon

    def act(  # type: ignore[explicit-any]  # in the environment's own form
        self, obs: Any, state: PolicyState | None = None, deterministic: bool | None = None
    ) -> tuple[Any, PolicyState | None]:
        """Returns the action for one observation, and the policy state to pass with the next one.

        The state holds the frame stack and the recurrent state. It is None at the start of an
        episode, and always None for policies without frame stack and recurrence.

        With `deterministic` None the policy acts as evaluations do: greedily, or by sampling if the
        algorithm was trained for that. True is greedy; False explores as at the end of training.
        """
        epsilon = self._epsilon if deterministic is False else 0.0
        noise = self.algorithm.evaluate_stochastic if deterministic is None else not deterministic
        return self._act(obs, state, epsilon, noise)

    def scores(self, obs: object, state: PolicyState | None = None) -> Array:
        """Returns the scores of all n discrete actions, such as Q-values, as an array [n].

        The greedy action has the largest score. For MultiDiscrete actions the scores of all
        components are concatenated. For continuous actions it returns the action itself, scaled as
        in replay.
        """
        seen, _, memory = self._look(obs, state)
        cpu = torch.device("cpu")
        with torch.inference_mode():
            given = None if memory is None else torch.from_numpy(memory)
            return self.algorithm.scores(tensors(seen, cpu), given)[0][0].numpy()
