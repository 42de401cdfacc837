"""Federated averaging: clients that each meet half of the cues learn together to repeat them all.

A client's rows never leave it, so whatever it knows of the other half came with the parameters.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

from rookery.config.load import load
from rookery.envs.toy.basic import Echo
from rookery.networks.forward import tensors
from rookery.server.advertised_settings import Notice, Sharing, portable, settings_of
from rookery.server.federated import FederatedParameterServer
from rookery.server.gradient_worker import Update
from rookery.server.run_client import RoundLearner
from rookery.types import Array, Floats
from short_trainings import CONTROL, ECHO

pytestmark = pytest.mark.learning

CUES = 4
HALVES = {"low": [0, 1], "high": [2, 3]}
ROUNDS, ROUND_STEPS = 5, 250
SEEDS = 2


class Part(Echo):
    """Echo that only ever shows some of the cues."""

    def __init__(self, cues: list[int]) -> None:
        super().__init__(CUES)
        self.cues = cues

    def _next_cue(self) -> Floats:
        self.cue = int(self.np_random.choice(self.cues))
        return np.eye(self.classes, dtype=np.float32)[self.cue]


@contextmanager
def learner(cues: list[int], seed: int, steps: int, **more: Any) -> Iterator[RoundLearner]:
    env = {"env.id": f"{__name__}:Part", "env.kwargs": {"cues": cues}}
    config = portable(load("corridor", changes={**ECHO, **env, **more, "run.seed": seed}))
    one = RoundLearner(config, Notice(Sharing.FEDERATED, settings_of(config), steps, 30.0, None))
    try:
        yield one
    finally:
        one.close()


def parameters(one: RoundLearner) -> dict[str, Any]:
    return {name: p.detach().numpy().copy() for name, p in one.trained.items()}


def trained(one: RoundLearner, served: Mapping[str, Array]) -> Update:
    one.load(served, 0)
    while (update := one.step()) is None:
        pass
    return update


def repeated(one: RoundLearner) -> list[int]:
    """Returns the cues that its policy repeats, greedily."""
    algorithm = one.parts.learner.algorithm
    cues = tensors(np.eye(CUES, dtype=np.float32), torch.device("cpu"))
    q = algorithm.acting(cues).detach().numpy()  # [cue, action]
    return [cue for cue in range(CUES) if q[cue].argmax() == cue]


def together(seed: int, **more: Any) -> list[int]:
    """Trains both halves in rounds; returns what the last version repeats."""
    with (
        learner(HALVES["low"], 10 + seed, ROUND_STEPS, **more) as low,
        learner(HALVES["high"], 20 + seed, ROUND_STEPS, **more) as high,
    ):
        server = FederatedParameterServer(parameters(low), deadline_s=1e6)
        clients = {"low": low, "high": high}
        for name in clients:
            server.register_worker(name)
        for version in range(ROUNDS):
            served = server.get_parameters()
            assert served is not None
            for name, client in clients.items():
                update = trained(client, served.arrays)
                server.push_gradients(name, update.arrays, update.weight, version=version)
        final = server.get_parameters()
        assert final is not None
        low.load(final.arrays, 0)
        return repeated(low)


def alone(half: str, seed: int) -> list[int]:
    """Trains one half for as many steps as both had together."""
    with learner(HALVES[half], seed, 2 * ROUNDS * ROUND_STEPS) as one:
        trained(one, parameters(one))
        return repeated(one)


def test_together_they_repeat_what_each_alone_has_never_seen() -> None:
    """30 of 30 seeds did when the settings were chosen."""
    everything = list(range(CUES))

    assert [together(seed) for seed in range(SEEDS)] == [everything] * SEEDS


@pytest.mark.parametrize("half", sorted(HALVES))
def test_alone_a_client_learns_its_own_half_and_not_all(half: str) -> None:
    """With as many env steps as both had. In 40 tries one got a third cue, and none all four."""
    for seed in range(SEEDS):
        found = alone(half, seed)

        assert set(HALVES[half]) <= set(found)
        assert len(found) < CUES


def test_without_learning_averages_repeat_nothing_new() -> None:
    assert all(len(together(seed, **CONTROL)) < CUES for seed in range(SEEDS))
