"""Messages answered: from the head of a request to its answer.

Everything here runs on one event loop, except for what takes long or may wait for a lock: threads
hash and unpack updates, and call the parameter server.
"""

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor
from typing import Any

from starlette import requests
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from rookery.errors import RefusedError, RookeryError
from rookery.server.http import compression, tensor_bytes, wire_format
from rookery.server.http.access import Gate, Head
from rookery.server.http.compression import Codec
from rookery.server.http.prometheus import Metrics, Refusals
from rookery.server.http.wire_format import Answer, Kind, Reply, Request
from rookery.server.parameter_server import ParameterServer

LOOK_S = 0.05  # between two looks at the version
CHUNK = 1 << 20  # bytes handed to a connection at once: one that is not read holds no more
SLACK = 64 << 10  # bytes by which an update may be larger than the parameters
MESSAGE_LIMIT = 1000  # characters of a refusal
STATUS = {
    "auth": 401,
    "quarantined": 403,
    "late": 408,
    "length": 411,
    "size": 413,
    "rate": 429,
    "busy": 503,
    "malformed": 400,
    "digest": 400,
}  # of a refusal's code
OTHER = 422  # what the parameter server itself refuses
FAULTS = {
    "finite": "the update has NaN or infinity; mend the client: several in a row end in quarantine",
    "overflow": "the update would make parameters or optimizer infinite; mend the client: several "
    "in a row end in quarantine",
    "norm": "the update has a larger L2 norm than is allowed; lower the client's learning rate or "
    "raise --max-norm",
}  # codes of updates that show a fault of their client


