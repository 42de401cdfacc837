"""Stable-Baselines3's algorithms, built from settings; needs the extra `sb3`.

    model = build(config, environments(config, None, 1), capacity=100_000, device=device, seed=3)
    policy = Sb3Policy(config, codec, None)      # for the evaluator

Files that SB3 has saved are never loaded here, since they hold pickles.
"""

import contextlib
import warnings
from collections.abc import Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import stable_baselines3
import torch
from gymnasium import spaces
from gymnasium.spaces.utils import flatdim
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv
from torch import nn

from rookery.algorithms import Acted, Algorithm
from rookery.checkpoints.load_weights import read_weights
from rookery.config.load import load_run
from rookery.config.schema import SB3_OFF_POLICY, Config
from rookery.envs.lookup import Env, find
from rookery.envs.make import Factory
from rookery.envs.spaces import SpaceCodec, spec_of
from rookery.errors import CheckpointError, ConfigError, RookeryError
from rookery.files import advice_on, replacing
from rookery.networks.named_arrays import load_arrays
from rookery.runtime import machine
from rookery.sharing import sample_counts
from rookery.types import MASK, Obs

FLAGS = 12  # bytes of a row's reward, done and timeout
UNUSED = 1  # replay capacity of a model that only acts
NOT_SAVED = ["replay_buffer_class", "replay_buffer_kwargs"]  # so that SB3 alone can open the file


def environments(config: Config, factory: Factory | None, num: int) -> VecEnv:
    """Makes SB3's `DummyVecEnv` of `num` environments, each with SB3's `Monitor` wrapper.

    Raises ConfigError for environments that SB3 cannot use: those that exist only as vector
    environments, or number their discrete actions from another number than 0.
    """
    entry = find(config.env, factory)
    if entry.one is None:
        raise ConfigError(
            f"{entry.name} exists only as a vector environment, and SB3 steps single ones; "
            "register an entry_point for it, or use backend rookery"
        )
    one = entry.one

    def monitored() -> Env:
        return Monitor(one())

    envs = DummyVecEnv([monitored] * num)
    actions = envs.action_space
    if isinstance(actions, spaces.Discrete) and actions.start != 0:
        envs.close()
        raise ConfigError(
            f"the action space is {actions}, and SB3 numbers actions from 0; wrap the environment, "
            "or use backend rookery"
        )
    return envs


def build(
    config: Config,
    envs: VecEnv,
    *,
    capacity: int,
    device: torch.device,
    seed: int | None,
    replay: Mapping[str, Any] | None = None,
) -> BaseAlgorithm:
    """Builds an SB3 algorithm from settings.

    `replay` has `replay_buffer_class` and `replay_buffer_kwargs` of a replay buffer that is shared
    with other runs. Without it, SB3's own buffer is used. Raises ConfigError if SB3 refuses the
    settings.
    """
    section, name = config.sb3, config.sb3.algorithm
    assert name is not None, "checked with the settings"
    given = _converted(section.kwargs, envs)
    if name in SB3_OFF_POLICY:
        given |= {"buffer_size": capacity, **(replay or {})}
    if replay and given.get("n_steps", 1) > 1:  # SB3 does not pass them to other buffers
        horizon = {"n_steps": given.pop("n_steps"), "gamma": given.get("gamma", 0.99)}
        given["replay_buffer_kwargs"] = given["replay_buffer_kwargs"] | horizon
    try:
        model: BaseAlgorithm = getattr(stable_baselines3, name)(
            section.policy, envs, seed=seed, device=device, verbose=0, **given
        )
    except RookeryError:  # raised by Rookery's replay buffer
        raise
    except (TypeError, ValueError, AssertionError, NotImplementedError) as error:
        raise ConfigError(
            f"SB3's {name} cannot be built for {config.env.id}: {error}; "
            "check sb3.kwargs, sb3.policy and the environment"
        ) from error
    model.set_logger(Logger(folder=None, output_formats=[]))  # SB3's default makes a folder in /tmp
    return model


def refuse_what_cannot_fit(config: Config, envs: VecEnv) -> None:
    """Raises `ConfigError` if the replay buffer does not fit into the free memory."""
    if config.sb3.algorithm not in SB3_OFF_POLICY:
        return
    obs = flatdim(envs.observation_space) * np.dtype(envs.observation_space.dtype or "f4").itemsize
    need = config.replay.capacity * (2 * obs + 4 * flatdim(envs.action_space) + FLAGS)
    free = machine.memory().free
    if need > free:
        raise ConfigError(
            f"SB3's replay needs {need >> 20} MiB of memory, {free >> 20} MiB are available; "
            f"lower replay.capacity ({config.replay.capacity})"
        )


def refuse_masks(config: Config, envs: VecEnv) -> None:
    """Raises `ConfigError` for environments with action masks, which SB3 ignores."""
    if spec_of(config.env.id, envs.observation_space, envs.action_space).masked:
        raise ConfigError(
            f"{config.env.id} has an action mask {MASK!r}, which SB3's {config.sb3.algorithm} "
            "ignores; use backend=rookery, or leave the mask out with FilterObservation in "
            "env.wrappers if a forbidden action does no harm"
        )


