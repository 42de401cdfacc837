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
and `discount`, where somebody has folded several steps into one.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from rookery.components.protocols import Experience
from rookery.config.schema import Config
from rookery.envs.spaces import SpaceCodec
from rookery.envs.vector import learned_reward
from rookery.errors import ConfigError
from rookery.replay.ring import obs_column
from rookery.types import Array, ArrayBatch, Batch, End, EnvSpec

OBS, NEXT_OBS = "obs", "next_obs"
KEYS = (OBS, "action", "reward", NEXT_OBS, "terminated", "truncated")
ROWS, WEIGHT = "rows", "weight"


def keys_of(spec: EnvSpec) -> tuple[str, ...]:
    """Returns the keys that steps of this environment have."""
    leaves = [obs_column(leaf.name) for leaf in spec.obs]
    after = [f"next_{leaf}" for leaf in leaves]
    return (*leaves, *KEYS[1:3], *after, *KEYS[4:])


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
    leaves = {leaf.name: rows[obs_column(leaf.name)] for leaf in spec.obs}
    return {
        **_flat(OBS, codec.decode(spec.pack({k: leaf[now] for k, leaf in leaves.items()}))),
        "action": codec.decode_action(rows["action"][now]),
        "reward": rows["reward"][now],
        **_flat(NEXT_OBS, codec.decode(spec.pack({k: v[now + 1] for k, v in leaves.items()}))),
        "terminated": end[now + 1] == End.TERMINATED,
        "truncated": end[now + 1] == End.TRUNCATED,
    }


def each(steps: Mapping[str, Array]) -> list[dict[str, Any]]:
    """Returns [B, ...] arrays as B dictionaries."""
    columns = [list(column) for column in steps.values()]
    return [dict(zip(steps, step, strict=True)) for step in zip(*columns, strict=True)]


def joined(pieces: list[dict[str, Array]]) -> dict[str, Array]:
    """Puts arrays of steps one after another."""
    return {key: np.concatenate([piece[key] for piece in pieces]) for key in pieces[0]}


def batch_of(
    steps: Experience | ArrayBatch, config: Config, spec: EnvSpec, codec: SpaceCodec
) -> ArrayBatch:
    """Turns a batch of steps into what a learner takes."""
    if isinstance(steps, Batch):
        return steps
    _refuse_what_is_missing(steps, config, spec)
    action = codec.encode_action(steps["action"])
    size = len(action)
    reward = np.asarray(steps["reward"], dtype=np.float32)
    ended = np.asarray(steps["terminated"], dtype=np.bool_)
    discount = steps.get("discount", np.where(ended, 0.0, config.algo.gamma))
    return Batch(
        obs=codec.encode(_nested(OBS, steps), size),
        action=action,
        reward=learned_reward(reward, config.env),
        discount=np.asarray(discount, dtype=np.float32),
        next_obs=codec.encode(_nested(NEXT_OBS, steps), size),
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
    if algo.on_policy or algo.sequence or spec.frame_stack > 1 or several:
        raise ConfigError(
            f"algo.name {algo.name} with algo.n_step {algo.n_step} and env.frame_stack "
            f"{spec.frame_stack} learns from more than single steps, and a batch by keys has no "
            "more; give a rookery.types.Batch, or use AsyncMainLoop, whose workers make their own"
        )


def _flat(name: str, obs: Any) -> dict[str, Array]:
    if not isinstance(obs, dict):
        return {name: obs}
    return {f"{name}.{path}": leaf for path, leaf in _leaves(obs)}


def _leaves(obs: Mapping[str, Any], above: str = "") -> list[tuple[str, Array]]:
    found: list[tuple[str, Array]] = []
    for key, value in obs.items():
        nested = isinstance(value, Mapping)
        found += _leaves(value, f"{above}{key}/") if nested else [(f"{above}{key}", value)]
    return found


def _nested(name: str, steps: Mapping[str, Any]) -> Any:
    if name in steps:
        return steps[name]
    found: dict[str, Any] = {}
    for key, leaf in steps.items():
        first, _, path = key.partition(".")
        if first == name:
            *parents, last = path.split("/")
            at = found
            for parent in parents:
                at = at.setdefault(parent, {})
            at[last] = leaf
    return found
