"""Noisy layers: their noise, its source, and networks made of them."""

import math
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from rookery.config.schema import NetConfig
from rookery.errors import ConfigError
from rookery.networks.forward import CompiledMlp
from rookery.networks.mlp import Perceptron, build
from rookery.networks.named_arrays import arrays_of, fingerprint
from rookery.networks.noisy import NoisyLinear, remove_noise, resample_noise
from rookery.types import ActionSpec, EnvSpec, Leaf, LeafKind

FLAT = EnvSpec("flat", (Leaf("", (7,), "float32", LeafKind.VECTOR),), ActionSpec(n=3))
X = torch.linspace(-1, 1, 14).view(2, 7)


@pytest.fixture(autouse=True)
def _seeded() -> Iterator[None]:
    """Initial weights come from torch's global generator; the one outside stays as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


class Noisy(nn.Module):
    """A user's own network with noisy layers."""

    def __init__(self, spec: EnvSpec, outputs: int):
        super().__init__()
        self.layer = NoisyLinear(7, outputs)

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return self.layer(obs)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_the_output_is_that_of_the_disturbed_weights() -> None:
    layer = NoisyLinear(7, 4)
    layer.resample_noise(generator())

    out = layer(X)

    noise = torch.outer(layer.noise_out, layer.noise_in)  # eq. 10 and 11 of Fortunato et al. 2018
    weight = layer.weight + layer.weight_sigma * noise
    bias = layer.bias + layer.bias_sigma * layer.noise_out
    torch.testing.assert_close(out, X @ weight.T + bias)


def test_noise_is_a_root_of_gaussian_noise_with_its_sign() -> None:
    layer = NoisyLinear(2, 40_000)

    layer.resample_noise(generator())

    squares = layer.noise_out * layer.noise_out.abs()  # Gaussian again
    assert abs(squares.mean().item()) < 0.02  # four standard errors
    assert abs(squares.var().item() - 1) < 0.03


def test_a_layer_begins_as_the_paper_says() -> None:
    layer = NoisyLinear(16, 500, sigma0=0.4)

    assert layer.weight.abs().max().item() <= 1 / math.sqrt(16)
    assert layer.weight.std().item() == pytest.approx(1 / math.sqrt(16 * 3), rel=0.05)
    assert layer.weight_sigma.unique().tolist() == [pytest.approx(0.4 / math.sqrt(16))]
    assert layer.bias_sigma.unique().tolist() == [pytest.approx(0.4 / math.sqrt(16))]


def test_a_network_is_quiet_until_it_is_shaken_and_when_told() -> None:
    net = build(NetConfig(hidden=(8,)), FLAT, 2, noisy=True)
    greedy = net(X)

    resample_noise(net, generator())
    shaken = net(X)
    remove_noise(net)

    assert not torch.equal(shaken, greedy)
    assert torch.equal(net(X), greedy)
    assert not any(buffer.any() for buffer in net.buffers())


def test_noise_comes_from_its_generator_alone() -> None:
    net = build(NetConfig(hidden=(8,)), FLAT, 2, noisy=True)
    before = torch.random.get_rng_state()

    resample_noise(net, generator(1))
    one = net(X)
    resample_noise(net, generator(2))
    two = net(X)
    resample_noise(net, generator(1))

    assert torch.equal(net(X), one)
    assert not torch.equal(two, one)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_noise_is_no_part_of_the_weights() -> None:
    net = build(NetConfig(hidden=(8,)), FLAT, 2, noisy=True)
    before = fingerprint(arrays_of(net))

    resample_noise(net, generator())

    assert fingerprint(arrays_of(net)) == before


def test_a_gradient_is_that_of_the_noise_its_output_was_computed_with() -> None:
    layer = NoisyLinear(7, 1)
    layer.resample_noise(generator())
    noise = layer.noise_out.clone()
    out = layer(X).sum()

    layer.resample_noise(generator(1))
    out.backward()

    torch.testing.assert_close(layer.bias_sigma.grad, 2 * noise)


def test_noise_that_was_drawn_while_acting_serves_learning_too() -> None:
    net = build(NetConfig(hidden=(8,)), FLAT, 2, noisy=True)
    with torch.inference_mode():
        remove_noise(net)
        resample_noise(net, generator())
        net(X)

    net(X).sum().backward()

    assert all(p.grad is not None for p in net.parameters())


def test_every_layer_after_the_features_is_noisy() -> None:
    net = build(NetConfig(hidden=(8, 9)), FLAT, 2, noisy=True, sigma0=0.1)

    assert isinstance(net, Perceptron)
    assert all(isinstance(layer, NoisyLinear) for layer in [*net.hidden, net.out])
    assert net.out.bias_sigma[0].item() == pytest.approx(0.1 / 3)
    assert CompiledMlp.of(net) is None


def test_a_plain_network_has_no_noisy_layers() -> None:
    net = build(NetConfig(hidden=(8,)), FLAT, 2)
    before = net(X)

    resample_noise(net, generator())

    assert not any(isinstance(part, NoisyLinear) for part in net.modules())
    assert torch.equal(net(X), before)


def test_noise_needs_a_custom_network_that_has_some() -> None:
    with pytest.raises(ConfigError, match=r"test_networks:Doubling.* has none; build it with"):
        build(NetConfig(custom="test_networks:Doubling"), FLAT, 2, noisy=True)
    assert build(NetConfig(custom="test_noisy:Noisy"), FLAT, 2, noisy=True)(X).shape == (2, 2)
