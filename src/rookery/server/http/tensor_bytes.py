"""Named arrays as bytes in the format of safetensors.

The library reads them: it allocates nothing by what a header claims, and everything that the header
says must fit the bytes that are there. Its `save` copies every array three times, and a server that
sends hundreds of megabytes a second cannot; so they are packed here.
"""

import json
import struct
from collections import Counter
from collections.abc import Mapping

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load

from rookery.errors import ConfigError, RefusedError
from rookery.types import Array

ALIGNMENT = 64  # of the first array: then numpy reads whole cache lines
DTYPES = {"<f4": "F32", "<f2": "F16", "<f8": "F64", "<i4": "I32", "<i8": "I64", "|u1": "U8"}


def pack(arrays: Mapping[str, Array]) -> bytes:
    """Returns arrays as one safetensors file, in the order of their names."""
    plain = {name: np.asarray(arrays[name], order="C") for name in sorted(arrays)}
    other = [
        f"{name} {array.dtype}" for name, array in plain.items() if array.dtype.str not in DTYPES
    ]
    if other:
        raise ConfigError(
            f"arrays of {', '.join(DTYPES.values())} can be sent, got {', '.join(other[:8])}"
        )
    header: dict[str, object] = {}
    at = 0
    for name, array in plain.items():
        begin, at = at, at + array.nbytes
        dtype = DTYPES[array.dtype.str]
        header[name] = {"dtype": dtype, "shape": array.shape, "data_offsets": [begin, at]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % ALIGNMENT)
    return b"".join([struct.pack("<Q", len(text)), text, *(each.data for each in plain.values())])


def unpack(packed: bytes) -> dict[str, Array]:
    """Returns the arrays; refuses bytes that do not fit their header exactly."""
    try:
        arrays = load(packed)
        (size,) = struct.unpack_from("<Q", packed)
        json.loads(packed[8 : 8 + size], object_pairs_hook=_refuse_repeats)
    except (SafetensorError, ValueError, TypeError, KeyError) as error:
        raise RefusedError(
            f"these {len(packed)} bytes are no safetensors file of named arrays: {error}; pack "
            "them with safetensors",
            code="malformed",
        ) from error
    return arrays


def _refuse_repeats(pairs: list[tuple[str, object]]) -> None:
    """Of a name that its header has twice the library takes the last, and says nothing."""
    for name, count in Counter(name for name, _ in pairs).items():
        if count > 1:
            raise ValueError(f"the header has {name!r:.120} twice")
