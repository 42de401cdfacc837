"""Images: each kind of convolutions, alone and beside other leaves."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from rookery.config.schema import Image, NetConfig
from rookery.errors import ConfigError
from rookery.networks.convolutions import IMAGES, ImageEncoder, ResidualBlock
from rookery.networks.encoders import Features
from rookery.networks.mlp import build
from rookery.types import ActionSpec, EnvSpec, Leaf, LeafKind

MIXED = EnvSpec(
    "mixed",
    (
        Leaf("eye", (3, 40, 48), "uint8", LeafKind.IMAGE),
        Leaf("place", (5,), "float32", LeafKind.VECTOR),
    ),
    ActionSpec(n=3),
)


@pytest.fixture(autouse=True)
def _seeded() -> Iterator[None]:
    """Initial weights come from torch's global generator; the one outside stays as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


def leaf(*shape: int) -> Leaf:
    return Leaf("", shape, "uint8", LeafKind.IMAGE)


def pictures(count: int, *shape: int) -> Tensor:
    drawn = torch.randint(0, 256, (count, *shape), generator=torch.Generator().manual_seed(0))
    return drawn.to(torch.uint8)


def test_every_choice_of_convolutions_has_its_row() -> None:
    assert set(IMAGES) == set(Image)


@pytest.mark.parametrize(
    ("side", "layers"),
    [
        (84, [(32, 8, 4, 0), (64, 4, 2, 0), (64, 3, 1, 0)]),  # table 1 of Mnih et al. 2015
        (36, [(32, 8, 4, 0), (64, 4, 2, 0), (64, 3, 1, 0)]),
        (35, [(16, 3, 1, 0), (32, 3, 1, 0)]),
        (4, [(16, 3, 1, 1), (32, 3, 1, 1)]),
    ],
)
def test_auto_makes_the_layers_and_the_first_weights_it_always_made(
    side: int, layers: list[tuple[int, int, int, int]]
) -> None:
    made = ImageEncoder(leaf(2, side, side + 1), 2, Image.AUTO).convolutions
    torch.manual_seed(0)
    widths = [4, *(width for width, *_ in layers)]
    wanted = [nn.Conv2d(n, *layer) for n, layer in zip(widths[:-1], layers, strict=True)]

    found = [part for part in made if isinstance(part, nn.Conv2d)]
    assert [list(part.state_dict()) for part in found] == [["weight", "bias"]] * len(layers)
    assert next(iter(made.state_dict())) == "0.weight"
    for one, other in zip(found, wanted, strict=True):
        assert (one.stride, one.padding) == (other.stride, other.padding)
        assert torch.equal(one.weight, other.weight)
        assert torch.equal(one.bias, other.bias)


def test_nature_leaves_7x7_of_an_atari_screen() -> None:
    assert ImageEncoder(leaf(1, 84, 84), 4, Image.NATURE).width == 64 * 7 * 7


def test_impala_has_fifteen_convolutions_and_leaves_11x11_of_an_atari_screen() -> None:
    picture = ImageEncoder(leaf(1, 84, 84), 4, Image.IMPALA)  # figure 3 of Espeholt et al. 2018

    found = [part for part in picture.modules() if isinstance(part, nn.Conv2d)]
    assert [part.out_channels for part in found] == [16] * 5 + [32] * 10
    assert sum(isinstance(part, ResidualBlock) for part in picture.modules()) == 6
    assert picture.width == 32 * 11 * 11


def test_what_impala_finds_is_rectified() -> None:
    found = ImageEncoder(leaf(3, 16, 16), 1, Image.IMPALA)(pictures(4, 3, 16, 16))

    assert found.min().item() == 0.0
    assert found.max().item() > 0.0


@pytest.mark.parametrize(("image", "count"), [("nature", 3), ("impala", 15), ("small", 2)])
def test_a_network_has_the_convolutions_its_settings_ask_for(image: str, count: int) -> None:
    net = build(NetConfig(hidden=(4,), image=Image(image)), MIXED, 2)

    assert sum(isinstance(part, nn.Conv2d) for part in net.modules()) == count


def test_a_residual_unit_adds_to_what_it_was_given_and_leaves_that_alone() -> None:
    unit, x = ResidualBlock(4), torch.randn(2, 4, 6, 6)
    given = x.clone()
    nn.init.zeros_(unit.second.weight)
    nn.init.constant_(unit.second.bias, 2.0)

    assert torch.equal(unit(x), given + 2.0)
    assert torch.equal(x, given)


@pytest.mark.parametrize(
    ("image", "side", "words"),
    [
        (Image.NATURE, 35, r"at least 36x36 .* 35 .* net\.image=impala"),
        (Image.NATURE, 7, r"at least 36x36 .* 7 .* net\.image=small"),
        (Image.IMPALA, 7, r"at least 8x8 .* 7 .* net\.image=small"),
    ],
)
def test_images_too_small_are_refused_with_what_to_use(image: Image, side: int, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        ImageEncoder(leaf(3, 64, side), 1, image)


@pytest.mark.parametrize(("image", "side"), [(Image.NATURE, 36), (Image.IMPALA, 8)])
def test_the_smallest_images_that_are_taken_leave_something(image: Image, side: int) -> None:
    picture = ImageEncoder(leaf(3, side, side), 1, image)

    assert picture(pictures(2, 3, side, side)).shape == (2, picture.width)
    assert picture.width > 0


@pytest.mark.parametrize("image", list(Image))
def test_a_picture_beside_a_vector_is_seen_by_every_kind_of_convolutions(image: Image) -> None:
    net = build(NetConfig(hidden=(16,), image=image), MIXED, 4)
    eye, place = pictures(2, 3, 40, 48), torch.ones(2, 5)

    out = net({"eye": eye, "place": place})

    assert out.shape == (2, 4)
    assert not torch.equal(net({"eye": 255 - eye, "place": place}), out)
    assert not torch.equal(net({"eye": eye, "place": -place}), out)


def test_the_vector_beside_a_picture_is_normalised_and_the_picture_is_not() -> None:
    features = Features(MIXED, normalize=True, image=Image.IMPALA)

    assert [hasattr(encoder, "norm") for encoder in features.encoders] == [False, True]
    assert features({"eye": pictures(2, 3, 40, 48), "place": torch.ones(2, 5)}).shape == (
        2,
        features.width,
    )
