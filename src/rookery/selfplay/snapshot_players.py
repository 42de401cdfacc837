"""Players of a game that act with the weights of a run's weight snapshots and checkpoints.

factory = PlayerFactory(load_run(run_dir))
for snapshot in taken(run_dir):
    player = factory.player(snapshot.read())
    player.act(obs, rng)                   # a batch, in the game's own form
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rookery.actors.policy import InferencePolicy, Recipe
from rookery.algorithms import Algorithm
from rookery.checkpoints.load_weights import pick_checkpoint
from rookery.config.schema import Config
from rookery.envs.make import Factory
from rookery.envs.nested import count
from rookery.envs.spaces import SpaceCodec
from rookery.envs.turn_based.game import MASK, among
from rookery.errors import CheckpointError, ConfigError
from rookery.networks.forward import tensors
from rookery.selfplay.snapshot_files import FOLDER, about, read_weights, reading, snapshots
from rookery.types import Array, Bools, EnvSpec, Floats

CHECKPOINTS = {"latest": "last", "best": "best"}  # name of the player → its checkpoint


@dataclass(frozen=True)
class PolicySnapshot:
    """A weight snapshot: stored weights of a policy, and the steps at which they were stored.

    `read` loads the weights from their file.
    """

    name: str  # v400, latest, best
    version: int
    learner_steps: int
    env_steps: int
    read: Callable[[], dict[str, Array]]


def taken(run_dir: Path) -> list[PolicySnapshot]:
    """Returns the weight snapshots that a run stored as self-play opponents, oldest first.

    Returns an empty list if there are none.
    """
    return [_taken(path) for _, path in snapshots(run_dir / FOLDER)]


def saved(run_dir: Path, name: str) -> PolicySnapshot:
    """Returns a run's checkpoint, `latest` or `best`, in the form of a weight snapshot."""
    found = pick_checkpoint(run_dir, CHECKPOINTS[name])
    counters = found.manifest["about"]["counters"]
    version = int(found.manifest["version"])
    return PolicySnapshot(name, version, counters["learner_steps"], found.env_steps, found.weights)


def find(run_dir: Path, name: str) -> PolicySnapshot:
    """Returns a run's weight snapshot by name: `latest`, `best`, or v and its version (`v400`).

    Raises `ConfigError` if the run has no snapshot of that name.
    """
    if name in CHECKPOINTS:
        return saved(run_dir, name)
    have = {snapshot.name: snapshot for snapshot in taken(run_dir)}
    if name not in have:
        raise ConfigError(
            f"{run_dir} has no snapshot {name!r}; it has {', '.join(have) or 'none'}, and its "
            "checkpoints latest and best; name one of them"
        )
    return have[name]


def _taken(path: Path) -> PolicySnapshot:
    with reading(path):
        metadata = about(path)
        return PolicySnapshot(
            name=f"v{metadata['version']}",
            version=metadata["version"],
            learner_steps=metadata["learner_steps"],
            env_steps=metadata["env_steps"],
            read=partial(read_weights, path),
        )


class PlayerFactory:
    """Makes players of a game from policy weights, with the settings of a training run.

    Recurrent policies and stacked frames are refused with `ConfigError`.
    """

    def __init__(self, config: Config, factory: Factory | None = None):
        self.config, self._recipe = config, Recipe(config, factory)

    @cached_property
    def _spaces(self) -> tuple[EnvSpec, SpaceCodec]:
        spec, codec = self._recipe.spaces()
        if spec.frame_stack > 1 or self.config.algo.remembers:
            raise ConfigError(
                f"the policy of this run has memory (env.frame_stack is {spec.frame_stack}, "
                f"algo.name {self.config.algo.name}); in matches players see single observations; "
                "train a policy without frame stacks or recurrence"
            )
        return spec, codec

    def player(self, arrays: Mapping[str, Array]) -> "SnapshotPlayer":
        """Returns a player that acts with the weights `arrays`.

        Raises an error if they are the weights of another network than the run's.
        """
        policy = InferencePolicy(self._recipe, *self._spaces)
        policy.set_weights(arrays)
        return SnapshotPlayer(policy)


class SnapshotPlayer:
    """Player that acts greedily with the weights of a past policy, which do not change.

    Among actions of equal value it chooses at random.
    """

    def __init__(self, policy: InferencePolicy):
        self._algorithm, self._codec = policy.algorithm, policy.codec
        own = type(policy.algorithm).scores is not Algorithm.scores
        self._compares = own and policy.spec.action.discrete

    def act(self, obs: Any, rng: np.random.Generator) -> Array:
        stored = self._codec.encode(obs, count(obs))
        if not self._compares:
            acted = self._algorithm.act(stored, rng, noise=False)
            return self._codec.decode_action(acted.action)
        with torch.inference_mode():
            scores = self._algorithm.scores(tensors(stored, torch.device("cpu")))[0].numpy()
        return self._codec.decode_action(self._best(scores, obs, rng))

    def _best(self, scores: Floats, obs: Any, rng: np.random.Generator) -> Array:
        if np.isnan(scores).any():
            raise CheckpointError(
                "a snapshot's network returns NaN: its weights have diverged; use an earlier one"
            )
        legal = allowed(obs, scores.shape[1])
        found = np.where(legal, scores, -np.inf)
        return among(legal & (found == found.max(1, keepdims=True)), rng)


def allowed(obs: Any, actions: int) -> Bools:
    """Returns the action masks of K observations, [K, actions]; all True if they have none."""
    if isinstance(obs, Mapping) and MASK in obs:
        mask: Bools = np.asarray(obs[MASK]) > 0
        return mask
    return np.ones((count(obs), actions), dtype=np.bool_)
