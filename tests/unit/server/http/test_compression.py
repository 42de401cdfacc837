"""Smaller updates: what is lost, what is not, and what is refused."""

import numpy as np
import pytest

from rookery.errors import ConfigError, RefusedError
from rookery.server.http import compression
from rookery.server.http.compression import Codec, Residual

RNG = np.random.default_rng(0)
UPDATE = {
    "weight": RNG.standard_normal((20, 5)).astype(np.float32),
    "bias": RNG.standard_normal(7).astype(np.float32),
}
SHAPES = {name: array.shape for name, array in UPDATE.items()}


def there_and_back(codec: Codec, keep: float = 0.1) -> dict[str, np.ndarray]:
    return compression.decode(compression.encode(UPDATE, codec, keep), codec, SHAPES)


def test_every_codec_has_both_directions():
    assert set(compression._CODECS) == set(Codec)


@pytest.mark.parametrize("codec", Codec)
def test_names_shapes_and_float32_come_back(codec: Codec):
    found = there_and_back(codec)

    assert {name: array.shape for name, array in found.items()} == SHAPES
    assert {array.dtype for array in found.values()} == {np.dtype(np.float32)}


def test_none_keeps_every_bit():
    assert all((there_and_back(Codec.NONE)[name] == UPDATE[name]).all() for name in UPDATE)


def test_half_precision_is_half_the_bytes_and_three_digits():
    wire = compression.encode(UPDATE, Codec.FP16)

    assert sum(a.nbytes for a in wire.values()) * 2 == sum(a.nbytes for a in UPDATE.values())
    for name, array in there_and_back(Codec.FP16).items():
        assert array == pytest.approx(UPDATE[name], rel=1e-3)


def test_half_precision_cuts_what_it_cannot_hold_and_keeps_nan_a_nan():
    wire = compression.encode({"x": np.array([1e9, -1e9, np.nan, np.inf])}, Codec.FP16)

    assert wire["x"].tolist()[:2] == [65504.0, -65504.0]
    assert np.isnan(wire["x"][2:]).all()


def test_top_k_keeps_the_largest_entries_of_each_array_and_zeros_elsewhere():
    found = there_and_back(Codec.TOP_K, keep=0.1)["weight"]

    largest = np.sort(np.abs(UPDATE["weight"]).reshape(-1))[-10:]
    assert np.sort(np.abs(found[found != 0])) == pytest.approx(largest)
    assert (found[found != 0] == UPDATE["weight"][found != 0]).all()


def test_top_k_keeps_at_least_one_entry():
    assert np.count_nonzero(there_and_back(Codec.TOP_K, keep=1e-9)["bias"]) == 1


def test_top_k_does_not_hide_a_nan():
    update = {"x": np.array([5.0, np.nan, 7.0], np.float32)}

    assert np.isnan(compression.encode(update, Codec.TOP_K, 0.3)["x@value"]).all()


@pytest.mark.parametrize("keep", [0.0, -1.0, 1.5, float("nan")])
def test_a_share_that_is_none_is_refused(keep: float):
    with pytest.raises(ConfigError, match="keep"):
        compression.encode(UPDATE, Codec.TOP_K, keep)


@pytest.mark.parametrize(
    ("places", "values"),
    [
        ([0, 7], [1.0, 1.0]),
        ([-1], [1.0]),
        ([3, 2], [1.0, 1.0]),
        ([2, 2], [1.0, 1.0]),
        ([2**31 - 2, -5], [1.0, 1.0]),
        ([1, 2], [1.0]),
        ([[1, 2]], [[1.0, 2.0]]),
    ],
)
def test_places_outside_twice_or_without_a_value_are_refused(places, values):
    wire = {"x@index": np.array(places, np.int32), "x@value": np.array(values, np.float32)}

    with pytest.raises(RefusedError) as refusal:
        compression.decode(wire, Codec.TOP_K, {"x": (7,)})

    assert refusal.value.code == "schema"


def test_what_is_decoded_has_the_expected_size_whatever_the_message_names():
    with pytest.raises(RefusedError, match="y@index"):
        compression.decode(compression.encode({"y": np.ones(9)}, Codec.TOP_K), Codec.TOP_K, SHAPES)


def test_an_update_in_another_dtype_than_its_codec_is_refused():
    with pytest.raises(RefusedError, match="weight float32"):
        compression.decode(UPDATE, Codec.FP16, SHAPES)


def sent_by(residual: Residual, update: np.ndarray, *, taken: bool = True) -> np.ndarray:
    """Returns what arrives of an update that is then taken or not."""
    encoded = residual.encode({"bias": update}, Codec.TOP_K, 0.2)
    residual.settle(encoded, taken=taken)
    return compression.decode(encoded.wire, Codec.TOP_K, {"bias": (7,)})["bias"]


def test_what_top_k_left_out_comes_with_later_updates():
    residual, sent = Residual(), np.zeros(7)
    for _ in range(400):
        sent += sent_by(residual, UPDATE["bias"])

    assert sent / 400 == pytest.approx(UPDATE["bias"], abs=0.02)


@pytest.mark.parametrize("codec", [Codec.FP16, Codec.TOP_K])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_nothing_is_left_of_an_update_that_is_not_finite(codec: Codec, bad: float):
    residual = Residual()
    spoilt = {"bias": UPDATE["bias"].copy()}
    spoilt["bias"][:5] = bad
    residual.settle(residual.encode(spoilt, codec, 0.2), taken=True)

    wire = residual.encode({"bias": UPDATE["bias"]}, codec, 1.0).wire
    assert np.isfinite(compression.decode(wire, codec, {"bias": (7,)})["bias"]).all()


@pytest.mark.parametrize("taken", [True, False])
def test_an_update_that_came_to_nothing_is_sent_again_as_it_was(taken: bool):
    residual = Residual()
    sent_by(residual, UPDATE["bias"][::-1])
    first = sent_by(residual, UPDATE["bias"], taken=taken)

    residual.take_back()

    assert (sent_by(residual, UPDATE["bias"]) == first).all()


def test_without_what_was_left_out_small_entries_never_arrive():
    """The control of the test above."""
    sent = compression.decode(compression.encode(UPDATE, Codec.TOP_K, 0.2), Codec.TOP_K, SHAPES)[
        "bias"
    ]

    assert np.count_nonzero(sent) == 2
