"""The agent that `train_dqn` returns: a learner and its replay, without any worker.

    agent = DqnAgent.new("CartPole-v1", settings={"net.hidden": [64]})
    for trajectory in rollout_worker(agent.policy(), episodes=4, epsilon=0.3):
        agent.add_trajectory_to_buffer(trajectory)
    agent.learn(16)
    agent.save("runs/agent")                      # runs/agent.safetensors
    agent = DqnAgent.open("runs/agent")

A file holds every network, the optimizer and the settings: named arrays, and JSON in the header.
The replay is not in it. Nothing that is read is ever unpickled.
"""

import contextlib
import json
import os
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as save_arrays

from rookery import __version__
from rookery.actor import transport
from rookery.board import Board
from rookery.config.load import as_dict, load
from rookery.config.schema import Config, Pick
from rookery.envs.games.interface import Who
from rookery.envs.spaces import Codec
from rookery.envs.tables import OPPONENT, PLAYED
from rookery.errors import CheckpointError, ConfigError
from rookery.event import Episode
from rookery.loops.hops import count, learn, take_in
from rookery.loops.rollout import NONE, InferencePolicy, Recipe, checked, recipe
from rookery.loops.trajectory import Trajectory, as_trajectory, rows_of
from rookery.loops.wiring import Parts, wire
from rookery.manage.checkpoint import scratch_name, write_synced
from rookery.nets.arrays import load_arrays
from rookery.replay.pool import Pool
from rookery.replay.ring import Ring
from rookery.selfplay.opponents import OpponentManager
from rookery.types import Array

FORMAT = 1
SUFFIX = ".safetensors"
HEADER = "rookery"  # the entry of the file's header that holds our JSON
NOBODY = -1  # the incarnation of rows that no actor of a run wrote
RATE = "selfplay/win_rate_"
ALONE: dict[str, Any] = {  # an agent has no actors, and nobody to play against
    "run.mode": "sync",
    "run.engine": "inline",
    "actor.num": 1,
    "learner.publish_period": 1 << 62,
    "selfplay.opponents": {},
    "selfplay.league": False,
}


class Saved(NamedTuple):
    """What a file holds."""

    config: Config
    numbers: dict[str, Any]
    arrays: dict[str, Array]


