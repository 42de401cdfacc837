"""The parameter server, from another process or host; needs the extra `server`.

    server = RemoteParameterServer("https://host:8888", "alice", key, ca="cert.pem")
    server.register_worker("alice")
    version, arrays = server.get_parameters()
    receipt = server.push_gradients("alice", gradients, version=version)

It has the methods of `ParameterServer` that workers need, and they mean the same. A call that gets
no answer is repeated, later and later, until `patience_s` is over; an update is repeated with the
same `push_id`, so that it counts once whatever was lost. All methods may be called at once.
"""

import json
import random
import secrets
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from rookery.errors import ConfigError, RefusedError, StalledError
from rookery.server.http import compression, tensor_bytes, wire_format
from rookery.server.http.compression import Codec, Residual
from rookery.server.http.network import File, client_context, is_loopback, missing
from rookery.server.http.wire_format import Answer, Kind, Reply, Request
from rookery.server.parameter_server import Parameters, Receipt
from rookery.server.server_rules import checked_methods, refuse_weight
from rookery.types import Array

try:
    import httpx
except ImportError as error:
    raise missing(error) from error

FIRST_S, LONGEST_S = 0.05, 5.0  # between two attempts
WAIT_S = 50.0  # the longest that one request waits: proxies cut off what rests for a minute
REST_S = 0.05  # between two such requests, where a server answers earlier than it was asked to
CHUNK = 1 << 18  # bytes handed to the socket at once
AGAIN = frozenset({"rate", "busy", "late", "digest"})  # refusals that pass


