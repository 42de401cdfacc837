"""The pages of a service: messages, and what can be watched.

| page | answers |
|---|---|
| `POST /v1/message` | everything a client of the parameter server asks for (`message_handler.py`) |
| `GET /status` | JSON: version, clients, counts, the parameter server's statistics |
| `GET /metrics` | the same as numbers for Prometheus |

The last two are for this host alone, or for requests with the status token. Without a token any
user of the host can ask, so a private server then shows nothing of who took part, and the request
must name this host: the name of another site may have been made to lead here (DNS rebinding).
"""

import asyncio
import ipaddress
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from typing import Any
from urllib.parse import urlsplit

from rookery.errors import RefusedError
from rookery.server.http import wire_format
from rookery.server.http.access import Gate
from rookery.server.http.extra import missing
from rookery.server.http.message_handler import Answering, Messages
from rookery.server.http.prometheus import CONTENT_TYPE, Metrics, plain
from rookery.server.http.refusals import Refusals

try:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse, PlainTextResponse, Response
    from starlette.routing import Route
except ImportError as error:
    raise missing(error) from error


def is_loopback(host: str) -> bool:
    """Is it an address of this host alone?"""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Application:
    """The ASGI application of a service; `app` is what uvicorn runs."""

    def __init__(
        self,
        server: Answering,
        gate: Gate,
        *,
        threads: Executor,
        crowd: Callable[[], int],
        status_token: str | None,
        host: str,
    ):
        """`crowd` says how many connections are open; `host` is the name that was bound."""
        self._server, self._gate, self._crowd = server, gate, crowd
        self._host = host
        self._threads, self._token = threads, status_token
        self.metrics = Metrics()
        self.refused = Refusals(self.metrics)
        self.messages = Messages(
            server, gate, metrics=self.metrics, refused=self.refused, threads=threads
        )
        self.app = Starlette(
            routes=[
                Route(wire_format.PATH, self.messages, methods=["POST"]),
                Route("/status", self._status),
                Route("/metrics", self._metrics),
            ]
        )
        self.app.router.redirect_slashes = False

    async def _status(self, request: Request) -> Response:
        if not self._may_look(request):
            return self._hidden(request)
        stats = await self._stats()
        facts = self._facts(stats) | ({} if self._is_secret(stats) else self._traffic())
        return JSONResponse(plain(facts | {"server": stats}))

    async def _metrics(self, request: Request) -> Response:
        if not self._may_look(request):
            return self._hidden(request)
        stats = await self._stats()
        gauges: dict[str, Any] = {"connections": self._crowd()}
        if self._is_secret(stats):
            return PlainTextResponse(self.metrics.gauges(stats | gauges), media_type=CONTENT_TYPE)
        gauges["clients"] = len(self._gate.standings)
        return PlainTextResponse(self.metrics.text(stats | gauges), media_type=CONTENT_TYPE)

    async def _stats(self) -> dict[str, Any]:
        """Asks in a thread: who asks may be the one who ends a round, and waits for the disk."""
        loop, server = asyncio.get_running_loop(), self._server
        ask = server.get_client_stats if self._token is None else server.get_server_stats
        return await loop.run_in_executor(self._threads, ask)

    def _is_secret(self, stats: Mapping[str, Any]) -> bool:
        """Would counts of messages tell users of this host who took part in a private round?"""
        return self._token is None and bool(stats.get("differential_privacy"))

    def _facts(self, stats: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "version": stats["version"],
            "uptime_s": self.metrics.uptime_s,
            "connections": self._crowd(),
        }

    def _traffic(self) -> dict[str, Any]:
        return {
            "clients": {
                name: {"messages": standing.messages}
                for name, standing in self._gate.standings.items()
            },
            **self.metrics.totals(),
        }

    def _may_look(self, request: Request) -> bool:
        if self._token is not None:
            given = request.headers.get(wire_format.AUTHORIZATION, "")
            return wire_format.equal(given, wire_format.BEARER + self._token)
        if request.client is None or not ipaddress.ip_address(request.client.host).is_loopback:
            return False
        return self._names_this_host(request.headers.get("host", ""))

    def _names_this_host(self, header: str) -> bool:
        """Is it `localhost`, a loopback address or the name that was bound? A port may follow."""
        try:
            name = urlsplit(f"//{header}").hostname or ""
            return name in ("localhost", self._host.lower()) or is_loopback(name)
        except ValueError:
            return False

    def _hidden(self, request: Request) -> Response:
        peer = request.client.host if request.client else "somebody"
        cure = "look from the server's own host, as localhost, or send its status token"
        self.refused.note(RefusedError(f"{request.url.path} is not for all; {cure}", "auth"), peer)
        return JSONResponse({"code": "auth", "message": cure}, 401)
