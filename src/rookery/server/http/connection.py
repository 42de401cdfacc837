"""A connection with the bounds that uvicorn leaves out; needs the extra `server`.

uvicorn closes a connection that rests between two requests, and that is all: one that never sends
a request, sends its head byte by byte, sends a head without end, or does not read its answer is
kept for ever, and so is any number of them. `message_handler.py` cuts off a body that does not
arrive.
"""

import asyncio
import itertools
import resource
import ssl
from typing import Any

import httptools  # noqa: F401 - uvicorn's protocol fails later without it
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from rookery.errors import RefusedError
from rookery.server.http.limits import Limits
from rookery.server.http.prometheus import Refusals

BACKLOG = 2048
GRACE_S = 5  # for messages that are being answered when a server ends
RESERVE = 256  # files that a process keeps for everything but connections


class Connection(HttpToolsProtocol):
    """One client's connection; `owner` is its name, once a message of it was let in here.

    `certified` is the common name of the certificate that the client has shown.
    """

    def __init__(self, server: "HttpServer", number: int):
        super().__init__(server.config, server.server_state, {"connection": self})
        self.number = number  # the higher, the later it was opened
        self.owner, self.certified = "", ""
        self._server, self._limits = server, server.limits
        self._in_head, self._head_bytes = True, 0
        self._timers: dict[str, asyncio.TimerHandle] = {}

    @property
    def resting(self) -> bool:
        """Whether no request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def identify(self, client: str) -> None:
        """Takes note of the client behind it; refuses one that has too many connections."""
        if not self.owner:
            self._server.admit(client)
            self.owner = client

    def drop(self) -> None:
        """Ends the connection without waiting for the other side."""
        self.transport.abort()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.certified = _common_name(transport)
        self._start("head", self._limits.header_s)
        self._server.make_room(self)

    def connection_lost(self, exc: Exception | None) -> None:
        for name in tuple(self._timers):
            self._stop(name)
        self.app_state = {}  # it holds this connection
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._in_head:
            self._head_bytes += len(data)
            self._start("head", self._limits.header_s)
        super().data_received(data)
        if self._in_head and self._head_bytes > self._limits.header_bytes:
            self.send_400_response("The request's head is too long.")

    def on_headers_complete(self) -> None:
        self._in_head, self._head_bytes = False, 0
        self._stop("head")
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_head = True  # what follows is the head of the next request
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self._in_head:  # answered before its body was there, which is not waited for
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        cure = "speak HTTP here, or TLS if the URL says https"
        self._server.refused.note(RefusedError(f"no HTTP request; {cure}", "garbage"), "-")
        if not self.transport.is_closing():
            super().send_400_response(msg)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._start("write", self._limits.stall_s)

    def resume_writing(self) -> None:
        self._stop("write")
        super().resume_writing()

    def _start(self, timer: str, seconds: float) -> None:
        """Drops the connection after so long, unless the timer is stopped or runs already."""
        if timer not in self._timers:
            self._timers[timer] = self.loop.call_later(seconds, self.drop)

    def _stop(self, timer: str) -> None:
        if timer in self._timers:
            self._timers.pop(timer).cancel()


class HttpServer(uvicorn.Server):
    """uvicorn's server, whose connections are ours. When there are too many, one has to go.

    It is the oldest that rests: strangers make room for clients, and each client for itself.
    """

    def __init__(self, app: Any, limits: Limits, refused: Refusals, context: ssl.SSLContext | None):
        super().__init__(_settings(app, limits))
        self.limits, self.refused, self._context = limits, refused, context
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._capacity = min(limits.connections, max(1, files - RESERVE))

    async def startup(self, sockets: Any = None) -> None:
        """Listens, as uvicorn does, and bounds the time of a TLS handshake."""
        loop, numbers = asyncio.get_running_loop(), itertools.count()
        self.servers = [
            await loop.create_server(
                lambda: Connection(self, next(numbers)),
                sock=sock,
                ssl=self._context,
                backlog=BACKLOG,
                ssl_handshake_timeout=self.limits.header_s if self._context else None,
            )
            for sock in sockets
        ]
        self.started = True

    def make_room(self, newcomer: Connection) -> None:
        """Drops a stranger's connection, or the newcomer, if there are too many."""
        if len(self.server_state.connections) > self._capacity:
            strangers = (each for each in self._open("") if each.resting)
            next(strangers, newcomer).drop()

    def admit(self, client: str) -> None:
        """Makes room for another connection of a client, or refuses it."""
        own = self._open(client)
        if len(own) < self.limits.client_connections:
            return
        oldest = next((each for each in own if each.resting), None)
        if oldest is None:
            raise RefusedError(
                f"{client} has {len(own)} connections, and all are at work; use fewer at once",
                code="busy",
            )
        oldest.drop()

    def _open(self, client: str) -> list[Connection]:
        """Returns the connections of a client, or of strangers (""), the oldest first."""
        every = (each for each in self.server_state.connections if isinstance(each, Connection))
        own = (each for each in every if each.owner == client and not each.transport.is_closing())
        return sorted(own, key=lambda each: each.number)


def _common_name(transport: asyncio.Transport) -> str:
    """Returns the only common name in the client's certificate, which TLS has verified."""
    subject = (transport.get_extra_info("peercert") or {}).get("subject", ())
    names = [str(value) for part in subject for key, value in part if key == "commonName"]
    return names[0] if len(names) == 1 else ""


def _settings(app: Any, limits: Limits) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http="httptools",
        loop="asyncio",
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="error",  # each stranger's garbage would be a warning
        access_log=False,
        proxy_headers=False,  # a header could claim that a stranger is on this host
        server_header=False,
        timeout_keep_alive=limits.idle_s,  # type: ignore[arg-type]  # any number of seconds
        timeout_graceful_shutdown=GRACE_S,
    )
