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
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from rookery.errors import RefusedError
from rookery.server.http import compression, refusals, tensor_bytes, wire_format
from rookery.server.http.access import Gate, Head
from rookery.server.http.compression import Codec
from rookery.server.http.parameter_cache import ParameterSource, Parcels
from rookery.server.http.prometheus import Metrics, plain
from rookery.server.http.refusals import Refusals
from rookery.server.http.request_body import Body
from rookery.server.http.version_watch import VersionWatch
from rookery.server.http.wire_format import Answer, Bytes, Kind, Request
from rookery.types import Array

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

CHUNK = 1 << 20  # bytes handed to a connection at once: one that is not read holds no more
SLACK = 64 << 10  # bytes by which an update may be larger than the parameters
MESSAGE_LIMIT = 1000  # characters of a refusal
FAULTS = {
    "finite": "the update has NaN or infinity; mend the client: several in a row end in quarantine",
    "overflow": "the update would make parameters or optimizer infinite; mend the client: several "
    "in a row end in quarantine",
    "norm": "the update has a larger L2 norm than is allowed; lower the client's learning rate or "
    "raise --max-norm",
}  # codes of updates that show a fault of their client
T = TypeVar("T")


class UpdateReceipt(Protocol):
    """What became of an update."""

    @property
    def accepted(self) -> bool: ...
    @property
    def code(self) -> str: ...
    @property
    def version(self) -> int: ...


class Answering(ParameterSource, Protocol):
    """A parameter server, as the network sees it."""

    @property
    def one_voice(self) -> bool: ...
    @property
    def pending_bytes(self) -> int: ...
    @property
    def round_bytes(self) -> int: ...
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
    ) -> UpdateReceipt: ...
    def get_server_stats(self) -> dict[str, Any]: ...
    def get_client_stats(self) -> dict[str, Any]: ...


class ServiceAnswer(NamedTuple):
    """What there is to answer."""

    version: int = -1
    accepted: bool = True
    code: str = ""
    message: str = ""
    body: Bytes = b""
    sha256: str = wire_format.EMPTY
    codec: Codec = Codec.NONE


class Connected(Protocol):
    """The connection that a request came by."""

    @property
    def certified(self) -> str:
        """The common name of the client's certificate; "": it has shown none."""

    def greet(self, client: str) -> None:
        """Hears whose it is."""

    def drop(self) -> None:
        """Ends it."""


