"""The pages that can be watched, for this host alone or for requests with the status token.

Without a token any user of the host can ask, so a private server then shows nothing of who took
part, and the request must name this host: the name of another site may have been made to lead here
(DNS rebinding).
"""

import asyncio
import json
from typing import Any
from urllib.parse import urlsplit

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from rookery.errors import RefusedError
from rookery.server.http import wire_format
from rookery.server.http.message_handler import Messages
from rookery.server.http.network import is_loopback
from rookery.server.http.prometheus import CONTENT_TYPE

CURE = "ask from the server's own host, as localhost, or send its status token"


class Pages:
    """`GET /status` and `GET /metrics`."""

    def __init__(self, messages: Messages, host: str, token: str | None):
        """`host` is the name that was bound."""
        self._messages, self._host, self._token = messages, host, token

    async def status(self, http: Request) -> Response:
        """Answers in JSON; without counts of messages from a private server."""
        stats, metrics = await self._stats(http), self._messages.metrics
        facts = {
            "version": stats["version"],
            "uptime_s": metrics.uptime_s,
            "connections": _connections(http),
            "server": stats,
        }
        if not self._private(stats):
            known = self._messages.gate.clients.items()
            facts["clients"] = {name: {"messages": each.messages} for name, each in known}
            facts |= metrics.totals()
        return Response(json.dumps(facts), media_type="application/json")

    async def metrics(self, http: Request) -> Response:
        """Answers with the same as numbers for Prometheus."""
        stats = await self._stats(http)
        gauges, private = stats | {"connections": _connections(http)}, self._private(stats)
        if not private:
            gauges["clients"] = len(self._messages.gate.clients)
        text = self._messages.metrics.text(gauges, counters=not private)
        return Response(text, media_type=CONTENT_TYPE)

    async def _stats(self, http: Request) -> dict[str, Any]:
        """Returns the parameter server's statistics, if the request may see them."""
        if not self._may_look(http):
            refusal = RefusedError(f"{http.scope['path']} is not for all; {CURE}", "auth")
            self._messages.refused.note(refusal, str(http.client and http.client.host))
            raise HTTPException(401, CURE)
        # in a thread: asking may end a round, which waits for the disk
        return await asyncio.get_running_loop().run_in_executor(
            self._messages.threads, lambda: self._messages.stats(every=self._token is not None)
        )

    def _private(self, stats: dict[str, Any]) -> bool:
        return self._token is None and bool(stats.get("differential_privacy"))

    def _may_look(self, http: Request) -> bool:
        if self._token is not None:
            given = http.headers.get(wire_format.AUTHORIZATION, "")
            return wire_format.equal(given, wire_format.BEARER + self._token)
        near = http.client is not None and is_loopback(http.client.host)
        return near and self._names_this_host(http.headers.get("host", ""))

    def _names_this_host(self, header: str) -> bool:
        """Returns whether it is `localhost`, a loopback address or the name that was bound."""
        try:
            name = urlsplit(f"//{header}").hostname or ""
        except ValueError:
            return False
        return name == self._host.lower() or is_loopback(name)


def _connections(http: Request) -> int:
    """Returns how many connections are open."""
    return len(http.state.connection.connections)
