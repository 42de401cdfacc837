"""Parameters side by side: the same network, in one piece."""

import pytest
import torch
from torch import nn

from rookery.errors import ConfigError
from rookery.learner.learner import FlatParameters


def network() -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def test_the_network_computes_what_it_did() -> None:
    one, other, x = network(), network(), torch.ones(5, 3)
    FlatParameters(list(one.parameters()))

    assert torch.equal(one(x), other(x))


@pytest.mark.parametrize("alone", [True, False])
def test_the_gradient_is_that_of_the_parameters_and_does_not_pile_up(alone: bool) -> None:
    one, other, x = network(), network(), torch.ones(5, 3)
    flat = FlatParameters(list(one.parameters()), alone=alone)
    for _ in range(2):
        norm = flat.descend(one(x).square().sum())
    other(x).square().sum().backward()

    theirs = torch.cat([p.grad.reshape(-1) for p in other.parameters() if p.grad is not None])
    assert torch.equal(flat.grad, theirs)
    assert norm.item() == pytest.approx(theirs.norm().item())


def test_others_that_a_loss_goes_through_get_no_gradient() -> None:
    ours, theirs = network(), nn.Linear(2, 1)

    FlatParameters(list(ours.parameters())).descend(theirs(ours(torch.ones(5, 3))).sum())

    assert all(parameter.grad is None for parameter in theirs.parameters())


def test_a_change_of_the_whole_is_a_change_of_its_parts() -> None:
    one = network()
    flat = FlatParameters(list(one.parameters()))
    with torch.no_grad():
        flat.data.fill_(0.5)

    assert all(bool((p == 0.5).all()) for p in one.parameters())


def test_a_mixture_of_dtypes_is_refused() -> None:
    mixed = [nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(2, dtype=torch.float64))]

    with pytest.raises(ConfigError, match=r"float32 on cpu, torch\.float64 on cpu"):
        FlatParameters(mixed)