@dataclass(frozen=True)
class Exchange:
    """A request whose sender is known, and the way back."""

    said: Request
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
        self.watch = VersionWatch(lambda: server.version, threads)
        self.body_limit = gate.limits.body_bytes or self._parcels.size + SLACK
        self._receiving = 0  # bytes of bodies that are in memory
        self._handlers: dict[Kind, Callable[[Request, bytearray], ServiceAnswer]] = {
            Kind.REGISTER: self._register,
            Kind.UNREGISTER: self._unregister,
            Kind.PULL: self._pull,
            Kind.PUSH: self._push,
            Kind.STATS: self._stats,
        }

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        begun, headers = time.monotonic(), dict(scope["headers"])
        body, connection = Body(receive, 0), scope["state"]["connection"]
        try:
            body.size = self._declared(headers)
            said = self._gate.authenticate(_head(headers, connection.certified))
        except RefusedError as refusal:
            self._refused.note(refusal, _peer(scope))
            await self._turn_away(refusal, body, send)
            return
        await self._exchange(Exchange(said, body, send, _peer(scope), connection))
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
        """Answers a stranger and closes the connection."""
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
            call.connection.greet(said.client)
            self._metrics.count("messages_total", said.kind)
            outcome = await self._received(call)
        except RefusedError as refusal:
            self._refused.note(refusal, f"{said.client} at {call.peer}")
            message = str(refusal)[:MESSAGE_LIMIT]
            outcome = ServiceAnswer(accepted=False, code=refusal.code, message=message)
            await call.body.drain(self._limits.linger_s)
        await self._answer(call, outcome)

    async def _received(self, call: Exchange) -> ServiceAnswer:
        """Receives a body, checks that it is as announced, and does what is asked."""
        said = call.said
        if said.size != call.body.size or (said.size and said.kind is not Kind.PUSH):
            raise RefusedError(
                f"a {said.kind} of {said.size} bytes came with {call.body.size}; only updates "
                "have a body, of the length that the message says",
                code="malformed",
            )
        self._make_room(said.size)
        self._receiving += said.size
        try:
            body = await call.body.read(self._limits.patience_s(said.size))
            self._metrics.count("received_bytes_total", said.kind, len(body))
            return await self._handled(call, body)
        finally:
            self._receiving -= said.size

    def _make_room(self, size: int) -> None:
        held = self._receiving + self._server.pending_bytes
        if held and held + size > self._limits.memory_bytes:
            raise RefusedError(
                f"{held} bytes of updates are being received or wait for the end of their round, "
                f"and {self._limits.memory_bytes} are allowed (memory_bytes, --memory); send it "
                "again a little later",
                code="busy",
            )

    async def _handled(self, call: Exchange, body: bytearray) -> ServiceAnswer:
        said, handler = call.said, self._handlers[call.said.kind]
        if said.kind is Kind.PULL:
            await self.watch.newer_than(said.version, min(said.wait_s, self._limits.wait_s))
        outcome = await self._in_thread(lambda: handler(said, body))
        if said.kind is Kind.PUSH and not outcome.accepted:
            self._note_unaccepted(call, outcome.code)
        return outcome

    def _note_unaccepted(self, call: Exchange, code: str) -> None:
        """Counts an update that fits and does not count; names its client where it is at fault."""
        if code in FAULTS:
            refusal = RefusedError(FAULTS[code], code)
            self._refused.note(refusal, f"{call.said.client} at {call.peer}")
        else:
            self._metrics.count("refused_total", code)

    def _in_thread(self, work: Callable[[], T]) -> Awaitable[T]:
        return asyncio.get_running_loop().run_in_executor(self._threads, work)

    # --- what threads do

    def _register(self, said: Request, body: bytearray) -> ServiceAnswer:
        return ServiceAnswer(self._server.register_worker(self._voice(said)))

    def _unregister(self, said: Request, body: bytearray) -> ServiceAnswer:
        self._server.unregister_worker(said.worker or said.client)
        return ServiceAnswer(self._server.version)

    def _pull(self, said: Request, body: bytearray) -> ServiceAnswer:
        if said.codec is Codec.TOP_K:
            raise RefusedError(
                "top_k is for updates; pull parameters with none or fp16", code="schema"
            )
        parcel = self._parcels.get(said.codec, said.version)
        if parcel is None:
            return ServiceAnswer(said.version, accepted=False, code="same")
        return ServiceAnswer(
            parcel.version, body=parcel.body, sha256=parcel.sha256, codec=said.codec
        )

    def _push(self, said: Request, body: bytearray) -> ServiceAnswer:
        if not said.push_id:
            raise RefusedError(
                "a push without a push_id was sent, and could count twice if it is sent again; "
                "give every update an id of its own",
                code="malformed",
            )
        arrays = compression.decode(_intact(said, body), said.codec, self._parcels.shapes)
        receipt = self._server.push_gradients(
            self._voice(said),
            arrays,
            said.weight,
            version=_version(said),
            push_id=said.push_id,
        )
        return ServiceAnswer(receipt.version, receipt.accepted, receipt.code)

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

    def _stats(self, said: Request, body: bytearray) -> ServiceAnswer:
        text = json.dumps(plain(self._server.get_client_stats())).encode()
        return ServiceAnswer(self._server.version, body=text, sha256=wire_format.digest(text))

    # --- answers

    async def _answer(self, call: Exchange, outcome: ServiceAnswer) -> None:
        answer = Answer(
            accepted=outcome.accepted,
            code=outcome.code,
            message=outcome.message,
            version=outcome.version,
            sha256=outcome.sha256,
            size=len(outcome.body),
            codec=outcome.codec,
        )
        headers = wire_format.headers(answer)
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


def _intact(said: Request, body: bytearray) -> dict[str, Array]:
    """Returns the arrays of a body, once it has the SHA-256 that was announced."""
    if wire_format.digest(body) != said.sha256:
        raise RefusedError(
            "the body has another SHA-256 than was announced; send it again", code="digest"
        )
    return tensor_bytes.unpack(body)


def _version(said: Request) -> int | None:
    return said.version if said.version >= 0 else None


def _head(headers: Mapping[bytes, bytes], certified: str) -> Head:
    return Head(
        headers.get(wire_format.CLIENT.encode(), b"").decode("latin-1"),
        headers.get(wire_format.MESSAGE.encode(), b""),
        headers.get(wire_format.AUTHORIZATION.encode(), b"").decode("latin-1"),
        certified,
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
