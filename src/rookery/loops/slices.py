"""Named arrays as one piece of bytes: how slices of a batch, and weights, reach other learners.

    layout = Layout.of(arrays)
    layout.views(raw)[name][...] = array        # one side writes
    layout.views(raw)                           # the other side finds the arrays again

A layout is JSON, so nothing that arrives is ever more than numbers.
"""

import json
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from rookery.types import Array, Batch

LINE = 64  # bytes: every array begins on a cache line of its own
_WORD = 8  # bytes that say how long a parcel's note is


class Layout(NamedTuple):
    """Where arrays lie, one after another."""

    shapes: dict[str, tuple[tuple[int, ...], str]]  # name → shape and dtype

    @classmethod
    def of(cls, arrays: Mapping[str, Array]) -> "Layout":
        return cls({name: (array.shape, array.dtype.str) for name, array in arrays.items()})

    @classmethod
    def read(cls, said: Mapping[str, Any]) -> "Layout":
        """Returns what a layout's JSON stands for."""
        return cls({name: (tuple(shape), str(dtype)) for name, (shape, dtype) in said.items()})

    @property
    def size(self) -> int:
        """Bytes, padding included."""
        return sum(_padded(shape, dtype) for shape, dtype in self.shapes.values())

    def views(self, raw: Array) -> dict[str, Array]:
        """Returns the arrays that lie in uint8 `raw`, without copying."""
        at, found = 0, {}
        for name, (shape, dtype) in self.shapes.items():
            piece = raw[at : at + math.prod(shape) * np.dtype(dtype).itemsize]
            found[name] = piece.view(dtype).reshape(shape)
            at += _padded(shape, dtype)
        return found


def packed(note: Mapping[str, Any], arrays: Mapping[str, Array]) -> Array:
    """Returns a JSON-ready note and arrays as uint8, for `unpacked`."""
    layout = Layout.of(arrays)
    words = json.dumps({"note": note, "layout": layout.shapes}).encode()
    start = _up(_WORD + len(words))
    raw = np.zeros(start + layout.size, dtype=np.uint8)
    raw[:_WORD].view(np.int64)[0] = len(words)
    raw[_WORD : _WORD + len(words)] = np.frombuffer(words, dtype=np.uint8)
    for name, view in layout.views(raw[start:]).items():
        view[...] = arrays[name]
    return raw


def unpacked(raw: Array) -> tuple[dict[str, Any], dict[str, Array]]:
    """The inverse of `packed`; the arrays are views."""
    length = int(raw[:_WORD].view(np.int64)[0])
    said = json.loads(raw[_WORD : _WORD + length].tobytes())
    return said["note"], Layout.read(said["layout"]).views(raw[_up(_WORD + length) :])


def named(batch: Batch) -> dict[str, Array]:
    """Returns all arrays of a batch by name; those of a dict as field/name."""
    found: dict[str, Array] = {}
    for field, value in zip(Batch._fields, batch, strict=True):
        if isinstance(value, dict):
            found |= {f"{field}/{name}": leaf for name, leaf in value.items()}
        elif value is not None:
            found[field] = value
    return found


def batch_of(arrays: Mapping[str, Array]) -> Batch:
    """The inverse of `named`; other names are passed over."""
    fields: dict[str, Any] = dict.fromkeys(Batch._fields)
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
