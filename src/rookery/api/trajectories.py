"""Trajectories: episodes as arrays, and their conversion to and from rows (env steps) in replay."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from rookery.config.schema import EnvConfig
from rookery.envs.spaces import SpaceCodec
from rookery.envs.vector import learned_reward
from rookery.errors import ConfigError
from rookery.replay.ring import obs_column
from rookery.types import Array, End, EnvSpec


class Trajectory(NamedTuple):
    """One episode of T env steps, as arrays of elements of the environment's spaces.

    If neither `terminated` nor `truncated` is set at the last step, the episode counts as
    truncated, and learning bootstraps from `final_obs`.
    """

    obs: Any  # [T, ...] observations before each action; a dict of arrays for a Dict space
    action: Any  # [T, ...] as given to the environment
    reward: Any  # [T] neither scaled nor clipped
    terminated: Any  # [T] bool; only the last may be true
    truncated: Any  # [T] bool; only the last may be true
    final_obs: Any  # the observation after the last step

    @property
    def score(self) -> float:
        """The undiscounted return of the episode."""
        return float(np.sum(self.reward))

    @property
    def env_steps(self) -> int:
        return len(self.action)


def as_trajectory(given: Trajectory | Mapping[str, Any]) -> Trajectory:
    """Converts a mapping with the field names of `Trajectory` to a `Trajectory`.

    Raises `ConfigError` for other keys.
    """
    if isinstance(given, Trajectory):
        return given
    if set(given) != set(Trajectory._fields):
        raise ConfigError(
            f"a trajectory has {', '.join(Trajectory._fields)}, got {', '.join(sorted(given))}; "
            "use these names"
        )
    return Trajectory(**given)


def rows_of(
    trajectory: Trajectory, spec: EnvSpec, codec: SpaceCodec, env: EnvConfig
) -> dict[str, Array]:
    """Converts an episode of T steps to the T + 1 rows that replay stores, as arrays by column.

    There is one row for each step, and one for the final observation.
    """
    length, end = trajectory.env_steps, _end(trajectory)
    obs = spec.unpack(codec.encode(trajectory.obs, length))
    final = spec.unpack(codec.encode_one(trajectory.final_obs))
    leaves = {obs_column(name): np.concatenate([obs[name], final[name]]) for name in obs}
    reward = np.asarray(trajectory.reward, dtype=np.float32)
    action = codec.encode_action(trajectory.action)
    return {
        **leaves,
        "action": np.concatenate([action, np.zeros_like(action[:1])]),
        "reward": np.append(learned_reward(reward, env), np.float32(0.0)),
        "end": np.append(np.full(length, End.RUNNING), end),
        "t": np.arange(length + 1),
    }


def _end(trajectory: Trajectory) -> End:
    """Returns how a trajectory's episode ended: `End.TERMINATED` or `End.TRUNCATED`.

    Raises `ConfigError` if the trajectory is not one whole episode.
    """
    length = trajectory.env_steps
    flags = {name: np.asarray(getattr(trajectory, name)) for name in ("terminated", "truncated")}
    lengths = {name: len(flag) for name, flag in flags.items()}
    lengths["reward"] = len(trajectory.reward)
    if not length or set(lengths.values()) != {length}:
        raise ConfigError(
            f"got {length} actions and {lengths}; give at least one action, and one reward, "
            "terminated and truncated for each"
        )
    early = np.flatnonzero((flags["terminated"] | flags["truncated"])[:-1])
    if early.size:
        raise ConfigError(
            f"this trajectory of {length} steps has an episode's end at step {early[0] + 1}; "
            "give each episode as a trajectory of its own"
        )
    return End.TERMINATED if flags["terminated"][-1] else End.TRUNCATED


def trajectories_in(
    rows: Mapping[str, Array], spec: EnvSpec, codec: SpaceCodec
) -> Iterator[Trajectory]:
    """Yields the whole episodes in `rows`, env steps of one environment as replay stores them.

    The rows must be in the order of time. An unfinished episode at their end is left out.
    """
    first = 0
    for last in np.flatnonzero(rows["end"] != End.RUNNING).tolist():
        yield _trajectory({name: rows[name][first : last + 1] for name in rows}, spec, codec)
        first = last + 1


def _trajectory(rows: Mapping[str, Array], spec: EnvSpec, codec: SpaceCodec) -> Trajectory:
    ended = np.zeros((2, len(rows["end"]) - 1), dtype=np.bool_)
    ended[:, -1] = rows["end"][-1] == End.TERMINATED, rows["end"][-1] == End.TRUNCATED
    leaves = {leaf.name: rows[obs_column(leaf.name)] for leaf in spec.obs}
    obs = codec.decode(spec.pack({name: leaf[:-1] for name, leaf in leaves.items()}))
    final = codec.decode_one(spec.pack({name: leaf[-1:] for name, leaf in leaves.items()}))
    return Trajectory(
        obs=obs,
        action=codec.decode_action(rows["action"][:-1]),
        reward=rows["reward"][:-1],
        terminated=ended[0],
        truncated=ended[1],
        final_obs=final,
    )
