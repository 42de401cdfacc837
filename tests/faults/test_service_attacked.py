"""Strangers, liars and clumsy clients at the door of a parameter service.

The service is a process of its own. After each attack it answers its honest client, nothing that
was refused has changed anything, and its memory is bounded.
"""

import contextlib
import http.client
import json
import random
import secrets
import select
import signal
import socket
import ssl
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
import pytest

from certificates import Authority
from eventually import eventually
from rookery.errors import RefusedError, StalledError
from rookery.server.http import tensor_bytes, wire_format
from rookery.server.http.limits import Limits
from rookery.server.http.remote_server import RemoteParameterServer
from rookery.server.http.wire_format import Kind, Request
from rookery.server.parameter_server import ParameterServer

KEYS = {name: f"{name}-{'k' * 40}" for name in ("alice", "bob", "eve")}
SIZE = 250_000  # parameters: 1 MB
ROOM_MB = 64  # by which an attack may make the process larger
# short, so that tests need not wait
HURRIED = {
    "header_s": 1.0,
    "body_s": 1.0,
    "stall_s": 1.0,
    "linger_s": 0.2,
    "memory_bytes": 4_000_000,
}
UPDATE = {"weight": np.ones(SIZE, np.float32)}
BODY = bytes(tensor_bytes.pack(UPDATE))


