"""Rollouts: a policy that only acts, and episodes played with it.

    policy = InferencePolicy.of(weights, "CartPole-v1")       # no optimizer, no replay
    policy.act(obs, epsilon=0.1)
    for trajectory in rollout_worker(policy, episodes=4, epsilon=0.1, seed=3): ...

Both are the public parts of what actors are made of: a rollout is played by an `Actor`.
"""

from collections.abc import Mapping
from dataclasses import replace
from itertools import count, takewhile
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from beartype import BeartypeConf, beartype

from rookery.actor import Actor
from rookery.algos import build_algorithm
from rookery.config.load import load
from rookery.config.schema import ActorConfig, Config, Recurrent
from rookery.envs.entry import name_of
from rookery.envs.frames import remember
from rookery.envs.make import Envs, make
from rookery.envs.masks import refuse_empty
from rookery.envs.spaces import Codec
from rookery.errors import ConfigError
from rookery.loops.trajectory import Trajectory, trajectories_in
from rookery.nets.arrays import arrays_of, load_arrays
from rookery.types import Array, EnvSpec, Floats

NONE: Mapping[str, Any] = MappingProxyType({})
checked = beartype(conf=BeartypeConf(is_pep484_tower=True))  # 1 will do for a float

COLUMNS = ("action", "reward", "end")


class Recipe(NamedTuple):
    """What environments and networks are made from."""

    config: Config
    factory: Any = None  # the user's environment, where it is more than a name

    def shown(self) -> Envs:
        """Returns a throw-away environment, closed already: to be looked at from outside."""
        envs = make(self.config.env, 1, factory=self.factory)
        envs.close()
        return envs

    def spaces(self) -> tuple[EnvSpec, Codec]:
        envs = self.shown()
        return envs.spec, envs.codec


def recipe(env: Any, settings: Mapping[str, Any]) -> Recipe:
    """Settles an environment (an id, a class, a function) and dotted settings."""
    changes = {"name": "train_dqn", **settings, "env.id": name_of(env)}
    return Recipe(load(changes=changes), None if isinstance(env, str) else env)


class InferencePolicy:
    """A policy that acts and cannot learn, on the CPU."""

    def __init__(self, made_from: Recipe, spec: EnvSpec, codec: Codec):
        self.recipe, self.spec, self.codec = made_from, spec, codec
        self.algorithm = build_algorithm(made_from.config, spec)
        self._rng = np.random.default_rng(made_from.config.run.seed)
        self._frames: dict[str, Array] | None = None
        self._memory: Floats | None = None

    @classmethod
    @checked
    def of(
        cls,
        weights: Mapping[str, Any],
        env: Any = "CartPole-v1",
        *,
        settings: Mapping[str, Any] = NONE,
    ) -> "InferencePolicy":
        """Builds the network these weights fit: widths and dueling are read off them.

        What weights do not show, such as another activation or a network of your own, goes into
        `settings`, by its dotted name.
        """
        spec, codec = recipe(env, settings).spaces()
        made_from = recipe(env, {**_network(weights, spec), **settings})
        policy = cls(made_from, spec, codec)
        policy.set_weights(weights)
        return policy

    @checked
    def act(self, obs: Any, epsilon: float = 0.0) -> Any:
        """Returns the action for one observation; random with probability `epsilon`.

        With a frame stack, or a recurrent network, it remembers: `reset()` where an episode begins.
        """
        leaves = self.spec.unpack(self.codec.encode_one(obs))
        if self.spec.frame_stack > 1:
            self._frames = leaves = remember(self._frames, leaves, self.spec.frame_stack)
        seen = self.spec.pack(leaves)
        refuse_empty(seen, self.spec)
        acted = self.algorithm.act(
            seen, self._rng, epsilon=epsilon, noise=False, memory=self._memory
        )
        self._memory = acted.memory
        return self.codec.decode_action(acted.action)[0]

    def reset(self) -> None:
        """Forgets the episode before."""
        self._frames = self._memory = None

    def get_weights(self) -> dict[str, Array]:
        """Returns a copy of the weights by name."""
        return {name: array.copy() for name, array in arrays_of(self.algorithm.acting).items()}

    @checked
    def set_weights(self, weights: Mapping[str, Any]) -> None:
        """Loads weights; those of another network are refused with what differs."""
        load_arrays(self.algorithm.acting, weights)


@checked
def rollout_worker(
    policy: InferencePolicy | Mapping[str, Any],
    env: Any = None,
    episodes: int = 1,
    epsilon: float = 0.0,
    seed: int = 0,
) -> list[Trajectory]:
    """Plays whole episodes and returns them.

    `policy` may be plain weights; `env` is the policy's own unless told otherwise, and CartPole-v1
    for weights. They are the episodes that the first actor of a run with this seed would play. In a
    game the policy has each seat in turn, and strangers who play at random have the others.
    """
    if episodes < 1 or not 0.0 <= epsilon <= 1.0:
        raise ConfigError(
            f"a rollout has at least 1 episode and an epsilon from 0 to 1, got {episodes} and "
            f"{epsilon}; correct what is outside"
        )
    if not isinstance(policy, InferencePolicy):
        policy = InferencePolicy.of(policy, env or "CartPole-v1")
    config, factory = policy.recipe
    raw = replace(config.env, reward_scale=1.0, reward_clip=None)
    envs = make(raw, 1, factory=factory if env is None else env)
    if envs.tables is not None:
        envs.tables.invite()
    plan = ActorConfig(envs=1, chunk_episodes=episodes)
    actor = Actor(envs, policy.algorithm, plan, raw, seed=seed)
    try:
        rows = _played(actor, episodes, epsilon)
    finally:
        actor.close()
    return list(trajectories_in(rows, envs.spec, envs.codec))


def _played(actor: Actor, episodes: int, epsilon: float) -> dict[str, Array]:
    """Returns the rows of so many episodes, however little of them the ring holds at a time."""
    pieces, ring, ended = list[dict[str, Array]](), actor.ring, 0
    while ended < episodes:
        ended += len(actor.collect_episodes(episodes - ended, epsilon).ended)
        slots = ring.slots(ring.consumed, ring.committed - ring.consumed)
        names = [name for name in ring.columns if name in COLUMNS or name.startswith("obs")]
        pieces.append({name: ring.columns[name][slots].copy() for name in names})
        ring.consume(ring.committed)
    return {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}


def _network(weights: Mapping[str, Any], spec: EnvSpec) -> dict[str, Any]:
    """Returns the settings of the perceptron that has these weights."""
    layers = takewhile(weights.__contains__, (f"body.hidden.{i}.weight" for i in count()))
    widths = [len(weights[layer]) for layer in layers]
    remembers = "core.layer.weight_hh_l0" in weights
    out = weights.get("head.bias" if remembers else "body.out.bias")
    found = {
        "net.hidden": widths,
        "algo.dueling": out is not None and len(out) == spec.action.n + 1,
        "env.normalize_obs": any(name.endswith(".norm.mean") for name in weights),
    }
    return found | (_recurrent(weights["core.layer.weight_hh_l0"]) if remembers else {})


def _recurrent(weight: Array) -> dict[str, Any]:
    """Returns the settings of the recurrent layer with these weights: an LSTM has four gates."""
    gates, width = len(weight) // weight.shape[1], weight.shape[1]
    kind = Recurrent.LSTM if gates == 4 else Recurrent.GRU
    return {"algo.name": "r2d2", "net.recurrent": kind.value, "net.memory": width}
