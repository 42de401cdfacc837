"""Smaller updates: half precision, or only the largest entries.

Each codec is a pair of functions. What is decoded is measured by the shapes the server expects,
never by what a message claims, so that a small message cannot become a large array.

Top-k leaves most of an update out. `Residual` adds what was left out to the next one, without
which training stalls (Stich et al. 2018, Sparsified SGD with Memory).
"""

import threading
from collections.abc import Callable, Mapping
from enum import StrEnum
from math import ceil, prod
from typing import NamedTuple, TypeAlias

import numpy as np

from rookery.errors import ConfigError, RefusedError
from rookery.types import Array

Arrays: TypeAlias = dict[str, Array]
Shapes: TypeAlias = Mapping[str, tuple[int, ...]]
LARGEST_HALF = float(np.finfo(np.float16).max)
INDEX, VALUE = "@index", "@value"  # what top-k adds to a name


class Codec(StrEnum):
    """How an update travels."""

    NONE = "none"  # float32, bit for bit
    FP16 = "fp16"  # half the bytes; about three decimal digits
    TOP_K = "top_k"  # the largest entries of each array, with their places


class _Pair(NamedTuple):
    encode: Callable[[Mapping[str, Array], float], Arrays]
    decode: Callable[[Mapping[str, Array], Shapes], Arrays]


def encode(arrays: Mapping[str, Array], codec: Codec, keep: float = 0.01) -> Arrays:
    """Returns what travels; `keep` is top-k's share of the entries of each array."""
    if not 0 < keep <= 1:
        raise ConfigError(f"keep is a share of entries above 0 and up to 1, got {keep}")
    return _CODECS[codec].encode(arrays, keep)


def decode(wire: Mapping[str, Array], codec: Codec, shapes: Shapes) -> Arrays:
    """Returns float32 arrays of these shapes; refuses what does not decode to them."""
    return _CODECS[codec].decode(wire, shapes)


class Encoded(NamedTuple):
    """An update ready to be sent, and what is left of it then."""

    wire: Arrays
    left: Arrays


class Residual:
    """What the encoding of taken updates left out, kept for the next one.

    encoded = residual.encode(update, codec, keep)
    residual.settle(encoded, taken=...)        # as the server says
    residual.take_back()                       # the round came to nothing: as before that update
    """

    def __init__(self) -> None:
        self.turn = threading.Lock()  # for one update at a time, from encode to settle
        self._left: Arrays = {}
        self._before: Arrays | None = None  # the last update; None: it was not taken

    def encode(self, arrays: Mapping[str, Array], codec: Codec, keep: float) -> Encoded:
        """Encodes an update and what is left of those before it; remembers nothing yet."""
        full = {name: array + self._left.get(name, 0.0) for name, array in arrays.items()}
        wire = encode(full, codec, keep)
        sent = decode(wire, codec, {name: array.shape for name, array in full.items()})
        with np.errstate(invalid="ignore"):  # infinity less infinity
            return Encoded(wire, {name: full[name] - sent[name] for name in full})

    def settle(self, encoded: Encoded, *, taken: bool) -> None:
        """Keeps what is left of an update that was taken; one NaN would stay for ever."""
        finite = all(bool(np.isfinite(array).all()) for array in encoded.left.values())
        self._before = self._left if taken and finite else None
        if taken and finite:
            self._left = encoded.left

    def take_back(self) -> None:
        """Forgets that the last update was taken, if it was."""
        if self._before is not None:
            self._left, self._before = self._before, None


def _as_they_are(arrays: Mapping[str, Array], keep: float) -> Arrays:
    return {name: np.asarray(array, np.float32) for name, array in arrays.items()}


def _unchanged(wire: Mapping[str, Array], shapes: Shapes) -> Arrays:
    return dict(wire)  # names, shapes and dtypes are the parameter server's own check


def _halve(arrays: Mapping[str, Array], keep: float) -> Arrays:
    """Cuts to the range of half precision: an infinity would be refused as one."""
    return {
        name: np.where(np.isfinite(array), np.clip(array, -LARGEST_HALF, LARGEST_HALF), np.nan)
        .astype(np.float16)
        .reshape(np.shape(array))
        for name, array in arrays.items()
    }


def _double(wire: Mapping[str, Array], shapes: Shapes) -> Arrays:
    _expect(wire, dict.fromkeys(shapes, np.float16))
    return {name: array.astype(np.float32) for name, array in wire.items()}


def _largest(arrays: Mapping[str, Array], keep: float) -> Arrays:
    wire: Arrays = {}
    for name, array in arrays.items():
        flat = np.asarray(array, np.float32).reshape(-1)
        count = min(flat.size, max(1, ceil(keep * flat.size)))
        # of |x| with nan first: it must reach the server, which refuses it
        order = np.argpartition(-np.nan_to_num(np.abs(flat), nan=np.inf), count - 1)
        places = np.sort(order[:count]).astype(np.int32)
        wire[name + INDEX], wire[name + VALUE] = places, flat[places]
    return wire


def _scatter(wire: Mapping[str, Array], shapes: Shapes) -> Arrays:
    _expect(wire, {n + INDEX: np.int32 for n in shapes} | {n + VALUE: np.float32 for n in shapes})
    return {
        name: _dense(name, wire[name + INDEX], wire[name + VALUE], shape)
        for name, shape in shapes.items()
    }


def _dense(name: str, places: Array, values: Array, shape: tuple[int, ...]) -> Array:
    size = prod(shape)
    flat = np.zeros(size, np.float32)
    rising = places.ndim == 1 and bool((np.diff(places, prepend=-1, append=size) > 0).all())
    if not rising or places.shape != values.shape:
        raise RefusedError(
            f"{name} has places that do not rise within its {size} entries, or other than one "
            "value for each; send each place once, in order",
            code="schema",
        )
    flat[places] = values
    return flat.reshape(shape)


def _expect(wire: Mapping[str, Array], dtypes: Mapping[str, type]) -> None:
    """Refuses other names and other dtypes."""
    wrong = sorted(wire.keys() ^ dtypes.keys())
    wrong += [f"{k} {wire[k].dtype}" for k in dtypes if k in wire and wire[k].dtype != dtypes[k]]
    if wrong:
        raise RefusedError(
            f"this update does not decode: {', '.join(wrong[:8])}; encode the arrays that "
            "get_parameters names, with the codec that the message says",
            code="schema",
        )


_CODECS: dict[Codec, _Pair] = {
    Codec.NONE: _Pair(_as_they_are, _unchanged),
    Codec.FP16: _Pair(_halve, _double),
    Codec.TOP_K: _Pair(_largest, _scatter),
}
