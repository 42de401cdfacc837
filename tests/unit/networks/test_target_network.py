"""Target networks: they follow, and see as their leaders do."""

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from rookery.config.schema import NetConfig
from rookery.networks.encoders import Features, Normalize, normalizers, observe
from rookery.networks.mlp import build
from rookery.networks.noisy import resample_noise
from rookery.networks.target_network import TargetNetwork
from rookery.types import ActionSpec, EnvSpec, Leaf, LeafKind

FLAT = EnvSpec("flat", (Leaf("", (7,), "float32", LeafKind.VECTOR),), ActionSpec(n=3))
X = torch.linspace(-1, 1, 14).view(2, 7)


@pytest.fixture(autouse=True)
def _seeded() -> Iterator[None]:
    """Initial weights come from torch's global generator; the one outside stays as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


class Twice(nn.Module):
    """Two networks that look through one pair of eyes."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = Features(FLAT, normalize=True), Features(FLAT, normalize=True)
        self.two.encoders[0].norm = self.one.encoders[0].norm


def leader(*, normalize: bool = False, noisy: bool = False) -> nn.Module:
    return build(NetConfig(hidden=(8,)), FLAT, 2, normalize=normalize, noisy=noisy)


def change(module: nn.Module) -> None:
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += 1.0


def test_a_follower_begins_equal_and_stays_behind() -> None:
    led = leader()
    follower = TargetNetwork(led)
    before = led(X).detach()

    change(led)

    assert torch.equal(follower.network(X), before)
    assert not torch.equal(led(X), before)
    assert not any(p.requires_grad for p in follower.network.parameters())


def test_following_goes_the_given_share_of_the_way() -> None:
    led = leader()
    follower = TargetNetwork(led)
    before = [p.clone() for p in follower.network.parameters()]
    change(led)

    follower.soft_update(0.25)

    for p, old in zip(follower.network.parameters(), before, strict=True):
        torch.testing.assert_close(p, old + 0.25)
        assert p.grad_fn is None


def test_copying_makes_equal() -> None:
    led = leader()
    follower = TargetNetwork(led)
    change(led)

    follower.copy()

    assert torch.equal(follower.network(X), led(X))


def test_running_statistics_are_the_leaders_own() -> None:
    led = leader(normalize=True)
    follower = TargetNetwork(led)

    observe(normalizers(led), {"": X * 3 + 1})

    assert torch.equal(follower.network(X), led(X))


def test_statistics_that_a_leader_shares_within_itself_are_shared_throughout() -> None:
    led = Twice()

    copied = TargetNetwork(led).network

    norms = [part for part in copied.modules() if isinstance(part, Normalize)]
    assert norms == [led.one.encoders[0].norm]
    assert copied.two.encoders[0].norm is led.one.encoders[0].norm


def test_buffers_of_a_users_network_are_copied() -> None:
    led = nn.Sequential(nn.Linear(7, 4), nn.BatchNorm1d(4))
    follower, another = TargetNetwork(led), TargetNetwork(led)
    led(X)

    follower.soft_update(0.5)
    another.copy()

    assert led[1].running_mean.any()
    assert torch.equal(follower.network[1].running_mean, led[1].running_mean)
    assert torch.equal(another.network[1].running_mean, led[1].running_mean)


def test_a_follower_has_noise_of_its_own() -> None:
    led = leader(noisy=True)
    follower = TargetNetwork(led)
    noiseless = led(X)

    resample_noise(follower.network, torch.Generator().manual_seed(0))
    shaken = follower.network(X)
    follower.copy()

    assert torch.equal(led(X), noiseless)
    assert not torch.equal(shaken, noiseless)
    assert torch.equal(follower.network(X), shaken)
