"""The parameter server, from another process or host; needs the extra `server`.

    server = RemoteParameterServer("https://host:8888", "alice", key, ca="cert.pem")
    server.register_worker("alice")
    version, arrays = server.get_parameters()
    receipt = server.push_gradients("alice", gradients, version=version)

It has the methods of `ParameterServer` that workers need, and they mean the same. A call that gets
no answer is repeated, later and later, until `patience_s` is over; an update is repeated with the
same `push_id`, so that it counts once whatever was lost. All methods may be called at once.
"""

import contextlib
import ipaddress
import json
import random
import secrets
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import CancelledError, Future, InvalidStateError
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, NoReturn
from urllib.parse import urlsplit

import numpy as np
from beartype import beartype

from rookery.errors import ConfigError, RefusedError, StalledError
from rookery.server.http import compression, tensor_bytes, wire_format
from rookery.server.http.compression import Codec, Residual
from rookery.server.http.extra import missing
from rookery.server.http.wire_format import Answer, Bytes, Kind, Request
from rookery.server.parameter_server import Parameters, Receipt
from rookery.server.server_rules import refuse_weight
from rookery.types import Array

try:
    import httpx
except ImportError as error:
    raise missing(error) from error

FIRST_S, LONGEST_S = 0.05, 5.0  # between two attempts
WAIT_S = 20.0  # the longest that one request waits for a newer version
REST_S = 0.05  # between two such requests, where a server answers earlier than it was asked to
CHUNK = 1 << 18  # bytes handed to the socket at once
AGAIN = frozenset({"rate", "busy", "late", "digest"})  # refusals that pass


class Reply(NamedTuple):
    """An answer and its body."""

    answer: Answer
    body: bytearray


