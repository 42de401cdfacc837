"""Critics: what they see, how they are made, and whose statistics they use."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rookery.config.schema import Image, NetConfig
from rookery.errors import ConfigError
from rookery.networks.critics import Critic, share_normalization, with_action
from rookery.networks.encoders import Features, Normalize, normalizers, observe
from rookery.networks.mlp import build
from rookery.networks.target_network import TargetNetwork
from rookery.types import ActionSpec, EnvSpec, Leaf, LeafKind

BOX = ActionSpec(shape=(2,), low=(-1.0, -1.0), high=(1.0, 1.0))
FLAT = EnvSpec("flat", (Leaf("", (3,), "float32", LeafKind.VECTOR),), BOX)
STACKED = EnvSpec("stacked", FLAT.obs, BOX, frame_stack=4)
GRID = EnvSpec("grid", (Leaf("", (3, 2), "float32", LeafKind.VECTOR),), BOX)
MIXED = EnvSpec(
    "mixed",
    (
        Leaf("colour", (2,), "int64", LeafKind.DISCRETE, (5, 3)),
        Leaf("eye", (1, 8, 8), "uint8", LeafKind.IMAGE),
        Leaf("place", (2, 2), "float32", LeafKind.VECTOR),
    ),
    BOX,
)
MIXED_TWICE = EnvSpec("mixed", MIXED.obs, BOX, frame_stack=2)
SMALL = NetConfig(hidden=(8,))


@pytest.fixture(autouse=True)
def _seeded() -> Iterator[None]:
    """Initial weights come from torch's global generator; the one outside stays as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


class Bilinear(nn.Module):
    """A user's own network, which is told of the action as of any other part."""

    def __init__(self, spec: EnvSpec, outputs: int):
        super().__init__()
        widths = {leaf.name: leaf.shape[0] for leaf in spec.obs}
        self.layer = nn.Bilinear(widths["obs"], widths["action"], outputs)

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        return self.layer(obs["obs"], obs["action"])


class Eyes(nn.Module):
    """A user's own network that normalises."""

    def __init__(self, spec: EnvSpec, outputs: int):
        super().__init__()
        self.features = Features(spec, normalize=True)
        self.layer = nn.Linear(self.features.width, outputs)

    def forward(self, obs: Any) -> Tensor:
        return self.layer(self.features(obs))


def observations(spec: EnvSpec, count: int) -> Any:
    draw, frames = torch.Generator().manual_seed(0), spec.frame_stack
    made: dict[str, Tensor] = {}
    for leaf in spec.obs:
        shape = (count, frames * leaf.shape[0], *leaf.shape[1:])
        if leaf.kind is LeafKind.VECTOR:
            made[leaf.name] = torch.randn(shape, generator=draw)
        else:
            made[leaf.name] = torch.randint(0, 3, shape, generator=draw)
    return spec.pack(made)


def actions(count: int) -> Tensor:
    return torch.rand(count, 2, generator=torch.Generator().manual_seed(1)) * 2 - 1


def test_an_array_becomes_the_leaf_obs_beside_the_action() -> None:
    seen = with_action(FLAT)

    assert seen.obs == (
        Leaf("obs", (3,), "float32", LeafKind.VECTOR),
        Leaf("action", (2,), "float32", LeafKind.VECTOR),
    )
    assert (seen.name, seen.action, seen.is_dict) == ("flat", BOX, True)


def test_a_dict_keeps_its_leaves_and_gets_one_more() -> None:
    seen = with_action(MIXED)

    assert seen.obs[:-1] == MIXED.obs
    assert seen.obs[-1].name == "action"


def test_an_action_of_several_axes_is_flat() -> None:
    spec = EnvSpec("arms", FLAT.obs, ActionSpec(shape=(2, 3)))

    assert with_action(spec).obs[-1].shape == (6,)
    assert Critic(SMALL, spec, 1, False)(torch.ones(4, 3), torch.ones(4, 2, 3)).shape == (2, 4, 1)


