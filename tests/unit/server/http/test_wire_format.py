"""What travels: messages in headers, packed arrays. Nothing here opens a socket."""

import base64
import json
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import numpy as authority

from rookery.errors import ConfigError, RefusedError
from rookery.server.http import tensor_bytes, wire_format
from rookery.server.http.wire_format import Answer, Kind, Request

SAID = Request(kind=Kind.PUSH, client="alice", worker="alice/2", size=7)
ARRAYS = {
    "weight": np.arange(6, dtype=np.float32).reshape(2, 3),
    "half": np.array([1.5], np.float16),
    "none": np.zeros((0, 4), np.float32),
    "one": np.array(2.0, np.float64),
    "places": np.array([3, 1], np.int32),
}
PACKED = tensor_bytes.pack(ARRAYS)


def token_of(said: object) -> bytes:
    return base64.urlsafe_b64encode(json.dumps(said).encode())


def token(said: Request | Answer) -> bytes:
    return wire_format.headers(said)[wire_format.MESSAGE].encode()


def outline(**changes: object) -> bytes:
    """A file with one array of two floats, and something wrong with it."""
    entry = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} | changes
    text = json.dumps({"x": entry}).encode()
    return struct.pack("<Q", len(text)) + text + bytes(8)


class TestMessages:
    def test_a_request_comes_back_as_it_was_said(self):
        headers = wire_format.headers(SAID)

        assert headers[wire_format.CLIENT] == "alice"
        assert wire_format.read_request(token(SAID), "alice") == SAID

    def test_an_answer_comes_back_as_it_was_said(self):
        said = Answer(accepted=False, code="stale", message="zu alt — später", version=3)

        assert wire_format.headers(said).keys() == {wire_format.MESSAGE}
        assert wire_format.read_answer(token(said)) == said

    def test_who_speaks_is_not_what_a_message_says(self):
        """A name in the message would be one that nobody has proved."""
        with pytest.raises(RefusedError):
            wire_format.read_request(token_of({"kind": "push", "client": "bob"}), "alice")

    @pytest.mark.parametrize(
        "change",
        [
            {"kind": "destroy"},
            {"size": -2},
            {"size": 1.5},
            {"size": True},
            {"size": 1 << 70},
            {"weight": "1"},
            {"weight": None},
            {"worker": 7},
            {"worker": "x" * 1000},
            {"push_id": "\ud800"},
            {"codec": "pickle"},
            {"evil": 1},
        ],
        ids=str,
    )
    def test_a_request_of_other_types_or_names_is_refused(self, change: dict[str, object]):
        said = {"kind": "push"} | change

        with pytest.raises(RefusedError) as refusal:
            wire_format.read_request(token_of(said), "alice")

        assert refusal.value.code == "malformed"

    @pytest.mark.parametrize(
        "token",
        [
            b"",
            b"!!!",
            b"\xff\xfe",
            token_of([]),
            token_of(7),
            token_of({}),
            base64.urlsafe_b64encode(b"[" * 100_000),
            base64.urlsafe_b64encode(b'{"kind": NaN}'),
            base64.urlsafe_b64encode(b"\x80\x04N."),  # a pickle
        ],
        ids=range(9),
    )
    def test_what_is_no_message_at_all_is_refused(self, token: bytes):
        for read in (
            lambda: wire_format.read_request(token, "alice"),
            lambda: wire_format.read_answer(token),
        ):
            with pytest.raises(RefusedError):
                read()

    @pytest.mark.parametrize("name", ["", "-a", "a b", "a\n", "a/b", "ä", "a" * 101, '"'])
    def test_names_that_could_not_stand_in_a_header_are_refused(self, name: str):
        with pytest.raises(ConfigError, match="a client's name is"):
            wire_format.checked_name(name)

    def test_a_client_speaks_for_itself_and_its_parts_alone(self):
        assert wire_format.belongs("alice", "alice")
        assert wire_format.belongs("alice/2", "alice")
        assert not wire_format.belongs("bob", "alice")
        assert not wire_format.belongs("alice2", "alice")
        assert not wire_format.belongs("alice/../bob", "alice")


