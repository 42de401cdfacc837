"""Serialization of named arrays as bytes, to send batch slices and weights to other learners.

Unlike with pickle, received bytes can only become arrays of numbers.
"""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from safetensors.numpy import load, save

from rookery.types import Array, ArrayBatch, Batch, JsonObject, SampledBatch, SavedState

NOTE = "note"  # name of the array that holds the JSON data as bytes


def pack(note: JsonObject, arrays: Mapping[str, Array]) -> Array:
    """Serializes a dict of JSON data and named arrays to one uint8 array, for `unpack`."""
    named = {name: np.require(array, requirements="C") for name, array in arrays.items()}
    named[NOTE] = np.frombuffer(json.dumps(note).encode(), dtype=np.uint8)
    return np.array(np.frombuffer(save(named), dtype=np.uint8))


def unpack(raw: Array) -> tuple[SavedState, dict[str, Array]]:
    """Returns the JSON data and the arrays that `pack` has serialized."""
    arrays = load(raw.tobytes())
    return json.loads(arrays.pop(NOTE).tobytes()), arrays


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