class DqnAgent:
    """Learns from episodes that it is given; acts, saves, loads."""

    def __init__(
        self, parts: Parts, made_from: Recipe, codec: Codec, returns: list[float] | None = None
    ):
        """Takes over a run's parts, whose crew is gone."""
        self.recipe, self.codec = made_from, codec
        self.returns = returns or []  # of every episode, in the order they were learned from
        self.win_rates = _win_rates(parts.opponents)  # in training, by the kind of opponent
        parts.opponents = None  # it plays no games any more
        self._parts = parts
        self._acting = InferencePolicy(made_from, parts.spec, codec)
        self._stale = True  # the learner's weights are newer than those that act
        self._episodes = 0  # that came as trajectories
        config = parts.config.actor
        self._ring = transport(parts.spec, config, index=0, incarnation=NOBODY)
        assert isinstance(parts.pool, Pool), "an agent has one shard"
        parts.pool.transports = [self._ring]
        weakref.finalize(self, _release, parts.pool, parts.board, self._ring)

    @classmethod
    @checked
    def new(cls, env: Any = "CartPole-v1", *, settings: Mapping[str, Any] = NONE) -> "DqnAgent":
        """Makes an agent that has learned nothing. `settings` go by their dotted names."""
        shown = recipe(env, {**settings, **ALONE}).shown()
        lanes = 1 if shown.tables is None else shown.tables.seats
        made_from = recipe(env, {**settings, **ALONE, "actor.envs": lanes})
        parts = wire(made_from.config, factory=made_from.factory)
        parts.crew.close()
        return cls(parts, made_from, shown.codec)

    @classmethod
    @checked
    def open(cls, path: str | Path, env: Any = None) -> "DqnAgent":
        """Makes an agent as it was saved, with an empty replay.

        `env` is needed where the environment was given from Python and has no name to find it by.
        """
        saved = read(path)
        agent = cls.new(saved.config.env.id if env is None else env, settings=_sections(saved))
        agent._restore(saved)
        return agent

    @property
    def config(self) -> Config:
        return self._parts.config

    @property
    def learner_steps(self) -> int:
        return self._parts.learner.learner_steps

    @property
    def weights_sha256(self) -> str:
        """A fingerprint: equal for equal weights."""
        return self._parts.learner.weights_sha256()

    def get_weights(self) -> dict[str, Array]:
        """Returns a copy of the weights that act, by name."""
        return {name: array.copy() for name, array in self._parts.learner.weights().items()}

    @checked
    def set_weights(self, weights: Mapping[str, Any]) -> None:
        """Goes on from these weights; the target network takes them too."""
        algorithm = self._parts.learner.algorithm
        load_arrays(algorithm.acting, weights)
        algorithm.settle(0)
        self._stale = True

    @checked
    def act(self, obs: Any, epsilon: float = 0.0) -> Any:
        """Returns the action for one observation; random with probability `epsilon`."""
        if self._stale:
            self._acting.set_weights(self._parts.learner.weights())
            self._stale = False
        return self._acting.act(obs, epsilon)

    def reset(self) -> None:
        """Forgets the frames of the episode before, where frames are stacked."""
        self._acting.reset()

    def policy(self) -> InferencePolicy:
        """Returns a policy of its own with these weights, to act elsewhere."""
        policy = InferencePolicy(self.recipe, self._parts.spec, self.codec)
        policy.set_weights(self._parts.learner.weights())
        return policy

    @checked
    def add_trajectory_to_buffer(self, trajectory: Trajectory | Mapping[str, Any]) -> None:
        """Puts one episode into replay. A mapping needs the names of `Trajectory`."""
        given = as_trajectory(trajectory)
        self._refuse_what_actors_add()
        rows = rows_of(given, self._parts.spec, self.codec, self.config.env)
        common = {"env": 0, "episode": self._episodes, "version": self._parts.board.version}
        if PLAYED in self._parts.spec.extras:
            common[OPPONENT] = Who.RANDOM  # a trajectory does not say who it was
        for first in range(0, given.env_steps + 1, self._ring.capacity):
            piece = {name: a[first : first + self._ring.capacity] for name, a in rows.items()}
            self._ring.put(len(piece["end"]), piece | common)
            take_in(self._parts)
        self._episodes += 1
        self.returns.append(given.score)
        ended = [Episode(given.score, given.env_steps)]
        count(self._parts, given.env_steps, ended, epsilon=0.0, version=0)

    def _refuse_what_actors_add(self) -> None:
        if extras := [extra.name for extra in self._parts.spec.extras if extra != PLAYED]:
            raise ConfigError(
                f"trajectories have no {', '.join(extras)}, which actors "
                f"write for algo.name {self.config.algo.name}; use dqn here, or rookery.train"
            )

    @checked
    def learn(self, learner_steps: int = 1) -> float:
        """Takes so many gradient steps and returns their mean loss; nan if all were skipped."""
        learned = [learn(self._parts).facts.metrics for _ in range(learner_steps)]
        self._stale = True
        losses = [float(metrics["loss"]) for metrics in learned if metrics]  # waits for the device
        return float(np.mean(losses)) if losses else float("nan")

    @checked
    def save(self, path: str | Path) -> Path:
        """Writes the agent, and returns the file's path.

        A path without an extension gets `.safetensors`; folders on the way to it are made.
        """
        numbers, arrays = self._parts.learner.state()
        header = {
            "format": FORMAT,
            "rookery": __version__,
            "config": as_dict(self.config),
            "learner": numbers,
        }
        return write(path, header, arrays)

    @checked
    def load(self, path: str | Path) -> None:
        """Takes over networks and optimizer from a file that an agent like this one saved."""
        saved = read(path)
        ours, theirs = self.config.learner.optimizer, saved.config.learner.optimizer
        if ours is not theirs:
            raise CheckpointError(
                f"{path} was saved with the optimizer {theirs}, this agent has {ours}; "
                "make the agent it was: DqnAgent.open(path)"
            )
        self._restore(saved)

    def _restore(self, saved: Saved) -> None:
        self._parts.learner.restore(saved.numbers, saved.arrays)
        self._stale = True


def _win_rates(opponents: OpponentManager | None) -> dict[str, float]:
    found = {} if opponents is None else opponents.stats()
    return {pick.value: found[RATE + pick] for pick in Pick if RATE + pick in found}


def _sections(saved: Saved) -> dict[str, Any]:
    return {key: value for key, value in as_dict(saved.config).items() if key != "name"}


def _release(pool: Pool, board: Board, ring: Ring) -> None:
    for part in (pool, board, ring):
        part.close()


def write(path: str | Path, header: Mapping[str, Any], arrays: Mapping[str, Array]) -> Path:
    """Writes a file whole or not at all."""
    target = _named(path)
    scratch = scratch_name(target)
    try:
        text = json.dumps(header)
        raw = save_arrays(
            {k: np.require(a, requirements="C") for k, a in arrays.items()}, {HEADER: text}
        )
        target.parent.mkdir(parents=True, exist_ok=True)
        write_synced(scratch, raw)
        os.replace(scratch, target)
    except (OSError, TypeError) as error:
        with contextlib.suppress(OSError):
            scratch.unlink()
        raise CheckpointError(
            f"{target} could not be written: {error}; choose a path that can be, and settings that "
            "JSON can hold"
        ) from error
    return target


def read(path: str | Path) -> Saved:
    """Reads what `write` wrote. Anything else is a CheckpointError that says what it is not."""
    file = _named(path)
    try:
        with safe_open(file, framework="numpy") as opened:
            header = json.loads((opened.metadata() or {})[HEADER])
            arrays = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
        if header["format"] != FORMAT:
            raise CheckpointError(
                f"{file} has format {header['format']}, written by Rookery {header['rookery']}; "
                f"Rookery {__version__} reads format {FORMAT}: use the release that wrote it"
            )
        return Saved(load(changes=header["config"]), dict(header["learner"]), arrays)
    # RecursionError: a header of ten thousand brackets
    except (OSError, SafetensorError, LookupError, TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{file} cannot be read as an agent ({type(error).__name__}: {error}); "
            "give a file that DqnAgent.save wrote"
        ) from error


def _named(path: str | Path) -> Path:
    file = Path(path)
    return file if file.suffix else file.with_name(file.name + SUFFIX)
