"""A connection with the bounds that uvicorn leaves out; needs the extra `server`.

uvicorn closes a connection that rests between two requests, and that is all: one that never sends
a request, sends its head byte by byte, sends a head without end, or does not read its answer is
kept for ever, and so is any number of them. A body that does not arrive is the application's part
(`request_body.py`).
"""

import asyncio
import resource
import ssl
from collections import Counter
from collections.abc import Callable
from typing import Any

from rookery.errors import RefusedError
from rookery.server.http.extra import missing
from rookery.server.http.limits import Limits

try:
    import httptools  # noqa: F401 - uvicorn's protocol fails later without it
    import uvicorn
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
    from uvicorn.server import ServerState
except ImportError as error:
    raise missing(error) from error

BACKLOG = 2048
GRACE_S = 5  # for messages that are being answered when a server ends
RESERVE = 256  # files that a process keeps for everything but connections


class Connection(HttpToolsProtocol):
    """One client's connection; `owner` is its name, once a message of it was let in here.

    `certified` is the common name of the certificate that the client has shown.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        state: ServerState,
        crowd: "Crowd",
        loop: asyncio.AbstractEventLoop,
    ):
        super().__init__(config, state, {"connection": self}, loop)
        self.owner, self.certified = "", ""
        self._crowd, self._limits = crowd, crowd.limits
        self._in_head, self._head_bytes = True, 0
        self._head_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None

    @property
    def resting(self) -> bool:
        """Is no request being answered?"""
        return self.cycle is None or self.cycle.response_complete

    def greet(self, client: str) -> None:
        """Hears whose connection this is; refuses it where the client has too many."""
        if not self.owner:
            self._crowd.greet(self, client)

    def drop(self) -> None:
        """Ends the connection without waiting for the other side."""
        self.transport.abort()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.certified = _common_name(transport)
        self._expect_head()
        self._crowd.enter(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._crowd.leave(self)
        self._cancel_head_timer()
        self._cancel_write_timer()
        self.app_state = {}  # it holds this connection
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._in_head:
            self._head_bytes += len(data)
            self._expect_head()
        super().data_received(data)
        if self._in_head and self._head_bytes > self._limits.header_bytes:
            self.send_400_response("The request's head is too long.")

    def on_headers_complete(self) -> None:
        self._in_head, self._head_bytes = False, 0
        self._cancel_head_timer()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_head = True  # what follows is the head of the next request
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self._in_head:  # answered before its body was there: nobody waits for the rest
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        self._crowd.on_garbage()
        if not self.transport.is_closing():
            super().send_400_response(msg)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._write_timer is None:
            self._write_timer = self.loop.call_later(self._limits.stall_s, self.drop)

    def resume_writing(self) -> None:
        self._cancel_write_timer()
        super().resume_writing()

    def _expect_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self._limits.header_s, self.drop)

    def _cancel_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
        self._head_timer = None

    def _cancel_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
        self._write_timer = None


class Crowd:
    """All connections, the oldest first. When there are too many, one that rests has to go.

    Strangers make room for clients, and each client for itself.
    """

    def __init__(self, limits: Limits, on_garbage: Callable[[], None]):
        self.limits, self.on_garbage = limits, on_garbage
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.capacity = min(limits.connections, max(1, files - RESERVE))
        self._members: dict[Connection, None] = {}
        self._clients: Counter[str] = Counter()  # their connections

    def __len__(self) -> int:
        return len(self._members)

    def enter(self, newcomer: Connection) -> None:
        self._members[newcomer] = None
        if len(self._members) > self.capacity:
            self._choose(newcomer).drop()

    def greet(self, member: Connection, client: str) -> None:
        if self._clients[client] >= self.limits.client_connections:
            oldest = self._resting(client)
            if oldest is None:
                raise RefusedError(
                    f"{client} has {self._clients[client]} connections, and all are at work; use "
                    "fewer at once",
                    code="busy",
                )
            self._forget(oldest)
            oldest.drop()
        member.owner = client
        self._clients[client] += 1

    def leave(self, member: Connection) -> None:
        self._members.pop(member, None)
        self._forget(member)

    def _forget(self, member: Connection) -> None:
        """A connection that is being dropped counts no longer."""
        if member.owner:
            self._clients[member.owner] -= 1
            self._clients += Counter()  # drops those who have none left
            member.owner = ""

    def _choose(self, newcomer: Connection) -> Connection:
        """Returns the oldest stranger that rests, else the newcomer."""
        return self._resting("") or newcomer

    def _resting(self, client: str) -> Connection | None:
        own = (who for who in self._members if who.owner == client and who.resting)
        return next((who for who in own if not who.transport.is_closing()), None)


class HttpServer(uvicorn.Server):
    """uvicorn's server, whose connections are ours."""

    def __init__(self, app: Any, crowd: Crowd, context: ssl.SSLContext | None):
        super().__init__(_settings(app, crowd.limits))
        self._crowd, self._context = crowd, context

    async def startup(self, sockets: Any = None) -> None:
        loop, context = asyncio.get_running_loop(), self._context
        patience_s = self._crowd.limits.header_s if context else None
        self.servers = [
            await loop.create_server(
                lambda: Connection(self.config, self.server_state, self._crowd, loop),
                sock=sock,
                ssl=context,
                backlog=BACKLOG,
                ssl_handshake_timeout=patience_s,
            )
            for sock in sockets
        ]
        self.started = True


def _common_name(transport: asyncio.Transport) -> str:
    """Returns the only common name of the other side's certificate, which TLS has verified."""
    names = [
        str(value)
        for part in (transport.get_extra_info("peercert") or {}).get("subject", ())
        for key, value in part
        if key == "commonName"
    ]
    return names[0] if len(names) == 1 else ""


def _settings(app: Any, limits: Limits) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http="httptools",
        loop="asyncio",
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        log_level="error",  # each stranger's garbage would be a warning
        access_log=False,
        proxy_headers=False,  # they could say that anybody is on this host
        server_header=False,
        timeout_keep_alive=limits.idle_s,  # type: ignore[arg-type]  # any number of seconds
        timeout_graceful_shutdown=GRACE_S,
    )