class MessageResponse(Response):
    """An answer, whose body goes out in pieces, each when the one before it is nearly gone."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start = {"type": "http.response.start", "status": self.status_code}
        await send({**start, "headers": self.raw_headers})
        body = memoryview(self.body)
        for at in range(0, max(1, len(body)), CHUNK):
            chunk, more = body[at : at + CHUNK], at + CHUNK < len(body)
            await send({"type": "http.response.body", "body": chunk, "more_body": more})


class ParameterCache:
    """The newest version in each codec that was asked for. Any thread may ask.

    Each is packed and hashed once, for all clients."""

    def __init__(self, server: ParameterServer):
        self._server, self._lock = server, threading.Lock()
        self._newest: dict[Codec, Reply] = {}
        arrays = server.newest.arrays
        self.shapes = {name: tuple(array.shape) for name, array in arrays.items()}
        self.size = len(tensor_bytes.pack(arrays))  # bytes of a version

    def get(self, codec: Codec, newer_than: int = -1) -> Reply | None:
        """Returns the newest version; None if the client has it."""
        if self._server.version <= newer_than:
            return None
        with self._lock:  # the second thread waits for the packing of the first
            reply = self._newest.get(codec)
            if reply is None or reply.answer.version < self._server.version:
                version, arrays = self._server.newest
                body = tensor_bytes.pack(compression.encode(arrays, codec))
                reply = self._newest[codec] = wire_format.reply(version, body, codec)
        return reply if reply.answer.version > newer_than else None


class VersionWatch:
    """Lets requests wait without a thread each. Everything here runs on one event loop.

    Asking a parameter server for its version also closes a round whose deadline has passed, so a
    round ends although all its clients only wait.
    """

    def __init__(self, version: Callable[[], int], threads: Executor):
        """`version` may wait for a lock or the disk, so a thread asks."""
        self._version, self._threads = version, threads
        self._newest: float = -1
        self._changed = asyncio.Condition()
        self._task: asyncio.Task[None] | None = None  # runs from the first wait on
        self.ended = False  # set by any thread: no request waits any more

    async def newer_than(self, version: int, wait_s: float) -> None:
        """Returns once there may be a newer version, at the latest after `wait_s`."""
        if self._task is None:
            self._task = asyncio.create_task(self._look())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s), self._changed:
                await self._changed.wait_for(lambda: self._newest > version)

    async def _look(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                newest: float = await loop.run_in_executor(self._threads, self._version)
            except RookeryError:  # each request asks once more itself, and answers with the error
                newest = float("inf")
            if self.ended:
                newest = float("inf")
            if newest != self._newest:
                self._newest = newest
                async with self._changed:
                    self._changed.notify_all()
            await asyncio.sleep(LOOK_S)


class Messages:
    """Answers `POST /v1/message`."""

    def __init__(
        self,
        server: ParameterServer,
        announced: Callable[[], dict[str, Any]],
        gate: Gate,
        threads: Executor,
    ):
        """`announced` returns what clients are told beside the server's statistics."""
        self._server, self._announced, self.gate = server, announced, gate
        self._limits, self.threads = gate.limits, threads
        self.metrics = Metrics()
        self.refused = Refusals(self.metrics)
        self._cache = ParameterCache(self._server)
        self.watch = VersionWatch(lambda: self._server.version, threads)
        self.body_limit = self._limits.body_bytes or self._cache.size + SLACK
        self._receiving = 0  # bytes of bodies that are in memory
        self._handlers: dict[Kind, Callable[[Request, bytes], Reply]] = {
            Kind.REGISTER: self._register,
            Kind.UNREGISTER: self._unregister,
            Kind.PULL: self._pull,
            Kind.PUSH: self._push,
            Kind.STATS: self._stats,
        }

    async def answer(self, http: requests.Request) -> Response:
        """Returns what a request gets."""
        began, request, body = time.monotonic(), None, http.stream()
        peer = f"{http.client.host}:{http.client.port}" if http.client else "an unknown address"
        try:
            size = self._declared(http)
            request = self.gate.authenticate(_head(http))
            peer = f"{request.client} at {peer}"
            http.state.connection.identify(request.client)
            reply, status = await self._replied(request, size, body, peer), 200
        except RefusedError as refusal:
            self.refused.note(refusal, peer)
            reply, status = _refused(refusal), STATUS.get(refusal.code, OTHER)
            await _drain(body, self._limits.linger_s)
        if request is not None:
            self.metrics.count("sent_bytes_total", request.kind, len(reply.body))
            self.metrics.count("seconds_total", request.kind, time.monotonic() - began)
        return MessageResponse(reply.body, status, wire_format.headers(reply.answer))

    def _declared(self, http: requests.Request) -> int:
        """Returns the declared length of a body; refuses a body without one, or a longer one."""
        length = http.headers.get("content-length")
        if length is None:
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

    async def _replied(
        self, request: Request, size: int, body: AsyncIterator[bytes], peer: str
    ) -> Reply:
        """Receives a body, checks that it is as announced, and does what is asked."""
        self.gate.admit(request)
        self.metrics.count("messages_total", request.kind)
        if request.size != size or (size and request.kind is not Kind.PUSH):
            raise RefusedError(
                f"a {request.kind} of {request.size} bytes came with {size}; only "
                "updates have a body, of the length that the message says",
                code="malformed",
            )
        self._make_room(size)
        self._receiving += size
        try:
            received = await _read(body, size, self._limits.patience_s(size))
            self.metrics.count("received_bytes_total", request.kind, size)
            reply = await self._handled(request, received)
        finally:
            self._receiving -= size
        if request.kind is Kind.PUSH and not reply.answer.accepted:
            self._note_unaccepted(reply.answer.code, peer)
        return reply

    def _make_room(self, size: int) -> None:
        held = self._receiving + self._server.pending_bytes
        if held and held + size > self._limits.memory_bytes:
            raise RefusedError(
                f"{held} bytes of updates are being received or wait for the end of their round, "
                f"and {self._limits.memory_bytes} are allowed (memory_bytes, --memory); send it "
                "again a little later",
                code="busy",
            )

    async def _handled(self, request: Request, body: bytes) -> Reply:
        has_newest = self._server.newest.version <= request.version
        if request.kind is Kind.PULL and request.wait_s > 0 and has_newest:
            await self.watch.newer_than(request.version, min(request.wait_s, self._limits.wait_s))
        loop, handler = asyncio.get_running_loop(), self._handlers[request.kind]
        return await loop.run_in_executor(self.threads, handler, request, body)

    def _note_unaccepted(self, code: str, peer: str) -> None:
        """Counts an update that fits and does not count; names its client if it is at fault."""
        if code in FAULTS:
            self.refused.note(RefusedError(FAULTS[code], code), peer)
        else:
            self.metrics.count("refused_total", code)

    # --- what threads do

    def _register(self, request: Request, body: bytes) -> Reply:
        version = self._server.register_worker(self._counted(request))
        return Reply(Answer(accepted=True, version=version))

    def _unregister(self, request: Request, body: bytes) -> Reply:
        self._server.unregister_worker(request.worker or request.client)
        return Reply(Answer(accepted=True, version=self._server.version))

    def _pull(self, request: Request, body: bytes) -> Reply:
        if request.codec is Codec.TOP_K:
            raise RefusedError(
                "top_k is for updates; pull parameters with none or fp16", code="schema"
            )
        newer = self._cache.get(request.codec, request.version)
        return newer or Reply(Answer(accepted=False, code="same", version=request.version))

    def _push(self, request: Request, body: bytes) -> Reply:
        if not request.push_id:
            raise RefusedError(
                "a push without a push_id was sent, and could count twice if it is sent again; "
                "give every update an id of its own",
                code="malformed",
            )
        if wire_format.digest(body) != request.sha256:
            raise RefusedError(
                "the body has another SHA-256 than was announced; send it again", code="digest"
            )
        arrays = compression.decode(tensor_bytes.unpack(body), request.codec, self._cache.shapes)
        receipt = self._server.push_gradients(
            self._counted(request),
            arrays,
            request.weight,
            version=request.version if request.version >= 0 else None,
            push_id=request.push_id,
        )
        return Reply(Answer(**receipt._asdict()))

    def _counted(self, request: Request) -> str:
        """Returns a request's worker; refuses parts of clients where workers are counted."""
        worker = request.worker or request.client
        if self._server.one_voice and worker != request.client:
            raise RefusedError(
                f"in rounds and under robust rules a client counts once, and {worker!r} is a part "
                f"of one; register as {request.client!r}",
                code="clients",
            )
        return worker

    def _stats(self, request: Request, body: bytes) -> Reply:
        stats = self.stats()
        return wire_format.reply(stats["version"], json.dumps(stats).encode())

    def stats(self, *, every: bool = False) -> dict[str, Any]:
        """Returns what clients may know of the server; `every`: all that it knows itself."""
        server = self._server
        stats = server.get_server_stats() if every else server.get_client_stats()
        return stats | self._announced()


