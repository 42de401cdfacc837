"""Parameters ready to be sent: packed and hashed once for each version, whoever asks."""

import threading
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from rookery.server.http import compression, tensor_bytes, wire_format
from rookery.server.http.compression import Codec
from rookery.types import Array


class Versioned(Protocol):
    """Parameters with their version, as `ParameterServer.get_parameters` gives them."""

    @property
    def version(self) -> int: ...
    @property
    def arrays(self) -> Mapping[str, Array]: ...


class ParameterSource(Protocol):
    """Whatever has parameters that change."""

    @property
    def version(self) -> int: ...
    def get_parameters(self, newer_than: int = -1) -> Any: ...  # Versioned, None: nothing newer


class PackedParameters(NamedTuple):
    """A version, packed."""

    version: int
    body: bytearray
    sha256: str


class Parcels:
    """The newest version in each codec that was asked for. Any thread may ask."""

    def __init__(self, source: ParameterSource):
        self._source, self._lock = source, threading.Lock()
        self._newest: dict[Codec, PackedParameters] = {}
        arrays = source.get_parameters().arrays
        self.shapes = {name: tuple(array.shape) for name, array in arrays.items()}
        self.size = len(tensor_bytes.pack(arrays))  # bytes of a version

    def get(self, codec: Codec, newer_than: int = -1) -> PackedParameters | None:
        """Returns the newest version; None where the asker has it."""
        if self._source.version <= newer_than:
            return None
        with self._lock:  # everybody waits for one packing rather than packing too
            parcel = self._newest.get(codec)
            if parcel is None or parcel.version < self._source.version:
                parcel = self._newest[codec] = _packed(self._source.get_parameters(), codec)
        return parcel if parcel.version > newer_than else None


def _packed(parameters: Versioned, codec: Codec) -> PackedParameters:
    body = tensor_bytes.pack(compression.encode(parameters.arrays, codec))
    return PackedParameters(parameters.version, body, wire_format.digest(body))
