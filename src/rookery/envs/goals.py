"""Rewards for relabelled goals (hindsight experience replay), computed by a goal environment.

A goal environment observes a Dict with `observation`, `achieved_goal` and `desired_goal`, and its
`compute_reward(achieved_goal, desired_goal, info)` takes many goals at once (Plappert et al. 2018;
gymnasium-robotics). For relabelled goals it is called with an empty `info`, so the reward must
depend on the two goals only.
"""

from typing import Any

import numpy as np
from gymnasium import spaces

from rookery.config.schema import EnvConfig
from rookery.envs.env_fault import ENV_ERRORS, named_errors
from rookery.envs.lookup import Env, Given, name_of
from rookery.envs.make import make_one
from rookery.envs.spaces import SpaceCodec
from rookery.envs.vector import learned_reward
from rookery.errors import ConfigError, EnvError, RookeryError
from rookery.types import Array, Floats

LEAVES = ("observation", "achieved_goal", "desired_goal")
TRIAL = 32  # random steps on which compute_reward is tested before a run
CLOSE = 1e-4  # absolute and relative tolerance of that test


class Goals:
    """Computes rewards for relabelled goals (hindsight experience replay).

    It calls the `compute_reward` of a goal environment that it makes for this purpose.
    """

    def __init__(self, config: EnvConfig, given: Given | None = None):
        """Makes a goal environment and tests its `compute_reward` on random steps.

        Raises `ConfigError` if the environment has no goals, or the test fails.
        """
        self.config, self.name = config, name_of(config.id if given is None else given)
        self.env = make_one(config, given)
        try:
            achieved, desired = _goal_spaces(self.name, self.env)
            self._compute = _compute_reward(self.name, self.env)
            self._achieved = SpaceCodec(achieved, self.env.action_space)
            self._desired = SpaceCodec(desired, self.env.action_space)
            self._try()
        except RookeryError:
            self.env.close()
            raise

    def rewards(self, achieved: Array, desired: Array) -> Floats:
        """Returns [B] rewards for B pairs of achieved and desired goals.

        They are scaled and clipped by `env.reward_scale` and `env.reward_clip`. Raises `EnvError`
        if `compute_reward` fails.
        """
        given = self._raw(self._achieved.decode(achieved), self._desired.decode(desired))
        return learned_reward(given, self.config)

    def _raw(self, achieved: Any, desired: Any) -> Floats:
        try:
            reward = np.asarray(self._compute(achieved, desired, {}), dtype=np.float32)
        except ENV_ERRORS as error:  # a user's code may raise anything
            raise EnvError(
                f"{self.name}: compute_reward raised {type(error).__name__}: {error}; it is given "
                f"{len(achieved)} goals of each kind at once and an empty info; {_CURE}"
            ) from error
        if reward.shape != (len(achieved),) or not np.isfinite(reward).all():
            raise EnvError(
                f"{self.name}: compute_reward gave {_brief(reward)} for {len(achieved)} goals; it "
                f"must give one finite reward for each; {_CURE}"
            )
        return reward

    def _try(self) -> None:
        """Tests `compute_reward` on random steps of the environment.

        Raises `ConfigError` if it raises, or its rewards differ from those that `step` returned.
        """
        try:
            achieved, desired, reward = _play(self.env)
        except ENV_ERRORS as error:  # a user's code may raise anything
            raise ConfigError(
                f"{self.name}: a random step raised {type(error).__name__}: {error}; "
                "hindsight tries a few before a run; correct the environment"
            ) from error
        try:
            computed = self._raw(achieved, desired)
        except EnvError as error:
            raise ConfigError(str(error)) from error.__cause__
        off = np.flatnonzero(~np.isclose(computed, reward, rtol=CLOSE, atol=CLOSE))
        if off.size:
            at = int(off[0])
            raise ConfigError(
                f"{self.name}: a step gave the reward {reward[at]:g}, but compute_reward "
                f"gives {computed[at]:g} for its goals; rewards must be a function of achieved and "
                f"desired goal alone; {_CURE}, and drop wrappers that change rewards "
                "(env.reward_scale and env.reward_clip may be used)"
            )

    def close(self) -> None:
        with named_errors(self.name, "close"):
            self.env.close()


_CURE = "correct the environment, or set replay.hindsight=0"


def _play(env: Env) -> tuple[Array, Array, Floats]:
    """Steps an environment with random actions, to test its `compute_reward`.

    Returns achieved goals [B, ...], desired goals and rewards [B] after each of B steps.
    """
    env.action_space.seed(0)
    env.reset(seed=0)
    steps, over = [], False
    for _ in range(TRIAL):
        if over:
            env.reset()
        obs, reward, terminated, truncated, _ = env.step(env.action_space.sample())
        over = terminated or truncated
        steps.append((np.array(obs[LEAVES[1]]), np.array(obs[LEAVES[2]]), float(reward)))
    achieved, desired, rewards = zip(*steps, strict=True)
    return np.stack(achieved), np.stack(desired), np.array(rewards)


def _goal_spaces(name: str, env: Env) -> tuple[Any, Any]:
    """Returns the spaces of an environment's achieved and desired goals.

    Raises `ConfigError` if its observations do not contain goals, or the two spaces differ.
    """
    space = env.observation_space
    there = tuple(space.spaces) if isinstance(space, spaces.Dict) else ()
    if not isinstance(space, spaces.Dict) or not set(LEAVES) <= set(there):
        raise ConfigError(
            f"replay.hindsight needs goals, and {name} observes "
            f"{', '.join(there) if there else space}; a goal environment observes a Dict with "
            f"{', '.join(LEAVES)}; use one, or set replay.hindsight=0"
        )
    achieved, desired = space[LEAVES[1]], space[LEAVES[2]]
    if not _alike(achieved, desired):
        raise ConfigError(
            f"{name}: achieved goals are {achieved}, desired ones {desired}; what was achieved "
            "must be something that can be desired; give both the same space, not a Dict"
        )
    return achieved, desired


def _alike(achieved: Any, desired: Any) -> bool:
    """Returns whether two goal spaces are equal; in float Boxes only the bounds may differ.

    Returns False for Dict spaces, which are not supported as goals.
    """
    both = (achieved, desired)
    if all(isinstance(space, spaces.Box) and space.dtype.kind == "f" for space in both):
        return bool(achieved.shape == desired.shape and achieved.dtype == desired.dtype)
    return not isinstance(achieved, spaces.Dict) and bool(achieved == desired)


def _compute_reward(name: str, env: Env) -> Any:
    try:
        return env.get_wrapper_attr("compute_reward")
    except AttributeError:
        raise ConfigError(
            f"{name} has no compute_reward(achieved_goal, desired_goal, info); give it one that "
            "takes many goals at once, or set replay.hindsight=0"
        ) from None


def _brief(reward: Array) -> str:
    return f"shape {reward.shape}" if np.isfinite(reward).all() else "a reward that is not finite"