def _head(http: requests.Request) -> Head:
    """Returns what a request says before its body, and what its connection proves."""
    said = http.headers
    return Head(
        said.get(wire_format.CLIENT, ""),
        said.get(wire_format.MESSAGE, "").encode("latin-1"),
        said.get(wire_format.AUTHORIZATION, ""),
        http.state.connection.certified,
    )


async def _read(body: AsyncIterator[bytes], size: int, patience_s: float) -> bytes:
    """Returns the body; refuses one that is late, or cut short."""
    received = bytearray()
    try:
        async with asyncio.timeout(patience_s):
            async for chunk in body:
                received += chunk
    except (TimeoutError, requests.ClientDisconnect) as error:
        raise RefusedError(
            f"{len(received)} of {size} bytes arrived within the {patience_s:.1f} s allowed; use "
            "a faster line, or smaller updates",
            code="late" if isinstance(error, TimeoutError) else "malformed",
        ) from None
    return bytes(received)


async def _drain(body: AsyncIterator[bytes], patience_s: float) -> None:
    """Throws a refused body away: a client that is still sending would not see the answer."""
    with contextlib.suppress(TimeoutError, requests.ClientDisconnect):
        async with asyncio.timeout(patience_s):
            async for _ in body:
                pass


def _refused(refusal: RefusedError) -> Reply:
    message = str(refusal)[:MESSAGE_LIMIT]
    return Reply(Answer(accepted=False, code=refusal.code, message=message))
