"""Messages answered: from the head of a request to the last byte of its answer.

Everything here runs on one event loop, but for what takes long or may wait for a lock: hashing
and unpacking an update, and every call of the parameter server, which threads do.
"""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar, runtime_checkable

from rookery.errors import RefusedError
from rookery.server import compress, protocol, refusals, tensors
from rookery.server.body import Body
from rookery.server.compress import Codec
from rookery.server.gate import Gate, Head
from rookery.server.metrics import Metrics, plain
from rookery.server.parcels import Parcels, Source
from rookery.server.protocol import Answer, Bytes, Kind, Request
from rookery.server.refusals import Refusals
from rookery.types import Array

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

CHUNK = 1 << 20  # bytes handed to a connection at once: one that is not read holds no more
SLACK = 64 << 10  # bytes by which an update may be larger than the parameters
MESSAGE_LIMIT = 1000  # characters of a refusal
T = TypeVar("T")


class Receipt(Protocol):
    """What became of an update."""

    @property
    def accepted(self) -> bool: ...
    @property
    def code(self) -> str: ...
    @property
    def version(self) -> int: ...


class Answering(Source, Protocol):
    """A parameter server, as the network sees it."""

    @property
    def one_voice(self) -> bool: ...
    def register_worker(self, worker: str) -> int: ...
    def unregister_worker(self, worker: str) -> None: ...
    def push_gradients(
        self,
        worker: str,
        grads: dict[str, Any],
        weight: float = 1.0,
        *,
        version: int | None = None,
        push_id: str | None = None,
    ) -> Receipt: ...
    def get_server_stats(self) -> dict[str, Any]: ...
    def get_client_stats(self) -> dict[str, Any]: ...


class View(Protocol):
    """Where a secure sum stands for a client."""

    @property
    def code(self) -> str: ...
    @property
    def letter(self) -> Mapping[str, Array]: ...


@runtime_checkable
class Summing(Protocol):
    """A parameter server whose rounds are secure sums."""

    @property
    def letter_bytes(self) -> int: ...
    def take_stage(
        self,
        worker: str,
        stage: Kind,
        letter: Mapping[str, Array],
        *,
        session: str = "",
        version: int | None = None,
        digest: str = "",
    ) -> Receipt: ...
    def show_stage(self, worker: str, session: str = "") -> View: ...


class Outcome(NamedTuple):
    """What there is to answer."""

    version: int = -1
    accepted: bool = True
    code: str = ""
    message: str = ""
    body: Bytes = b""
    sha256: str = protocol.EMPTY
    codec: Codec = Codec.NONE


class Connected(Protocol):
    """The connection that a request came by."""

    def greet(self, client: str) -> None:
        """Hears whose it is."""

    def drop(self) -> None:
        """Ends it."""


@dataclass(frozen=True)
class Exchange:
    """A request whose sender is known, and the way back."""

    said: Request
    key: str
    body: Body
    send: "Send"
    peer: str
    connection: Connected