@checked_methods
class RemoteParameterServer:
    """A parameter server behind a URL."""

    def __init__(
        self,
        url: str,
        client: str,
        key: str | None = None,
        *,
        ca: File = None,
        certificate: File = None,
        private_key: File = None,
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
        proof = {}
        if key is not None:
            bearer = wire_format.BEARER + wire_format.checked_key(client, key)
            proof = {wire_format.AUTHORIZATION: bearer}
        self._url, self._patience_s, self._timeout_s = _checked(url), patience_s, timeout_s
        self._codec, self._keep = Codec(codec), keep
        self._residuals: dict[str, Residual] = {}  # of each worker
        self._ended: Future[None] = Future()  # done as soon as all patience is over
        self._random = random.Random(secrets.randbits(64))
        self._http = httpx.Client(
            base_url=self._url,
            headers=proof,
            verify=client_context(ca, certificate, private_key),
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
        if not self._ended.done():
            self._ended.set_result(None)

    # --- the parameter server's methods

    def register_worker(self, worker: str) -> int:
        """Says that this client, or "client/part", will push; returns the version."""
        return self._ask(self._request(Kind.REGISTER, worker)).answer.version

    def unregister_worker(self, worker: str) -> None:
        """Says that it will not push any more."""
        self._ask(self._request(Kind.UNREGISTER, worker))

    def get_parameters(self, newer_than: int = -1, *, wait_s: float = 0.0) -> Parameters | None:
        """Returns the parameters if there are newer ones, at the latest after `wait_s`.

        The server waits, and not this client: it asks once in `WAIT_S`.
        """
        until = time.monotonic() + wait_s
        codec = Codec.FP16 if self._codec is Codec.FP16 else Codec.NONE
        pull = self._request(Kind.PULL, version=newer_than, codec=codec)
        while True:
            left = min(WAIT_S, max(0.0, until - time.monotonic()))
            asked = replace(pull, wait_s=left)
            reply = self._ask_aside(asked) if left else self._ask(asked)
            if reply is not None and reply.answer.accepted:
                return _parameters(reply)
            if reply is None or time.monotonic() >= until or self._rest(REST_S):
                return None

    def push_gradients(
        self,
        worker: str,
        grads: Mapping[str, Any],
        weight: float = 1.0,
        *,
        version: int | None = None,
        push_id: str | None = None,
    ) -> Receipt:
        """Sends an update; when this returns, the server will not lose it.

        What a codec leaves out of an update that is taken goes with the worker's next one, so
        that with a codec a worker's updates go one after the other.
        """
        refuse_weight(weight)
        request = self._request(
            Kind.PUSH,
            worker,
            version=-1 if version is None else version,
            push_id=push_id or secrets.token_hex(16),
            weight=float(weight),
            codec=self._codec,
        )
        if self._codec is Codec.NONE:
            return self._send(request, compression.encode(_arrays(grads), Codec.NONE))
        residual = self._residuals.setdefault(worker, Residual())
        with residual.turn:
            encoded = residual.encode(_arrays(grads), self._codec, self._keep)
            receipt = self._send(request, encoded.wire)
            residual.settle(encoded, taken=receipt.accepted)
        return receipt

    def take_back(self, worker: str) -> None:
        """Says that a worker's last update came to nothing: it can be pushed again as it was."""
        residual = self._residuals.setdefault(worker, Residual())
        with residual.turn:
            residual.take_back()

    def get_server_stats(self) -> dict[str, Any]:
        """Returns numbers about the server."""
        stats: dict[str, Any] = json.loads(self._ask(self._request(Kind.STATS)).body)
        return stats

    def _send(self, request: Request, update: Mapping[str, Array]) -> Receipt:
        """Returns what became of an update."""
        body = tensor_bytes.pack(update)
        request = replace(request, sha256=wire_format.digest(body), size=len(body))
        answer = self._ask(request, body).answer
        return Receipt(answer.accepted, answer.code, answer.version)

    # --- one call

    def _request(self, kind: Kind, worker: str = "", **said: Any) -> Request:
        worker = worker or self._client
        if not wire_format.belongs(worker, self._client):
            raise ConfigError(
                f"this is the connection of {self._client!r}, which cannot speak for {worker!r}; "
                f"use {self._client!r}, or {self._client + '/part'!r}"
            )
        return Request(kind=kind, client=self._client, worker=worker, **said)

    def _ask(self, request: Request, body: bytes = b"") -> Reply:
        """Returns the answer to a message, however often it takes within the patience."""
        until, rest_s = time.monotonic() + self._patience_s, FIRST_S
        while True:
            try:
                return self._attempt(request, body)
            except httpx.TransportError as error:
                _refuse_untrusted(error, self._url)
                last: Exception = error
            except RefusedError as refusal:
                if refusal.code not in AGAIN:
                    raise
                last = refusal
            left_s = until - time.monotonic()
            if left_s <= 0:
                raise StalledError(
                    f"{self._url} did not answer {request.kind} within {self._patience_s:g} s: "
                    f"{last}; is the server up, can this host reach it, and does it ask for a "
                    "client's certificate?"
                ) from last
            if self._rest(min(rest_s * self._random.uniform(0.5, 1.5), left_s)):
                raise StalledError(f"{self!r} was closed while it waited for an answer")
            rest_s = min(2 * rest_s, LONGEST_S)

    def _ask_aside(self, request: Request) -> Reply | None:
        """Asks in a thread of its own, so that `give_up` ends the wait at once; None: it did."""
        answered: Future[Reply] = Future()

        def ask() -> None:
            try:
                answered.set_result(self._ask(request))
            except Exception as error:  # raised again by the thread that waits for it
                answered.set_exception(error)

        threading.Thread(target=ask, name="rookery-pull", daemon=True).start()
        either: tuple[Future[Any], ...] = (answered, self._ended)
        wait(either, return_when=FIRST_COMPLETED)
        return answered.result() if answered.done() else None

    def _rest(self, seconds: float) -> bool:
        """Waits; returns whether `give_up` has ended it."""
        return bool(wait((self._ended,), seconds).done)

    def _attempt(self, request: Request, body: bytes) -> Reply:
        headers = wire_format.headers(request) | {"content-length": str(len(body))}
        timeout = httpx.Timeout(self._timeout_s, read=self._timeout_s + request.wait_s)
        got = self._http.post(
            wire_format.PATH, content=_pieces(body), headers=headers, timeout=timeout
        )
        reply = Reply(_answered(got), got.content)
        if reply.answer.message:
            raise RefusedError(reply.answer.message, reply.answer.code)
        _refuse_damaged(reply)
        return reply


def _pieces(body: bytes) -> Iterator[bytes]:
    """Yields a body in pieces: httpx copies what is left at each one that the socket refuses."""
    view = memoryview(body)
    return (bytes(view[at : at + CHUNK]) for at in range(0, len(view), CHUNK))


def _answered(got: httpx.Response) -> Answer:
    """Returns the answer of a parameter server; refuses what another HTTP server says."""
    token = got.headers.get(wire_format.MESSAGE, "").encode()
    if not token:
        raise RefusedError(
            f"{got.url} answers {got.status_code} {got.text!r:.80}; check the URL",
            "busy" if got.status_code >= 500 else "auth",
        )
    return wire_format.read_answer(token)


def _refuse_damaged(reply: Reply) -> None:
    answer, body = reply
    if len(body) != answer.size or wire_format.digest(body) != answer.sha256:
        raise RefusedError(
            f"{len(body)} of {answer.size} bytes arrived, or others than were announced; ask again",
            code="digest",
        )


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


def _refuse_untrusted(error: Exception, url: str) -> None:
    """A handshake that failed will fail again; a connection that was cut may not."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLError) and not isinstance(cause, ssl.SSLEOFError):
            raise RefusedError(
                f"TLS with {url} failed: {cause}; check ca (--ca), certificate (--tls-cert) and "
                "private_key (--tls-key), their dates, and that the server speaks TLS",
                code="auth",
            ) from error
        cause = cause.__cause__ or cause.__context__


def _checked(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"the server's URL is {url!r:.120}; write https://host:port")
    if parts.scheme == "http" and not is_loopback(parts.hostname):
        raise ConfigError(
            f"{url} is plain HTTP to another host, and the client's key could be read on the way; "
            "use https (`rookery serve --tls-cert`), or a tunnel that ends at localhost"
        )
    return url.rstrip("/")
