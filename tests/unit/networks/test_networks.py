"""Networks: the compiled forward pass, normalisation, encoders and custom modules."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rookery.config.schema import Activation, Init, NetConfig
from rookery.errors import CheckpointError, ConfigError
from rookery.networks.encoders import Features, Normalize
from rookery.networks.forward import MOST_WORK, CompiledMlp
from rookery.networks.mlp import Perceptron, build
from rookery.networks.named_arrays import arrays_of, fingerprint, load_arrays
from rookery.types import ActionSpec, EnvSpec, Leaf, LeafKind
from sample_experience import VECTOR

FLAT = EnvSpec("flat", (Leaf("", (7,), "float32", LeafKind.VECTOR),), ActionSpec(n=3))
MIXED = EnvSpec(
    "mixed",
    (
        Leaf("colour", (1,), "int64", LeafKind.DISCRETE, (5,)),
        Leaf("eye", (1, 12, 12), "uint8", LeafKind.IMAGE),
        Leaf("lamp", (4,), "int8", LeafKind.BINARY),
        Leaf("place", (2, 2), "float32", LeafKind.VECTOR),
    ),
    ActionSpec(n=3),
)


def rows(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, 7)).astype(np.float32)


def mixed(count: int) -> dict[str, Tensor]:
    return {
        "colour": torch.arange(count)[:, None] % 5,
        "eye": torch.randint(0, 255, (count, 1, 12, 12), dtype=torch.uint8),
        "lamp": torch.ones(count, 4, dtype=torch.int8),
        "place": torch.ones(count, 2, 2),
    }


class Doubling(nn.Module):
    """A user's own network."""

    def __init__(self, spec: EnvSpec, outputs: int, factor: float = 2.0):
        super().__init__()
        self.layer = nn.Linear(7, outputs)
        self.factor = factor

    def forward(self, obs: Tensor) -> Tensor:
        return self.factor * self.layer(obs)


def wrong(spec: EnvSpec, outputs: int) -> str:
    """What a user might write by mistake."""
    return "not a network"


class Normal(nn.Module):
    """One that normalises through our features."""

    def __init__(self, spec: EnvSpec, outputs: int):
        super().__init__()
        self.features = Features(spec, normalize=True)
        self.layer = nn.Linear(self.features.width, outputs)

    def forward(self, obs: Tensor) -> Tensor:
        return self.layer(self.features(obs))


@pytest.mark.parametrize("hidden", [(64, 64), (33,), (128, 64, 17), (1,)])
@pytest.mark.parametrize("count", [1, 3, 64])
def test_the_compiled_forward_pass_equals_torch(hidden: tuple[int, ...], count: int) -> None:
    net = build(NetConfig(hidden=hidden), FLAT, 5)
    wanted = net(torch.from_numpy(rows(count))).detach().numpy()

    quick = CompiledMlp.of(net)

    assert quick is not None
    np.testing.assert_allclose(quick(rows(count)), wanted, atol=1e-5)


def test_the_compiled_forward_pass_takes_fewer_observations_after_more() -> None:
    net = build(NetConfig(), FLAT, 2)
    quick = CompiledMlp.of(net)
    assert quick is not None
    quick(rows(9))

    wanted = net(torch.from_numpy(rows(2))).detach().numpy()
    np.testing.assert_allclose(quick(rows(2)), wanted, atol=1e-5)


def test_the_compiled_forward_pass_sees_weights_that_are_loaded_later() -> None:
    net, other = build(NetConfig(), FLAT, 2), build(NetConfig(), FLAT, 2)
    quick = CompiledMlp.of(net)
    assert quick is not None

    load_arrays(net, arrays_of(other))

    wanted = other(torch.from_numpy(rows(4))).detach().numpy()
    np.testing.assert_allclose(quick(rows(4)), wanted, atol=1e-5)
    assert fingerprint(arrays_of(net)) == fingerprint(arrays_of(other))


