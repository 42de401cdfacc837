"""What travels: signed headers, packed arrays. Nothing here opens a socket."""

import base64
import json
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import numpy as authority

from rookery.errors import ConfigError, RefusedError
from rookery.server import protocol, tensors
from rookery.server.protocol import Answer, Kind, Nonce, Request, Side

KEY = "k" * 40
SAID = Request(kind=Kind.PUSH, client="alice", nonce="n1", time=5, worker="alice/2", size=7)
ARRAYS = {
    "weight": np.arange(6, dtype=np.float32).reshape(2, 3),
    "half": np.array([1.5], np.float16),
    "none": np.zeros((0, 4), np.float32),
    "one": np.array(2.0, np.float64),
    "places": np.array([3, 1], np.int32),
    "words": np.array([0, 2**64 - 1], np.uint64),
}
PACKED = bytes(tensors.pack(ARRAYS))


def token_of(said: object) -> bytes:
    return base64.urlsafe_b64encode(json.dumps(said).encode())


def sealed(said: Request | Answer, key: str = KEY) -> tuple[bytes, bytes]:
    headers = protocol.seal(said, key)
    return headers[protocol.MESSAGE].encode(), headers[protocol.SIGNATURE].encode()


def outline(**changes: object) -> bytes:
    """A file with one array of two floats, and something wrong with it."""
    entry = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} | changes
    text = json.dumps({"x": entry}).encode()
    return struct.pack("<Q", len(text)) + text + bytes(8)


class TestMessages:
    def test_a_request_comes_back_as_it_was_sealed(self):
        token, claimed = sealed(SAID)

        assert protocol.authentic(token, claimed, KEY, Side.CLIENT)
        assert protocol.request(token) == SAID

    def test_an_answer_comes_back_as_it_was_sealed(self):
        said = Answer(re="n1", accepted=False, code="stale", message="zu alt — später", version=3)

        assert protocol.answer(sealed(said)[0]) == said

    def test_another_key_does_not_sign(self):
        token, claimed = sealed(SAID, key="j" * 40)

        assert not protocol.authentic(token, claimed, KEY, Side.CLIENT)

    def test_an_answer_cannot_be_sent_back_as_a_request(self):
        token, claimed = sealed(Answer(re="n1"))

        assert protocol.authentic(token, claimed, KEY, Side.SERVER)
        assert not protocol.authentic(token, claimed, KEY, Side.CLIENT)

    @settings(max_examples=20)
    @given(at=st.integers(0, 10_000), bit=st.integers(0, 7))
    def test_no_bit_of_a_message_can_change(self, at: int, bit: int):
        token, claimed = sealed(SAID)
        changed = bytearray(token)
        changed[at % len(token)] ^= 1 << bit

        assert not protocol.authentic(bytes(changed), claimed, KEY, Side.CLIENT)

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
            {"client": 7},
            {"client": "x" * 1000},
            {"nonce": "\ud800"},
            {"codec": "pickle"},
            {"evil": 1},
        ],
        ids=str,
    )
    def test_a_request_of_other_types_or_names_is_refused(self, change: dict[str, object]):
        said = {"kind": "push", "client": "alice", "nonce": "n", "time": 1} | change

        with pytest.raises(RefusedError) as refusal:
            protocol.request(token_of(said))

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
    def test_what_is_no_request_at_all_is_refused(self, token: bytes):
        with pytest.raises(RefusedError):
            protocol.request(token)

    def test_a_nonce_survives_its_text(self):
        nonce = Nonce(12345, "ab" * 16)

        assert Nonce.parse(str(nonce)) == nonce

    @pytest.mark.parametrize("name", ["", "-a", "a b", "a\n", "a/b", "ä", "a" * 101, '"'])
    def test_names_that_could_not_stand_in_a_header_are_refused(self, name: str):
        with pytest.raises(ConfigError, match="a client's name is"):
            protocol.checked_name(name)

    def test_a_client_speaks_for_itself_and_its_parts_alone(self):
        assert protocol.belongs("alice", "alice")
        assert protocol.belongs("alice/2", "alice")
        assert not protocol.belongs("bob", "alice")
        assert not protocol.belongs("alice2", "alice")
        assert not protocol.belongs("alice/../bob", "alice")


class TestTensors:
    def test_arrays_come_back_with_names_shapes_and_dtypes(self):
        found = tensors.unpack(PACKED)

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
        found = tensors.unpack(authority.save(ARRAYS, metadata={"by": "somebody"}))

        assert {k: v.tolist() for k, v in found.items()} == {
            k: v.tolist() for k, v in ARRAYS.items()
        }

    def test_reading_copies_nothing(self):
        packed = tensors.pack(ARRAYS)

        found = tensors.unpack(packed)["weight"]
        packed[-1] ^= 255

        assert np.shares_memory(found, np.frombuffer(packed, np.uint8))

    def test_arrays_that_are_not_in_one_piece_are_packed_in_order(self):
        turned = ARRAYS["weight"].T

        assert (tensors.unpack(tensors.pack({"t": turned}))["t"] == turned).all()

    def test_a_dtype_that_cannot_travel_is_named(self):
        with pytest.raises(ConfigError, match="x complex128"):
            tensors.pack({"x": np.zeros(1, np.complex128)})

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
            outline(shape=[1] * 40 + [2]),
            outline(shape=[1 << 62, 1 << 62]),
            outline(data_offsets=[0, 16], shape=[4]),
            outline(data_offsets=[8, 0]),
            outline(data_offsets=[0, 4], shape=[1]),
            outline(data_offsets=[-8, 0]),
            outline(data_offsets=[0]),
            outline(data_offsets=None),
        ],
        ids=range(21),
    )
    def test_what_does_not_fit_its_own_bytes_is_refused(self, packed: bytes):
        with pytest.raises(RefusedError) as refusal:
            tensors.unpack(packed)

        assert refusal.value.code == "malformed"

    def test_arrays_that_overlap_are_refused(self):
        entry = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
        text = json.dumps({"x": entry, "y": entry}).encode()

        with pytest.raises(RefusedError, match="one by one"):
            tensors.unpack(struct.pack("<Q", len(text)) + text + bytes(8))

    def test_a_name_said_twice_is_refused(self):
        entry = '{"dtype":"F32","shape":[2],"data_offsets":[0,8]}'
        text = f'{{"x":{entry},"x":{entry}}}'.encode()

        with pytest.raises(RefusedError, match="twice"):
            tensors.unpack(struct.pack("<Q", len(text)) + text + bytes(8))

    @settings(max_examples=20)
    @given(at=st.integers(0, len(PACKED) - 1), value=st.integers(0, 255), cut=st.booleans())
    def test_damage_is_refused_or_harmless(self, at: int, value: int, cut: bool):
        damaged = bytearray(PACKED[:at] if cut else PACKED)
        if not cut:
            damaged[at] = value

        try:
            found = tensors.unpack(damaged)
        except RefusedError:
            return

        assert sum(array.nbytes for array in found.values()) <= len(damaged)
