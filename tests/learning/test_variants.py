"""Every way to put a learner together finds the way through a corridor."""

from pathlib import Path
from typing import Any

import pytest
from torch import Tensor, nn

from rookery.envs.toy import Corridor
from rookery.types import EnvSpec
from schooling import CONTROL, CORRIDOR, train

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
    "five steps, prioritised": {"algo.n_step": 5, "replay.draw": "prioritized"},
    "ranked by actors": {"replay.draw": "prioritized", "replay.first_priority": "actor"},
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
        assert train(CORRIDOR | variant, seed, run_dir=tmp_path).optimal(OPTIMUM)


@pytest.mark.parametrize("name", ["dueling", "normalised observations", "own network"])
def test_no_network_among_them_solves_it_without_learning(name: str, tmp_path: Path) -> None:
    """The same two seeds, with a run just long enough to have learner steps.

    The other variants begin with the networks of `test_corridor`'s control.
    """
    brief = {"run.env_steps": 300}
    for seed in (1, 2):
        trained = train(CORRIDOR | VARIANTS[name] | CONTROL | brief, seed, run_dir=tmp_path)

        assert not trained.optimal(OPTIMUM)