def save(model: BaseAlgorithm, path: Path) -> None:
    """Saves a model atomically as SB3's zip file, which SB3 can load without Rookery."""
    try:
        with replacing(path) as scratch, open(scratch, "wb") as file:
            model.save(file, exclude=NOT_SAVED)
    except OSError as error:
        raise CheckpointError(
            f"{path} could not be written: {error}; {advice_on(error, path.parent)}, and start the "
            "run again"
        ) from error


def load_weights(model: BaseAlgorithm, config: Config, run_dir: Path) -> None:
    """Loads the best weights of another run of the same SB3 algorithm into a model's policy."""
    before = load_run(run_dir)
    if before.algorithm != config.algorithm:
        raise ConfigError(
            f"{run_dir} was trained with {before.algorithm}, and --init-from needs the weights of "
            f"{config.algorithm}; name a run of it"
        )
    load_arrays(model.policy, read_weights(run_dir, "best").arrays)


@contextlib.contextmanager
def pooled_replay(config: Config, run_id: str) -> Iterator[dict[str, Any]]:
    """Context in which a run is a member of the pool `sharing.pool`.

    A pool is a set of replay buffers that runs share. Yields the constructor arguments of an SB3
    algorithm that make it use its buffer in the pool; they are empty without a pool or for an
    on-policy algorithm.
    """
    sharing, name = config.sharing, config.sb3.algorithm
    if sharing.pool is None or name not in SB3_OFF_POLICY:
        yield {}
        return
    from rookery.sb3.shared_buffer import DistributedReplayBuffer
    from rookery.sharing.registry import open_pool

    registry = open_pool(config)
    try:
        buffer_id = registry.register_buffer(
            run_id=run_id, algorithm=name, reward_tag=sharing.reward_tag, env=config.env.id
        )
        kwargs = {
            "registry": registry,
            "buffer_id": buffer_id,
            "sample_strategy": sharing.strategy.value,
            "cross_sample_ratio": sharing.cross_sample_ratio,
        }
        yield {"replay_buffer_class": DistributedReplayBuffer, "replay_buffer_kwargs": kwargs}
    finally:
        registry.stop()


def metrics(model: BaseAlgorithm) -> dict[str, float | None]:
    """Returns the newest values of SB3's logger, the fill of replay, and what was shared."""
    noted: dict[str, Any] = model.logger.name_to_value
    replay: Any = getattr(model, "replay_buffer", None)
    shared = replay.get_stats() if hasattr(replay, "get_stats") else None
    return {
        "replay/fill": 0.0 if replay is None else replay.size() / replay.buffer_size,
        "rollout/exploration_rate": None,  # algorithms with action noise have none
        **{key: float(value) for key, value in noted.items()},
        **(sample_counts.sharing_metrics(shared) if shared else {}),
    }


class Sb3Policy(Algorithm):
    """Adapter of SB3's policy to `Algorithm`, the base class of Rookery's RL algorithms.

    The evaluation process acts greedily with it.
    """

    def __init__(self, config: Config, codec: SpaceCodec, factory: Factory | None):
        envs = environments(config, factory, 1)
        self._codec, self._space = codec, envs.action_space
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the training process has warned already
            model = build(config, envs, capacity=UNUSED, device=torch.device("cpu"), seed=None)
        self._policy = model.policy
        self._slips: float = getattr(model, "exploration_final_eps", 0.0)  # of DQN
        self.acting: nn.Module = model.policy
        envs.close()

    def act(self, obs: Obs, rng: np.random.Generator, **how: Any) -> Acted:
        """Returns the actions for a batch of observations, one per environment.

        They are greedy, or with `noise` those of SB3's exploration at the end of training, without
        the action noise of TD3 and DDPG.
        """
        noise = how.get("noise", False)
        action, _ = self._policy.predict(self._codec.decode(obs), deterministic=not noise)
        if noise and isinstance(self._space, spaces.Discrete):
            slips = rng.random(len(action)) < self._slips
            action[slips] = rng.integers(self._space.n, size=int(slips.sum()))
        if isinstance(self._space, spaces.Box):
            action = self._policy.scale_action(action)
        return Acted(action)


def _converted(kwargs: Mapping[str, Any], envs: VecEnv) -> dict[str, Any]:
    """Converts `train_freq` and `action_noise` in `sb3.kwargs` from YAML to SB3's types."""
    given = deepcopy(dict(kwargs))  # SB3 changes policy_kwargs
    if isinstance(given.get("train_freq"), list):
        given["train_freq"] = tuple(given["train_freq"])
    if given.get("action_noise") is not None:
        given["action_noise"] = _noise(given["action_noise"], envs.action_space)
    return given


def _noise(deviation: Any, actions: spaces.Space[Any]) -> NormalActionNoise:
    if isinstance(deviation, bool) or not isinstance(deviation, int | float) or deviation < 0:
        raise ConfigError(
            f"sb3.kwargs.action_noise is {deviation!r}; it must be a number, the standard "
            "deviation of normal noise in actions scaled to -1 to 1; write 0.1"
        )
    shape = actions.shape or (1,)
    return NormalActionNoise(mean=np.zeros(shape), sigma=deviation * np.ones(shape))
