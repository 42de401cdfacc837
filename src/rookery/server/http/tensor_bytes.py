"""Named arrays as bytes in the format of safetensors, packed and read without a copy too many.

The library's own functions copy every array twice; a server that takes hundreds of megabytes a
second cannot. What is read here was sent by others: nothing is allocated by what it claims, and
everything it says about itself must fit the bytes that are there.
"""

import json
import struct
from collections.abc import Mapping
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np

from rookery.errors import ConfigError, RefusedError
from rookery.types import Array

HEADER_LIMIT = 4 << 20  # bytes of names, shapes and offsets
DIMENSIONS = 16  # of an array, at most
ALIGNMENT = 64  # of the first array: then numpy reads whole cache lines
DTYPES: dict[str, np.dtype[Any]] = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "F64": np.dtype("<f8"),
    "I32": np.dtype("<i4"),
    "I64": np.dtype("<i8"),
    "U8": np.dtype("u1"),
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}


def pack(arrays: Mapping[str, Array]) -> bytearray:
    """Returns arrays as one safetensors file, in the order of their names."""
    plain = {name: np.asarray(arrays[name]) for name in sorted(arrays)}
    if other := [
        f"{name} {array.dtype}" for name, array in plain.items() if array.dtype not in NAMES
    ]:
        raise ConfigError(f"arrays of {', '.join(DTYPES)} can be sent, got {', '.join(other[:8])}")
    header, starts = _outline(plain)
    packed = bytearray(len(header) + sum(array.nbytes for array in plain.values()))
    packed[: len(header)] = header
    for name, array in plain.items():
        room = np.frombuffer(packed, array.dtype, array.size, len(header) + starts[name])
        room[:] = array.reshape(-1)
    return packed


def _outline(arrays: Mapping[str, Array]) -> tuple[bytes, dict[str, int]]:
    """Returns the header, and where each array starts behind it."""
    starts, about, at = {}, {}, 0
    for name, array in arrays.items():
        starts[name], end = at, at + array.nbytes
        about[name] = {
            "dtype": NAMES[array.dtype],
            "shape": list(array.shape),
            "data_offsets": [at, end],
        }
        at = end
    text = json.dumps(about, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % ALIGNMENT)
    return struct.pack("<Q", len(text)) + text, starts


def unpack(packed: bytes | bytearray | memoryview) -> dict[str, Array]:
    """Returns the arrays as views of what was given; refuses whatever does not fit exactly."""
    try:
        return _read(memoryview(packed))
    except (ValueError, TypeError, KeyError, RecursionError, struct.error) as error:
        raise RefusedError(
            f"these {len(packed)} bytes are no safetensors file of "
            f"{', '.join(DTYPES)} arrays: {error}; pack named arrays with safetensors",
            code="malformed",
        ) from error


def _read(packed: memoryview) -> dict[str, Array]:
    (length,) = struct.unpack_from("<Q", packed)
    if length > min(HEADER_LIMIT, len(packed) - 8):
        raise ValueError(f"its header claims {length} bytes")
    about = json.loads(bytes(packed[8 : 8 + length]), object_pairs_hook=_once)
    if not isinstance(about, dict):
        raise ValueError("its header is no object")
    data, about = packed[8 + length :], {k: v for k, v in about.items() if k != "__metadata__"}
    arrays = {name: _view(data, entry) for name, entry in about.items()}
    spans = sorted(tuple(entry["data_offsets"]) for entry in about.values())
    edges = [(0, 0), *spans, (len(data), len(data))]
    if any(end != start for (_, end), (start, _) in pairwise(edges)):
        raise ValueError("its arrays do not cover its bytes one by one")
    return arrays


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("its header says something twice")
    return found


def _view(data: memoryview, entry: Any) -> Array:
    dtype, shape, (start, end) = DTYPES[entry["dtype"]], entry["shape"], entry["data_offsets"]
    whole = [*shape, start, end]
    if len(shape) > DIMENSIONS or any(type(n) is not int or n < 0 for n in whole):
        raise ValueError("a shape or an offset is no list of a few whole numbers")
    if end > len(data) or end - start != prod(shape) * dtype.itemsize:
        raise ValueError(f"shape {shape} does not fit offsets {start} to {end}")
    view: Array = np.frombuffer(data[start:end], dtype)
    return view.reshape(shape)
