"""Named arrays as bytes in the format of safetensors.

The library reads them: it allocates nothing by what a header claims, and everything that the header
says must fit the bytes that are there. Its `save` copies every array three times, and a server that
sends hundreds of megabytes a second cannot; so they are packed here.
"""

import json
import struct
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load

from rookery.errors import ConfigError, RefusedError
from rookery.types import Array

ALIGNMENT = 64  # of the first array: then numpy reads whole cache lines
NAMES: dict[np.dtype[Any], str] = {
    np.dtype("<f4"): "F32",
    np.dtype("<f2"): "F16",
    np.dtype("<f8"): "F64",
    np.dtype("<i4"): "I32",
    np.dtype("<i8"): "I64",
    np.dtype("u1"): "U8",
}


def pack(arrays: Mapping[str, Array]) -> bytes:
    """Returns arrays as one safetensors file, in the order of their names."""
    plain = {name: np.asarray(arrays[name], order="C") for name in sorted(arrays)}
    other = [f"{name} {array.dtype}" for name, array in plain.items() if array.dtype not in NAMES]
    if other:
        raise ConfigError(
            f"arrays of {', '.join(NAMES.values())} can be sent, got {', '.join(other[:8])}"
        )
    header: dict[str, Any] = {}
    at = 0
    for name, array in plain.items():
        offsets = [at, at + array.nbytes]
        header[name] = {"dtype": NAMES[array.dtype], "shape": array.shape, "data_offsets": offsets}
        at += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % ALIGNMENT)
    return b"".join([struct.pack("<Q", len(text)), text, *(each.data for each in plain.values())])


def unpack(packed: bytes) -> dict[str, Array]:
    """Returns the arrays; refuses bytes that do not fit their header exactly."""
    try:
        arrays = dict(load(packed))
        _refuse_repeats(packed)
    except (SafetensorError, ValueError, TypeError, KeyError) as error:
        raise RefusedError(
            f"these {len(packed)} bytes are no safetensors file of named arrays: {error}; pack "
            "them with safetensors",
            code="malformed",
        ) from error
    return arrays


def _refuse_repeats(packed: bytes) -> None:
    """Of a name that its header has twice the library takes the last, and says nothing."""
    (size,) = struct.unpack_from("<Q", packed)
    json.loads(packed[8 : 8 + size], object_pairs_hook=_once)


def _once(pairs: list[tuple[str, Any]]) -> None:
    for name, count in Counter(name for name, _ in pairs).items():
        if count > 1:
            raise ValueError(f"the header has {name!r:.120} twice")