class Messages:
    """The ASGI application of `POST /v1/message`."""

    def __init__(
        self,
        server: Answering,
        gate: Gate,
        *,
        metrics: Metrics,
        refused: Refusals,
        threads: Executor,
    ):
        self._server, self._gate, self._limits = server, gate, gate.limits
        self._metrics, self._refused, self._threads = metrics, refused, threads
        self._parcels = Parcels(server)
        self._sums = server if isinstance(server, Summing) else None
        letter = 0 if self._sums is None else self._sums.letter_bytes
        self.body_limit = gate.limits.body_bytes or max(self._parcels.size, letter) + SLACK
        self._receiving = 0  # bytes of bodies that are in memory
        self._handlers: dict[Kind, Callable[[Request, bytearray], Outcome]] = {
            Kind.REGISTER: self._register,
            Kind.UNREGISTER: self._unregister,
            Kind.PULL: self._pull,
            Kind.PUSH: self._push,
            Kind.STATS: self._stats,
            Kind.LOOK: self._show,
            **dict.fromkeys(protocol.STAGES, self._take),
        }

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        begun, headers = time.monotonic(), dict(scope["headers"])
        body = Body(receive, 0)
        try:
            body.size = self._declared(headers)
            said, key = self._gate.authenticate(_head(headers))
        except RefusedError as refusal:
            self._refused.note(refusal, _peer(scope))
            await self._turn_away(refusal, body, send)
            return
        connection = scope["state"]["connection"]
        await self._exchange(Exchange(said, key, body, send, _peer(scope), connection))
        self._metrics.count("seconds_total", said.kind, time.monotonic() - begun)

    def _declared(self, headers: Mapping[bytes, bytes]) -> int:
        """Returns how long a body says it is; refuses one that does not say, or is too long."""
        length = headers.get(b"content-length", b"")
        if b"transfer-encoding" in headers or not length.isdigit() or len(length) > 18:
            raise RefusedError(
                "a message says how long its body is; send Content-Length", code="length"
            )
        if int(length) > self.body_limit:
            raise RefusedError(
                f"a body of {int(length)} bytes is announced and {self.body_limit} are allowed; "
                "send updates of the parameters served here, and nothing else",
                code="size",
            )
        return int(length)

    async def _turn_away(self, refusal: RefusedError, body: Body, send: "Send") -> None:
        """Answers a stranger, unsigned, and closes the connection."""
        if body.size:
            await body.drain(self._limits.linger_s)
        text = json.dumps({"code": refusal.code, "message": str(refusal)[:MESSAGE_LIMIT]})
        await respond(
            send,
            refusals.status(refusal.code),
            {"content-type": "application/json", "connection": "close"},
            text.encode(),
        )

    async def _exchange(self, call: Exchange) -> None:
        said = call.said
        try:
            self._gate.admit(said)
            call.connection.greet(said.client)  # not before: anybody can send a message again
            self._metrics.count("messages_total", said.kind)
            outcome = await self._received(call)
        except RefusedError as refusal:
            self._refused.note(refusal, f"{said.client} at {call.peer}")
            message = str(refusal)[:MESSAGE_LIMIT]
            outcome = Outcome(accepted=False, code=refusal.code, message=message)
            await call.body.drain(self._limits.linger_s)
        await self._answer(call, outcome)

    async def _received(self, call: Exchange) -> Outcome:
        """Receives a body, checks that it is the one that was signed, and does what is asked."""
        said = call.said
        if said.size != call.body.size or (said.size and said.kind not in protocol.BODIED):
            raise RefusedError(
                f"a {said.kind} of {said.size} bytes came with {call.body.size}; only updates "
                "and letters have a body, of the length that was signed",
                code="malformed",
            )
        self._make_room(said.size)
        self._receiving += said.size
        try:
            body = await call.body.read(self._limits.patience_s(said.size))
            self._metrics.count("received_bytes_total", said.kind, len(body))
            return await self._handled(said, body)
        finally:
            self._receiving -= said.size

    def _make_room(self, size: int) -> None:
        if self._receiving and self._receiving + size > self._limits.memory_bytes:
            raise RefusedError(
                f"{self._receiving} bytes of updates are being received and "
                f"{self._limits.memory_bytes} are allowed; send it again a little later",
                code="busy",
            )

    async def _handled(self, said: Request, body: bytearray) -> Outcome:
        handler = self._handlers[said.kind]
        try:
            outcome = await self._in_thread(lambda: handler(said, body))
        except RefusedError as refusal:
            if said.kind in protocol.BODIED:
                self._gate.judge(said.client, refusal.code)
            raise
        if said.kind in protocol.BODIED:
            self._gate.judge(said.client, "" if outcome.accepted else outcome.code)
            if not outcome.accepted:
                self._metrics.count("refused_total", outcome.code)
        return outcome

    def _in_thread(self, work: Callable[[], T]) -> Awaitable[T]:
        return asyncio.get_running_loop().run_in_executor(self._threads, work)

    # --- what threads do

    def _register(self, said: Request, body: bytearray) -> Outcome:
        return Outcome(self._server.register_worker(self._voice(said)))

    def _unregister(self, said: Request, body: bytearray) -> Outcome:
        self._server.unregister_worker(said.worker or said.client)
        return Outcome(self._server.version)

    def _pull(self, said: Request, body: bytearray) -> Outcome:
        if said.codec is Codec.TOP_K:
            raise RefusedError(
                "top_k is for updates; pull parameters with none or fp16", code="schema"
            )
        parcel = self._parcels.get(said.codec, said.version)
        if parcel is None:
            return Outcome(said.version, accepted=False, code="same")
        return Outcome(parcel.version, body=parcel.body, sha256=parcel.sha256, codec=said.codec)

    def _push(self, said: Request, body: bytearray) -> Outcome:
        arrays = compress.decode(_signed(said, body), said.codec, self._parcels.shapes)
        receipt = self._server.push_gradients(
            self._voice(said),
            arrays,
            said.weight,
            version=_version(said),
            push_id=said.push_id or None,
        )
        return Outcome(receipt.version, receipt.accepted, receipt.code)

    def _voice(self, said: Request) -> str:
        """Returns the worker that is spoken for. Where those are counted, a key is one of them."""
        worker = said.worker or said.client
        if self._server.one_voice and worker != said.client:
            raise RefusedError(
                f"in rounds and under robust rules a client counts once, and {worker!r} is a part "
                f"of one; register as {said.client!r}",
                code="clients",
            )
        return worker

    def _take(self, said: Request, body: bytearray) -> Outcome:
        receipt = self._summing().take_stage(
            said.worker or said.client,
            said.kind,
            _signed(said, body),
            session=said.push_id,
            version=_version(said),
            digest=said.sha256,
        )
        return Outcome(receipt.version, receipt.accepted, receipt.code)

    def _show(self, said: Request, body: bytearray) -> Outcome:
        seen = self._summing().show_stage(said.worker or said.client, said.push_id)
        text: Bytes = tensors.pack(seen.letter) if seen.letter else b""
        digest = protocol.digest(text)
        return Outcome(self._server.version, code=seen.code, body=text, sha256=digest)

    def _summing(self) -> Summing:
        if self._sums is None:
            raise RefusedError(
                "this server has no secure sums, and a letter of one was sent; join it anew, if "
                "it may see updates as they are",
                code="plain",
            )
        return self._sums

    def _stats(self, said: Request, body: bytearray) -> Outcome:
        text = json.dumps(plain(self._server.get_client_stats())).encode()
        return Outcome(self._server.version, body=text, sha256=protocol.digest(text))

    # --- answers

    async def _answer(self, call: Exchange, outcome: Outcome) -> None:
        answer = Answer(
            re=call.said.nonce,
            accepted=outcome.accepted,
            code=outcome.code,
            message=outcome.message,
            version=outcome.version,
            sha256=outcome.sha256,
            size=len(outcome.body),
            codec=outcome.codec,
        )
        headers = protocol.seal(answer, call.key)
        headers[protocol.NONCE] = str(self._gate.nonces.issue())
        if not call.body.complete and call.body.size:
            headers["connection"] = "close"
        status = 200 if outcome.accepted or not outcome.message else refusals.status(outcome.code)
        self._metrics.count("sent_bytes_total", call.said.kind, len(outcome.body))
        try:
            async with asyncio.timeout(self._limits.patience_s(len(outcome.body))):
                await respond(call.send, status, headers, outcome.body)
        except TimeoutError:
            late = RefusedError("the answer was not read in time; use a faster line", code="late")
            self._refused.note(late, f"{call.said.client} at {call.peer}")
            call.connection.drop()