class RemoteParameterServer:
    """A parameter server behind a URL."""

    @beartype
    def __init__(
        self,
        url: str,
        client: str,
        key: str | None = None,
        *,
        ca: str | Path | None = None,
        certificate: str | Path | None = None,
        private_key: str | Path | None = None,
        codec: str = "none",
        keep: float = 0.01,
        patience_s: float = 60.0,
        timeout_s: float = 20.0,
    ):
        """Sends nothing yet.

        `ca` is who signed the server's certificate (or that certificate itself). `key`, or
        `certificate` and `private_key`, prove this client, as the server asks for it; the
        certificate's common name is the client's. Updates travel as `codec` says; `keep` is top-k's
        share. `timeout_s` is for one step of one attempt, `patience_s` for a call. Nothing is sent
        by plain HTTP to another host: the key could be read on the way.
        """
        if key is None and certificate is None:
            raise ConfigError(
                f"{client} has neither a key nor a certificate to prove who it is; give one of them"
            )
        self._client = wire_format.checked_name(client)
        self._key = None if key is None else wire_format.checked_key(client, key)
        self._url, self._patience_s, self._timeout_s = _checked(url), patience_s, timeout_s
        self._codec, self._keep = Codec(codec), keep
        self._residuals: dict[str, Residual] = {}
        self._encoding = threading.Lock()
        self._waits: dict[Future[Reply], None] = {}  # for a newer version
        self._ended, self._random = threading.Event(), random.Random(secrets.randbits(64))
        self._http = httpx.Client(
            base_url=self._url,
            verify=_trust(ca, certificate, private_key),
            trust_env=False,  # a proxy of the environment would get what is for this server
            limits=httpx.Limits(max_connections=64, max_keepalive_connections=64),
        )

    def __repr__(self) -> str:
        return f"RemoteParameterServer({self._url!r}, {self._client!r})"

    def __enter__(self) -> "RemoteParameterServer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends all connections; calls that wait for another attempt give up."""
        self.give_up()
        self._http.close()

    def give_up(self) -> None:
        """Ends the patience of all calls, from any thread: each may try once more."""
        self._ended.set()
        for answered in list(self._waits):
            answered.cancel()

    # --- the parameter server's methods

    @beartype
    def register_worker(self, worker: str) -> int:
        """Says that this client, or "client/part", will push; returns the version."""
        return self._ask(self._request(Kind.REGISTER, worker)).answer.version

    @beartype
    def unregister_worker(self, worker: str) -> None:
        """Says that it will not push any more."""
        self._ask(self._request(Kind.UNREGISTER, worker))

    @beartype
    def get_parameters(self, newer_than: int = -1, *, wait_s: float = 0.0) -> Parameters | None:
        """Returns the parameters if there are newer ones, at the latest after `wait_s`.

        The server waits, and not this client: it asks once in `WAIT_S`.
        """
        until, left = time.monotonic() + wait_s, wait_s
        codec = Codec.FP16 if self._codec is Codec.FP16 else Codec.NONE
        while True:
            asked = replace(
                self._request(Kind.PULL), version=newer_than, codec=codec, wait_s=min(left, WAIT_S)
            )
            reply = self._ask(asked) if left <= 0 else self._ask_aside(asked)
            if reply is not None and reply.answer.accepted:
                return _parameters(reply)
            left = until - time.monotonic()
            if reply is None or left <= 0 or self._ended.wait(min(left, REST_S)):
                return None
            left = max(0.0, until - time.monotonic())

    @beartype
    def push_gradients(
        self,
        worker: str,
        grads: Mapping[str, Any],
        weight: float | int = 1.0,
        *,
        version: int | None = None,
        push_id: str | None = None,
    ) -> Receipt:
        """Sends an update; when this returns, the server will not lose it.

        What a codec leaves out of an update that is taken goes with the worker's next one, so
        that with a codec a worker's updates go one after the other.
        """
        refuse_weight(weight)
        said = replace(
            self._request(Kind.PUSH, worker),
            version=-1 if version is None else version,
            push_id=push_id or secrets.token_hex(16),
            weight=float(weight),
            codec=self._codec,
        )
        if self._codec is Codec.NONE:
            return self._send(
                said, tensor_bytes.pack(compression.encode(_arrays(grads), Codec.NONE))
            )
        residual = self._residual(worker)
        with residual.turn:
            encoded = residual.encode(_arrays(grads), self._codec, self._keep)
            receipt = self._send(said, tensor_bytes.pack(encoded.wire))
            residual.settle(encoded, taken=receipt.accepted)
        return receipt

    @beartype
    def take_back(self, worker: str) -> None:
        """Says that a worker's last update came to nothing: it can be pushed again as it was."""
        residual = self._residual(worker)
        with residual.turn:
            residual.take_back()

    @beartype
    def get_server_stats(self) -> dict[str, Any]:
        """Returns numbers about the server."""
        stats: dict[str, Any] = json.loads(self._ask(self._request(Kind.STATS)).body)
        return stats

    def _residual(self, worker: str) -> Residual:
        with self._encoding:
            return self._residuals.setdefault(worker, Residual())

    def _send(self, said: Request, body: Bytes) -> Receipt:
        """Returns what became of a message with a body."""
        said = replace(said, sha256=wire_format.digest(body), size=len(body))
        answer = self._ask(said, body).answer
        return Receipt(answer.accepted, answer.code, answer.version)

    # --- one call

    def _request(self, kind: Kind, worker: str = "") -> Request:
        worker = worker or self._client
        if not wire_format.belongs(worker, self._client):
            raise ConfigError(
                f"this is the connection of {self._client!r}, which cannot speak for {worker!r}; "
                f"use {self._client!r}, or {self._client + '/part'!r}"
            )
        return Request(kind=kind, client=self._client, worker=worker)

    def _ask(self, said: Request, body: Bytes = b"") -> Reply:
        """Returns the answer to a message, however often it takes within the patience."""
        last: Exception | None = None
        for left_s in self._attempts():
            try:
                return self._attempt(said, body)
            except httpx.TransportError as error:
                _refuse_untrusted(error, self._url)
                last = error
            except RefusedError as refusal:
                if refusal.code not in AGAIN:
                    raise
                last = refusal
            if left_s <= 0:
                break
        raise StalledError(
            f"{self._url} did not answer {said.kind} within {self._patience_s:g} s: {last}; is the "
            "server up, can this host reach it, and does it ask for a client's certificate?"
        ) from last

    def _ask_aside(self, said: Request) -> Reply | None:
        """Asks in a thread of its own, so that `give_up` ends the wait at once; None: it did."""
        answered: Future[Reply] = Future()

        def ask() -> None:
            try:
                reply = self._ask(said)
            except Exception as error:  # raised again by the thread that waits for it
                with contextlib.suppress(InvalidStateError):  # it waits no longer
                    answered.set_exception(error)
            else:
                with contextlib.suppress(InvalidStateError):
                    answered.set_result(reply)

        with self._waiting(answered):
            threading.Thread(target=ask, name="rookery-pull", daemon=True).start()
            try:
                return answered.result()
            except CancelledError:
                return None

    @contextlib.contextmanager
    def _waiting(self, answered: "Future[Reply]") -> Iterator[None]:
        """Keeps a wait where `give_up` finds it."""
        self._waits[answered] = None
        if self._ended.is_set():  # before it could be found
            answered.cancel()
        try:
            yield
        finally:
            del self._waits[answered]

    def _attempts(self) -> Iterator[float]:
        """Yields the seconds left, after a longer rest each time; the last one is 0."""
        until, rest_s = time.monotonic() + self._patience_s, FIRST_S
        while True:
            left_s = until - time.monotonic()
            yield left_s
            jittered = min(rest_s * self._random.uniform(0.5, 1.5), max(0.0, left_s))
            if self._ended.wait(jittered):
                raise StalledError(f"{self!r} was closed while it waited for an answer")
            rest_s = min(2 * rest_s, LONGEST_S)

    def _attempt(self, said: Request, body: Bytes) -> Reply:
        headers = wire_format.headers(said) | {"content-length": str(len(body))}
        if self._key is not None:
            headers[wire_format.AUTHORIZATION] = wire_format.BEARER + self._key
        timeout = httpx.Timeout(self._timeout_s, read=self._timeout_s + said.wait_s)
        with self._http.stream(
            "POST", wire_format.PATH, content=_Chunks(body), headers=headers, timeout=timeout
        ) as got:
            answer = _answered(got)
            reply = Reply(answer, _received(got, answer))
        if answer.message:
            raise RefusedError(answer.message, answer.code)
        return reply


