"""Experience as dictionaries: steps in the environment's own form, by key.

| key | one step | a batch |
|---|---|---|
| obs | what was acted on | [B, ...] |
| action | as given to the environment | [B, ...] |
| reward | raw: neither scaled nor clipped | [B] |
| next_obs | what the step led to | [B, ...] |
| terminated, truncated | how the episode ended, if it did | [B] bool |

Of a Dict the parts are keys of their own, `obs.name` and `next_obs.name`; where it is nested, names
are joined with "/". Batches may also have `weight` and `rows`, as prioritised buffers give them,
and `discount`, where several steps are folded into one.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from rookery.algorithms.actor_critic import LOG_PROB, OnPolicy
from rookery.components.protocols import Experience
from rookery.config.algorithms import RolloutConfig
from rookery.config.schema import Config
from rookery.envs.spaces import SpaceCodec
from rookery.envs.vector import learned_reward
from rookery.errors import ConfigError
from rookery.event import Episode
from rookery.learner.learner import Learner
from rookery.networks.forward import tensors
from rookery.replay.batches import picked
from rookery.replay.ring import obs_column
from rookery.replay.rollouts import advantages
from rookery.types import ADVANTAGE, RETURN, Array, ArrayBatch, Batch, End, EnvSpec

KEYS = ("obs", "action", "reward", "next_obs", "terminated", "truncated")
NEXT = "next_"  # before the keys of the observations that steps led to
ROWS, WEIGHT = "rows", "weight"


def keys_of(spec: EnvSpec) -> tuple[str, ...]:
    """Returns the keys that steps of this environment have."""
    leaves = [obs_column(leaf.name) for leaf in spec.obs]
    return (*leaves, "action", "reward", *(NEXT + leaf for leaf in leaves), *KEYS[4:])


def _leaves(columns: Mapping[str, Any], spec: EnvSpec, prefix: str = "") -> dict[str, Any]:
    """Returns the columns that hold observations, by the leaves' names."""
    return {leaf.name: columns[prefix + obs_column(leaf.name)] for leaf in spec.obs}


def steps_in(rows: Mapping[str, Array], spec: EnvSpec, codec: SpaceCodec) -> dict[str, Array]:
    """Returns the steps that one environment's rows hold, in their order.

    A row is a step once the next one is there, which has what it led to. Rows whose successor
    belongs to another episode, or to an actor that took a lost one's place, are none.
    """
    end, before, after = rows["end"], slice(None, -1), slice(1, None)
    follows = end[before] == End.RUNNING
    for name in ("episode", "incarnation"):
        follows &= rows[name][before] == rows[name][after]
    now = np.flatnonzero(follows)
    leaves = _leaves(rows, spec)
    seen, following = (
        codec.decode_leaves({name: leaf[index] for name, leaf in leaves.items()})
        for index in (now, now + 1)
    )
    return {
        **{obs_column(name): leaf for name, leaf in seen.items()},
        "action": codec.decode_action(rows["action"][now]),
        "reward": rows["reward"][now],
        **{NEXT + obs_column(name): leaf for name, leaf in following.items()},
        "terminated": end[now + 1] == End.TERMINATED,
        "truncated": end[now + 1] == End.TRUNCATED,
    }


def episodes_in(steps: Sequence[Experience]) -> tuple[Episode, ...]:
    """Returns the episodes of steps in their order. The last one may be cut without a flag."""
    found, score, length = [], 0.0, 0
    for step in steps:
        score, length = score + float(step["reward"]), length + 1
        if step["terminated"] or step["truncated"]:
            found.append(Episode(score, length))
            score, length = 0.0, 0
    return (*found, Episode(score, length)) if length else tuple(found)


def each(steps: Mapping[str, Array]) -> list[dict[str, Any]]:
    """Returns [B, ...] arrays as B dictionaries."""
    columns = [list(column) for column in steps.values()]
    return [dict(zip(steps, step, strict=True)) for step in zip(*columns, strict=True)]