def test_frames_are_stacked_and_the_action_is_not() -> None:
    seen = with_action(MIXED_TWICE)

    assert [leaf.shape for leaf in seen.obs] == [(4,), (2, 8, 8), (4, 2), (2,)]
    assert seen.obs[0].sizes == (5, 3, 5, 3)
    assert seen.frame_stack == 1


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (EnvSpec("buttons", FLAT.obs, ActionSpec(n=3)), "buttons has discrete actions"),
        (EnvSpec("dials", FLAT.obs, ActionSpec(shape=(2,), sizes=(3, 4))), "dials has discrete"),
        (EnvSpec("echo", (Leaf("action", (2,), "float32", LeafKind.VECTOR),), BOX), "rename it"),
    ],
)
def test_spaces_that_no_critic_supports_are_refused(spec: EnvSpec, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        with_action(spec)


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("spec", [FLAT, STACKED, GRID, MIXED, MIXED_TWICE], ids=lambda s: s.name)
def test_each_network_has_its_own_estimate_and_reads_every_input(
    spec: EnvSpec, normalize: bool
) -> None:
    critic = Critic(SMALL, spec, 5, normalize, count=3)
    obs, action = observations(spec, 4), actions(4)

    out = critic(obs, action)

    assert out.shape == (3, 4, 5)
    assert len({tuple(one.flatten().tolist()) for one in out}) == 3
    assert not torch.equal(critic(obs, -action), out)
    for name, leaf in spec.unpack(obs).items():
        other = spec.pack({**spec.unpack(obs), name: 1 - leaf.clamp(max=1)})
        assert not torch.equal(critic(other, action), out)


def test_networks_of_a_critic_are_independent() -> None:
    critic = Critic(SMALL, FLAT, 1, False)

    critic(observations(FLAT, 4), actions(4))[0].sum().backward()

    ours, others = ([p.grad for p in net.parameters()] for net in critic.networks)
    assert any(bool(grad.any()) for grad in ours)
    assert not any(bool(grad.any()) for grad in others)


def test_a_flat_critic_is_a_perceptron_on_both_side_by_side() -> None:
    critic, obs, action = Critic(SMALL, FLAT, 1, False), observations(FLAT, 4), actions(4)

    wanted = torch.stack([net(torch.cat((obs, action), 1)) for net in critic.networks])

    assert all(net.features.plain for net in critic.networks)
    assert torch.equal(critic(obs, action), wanted)


def test_images_are_seen_through_the_convolutions_that_are_asked_for() -> None:
    config = NetConfig(hidden=(8,), image=Image.IMPALA)

    assert Critic(config, MIXED, 1, False)(observations(MIXED, 4), actions(4)).shape == (2, 4, 1)


def test_a_users_network_gets_the_action_as_one_more_leaf() -> None:
    critic = Critic(NetConfig(custom="test_critics:Bilinear"), FLAT, 1, False)

    out = critic(observations(FLAT, 4), actions(4))

    assert out.shape == (2, 4, 1)
    assert [type(net) for net in critic.networks] == [Bilinear, Bilinear]


@pytest.mark.parametrize("custom", [None, "test_critics:Eyes"])
@pytest.mark.parametrize("spec", [FLAT, STACKED, MIXED_TWICE], ids=lambda s: s.name)
def test_a_critic_uses_the_actors_statistics_and_leaves_actions_alone(
    spec: EnvSpec, custom: str | None
) -> None:
    config = NetConfig(hidden=(8,), custom=custom)
    actor = build(config, spec, 2, normalize=True)
    critic = Critic(config, spec, 1, True)
    share_normalization(actor, critic)
    target = TargetNetwork(critic).network
    obs, action = observations(spec, 4), actions(4) * 50
    before = critic(obs, action)

    frame = {leaf.name: torch.randn(64, *leaf.shape) * 9 + 5 for leaf in spec.obs}
    observe(normalizers(actor), frame)

    theirs = [part for part in actor.modules() if isinstance(part, Normalize)]
    for module in (critic, target):
        assert [part for part in module.modules() if isinstance(part, Normalize)] == theirs
        for network in module.networks:
            seen = network.features(critic._inputs(obs, action))
            assert torch.equal(seen[:, -2:], action)
            assert torch.equal(seen[:, :-2], actor.features(obs)) or spec.is_dict
    assert not torch.equal(critic(obs, action), before)
    assert torch.equal(target(obs, action), critic(obs, action))


def test_a_critic_without_shared_layers_leaves_actions_alone_too() -> None:
    critic = Critic(SMALL, FLAT, 1, True)

    assert len([part for part in critic.modules() if isinstance(part, Normalize)]) == 1
    assert all(net.features.encoders[1].norm is None for net in critic.networks)
