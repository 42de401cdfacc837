"""Serialization of named arrays as bytes, to send batch slices and weights to other learners.

    layout = ArrayLayout.of(arrays)
    layout.views(raw)[name][...] = array        # the sender writes
    layout.views(raw)                           # the receiver gets the arrays, without copying

A layout is sent as JSON. Unlike with pickle, received bytes can only become arrays of numbers.
"""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from rookery.types import Array, ArrayBatch, Batch, JsonObject, SampledBatch, SavedState

LINE = 64  # bytes: every array begins on a cache line of its own
_WORD = 8  # bytes of the length of the JSON part


class ArrayLayout(NamedTuple):
    """Shapes, dtypes and order of named arrays that are stored one after another as bytes."""

    shapes: dict[str, tuple[tuple[int, ...], str]]  # name → shape and dtype

    @classmethod
    def of(cls, arrays: Mapping[str, Array]) -> "ArrayLayout":
        return cls({name: (array.shape, array.dtype.str) for name, array in arrays.items()})

    @classmethod
    def read(cls, shapes: Mapping[str, tuple[Sequence[int], str]]) -> "ArrayLayout":
        """Returns the layout that JSON data describe: the shape and dtype of each named array."""
        return cls({name: (tuple(shape), str(dtype)) for name, (shape, dtype) in shapes.items()})

    @property
    def size(self) -> int:
        """Total size of the arrays in bytes, padding included."""
        return sum(_padded(shape, dtype) for shape, dtype in self.shapes.values())

    def views(self, raw: Array) -> dict[str, Array]:
        """Returns the named arrays as views of the bytes `raw` (a uint8 array)."""
        at, found = 0, {}
        for name, (shape, dtype) in self.shapes.items():
            piece = raw[at : at + math.prod(shape) * np.dtype(dtype).itemsize]
            found[name] = piece.view(dtype).reshape(shape)
            at += _padded(shape, dtype)
        return found


def pack(note: JsonObject, arrays: Mapping[str, Array]) -> Array:
    """Serializes a dict of JSON data and named arrays to one uint8 array, for `unpack`."""
    layout = ArrayLayout.of(arrays)
    words = json.dumps({"note": note, "layout": layout.shapes}).encode()
    start = _up(_WORD + len(words))
    raw = np.zeros(start + layout.size, dtype=np.uint8)
    raw[:_WORD].view(np.int64)[0] = len(words)
    raw[_WORD : _WORD + len(words)] = np.frombuffer(words, dtype=np.uint8)
    for name, view in layout.views(raw[start:]).items():
        view[...] = arrays[name]
    return raw


def unpack(raw: Array) -> tuple[SavedState, dict[str, Array]]:
    """Returns the JSON data and the arrays that `pack` has serialized; the arrays are views."""
    length = int(raw[:_WORD].view(np.int64)[0])
    header = json.loads(raw[_WORD : _WORD + length].tobytes())
    return header["note"], ArrayLayout.read(header["layout"]).views(raw[_up(_WORD + length) :])


def named_arrays(batch: SampledBatch) -> dict[str, Array]:
    """Returns all arrays of a batch by name; arrays in a dict field are named field/name."""
    found: dict[str, Array] = {}
    for field, value in zip(Batch._fields, batch, strict=True):
        if isinstance(value, dict):
            found |= {f"{field}/{name}": leaf for name, leaf in value.items() if leaf is not None}
        elif isinstance(value, np.ndarray):
            found[field] = value
    return found


def batch_of(arrays: Mapping[str, Array]) -> ArrayBatch:
    """Builds a batch from named arrays, the inverse of `named_arrays`; ignores unknown names."""
    fields: dict[str, Any] = dict.fromkeys(Batch._fields)  # type: ignore[explicit-any]  # fields differ
    for name, array in arrays.items():
        field, inside, leaf = name.partition("/")
        if field not in fields:
            continue
        if inside:
            fields[field] = (fields[field] or {}) | {leaf: array}
        else:
            fields[field] = array
    return Batch(**fields)


def _padded(shape: tuple[int, ...], dtype: str) -> int:
    return _up(math.prod(shape) * np.dtype(dtype).itemsize)


def _up(count: int) -> int:
    return -(-count // LINE) * LINE
