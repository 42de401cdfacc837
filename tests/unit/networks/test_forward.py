"""Questions to a network: equal answers by either way, and never stale ones."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rookery.config.schema import Activation, NetConfig
from rookery.learner.learner import FlatParameters
from rookery.networks.forward import MOST_WORK, CompiledMlp, FastForward, tensors
from rookery.networks.mlp import Perceptron, build
from rookery.networks.named_arrays import arrays_of, load_arrays
from rookery.types import ActionSpec, Array, EnvSpec, Leaf, LeafKind

FLAT = EnvSpec("flat", (Leaf("", (7,), "float32", LeafKind.VECTOR),), ActionSpec(n=3))
PAIR = EnvSpec(
    "pair",
    (
        Leaf("colour", (1,), "int64", LeafKind.DISCRETE, (5,)),
        Leaf("place", (2, 2), "float32", LeafKind.VECTOR),
    ),
    ActionSpec(n=3),
)


@pytest.fixture(autouse=True)
def _seeded() -> Iterator[None]:
    """Initial weights come from torch's global generator; the one outside stays as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


class Bent(Perceptron):
    """A perceptron that does something else with its layers."""

    def forward(self, obs: Tensor) -> Tensor:
        return -super().forward(obs)


class Counting(nn.Module):
    """Says how often it was asked through torch."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    def forward(self, obs: Tensor) -> Tensor:
        self.asked += 1
        return obs * 2


def rows(count: int) -> Array:
    return np.random.default_rng(0).normal(size=(count, 7)).astype(np.float32)


def by_torch(net: nn.Module, obs: Array) -> Array:
    return net(torch.from_numpy(obs)).detach().numpy()


def is_quick(net: nn.Module, ask: FastForward, count: int = 1) -> bool:
    """Torch calls `forward`; the compiled form does not."""
    calls = []
    handle = net.register_forward_hook(lambda *_: calls.append(1))
    ask(rows(count))
    handle.remove()
    return not calls


@pytest.mark.parametrize("count", [1, 9])
def test_a_small_perceptron_is_asked_quickly_and_answers_as_torch_does(count: int) -> None:
    net = build(NetConfig(hidden=(16,)), FLAT, 2)
    ask = FastForward(net)

    assert is_quick(net, ask)
    np.testing.assert_allclose(ask(rows(count)), by_torch(net, rows(count)), atol=1e-5)


@pytest.mark.parametrize(
    "make",
    [
        lambda: build(NetConfig(activation=Activation.TANH), FLAT, 2),
        lambda: build(NetConfig(), FLAT, 2, normalize=True),
        lambda: build(NetConfig(), FLAT, 2, noisy=True),
        lambda: build(NetConfig(custom="test_networks:Doubling"), FLAT, 2),
        lambda: Bent(FLAT, 2, NetConfig(hidden=(16,)), normalize=False),
    ],
    ids=["tanh", "normalised", "noisy", "custom", "derived"],
)
def test_other_networks_are_asked_through_torch(make) -> None:
    net = make()
    ask = FastForward(net)

    assert not is_quick(net, ask)
    np.testing.assert_array_equal(ask(rows(3)), by_torch(net, rows(3)))


def test_more_work_than_fits_goes_through_torch() -> None:
    net = build(NetConfig(hidden=(64,)), FLAT, 2)
    ask = FastForward(net)
    most = MOST_WORK // sum(p.numel() for p in net.parameters())

    assert is_quick(net, ask, most)
    assert not is_quick(net, ask, most + 1)
    assert is_quick(net, ask, 1)


def test_a_dict_of_observations_is_asked_about() -> None:
    net = build(NetConfig(hidden=(16,)), PAIR, 2)
    obs = {"colour": np.array([[3], [4]]), "place": np.ones((2, 2, 2), dtype=np.float32)}

    wanted = net({name: torch.from_numpy(leaf) for name, leaf in obs.items()}).detach().numpy()
    np.testing.assert_array_equal(FastForward(net)(obs), wanted)


def test_weights_that_are_loaded_later_are_seen() -> None:
    net, other = (build(NetConfig(hidden=(16,)), FLAT, 2) for _ in range(2))
    ask = FastForward(net)
    ask(rows(1))

    load_arrays(net, arrays_of(other))

    np.testing.assert_allclose(ask(rows(3)), by_torch(other, rows(3)), atol=1e-5)
    assert is_quick(net, ask)


def test_weights_that_an_optimizer_relies_on_stay_where_they_are() -> None:
    net = build(NetConfig(hidden=(16,)), FLAT, 2)
    flat, ask = FlatParameters(list(net.parameters())), FastForward(net)

    assert CompiledMlp.of(net) is None
    assert not is_quick(net, ask)
    with torch.no_grad():
        flat.data.fill_(0.5)
    assert all(bool((p == 0.5).all()) for p in net.parameters())
    np.testing.assert_array_equal(ask(rows(3)), by_torch(net, rows(3)))


def test_weights_that_move_after_the_first_question_are_not_asked_at_their_old_place() -> None:
    net = build(NetConfig(hidden=(16,)), FLAT, 2)
    ask = FastForward(net)
    ask(rows(1))

    flat = FlatParameters(list(net.parameters()))
    with torch.no_grad():
        flat.data.mul_(2.0)

    np.testing.assert_array_equal(ask(rows(3)), by_torch(net, rows(3)))


def test_a_module_without_parameters_is_asked_too() -> None:
    net = Counting()

    assert FastForward(net)(rows(2)).tolist() == (rows(2) * 2).tolist()
    assert net.asked == 1


def test_tensors_on_the_cpu_share_memory_with_what_they_were_made_of() -> None:
    array = rows(2)
    made = tensors({"a": array}, torch.device("cpu"))["a"]

    array[:] = 5.0

    assert bool((made == 5.0).all())
