"""Learners that share their batches, small enough for a unit test, and one that learns alone."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from rookery.algorithms import build_algorithm
from rookery.algorithms.algorithm import Loss
from rookery.config.schema import Config, EnvConfig, LearnerConfig, NetConfig, ReplayConfig
from rookery.learner.data_parallel.leader import LeaderLearner
from rookery.learner.learner import Learner
from rookery.types import ActionSpec, Batch, EnvSpec, Leaf, LeafKind
from scripted_roles import flat_spec
from user_algorithm import Rewarded

ROWS, WIDTH = 8, 3
CHOICE = flat_spec(WIDTH, 3)
MOTION = EnvSpec(
    "arm",
    (Leaf("", (WIDTH,), "float32", LeafKind.VECTOR),),
    ActionSpec(shape=(2,), low=(-1.0, -1.0), high=(1.0, 1.0)),
)
UNLUCKY = 13.0  # a reward


def free_place() -> str:
    """Returns an address of this machine without a listener."""
    with socket.create_server(("127.0.0.1", 0)) as door:
        return f"127.0.0.1:{door.getsockname()[1]}"


def settings(
    algo: Any, *, learners: int = 2, net: Any = None, env: Any = None, **learner: Any
) -> Config:
    """Returns settings of gradient descent: Adam would make much of the last bit."""
    given = {"optimizer": "sgd", "lr": 0.05, "max_grad_norm": 0.5, "device": "cpu"} | learner
    return Config(
        algo=algo,
        net=NetConfig(**(net or {"hidden": (8,), "memory": 4})),
        env=EnvConfig(**(env or {})),
        replay=ReplayConfig(batch_size=ROWS, learning_starts=1_000),
        learner=LearnerConfig(replicas=learners, **given),
    )


def alone(config: Config, spec: EnvSpec = CHOICE, kind: type[Learner] = Learner) -> Any:
    """Returns the learner of a run; without others, whatever the settings say."""
    made = kind(build_algorithm(config, spec), config.learner, config.env, torch.device("cpu"))
    made.algorithm.update_targets(0)
    return made


@contextmanager
def together(config: Config, spec: EnvSpec = CHOICE) -> Iterator[LeaderLearner]:
    """Gives the first of several learners; the others are where the engine puts them."""
    lead: LeaderLearner = alone(config, spec, LeaderLearner)
    try:
        lead.start_followers(config, spec)
        lead.connect()
        yield lead
    finally:
        lead.close()


def batch(seed: int, spec: EnvSpec = CHOICE, **changes: Any) -> Batch:
    """Returns a batch as a pool draws it."""
    rng = np.random.default_rng(seed)
    action = spec.action
    made = Batch(
        obs=rng.normal(size=(ROWS, WIDTH)).astype(np.float32),
        action=rng.integers(action.n, size=ROWS)
        if action.discrete
        else rng.uniform(-1, 1, size=(ROWS, *action.shape)).astype(np.float32),
        reward=rng.normal(size=ROWS).astype(np.float32),
        discount=np.where(np.arange(ROWS) % 4, 0.9, 0.0).astype(np.float32),
        next_obs=rng.normal(size=(ROWS, WIDTH)).astype(np.float32),
        weight=rng.uniform(0.2, 1.0, size=ROWS).astype(np.float32),
        rows=np.arange(ROWS),
    )
    return made._replace(**changes)


def sequences(seed: int, length: int, **extras: Any) -> Batch:
    """Returns stretches that end after 1 step, 2, ...: the slices of them differ in steps."""
    rng = np.random.default_rng(seed)
    mask = (np.arange(length) < 1 + np.arange(ROWS)[:, None]).astype(np.float32)
    return batch(seed)._replace(
        obs=rng.normal(size=(ROWS, length + 1, WIDTH)).astype(np.float32),
        action=rng.integers(3, size=(ROWS, length)),
        reward=(rng.normal(size=(ROWS, length)) * mask).astype(np.float32),
        discount=(0.9 * mask).astype(np.float32),
        next_obs=None,
        mask=mask,
        extras=extras,
    )


class Counting(nn.Module):
    """A network with statistics of its own, which every forward pass changes."""

    def __init__(self, spec: EnvSpec, outputs: int):
        super().__init__()
        self.norm, self.out = nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, outputs)

    def forward(self, obs: Any) -> Any:
        return self.out(self.norm(obs))


class Superstitious(Rewarded):
    """Fails at the sight of one reward."""

    def losses(self, batch: Batch, *, step: int, rng: torch.Generator) -> Iterator[Loss]:
        if bool((batch.reward == UNLUCKY).any()):
            raise ArithmeticError("thirteen")
        yield from super().losses(batch, step=step, rng=rng)