def batch_of(
    steps: Experience | ArrayBatch, config: Config, spec: EnvSpec, codec: SpaceCodec
) -> ArrayBatch:
    """Turns a batch of steps into what a learner takes."""
    if isinstance(steps, Batch):
        return steps
    _refuse_what_is_missing(steps, config, spec)
    if config.algo.on_policy and "discount" not in steps:
        raise _more_than_single_steps(config, spec)
    return encoded(steps, config, spec, codec)


def encoded(steps: Experience, config: Config, spec: EnvSpec, codec: SpaceCodec) -> ArrayBatch:
    """Turns single steps into a batch in the form in which networks take it."""
    action = codec.encode_action(steps["action"])
    size = len(action)
    reward = np.asarray(steps["reward"], dtype=np.float32)
    ended = np.asarray(steps["terminated"], dtype=np.bool_)
    discount = steps.get("discount", np.where(ended, 0.0, config.algo.gamma))
    return Batch(
        obs=spec.pack(codec.encode_leaves(_leaves(steps, spec), size)),
        action=action,
        reward=learned_reward(reward, config.env),
        discount=np.asarray(discount, dtype=np.float32),
        next_obs=spec.pack(codec.encode_leaves(_leaves(steps, spec, NEXT), size)),
        weight=np.asarray(steps.get(WEIGHT, np.ones(size)), dtype=np.float32),
        rows=np.asarray(steps.get(ROWS, np.arange(size)), dtype=np.int64),
    )


def _refuse_what_is_missing(steps: Experience, config: Config, spec: EnvSpec) -> None:
    missing = [key for key in keys_of(spec) if key not in steps and key != "truncated"]
    if missing:
        raise ConfigError(
            f"a batch for {spec.name} has {', '.join(keys_of(spec))}, got {', '.join(steps)}; add "
            f"{', '.join(missing)}"
        )
    algo, several = config.algo, config.algo.n_step > 1 and "discount" not in steps
    if algo.sequence or spec.frame_stack > 1 or several:
        raise _more_than_single_steps(config, spec)


def _more_than_single_steps(config: Config, spec: EnvSpec) -> ConfigError:
    return ConfigError(
        f"algo.name {config.algo.name} with algo.n_step {config.algo.n_step} and env.frame_stack "
        f"{spec.frame_stack} learns from more than single steps, and a batch by keys has no "
        "more; give a rookery.types.Batch, or use AsyncMainLoop, whose workers make their own"
    )


def rollout_batches(
    learner: Learner, config: Config, batch: ArrayBatch, ended: Array, rng: np.random.Generator
) -> Iterator[ArrayBatch]:
    """Yields the minibatches of a rollout: steps in their order, each once per epoch.

    `ended` [B] says where an episode ended. After a termination `batch.discount` is 0.
    """
    algo, algorithm, device = config.algo, learner.algorithm, learner.device
    assert isinstance(algo, RolloutConfig), "only on-policy agents are asked"
    assert isinstance(algorithm, OnPolicy), "as their algorithms are"
    assert batch.next_obs is not None, "`encoded` gives it"
    action = torch.from_numpy(batch.action).to(device)
    with torch.no_grad():
        taken, now = algorithm.evaluate_actions(tensors(batch.obs, device), action)
        _, after = algorithm.evaluate_actions(tensors(batch.next_obs, device), action)
    value = now.cpu().numpy()
    advantage, _ = advantages(
        batch.reward,
        value,
        np.where(batch.discount == 0, np.float32(0.0), after.cpu().numpy()),
        np.zeros(len(value), dtype=np.uint8),
        np.where(ended, 0, 1),
        gamma=algo.gamma,
        gae_lambda=algo.gae_lambda,
    )
    extras = {LOG_PROB: taken.log_prob.cpu().numpy()}
    extras |= {ADVANTAGE: advantage, RETURN: advantage + value}
    whole = batch._replace(discount=None, next_obs=None, extras=extras)
    count = 1 if algo.whole else max(1, round(len(value) / config.replay.batch_size))
    for _ in range(algo.epochs):
        for rows in np.array_split(rng.permutation(len(value)), count):
            yield picked(whole, rows)
