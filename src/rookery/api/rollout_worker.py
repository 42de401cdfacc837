"""Rollout worker: plays whole episodes with a policy and returns them as trajectories.

    for trajectory in rollout_worker(policy, episodes=4, epsilon=0.1, seed=3): ...

Episodes are played in this process, by the `Actor` class of training runs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rookery.actors.actor import Actor
from rookery.actors.policy import InferencePolicy, checked
from rookery.api.trajectories import Trajectory, trajectories_in
from rookery.config.checks import Count, Fraction
from rookery.config.schema import ActorConfig
from rookery.envs.make import make
from rookery.replay.ring import Ring
from rookery.types import Array


@checked
def rollout_worker(
    policy: InferencePolicy | Mapping[str, Any],
    env: Any = None,
    episodes: Count = 1,
    epsilon: Fraction = 0.0,
    seed: int = 0,
) -> list[Trajectory]:
    """Plays whole episodes with a policy and returns their trajectories.

    `policy` is an `InferencePolicy`, or network weights by name. `env` defaults to the policy's own
    environment, or CartPole-v1 for weights. The same arguments give the same episodes. In a game
    of several players the opponents play at random, and the policy's seat (first player, second
    player ...) changes with every game. Invalid arguments raise `ConfigError`.
    """
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
    """Plays `episodes` episodes with an actor; returns their env steps as arrays by column."""
    pieces, ended = list[dict[str, Array]](), 0
    while ended < episodes:
        ended += len(actor.collect_episodes(episodes - ended, epsilon).ended)
        pieces.append(taken(actor.ring))
    return joined(pieces)


def taken(ring: Ring) -> dict[str, Array]:
    """Takes all rows (env steps) out of the ring buffer of an actor."""
    slots = ring.slots(ring.consumed, ring.committed - ring.consumed)
    rows = {name: column[slots].copy() for name, column in ring.columns.items()}
    ring.consume(ring.committed)
    return rows


def joined(pieces: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    """Puts arrays of steps one after another."""
    return {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}