class Host:
    """A parameter service in a process of its own, and its honest client."""

    def __init__(self, **asked: Any):
        asked = {"size": SIZE, "keys": KEYS, "limits": HURRIED} | asked
        script = str(Path(__file__).parents[1] / "support" / "parameter_server_process.py")
        self.process = subprocess.Popen(
            [sys.executable, script, json.dumps(asked)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()
        assert self.url, self.process.communicate()[1]
        self.port = int(self.url.rpartition(":")[2])

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=20.0)

    def status(self) -> dict[str, Any]:
        return httpx.get(self.url + "/status", trust_env=False, timeout=20.0).json()

    def refused(self, code: str) -> float:
        return self.status()["refused_total"].get(code, 0)

    @property
    def rss_mb(self) -> float:
        return psutil.Process(self.process.pid).memory_info().rss / 1e6

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture(scope="module")
def _host() -> Iterator[Host]:
    host = Host()
    yield host
    host.close()


@pytest.fixture(scope="module")
def _alice(_host: Host) -> Iterator[RemoteParameterServer]:
    with RemoteParameterServer(_host.url, "alice", KEYS["alice"], patience_s=20.0) as alice:
        alice.register_worker("alice")
        alice.push_gradients("alice", UPDATE)
        alice.get_parameters()
        yield alice


@pytest.fixture
def host(_host: Host, _alice: RemoteParameterServer) -> Iterator[Host]:
    """A service that must be none the worse for what a test does to it."""
    before, room = _host.status(), _host.rss_mb + ROOM_MB
    yield _host
    assert _host.process.poll() is None, "the server is gone"
    after = _host.status()
    assert after["version"] == before["version"], "something that was refused has changed something"
    assert after["server"]["pushes"] == before["server"]["pushes"]
    assert _alice.push_gradients("alice", UPDATE).accepted
    assert _alice.get_parameters().version == before["version"] + 1
    assert _host.rss_mb < room


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def alice(_alice: RemoteParameterServer) -> RemoteParameterServer:
    return _alice


def update_of(client: str = "alice", body: bytes = BODY, **more: Any) -> Request:
    """An update as an honest client would announce it."""
    said = Request(
        kind=Kind.PUSH,
        client=client,
        size=len(body),
        sha256=wire_format.digest(body),
        push_id=secrets.token_hex(16),
    )
    return replace(said, **more)


def headers_of(said: Request, key: str) -> dict[str, str]:
    return wire_format.headers(said) | {wire_format.AUTHORIZATION: wire_format.BEARER + key}


def head(said: Request, key: str, *, length: int | None = None) -> bytes:
    """The head of a request as it goes over the wire."""
    lines = headers_of(said, key) | {"host": "localhost"}
    lines["content-length"] = str(said.size if length is None else length)
    text = "".join(f"{key}: {value}\r\n" for key, value in lines.items())
    return f"POST {wire_format.PATH} HTTP/1.1\r\n{text}\r\n".encode()


def answered(connection: socket.socket) -> tuple[int, dict[str, str], bytes]:
    """Returns status, headers and body of the next answer."""
    answer = http.client.HTTPResponse(connection)
    answer.begin()
    return answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()


def spoken(host: Host, words: bytes) -> socket.socket:
    """Connects and speaks at once: who says nothing for a second is cut off."""
    connection = host.connect()
    connection.sendall(words)
    return connection


def sent(host: Host, *parts: bytes) -> tuple[int, dict[str, str], bytes]:
    with host.connect() as connection:
        for part in parts:
            connection.sendall(part)
        return answered(connection)


def code_of(headers: dict[str, str], _: bytes) -> str:
    """The code of an answer."""
    return wire_format.read_answer(headers[wire_format.MESSAGE].encode()).code


def is_closed(connection: socket.socket) -> bool:
    """Has the other side ended this connection?"""
    readable, _, _ = select.select([connection], [], [], 0)
    if not readable:
        return False
    try:
        return connection.recv(65536) == b""
    except OSError:
        return True


def dropped(connection: socket.socket, more: bytes) -> bool:
    """Sends a little more; has the other side had enough?"""
    with contextlib.suppress(OSError):
        connection.sendall(more)
    return is_closed(connection)


class TestCredentials:
    def test_no_credentials_are_refused_without_waiting_for_the_body(self, host: Host):
        status, headers, body = sent(
            host,
            b"POST %s HTTP/1.1\r\nhost: x\r\ncontent-length: 900000\r\n\r\n"
            % wire_format.PATH.encode(),
        )

        assert (status, code_of(headers, body)) == (401, "auth")

    def test_a_wrong_key_is_refused_without_waiting_for_the_body(self, host: Host):
        said = head(update_of(), "x" * 40)

        status, headers, body = sent(host, said)

        assert (status, code_of(headers, body)) == (401, "auth")

    def test_an_unknown_client_gets_the_same_answer_as_a_wrong_key(self, host: Host):
        wrong = sent(host, head(update_of("alice"), "x" * 40), BODY)
        strange = sent(host, head(update_of("alicf"), "x" * 40), BODY)

        assert wrong[0] == strange[0]
        one, other = (
            wire_format.read_answer(headers[wire_format.MESSAGE].encode())
            for _, headers, _ in (wrong, strange)
        )
        assert replace(one, message=one.message.replace("alice", "alicf")) == other
        assert wrong[2] == strange[2] == b""

    def test_the_client_says_so(self, host: Host):
        with (
            RemoteParameterServer(host.url, "alice", "x" * 40, patience_s=20.0) as wrong,
            pytest.raises(RefusedError, match="check the client's name and its key") as refused,
        ):
            wrong.push_gradients("alice", UPDATE)

        assert refused.value.code == "auth"

    def test_a_valid_key_does_not_speak_for_another_client(self, host: Host):
        status, headers, body = sent(host, head(update_of("alice"), KEYS["eve"]), BODY)

        assert (status, code_of(headers, body)) == (401, "auth")

    @pytest.mark.parametrize("scheme", ["", "Basic ", "bearer", "Bearer  "])
    def test_a_key_that_is_not_given_as_a_bearer_key_is_refused(self, host: Host, scheme: str):
        wire = head(update_of(), KEYS["alice"])
        wire = wire.replace(wire_format.BEARER.encode(), scheme.encode())

        status, headers, body = sent(host, wire, BODY)

        assert (status, code_of(headers, body)) == (401, "auth")

    def test_a_valid_key_does_not_speak_for_another_worker(self, host: Host):
        forged = update_of("eve", worker="alice")

        status, headers, body = sent(host, head(forged, KEYS["eve"]), BODY)

        assert (status, code_of(headers, body)) == (401, "auth")

    def test_strangers_are_counted_and_not_remembered(self, host: Host):
        before, known = host.refused("auth"), set(host.status()["clients"])
        for k in range(200):
            sent(host, head(update_of(f"stranger{k}", b""), "x" * 40))

        assert host.refused("auth") == before + 200
        assert set(host.status()["clients"]) == known


class TestRepeats:
    def test_an_update_that_is_sent_again_counts_once(self):
        """Byte for byte, as a proxy might; the update's own id tells."""
        with serving(Limits()) as (server, url):
            server.register_worker("alice")
            said = update_of()

            codes = [pushed(url, said, BODY) for _ in range(3)]

            assert codes == ["ok", "duplicate", "duplicate"]
            assert server.version == 1
            assert server.get_server_stats()["pushes"] == {"alice": 1}

    def test_an_update_that_arrives_many_times_at_once_counts_once(self):
        with serving(Limits(threads=8)) as (server, url), ThreadPoolExecutor(8) as pool:
            server.register_worker("alice")
            said = update_of()

            codes = list(pool.map(lambda _: pushed(url, said, BODY), range(16)))

            assert sorted(codes) == ["duplicate"] * 15 + ["ok"]
            assert server.version == 1

    def test_another_update_with_the_same_bytes_counts(self):
        with serving(Limits()) as (server, url):
            server.register_worker("alice")

            assert [pushed(url, update_of(), BODY) for _ in range(2)] == ["ok", "ok"]
            assert server.version == 2

    def test_an_update_without_an_id_is_refused(self, host: Host):
        status, headers, body = sent(host, head(update_of(push_id=""), KEYS["alice"]), BODY)

        assert (status, code_of(headers, body)) == (400, "malformed")

    def test_clocks_that_are_wrong_or_jump_do_not_matter(self, host: Host, monkeypatch):
        wall = time.time
        with RemoteParameterServer(host.url, "alice", KEYS["alice"], patience_s=20.0) as skewed:
            for skew_s in (-600.0, 600.0, -1e9):
                monkeypatch.setattr(time, "time", lambda skew_s=skew_s: wall() + skew_s)

                assert skewed.get_parameters().version >= 0


class TestBodies:
    def test_a_body_that_was_changed_on_its_way_is_refused(self, host: Host):
        changed = bytearray(BODY)
        changed[-1] ^= 1

        status, headers, body = sent(host, head(update_of(), KEYS["alice"]), changed)

        assert (status, code_of(headers, body)) == (400, "digest")

    def test_who_changes_bodies_cannot_silence_their_sender(self, host: Host):
        """The fixture's honest client goes on after ten of them."""
        for _ in range(10):
            said = update_of()
            status, headers, body = sent(host, head(said, KEYS["alice"]), bytes(len(BODY)))
            assert (status, code_of(headers, body)) == (400, "digest")

        assert host.refused("quarantined") == 0

    @pytest.mark.parametrize("key", [KEYS["alice"], "x" * 40], ids=["known", "stranger"])
    def test_ten_gibibytes_are_refused_by_their_announcement(self, host: Host, key: str):
        said = update_of(size=10 << 30)

        status, headers, body = sent(host, head(said, key))

        assert (status, code_of(headers, body)) == (413, "size")

    def test_a_body_that_does_not_say_how_long_it_is_is_refused(self, host: Host):
        wire = head(update_of(), KEYS["alice"])
        wire = wire.replace(b"content-length: %d" % len(BODY), b"transfer-encoding: chunked")

        status, headers, body = sent(host, wire, b"0\r\n\r\n")

        assert (status, code_of(headers, body)) == (411, "length")

    def test_a_length_other_than_the_message_says_is_refused(self, host: Host):
        wire = head(update_of(), KEYS["alice"], length=10)

        status, headers, body = sent(host, wire, BODY[:10])

        assert (status, code_of(headers, body)) == (400, "malformed")

    @pytest.mark.parametrize(
        ("body", "code"),
        [
            (b"\x80\x04N.", "malformed"),  # a pickle
            (bytes(1000), "malformed"),
            (struct.pack("<Q", 1 << 62) + bytes(100), "malformed"),
            (struct.pack("<Q", 4000) + b"[" * 4000, "malformed"),
            (bytes(tensor_bytes.pack({"weight": np.ones(3, np.float32)})), "schema"),
            (bytes(tensor_bytes.pack({"weight": np.ones(SIZE // 2, np.float64)})), "schema"),
            (bytes(tensor_bytes.pack({"other": np.ones(SIZE, np.float32)})), "schema"),
            (bytes(tensor_bytes.pack({"a": np.ones(3, np.float32), **UPDATE})), "schema"),
        ],
        ids=range(8),
    )
    def test_nonsense_of_a_known_client_is_refused_every_time(self, body, code):
        with serving(Limits()) as (server, url):
            server.register_worker("eve")
            codes = [pushed(url, update_of("eve", body), body) for _ in range(4)]

            assert codes == [code] * 4
            assert server.version == 0
            assert server.get_server_stats()["pushes"] == {"eve": 0}
            assert pushed(url, update_of("eve"), BODY) == "ok"

    def test_nan_is_dropped_counted_and_its_sender_silenced(self):
        with serving(Limits()) as (server, url):
            for name in ("eve", "bob"):
                server.register_worker(name)
            poison = bytes(tensor_bytes.pack({"weight": np.full(SIZE, np.nan, np.float32)}))

            codes = [pushed(url, update_of("eve", poison), poison) for _ in range(4)]

            assert codes == ["finite"] * 3 + ["quarantined"]
            assert (server.version, server.get_server_stats()["counts"]["finite"]) == (0, 3)
            assert pushed(url, update_of("bob"), BODY) == "ok"
            assert np.isfinite(server.get_parameters().arrays["weight"]).all()

    def test_a_small_message_cannot_become_a_large_array(self, host: Host):
        wire = tensor_bytes.pack(
            {
                "weight@index": np.array([2**31 - 2], np.int32),
                "weight@value": np.ones(1, np.float32),
            }
        )
        said = update_of("eve", bytes(wire), codec="top_k")

        got = sent(host, head(said, KEYS["eve"]), bytes(wire))

        assert code_of(*got[1:]) == "schema"

    def test_bodies_in_memory_at_once_are_bounded(self, host: Host):
        """Twelve announcements of 1 MB each, where 4 MB are allowed."""
        wires = [head(update_of("bob"), KEYS["bob"]) for _ in range(12)]
        with contextlib.ExitStack() as open_:
            connections = [open_.enter_context(spoken(host, wire)) for wire in wires]

            codes = [code_of(*answered(each)[1:]) for each in connections]

        assert codes.count("busy") >= 8
        assert set(codes) == {"busy", "late"}


class TestSlowOnes:
    def test_a_head_that_comes_byte_by_byte_is_cut_off(self, host: Host):
        with host.connect() as connection:
            connection.sendall(f"POST {wire_format.PATH} HTTP/1.1\r\nx-slow: ".encode())

            assert eventually(lambda: dropped(connection, b"y"), 10.0)

    def test_a_body_that_comes_byte_by_byte_is_cut_off(self, host: Host):
        with host.connect() as connection:
            connection.sendall(head(update_of(), KEYS["alice"]))

            begun = time.monotonic()
            assert eventually(lambda: dropped(connection, b"x"), 20.0)
            assert time.monotonic() - begun < 10.0

    def test_a_hundred_of_them_at_once_leave_the_honest_client_alone(self, host: Host, alice):
        with contextlib.ExitStack() as open_:
            for k in range(100):
                connection = open_.enter_context(host.connect())
                connection.sendall(f"POST {wire_format.PATH} HTTP/1.1\r\nx-{k}: ".encode())

            assert alice.get_parameters().version >= 0

    def test_a_head_without_end_is_cut_off(self, host: Host):
        with host.connect() as connection:
            connection.sendall(b"GET / HTTP/1.1\r\n")

            filler = b"x-filler: " + b"y" * 4000 + b"\r\n"
            assert eventually(lambda: dropped(connection, filler), 10.0)

    def test_who_does_not_read_the_answer_is_cut_off(self):
        """40 MB are more than the kernel takes off our hands."""
        with (
            serving(Limits(stall_s=0.5), size=10_000_000) as (_, url),
            contextlib.ExitStack() as open_,
        ):
            with RemoteParameterServer(url, "eve", KEYS["eve"]) as eve:
                eve.get_parameters()
            for _ in range(4):
                connection = open_.enter_context(socket.socket())
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                connection.connect(("127.0.0.1", int(url.rpartition(":")[2])))
                connection.sendall(head(Request(kind=Kind.PULL, client="eve"), KEYS["eve"]))

            def alone() -> bool:
                return httpx.get(url + "/status").json()["connections"] == 1

            assert not alone()
            assert eventually(alone, 20.0)


class TestCrowds:
    def test_a_thousand_connections_that_say_nothing_are_borne(self, host: Host, alice):
        with contextlib.ExitStack() as open_:
            for _ in range(1000):
                open_.enter_context(host.connect())

            assert alice.get_parameters().version >= 0
            assert eventually(lambda: host.status()["connections"] < 20, 20.0)

    def test_a_thousand_clients_that_rest_keep_their_connections(self, host: Host, alice):
        ask = b"GET /status HTTP/1.1\r\nhost: localhost\r\n\r\n"
        with contextlib.ExitStack() as open_:
            connections = [open_.enter_context(spoken(host, ask)) for _ in range(1000)]
            assert {answered(each)[0] for each in connections} == {200}

            assert host.status()["connections"] >= 1000
            assert alice.get_parameters().version >= 0
            for connection in connections[::50]:
                connection.sendall(ask)
                assert answered(connection)[0] == 200

    def test_when_there_are_too_many_the_oldest_stranger_that_rests_gives_way(self):
        with serving(Limits(connections=20)) as (_, url):
            port = int(url.rpartition(":")[2])
            with (
                contextlib.ExitStack() as open_,
                RemoteParameterServer(url, "alice", KEYS["alice"], patience_s=20.0) as alice,
            ):
                alice.register_worker("alice")
                for _ in range(60):
                    open_.enter_context(socket.create_connection(("127.0.0.1", port)))

                assert alice.push_gradients("alice", UPDATE).accepted
                assert httpx.get(url + "/status").json()["connections"] <= 20

    def test_one_client_cannot_take_all_connections(self):
        with (
            serving(Limits(connections=20, client_connections=5)) as (_, url),
            contextlib.ExitStack() as open_,
            RemoteParameterServer(url, "alice", KEYS["alice"], patience_s=20.0) as alice,
        ):
            eves = [RemoteParameterServer(url, "eve", KEYS["eve"]) for _ in range(30)]
            for eve in eves:
                open_.enter_context(eve).get_server_stats()

            alice.register_worker("alice")
            assert alice.push_gradients("alice", UPDATE).accepted
            assert httpx.get(url + "/status").json()["connections"] <= 5 + 2  # she, and we
            assert eves[0].get_server_stats()["workers"] == ["alice"]  # by a new one

    def test_half_open_connections_are_forgotten(self, host: Host):
        """Their clients are gone: in the middle of a head, of a body, of an answer."""
        before = host.status()["connections"]
        pull = Request(kind=Kind.PULL, client="eve")
        with contextlib.ExitStack() as open_:
            for k in range(30):
                wire = [
                    b"POST / HTT",
                    head(update_of("eve"), KEYS["eve"]) + BODY[:1000],
                    head(pull, KEYS["eve"]),
                ][k % 3]
                connection = open_.enter_context(spoken(host, wire))
                connection.shutdown(socket.SHUT_WR)

            assert eventually(lambda: host.status()["connections"] <= before + 1, 20.0)


class TestGarbage:
    @pytest.mark.parametrize("path", ["/", "/v1", "/v1/message", "/../../etc/passwd", "/%00", "*"])
    def test_any_page_that_is_not_there_is_an_error_and_nothing_else(self, host: Host, path: str):
        status, _, body = sent(host, f"GET {path} HTTP/1.1\r\nhost: x\r\n\r\n".encode())

        assert status in (400, 404, 405)
        assert b"Traceback" not in body

    def test_a_tls_greeting_to_the_plain_port_is_turned_away(self, host: Host):
        context = ssl.create_default_context()
        with (
            host.connect() as connection,
            pytest.raises((ssl.SSLError, OSError)),
            context.wrap_socket(connection, server_hostname="localhost"),
        ):
            pass

    def test_garbage_is_turned_away_and_counted(self, host: Host):
        rng, before = random.Random(0), host.refused("garbage")
        corpus = [
            b"\x00" * 1000,
            b"\xff" * 100_000,
            b"GET\r\n\r\n",
            b"GET / HTTP/9.9\r\n\r\n",
            b"GET / HTTP/1.1\r\ncontent-length: -1\r\n\r\n",
            b"GET / HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
            b"GET / HTTP/1.1\r\ncontent-length: 99999999999999999999999\r\n\r\n",
            b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nZZZ\r\n",
            b"CONNECT localhost:443 HTTP/1.1\r\n\r\n",
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
            b"GET / HTTP/1.1\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n",
            b"GET / HTTP/1.1\r\n\r\n" * 1000,
            *(rng.randbytes(rng.randrange(1, 4000)) for _ in range(100)),
        ]
        for piece in corpus:
            with host.connect() as connection, contextlib.suppress(OSError):
                connection.sendall(piece)
                connection.shutdown(socket.SHUT_WR)

        assert eventually(lambda: host.refused("garbage") > before, 10.0)
        assert eventually(lambda: host.status()["connections"] < 20, 20.0)

    def test_damaged_heads_are_refused(self, host: Host):
        rng, wire = random.Random(1), head(update_of(), KEYS["alice"])
        before = sum(host.status()["refused_total"].values())
        for _ in range(60):
            damaged = bytearray(wire)
            for _ in range(rng.randrange(1, 5)):
                damaged[rng.randrange(len(wire))] = rng.randrange(256)
            if damaged == wire:
                continue
            with host.connect() as connection, contextlib.suppress(OSError):
                connection.sendall(damaged)
                connection.shutdown(socket.SHUT_WR)

        assert eventually(lambda: sum(host.status()["refused_total"].values()) > before + 10, 20.0)

    def test_what_follows_an_answer_is_not_read_for_ever(self, host: Host):
        """A page that needs no body is asked for with an endless one."""
        with host.connect() as connection:
            connection.sendall(
                b"GET /status HTTP/1.1\r\nhost: x\r\ncontent-length: 9999999\r\n\r\n"
            )

            assert eventually(lambda: dropped(connection, b"x"), 10.0)


class TestTls:
    def test_plain_http_to_the_tls_port_gets_no_answer(self, authority: Authority):
        with serving(Limits(), **authority.sign("server")._asdict()) as (server, url):
            with (
                RemoteParameterServer(
                    url.replace("https", "http"), "alice", KEYS["alice"], patience_s=0.5
                ) as plain,
                pytest.raises(StalledError),
            ):
                plain.register_worker("alice")

            assert still_serves(server, url, authority)

    def test_a_client_does_not_take_an_expired_server(self, authority: Authority):
        old = authority.sign("expired", ends=timedelta(days=-1))
        with serving(Limits(), **old._asdict()) as (server, url):
            with (
                RemoteParameterServer(
                    url, "alice", KEYS["alice"], ca=authority.certificate
                ) as alice,
                pytest.raises(RefusedError, match="expired") as refused,
            ):
                alice.register_worker("alice")

            assert refused.value.code == "auth"
            assert server.get_server_stats()["workers"] == []

    def test_a_server_does_not_take_an_expired_client(self, authority: Authority):
        own, old = authority.sign("server"), authority.sign("old", ends=timedelta(days=-1))
        with serving(Limits(), client_ca=authority.certificate, **own._asdict()) as (server, url):
            with (
                RemoteParameterServer(
                    url,
                    "alice",
                    KEYS["alice"],
                    ca=authority.certificate,
                    patience_s=0.5,
                    **old._asdict(),
                ) as alice,
                pytest.raises((RefusedError, StalledError)),
            ):
                alice.register_worker("alice")

            assert server.get_server_stats()["workers"] == []
            assert still_serves(server, url, authority, **authority.sign("bob")._asdict())

    def test_handshakes_that_never_end_are_cut_off(self, authority: Authority):
        own = authority.sign("server")
        with serving(Limits(header_s=0.5), **own._asdict()) as (server, url):
            port = int(url.rpartition(":")[2])
            with contextlib.ExitStack() as open_:
                connections = [
                    open_.enter_context(socket.create_connection(("127.0.0.1", port)))
                    for _ in range(100)
                ]
                for connection in connections:
                    connection.sendall(b"\x16\x03\x01")

                assert still_serves(server, url, authority)
                assert eventually(lambda: all(map(is_closed, connections[:5])), 10.0)

    def test_garbage_at_the_tls_port_does_no_harm(self, authority: Authority):
        rng = random.Random(2)
        with serving(Limits(), **authority.sign("server")._asdict()) as (server, url):
            port = int(url.rpartition(":")[2])
            for _ in range(50):
                with socket.create_connection(("127.0.0.1", port)) as connection:
                    connection.sendall(rng.randbytes(500))

            assert still_serves(server, url, authority)


class TestKilled:
    def test_clients_outlast_a_server_that_is_killed_and_nothing_is_lost_or_doubled(
        self, tmp_path: Path
    ):
        """kill -9 between, and in the middle of, updates; a new server takes its place."""
        asked = {"size": 1000, "server": {"checkpoint_path": str(tmp_path / "server")}}
        host, update = Host(**asked), {"weight": np.ones(1000, np.float32)}
        versions, accepted = [], 0
        with RemoteParameterServer(host.url, "alice", KEYS["alice"], patience_s=60.0) as alice:
            alice.register_worker("alice")
            for k in range(30):
                if k in (7, 19):
                    host.process.send_signal(signal.SIGKILL)
                    host.process.communicate()
                    host = Host(**asked, port=host.port)
                receipt = alice.push_gradients("alice", update, push_id=f"p{k}")
                accepted += receipt.accepted
                versions.append(receipt.version)
        final = host.status()["version"]
        host.close()

        assert accepted == 30
        assert versions == sorted(versions)
        assert final == 30


@contextlib.contextmanager
def serving(
    limits: Limits, *, size: int = SIZE, **tls: Any
) -> Iterator[tuple[ParameterServer, str]]:
    """A service in this process."""
    server = ParameterServer({"weight": np.zeros(size, np.float32)}, update_frequency=1)
    url = server.start_server("localhost", 0, keys=KEYS, limits=limits, **tls)
    try:
        yield server, url
    finally:
        server.stop_server()


def still_serves(server: ParameterServer, url: str, authority: Authority, **own: Any) -> bool:
    before = server.version
    with RemoteParameterServer(
        url, "bob", KEYS["bob"], ca=authority.certificate, patience_s=20.0, **own
    ) as bob:
        bob.register_worker("bob")
        return bob.push_gradients("bob", UPDATE).accepted and server.version == before + 1


def pushed(url: str, said: Request, body: bytes) -> str:
    """Sends an update with the key of its client, whatever is in it; returns the answer's code."""
    headers = headers_of(said, KEYS[said.client])
    got = httpx.post(url + wire_format.PATH, content=body, headers=headers, timeout=20.0)
    return code_of(dict(got.headers), got.content)
