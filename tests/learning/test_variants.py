"""Every way to put a learner together finds the way through a corridor."""

from pathlib import Path
from typing import Any

import pytest
from torch import Tensor, nn

from rookery.envs.toy.basic import Corridor
from rookery.types import EnvSpec
from short_trainings import CONTROL, CORRIDOR, reaches

pytestmark = pytest.mark.learning

OPTIMUM = Corridor().optimal_return


class TwoRooms(nn.Module):
    """A user's own network."""

    def __init__(self, spec: EnvSpec, outputs: int, width: int = 16):
        super().__init__()
        self.stack = nn.Sequential(
            nn.Linear(spec.obs[0].shape[0], width), nn.Tanh(), nn.Linear(width, outputs)
        )

    def forward(self, obs: Tensor) -> Tensor:
        return self.stack(obs)  # type: ignore[no-any-return]


VARIANTS: dict[str, dict[str, Any]] = {
    "one step": {"algo.n_step": 1},
    "five steps, prioritised": {"algo.n_step": 5, "replay.sampling": "prioritized"},
    "ranked by actors": {"replay.sampling": "prioritized", "replay.initial_priority": "actor"},
    "not double": {"algo.double": False},
    "dueling": {"algo.dueling": True},
    "polyak": {"algo.target_tau": 0.02},
    "normalised observations": {"env.normalize_obs": True},
    "normalised rewards": {"env.normalize_reward": True},
    "scaled rewards": {"env.reward_scale": 10.0, "env.reward_clip": 5.0},
    "rmsprop": {"learner.optimizer": "rmsprop"},
    "one environment": {"actor.envs": 1, "actor.chunk": 16},
    "small replay": {"replay.capacity": 400},
    "own network": {"net.custom": "test_variants:TwoRooms", "net.kwargs": {"width": 24}},
    "replay on disk": {"replay.storage": "disk"},
}


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_every_variant_solves_it(variant: dict[str, Any], tmp_path: Path) -> None:
    """Two of two seeds whose first networks do not solve it: see the controls."""
    for seed in (1, 2):
        assert reaches(CORRIDOR | variant, OPTIMUM, seed, tmp_path)


@pytest.mark.parametrize("name", ["dueling", "normalised observations", "own network"])
def test_no_network_among_them_solves_it_without_learning(name: str, tmp_path: Path) -> None:
    """The same two seeds; the others begin with the networks of `test_corridor`'s control."""
    for seed in (1, 2):
        assert not reaches(CORRIDOR | VARIANTS[name] | CONTROL, OPTIMUM, seed, tmp_path)
