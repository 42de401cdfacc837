"""Rollout worker: plays whole episodes with a policy and returns them as trajectories.

    for trajectory in rollout_worker(policy, episodes=4, epsilon=0.1, seed=3): ...

Episodes are played in this process, by the `Actor` class of training runs.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from rookery.actors.actor import Actor
from rookery.actors.policy import COLUMNS, InferencePolicy, checked
from rookery.api.trajectories import Trajectory, trajectories_in
from rookery.config.schema import ActorConfig
from rookery.envs.make import make
from rookery.errors import ConfigError
from rookery.types import Array


@checked
def rollout_worker(
    policy: InferencePolicy | Mapping[str, Any],
    env: Any = None,
    episodes: int = 1,
    epsilon: float = 0.0,
    seed: int = 0,
) -> list[Trajectory]:
    """Plays whole episodes with a policy and returns their trajectories.

    `policy` is an `InferencePolicy`, or network weights by name. `env` defaults to the policy's own
    environment, or CartPole-v1 for weights. The same arguments give the same episodes. In a game
    of several players the opponents play at random, and the policy's seat (first player, second
    player ...) changes with every game. Invalid arguments raise `ConfigError`.
    """
    if episodes < 1 or not 0.0 <= epsilon <= 1.0:
        raise ConfigError(
            f"got episodes={episodes} and epsilon={epsilon}; give at least 1 episode and an "
            "epsilon from 0 to 1"
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
    """Plays `episodes` episodes with an actor; returns all their env steps as arrays.

    The arrays are by name of the value: observations, `action`, `reward`, `end` of the episode.
    """
    pieces, ring, ended = list[dict[str, Array]](), actor.ring, 0
    while ended < episodes:
        ended += len(actor.collect_episodes(episodes - ended, epsilon).ended)
        slots = ring.slots(ring.consumed, ring.committed - ring.consumed)
        names = [name for name in ring.columns if name in COLUMNS or name.startswith("obs")]
        pieces.append({name: ring.columns[name][slots].copy() for name in names})
        ring.consume(ring.committed)
    return {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}
