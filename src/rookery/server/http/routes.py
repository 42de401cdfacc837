"""The pages of a service: messages, and what can be watched.

| page | answers |
|---|---|
| `POST /v1/message` | everything a client of the parameter server asks for (`message_handler.py`) |
| `GET /status` | JSON: version, clients, counts, the parameter server's statistics |
| `GET /metrics` | the same as numbers for Prometheus |

The last two are for this host alone, or for whoever has the status token.
"""

import asyncio
import ipaddress
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from typing import Any

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
    ):
        """`crowd` says how many connections are open."""
        self._server, self._gate, self._crowd = server, gate, crowd
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
        return JSONResponse(plain(self._facts(stats) | {"server": stats}))

    async def _metrics(self, request: Request) -> Response:
        if not self._may_look(request):
            return self._hidden(request)
        gauges = {"connections": self._crowd(), "clients": len(self._gate.standings)}
        text = self.metrics.text(await self._stats() | gauges)
        return PlainTextResponse(text, media_type=CONTENT_TYPE)

    async def _stats(self) -> dict[str, Any]:
        """Asks in a thread: who asks may be the one who ends a round, and waits for the disk."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._server.get_server_stats)

    def _facts(self, stats: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "version": stats["version"],
            "uptime_s": self.metrics.uptime_s,
            "connections": self._crowd(),
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
        return request.client is not None and ipaddress.ip_address(request.client.host).is_loopback

    def _hidden(self, request: Request) -> Response:
        peer = request.client.host if request.client else "somebody"
        cure = "look from the server's own host, or send its status token"
        self.refused.note(RefusedError(f"{request.url.path} is not for all; {cure}", "auth"), peer)
        return JSONResponse({"code": "auth", "message": cure}, 401)