def _signed(said: Request, body: bytearray) -> dict[str, Array]:
    """Returns the arrays of a body, once it is the one that was signed."""
    if not protocol.equal(protocol.digest(body), said.sha256):
        raise RefusedError("the body is not the one that was signed; send it again", code="digest")
    return tensors.unpack(body)


def _version(said: Request) -> int | None:
    return said.version if said.version >= 0 else None


def _head(headers: Mapping[bytes, bytes]) -> Head:
    return Head(
        headers.get(protocol.CLIENT.encode(), b"").decode("latin-1"),
        headers.get(protocol.MESSAGE.encode(), b""),
        headers.get(protocol.SIGNATURE.encode(), b""),
    )


def _peer(scope: "Scope") -> str:
    client = scope.get("client")
    return f"{client[0]}:{client[1]}" if client else "somebody"


async def respond(send: "Send", status: int, headers: Mapping[str, str], body: Bytes) -> None:
    """Sends an answer; a large one in pieces, each when the one before it is nearly gone."""
    pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
    pairs.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": status, "headers": pairs})
    view = memoryview(body)
    for at in range(0, max(1, len(body)), CHUNK):
        chunk, more = view[at : at + CHUNK], at + CHUNK < len(body)
        await send({"type": "http.response.body", "body": chunk, "more_body": more})