class _Chunks(httpx.SyncByteStream):
    """A body in pieces: httpx copies what is left at each one that the socket does not take."""

    def __init__(self, body: Bytes):
        self._view = memoryview(body)

    def __iter__(self) -> Iterator[bytes]:
        for at in range(0, len(self._view), CHUNK):
            yield bytes(self._view[at : at + CHUNK])


def _answered(got: httpx.Response) -> Answer:
    """Returns what the server says to a client that it knows; raises what it says to others."""
    token = got.headers.get(wire_format.MESSAGE, "").encode()
    if not token:
        _refuse_stranger(got)
    return wire_format.answer(token)


def _received(got: httpx.Response, answer: Answer) -> bytearray:
    """Returns the body of an answer, which says how much of it there is."""
    if got.headers.get("content-length") != str(answer.size):
        raise RefusedError(
            f"an answer of {answer.size} bytes came with a Content-Length of "
            f"{got.headers.get('content-length')}; ask again",
            code="digest",
        )
    body, at = bytearray(answer.size), 0
    view = memoryview(body)
    for chunk in got.iter_raw():
        if at + len(chunk) > answer.size:
            break
        view[at : at + len(chunk)] = chunk
        at += len(chunk)
    if at != answer.size or wire_format.digest(body) != answer.sha256:
        raise RefusedError(
            f"{at} of {answer.size} bytes arrived, or others than were announced; ask again",
            code="digest",
        )
    return body


def _parameters(reply: Reply) -> Parameters:
    arrays = tensor_bytes.unpack(reply.body)
    shapes = {name: array.shape for name, array in arrays.items()}
    codec = reply.answer.codec
    return Parameters(reply.answer.version, compression.decode(arrays, codec, shapes))


def _arrays(grads: Mapping[str, Any]) -> dict[str, Array]:
    return {
        name: np.asarray(grad.detach().cpu() if hasattr(grad, "detach") else grad)
        for name, grad in grads.items()
    }


def _refuse_stranger(got: httpx.Response) -> NoReturn:
    """Raises what a server says to a client that has not proved who it is."""
    got.read()
    try:
        said = got.json()
        code, message = str(said["code"]), str(said["message"])
    except (ValueError, TypeError, KeyError):
        code = "busy" if got.status_code >= 500 else "auth"
        message = f"{got.url} answers {got.status_code} {got.text!r:.80}; check the URL"
    raise RefusedError(message, code)


def _refuse_untrusted(error: Exception, url: str) -> None:
    """A handshake that failed will fail again; a connection that was cut may not."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLError) and not isinstance(cause, ssl.SSLEOFError):
            raise RefusedError(
                f"TLS with {url} failed: {cause}; check ca, certificate and private_key, their "
                "dates, and that the server speaks TLS",
                code="auth",
            ) from error
        cause = cause.__cause__ or cause.__context__


def _checked(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"the server's URL is {url!r:.120}; write https://host:port")
    if parts.scheme == "http" and not _is_here(parts.hostname):
        raise ConfigError(
            f"{url} is plain HTTP to another host, and the client's key could be read on the way; "
            "use https (`rookery serve --tls-cert`), or a tunnel that ends at localhost"
        )
    return url.rstrip("/")


def _is_here(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _trust(
    ca: str | Path | None, certificate: str | Path | None, private_key: str | Path | None
) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=None if ca is None else str(ca))
        if certificate is not None:
            context.load_cert_chain(certificate, private_key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"ca {ca}, certificate {certificate} and private_key {private_key} cannot be used: "
            f"{error}; they are PEM files, and the last two belong together"
        ) from error
    return context