class TestTensors:
    def test_arrays_come_back_with_names_shapes_and_dtypes(self):
        found = tensor_bytes.unpack(PACKED)

        assert found.keys() == ARRAYS.keys()
        for name, array in ARRAYS.items():
            assert found[name].dtype == array.dtype
            assert found[name].shape == array.shape
            assert (found[name] == array).all()

    def test_the_safetensors_library_reads_what_we_pack(self):
        found = authority.load(PACKED)

        assert {k: v.tolist() for k, v in found.items()} == {
            k: v.tolist() for k, v in ARRAYS.items()
        }

    def test_we_read_what_the_safetensors_library_packs(self):
        found = tensor_bytes.unpack(authority.save(ARRAYS, metadata={"by": "somebody"}))

        assert {k: v.tolist() for k, v in found.items()} == {
            k: v.tolist() for k, v in ARRAYS.items()
        }

    def test_arrays_that_are_not_in_one_piece_are_packed_in_order(self):
        turned = ARRAYS["weight"].T

        assert (tensor_bytes.unpack(tensor_bytes.pack({"t": turned}))["t"] == turned).all()

    def test_a_dtype_that_cannot_travel_is_named(self):
        with pytest.raises(ConfigError, match="x complex128"):
            tensor_bytes.pack({"x": np.zeros(1, np.complex128)})

    @pytest.mark.parametrize(
        "packed",
        [
            b"",
            b"1234567",
            struct.pack("<Q", 1 << 63),
            struct.pack("<Q", 100) + b"{}",
            struct.pack("<Q", 2) + b"[]",
            struct.pack("<Q", 2) + b"{}" + b"left over",
            struct.pack("<Q", 100_000) + b"[" * 100_000,
            outline(dtype="O"),
            outline(dtype=3),
            outline(shape=[3]),
            outline(shape=[-2]),
            outline(shape=[2.0]),
            outline(shape="2"),
            outline(shape=[1 << 62, 1 << 62]),
            outline(data_offsets=[0, 16], shape=[4]),
            outline(data_offsets=[8, 0]),
            outline(data_offsets=[0, 4], shape=[1]),
            outline(data_offsets=[-8, 0]),
            outline(data_offsets=[0]),
            outline(data_offsets=None),
            outline(shape=[0, 1 << 63], data_offsets=[0, 0])[:-8],
        ],
        ids=range(21),
    )
    def test_what_does_not_fit_its_own_bytes_is_refused(self, packed: bytes):
        with pytest.raises(RefusedError) as refusal:
            tensor_bytes.unpack(packed)

        assert refusal.value.code == "malformed"

    def test_arrays_that_overlap_are_refused(self):
        entry = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
        text = json.dumps({"x": entry, "y": entry}).encode()

        with pytest.raises(RefusedError, match="invalid offset"):
            tensor_bytes.unpack(struct.pack("<Q", len(text)) + text + bytes(8))

    def test_a_name_said_twice_is_refused(self):
        entry = '{"dtype":"F32","shape":[2],"data_offsets":[0,8]}'
        text = f'{{"x":{entry},"x":{entry}}}'.encode()

        with pytest.raises(RefusedError, match="'x' twice") as refusal:
            tensor_bytes.unpack(struct.pack("<Q", len(text)) + text + bytes(8))

        assert refusal.value.code == "malformed"

    @settings(max_examples=20)
    @given(at=st.integers(0, len(PACKED) - 1), value=st.integers(0, 255), cut=st.booleans())
    def test_damage_is_refused_or_harmless(self, at: int, value: int, cut: bool):
        damaged = bytearray(PACKED[:at] if cut else PACKED)
        if not cut:
            damaged[at] = value

        try:
            found = tensor_bytes.unpack(bytes(damaged))
        except RefusedError:
            return

        assert sum(array.nbytes for array in found.values()) <= len(damaged)