@pytest.mark.parametrize(
    ("config", "spec", "normalize"),
    [
        (NetConfig(activation=Activation.TANH), FLAT, False),
        (NetConfig(), FLAT, True),
        (NetConfig(), MIXED, False),
        (NetConfig(custom="test_networks:Doubling"), FLAT, False),
    ],
)
def test_other_networks_have_no_compiled_form(
    config: NetConfig, spec: EnvSpec, normalize: bool
) -> None:
    assert CompiledMlp.of(build(config, spec, 2, normalize=normalize)) is None


def test_torch_does_what_is_too_much_work() -> None:
    net = build(NetConfig(hidden=(64, 64)), FLAT, 2)
    quick = CompiledMlp.of(net)
    assert quick is not None
    size = sum(p.numel() for p in net.parameters())

    assert quick.fits(rows(MOST_WORK // size))
    assert not quick.fits(rows(MOST_WORK // size + 1))


@pytest.mark.parametrize("outputs", [1, 3])
def test_orthogonal_layers_keep_lengths_up_to_their_gain(outputs: int) -> None:
    config = NetConfig(hidden=(8, 8), init=Init.ORTHOGONAL)
    made = Perceptron(VECTOR, outputs, config, normalize=False)

    for layer, gain in ((made.hidden[1], 2.0), (made.out, 1.0)):
        weight = layer.weight.detach()
        rows = weight @ weight.T
        torch.testing.assert_close(rows, gain * torch.eye(len(rows)), atol=1e-5, rtol=0.0)
    assert not any(layer.bias.any() for layer in (*made.hidden, made.out))


def test_running_statistics_equal_those_of_all_rows_at_once() -> None:
    norm, data = Normalize(3), torch.randn(50, 3) * 4 + 2

    for part in data.split([1, 9, 40]):
        norm.observe(part)

    torch.testing.assert_close(norm.mean, data.mean(0))
    torch.testing.assert_close(norm.variance, data.var(0, unbiased=False))
    assert abs(float(norm(data).mean())) < 1e-5


def test_every_kind_of_leaf_is_encoded_into_one_vector() -> None:
    features = Features(MIXED, normalize=False)

    out = features(mixed(6))

    assert out.shape == (6, features.width)
    assert out[:, :5].tolist() == np.eye(5, dtype=np.float32)[np.arange(6) % 5].tolist()


def test_a_custom_network_gets_its_kwargs() -> None:
    net = build(NetConfig(custom="test_networks:Doubling", kwargs={"factor": 3.0}), FLAT, 2)

    assert net.factor == 3.0
    assert net(torch.zeros(4, 7)).shape == (4, 2)


@pytest.mark.parametrize(
    ("custom", "words"),
    [
        ("test_networks:Missing", "Missing"),
        ("no_such_module:Net", "no_such_module"),
        ("test_networks:wrong", "it must be a torch.nn.Module"),
        ("builtins:dict", "it must be"),
    ],
)
def test_a_custom_network_that_is_none_is_refused(custom: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        build(NetConfig(custom=custom), FLAT, 2)


def test_normalisation_needs_a_network_that_does_it() -> None:
    with pytest.raises(ConfigError, match="does not normalise"):
        build(NetConfig(custom="test_networks:Doubling"), FLAT, 2, normalize=True)
    assert build(NetConfig(custom="test_networks:Normal"), FLAT, 2, normalize=True) is not None


def test_weights_of_another_network_are_refused_by_name_and_shape() -> None:
    net, other = build(NetConfig(), FLAT, 2), build(NetConfig(hidden=(8,)), FLAT, 2)

    with pytest.raises(CheckpointError, match=r"hidden\.1\.bias"):
        load_arrays(net, arrays_of(other))


@pytest.mark.parametrize("frames", [1, 2])
def test_codes_are_floats_to_a_network_that_cannot_read_them(frames):
    leaf = Leaf("", (2, 3), "int16", LeafKind.CODES)
    features = Features(EnvSpec("codes", (leaf,), ActionSpec(n=2), frames), normalize=False)
    codes = torch.arange(-6, 6 * frames, dtype=torch.int16)[: 6 * frames].view(1, -1, 3)

    assert torch.equal(features(codes), codes.float().flatten(1))
    assert features.width == 6 * frames
