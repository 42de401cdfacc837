"""The parameter server on the network: HTTP, with TLS where it leaves this host.

    keys = Keys("server-keys.json")
    keys.issue("alice")
    service = Service(server, "0.0.0.0", 8888, keys=keys, certificate="cert.pem",
                      private_key="key.pem")
    print(service.start())      # https://0.0.0.0:8888
    ...
    service.stop()

| page | answers |
|---|---|
| `POST /v1/message` | everything a client of the parameter server asks for (`message_handler.py`) |
| `GET /status` | JSON: version, clients, counts, the parameter server's statistics |
| `GET /metrics` | the same as numbers for Prometheus |

It runs in a thread of this process. What is checked in which order: `access.py`. What travels:
`wire_format.py`.
"""

import asyncio
import socket
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

from rookery.errors import ConfigError, LostError, ProtocolError, RefusedError, StalledError
from rookery.server.http import wire_format
from rookery.server.http.access import Gate
from rookery.server.http.client_keys import Keys, checked_keys
from rookery.server.http.limits import Limits
from rookery.server.http.network import File, is_loopback, listen, missing, resolve, server_context
from rookery.server.parameter_server import ParameterServer

try:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse, PlainTextResponse, Response
    from starlette.routing import Route

    from rookery.server.http.connection import GRACE_S, Connections, HttpServer
    from rookery.server.http.message_handler import Messages
    from rookery.server.http.prometheus import CONTENT_TYPE, plain
except ImportError as error:
    raise missing(error) from error

START_S = 10.0
CURE = "ask from the server's own host, as localhost, or send its status token"


class Service:
    """Serves a parameter server to the clients that have keys."""

    def __init__(
        self,
        server: ParameterServer,
        host: str = "localhost",
        port: int = 8888,
        *,
        keys: Keys | Mapping[str, str] | str | Path | None = None,
        certificate: File = None,
        private_key: File = None,
        client_ca: File = None,
        status_token: str | None = None,
        limits: Limits | None = None,
        announced: Callable[[], dict[str, Any]] = dict,
    ):
        """Binds nothing yet.

        `keys` are clients' names and keys, or the file they are in. With `client_ca` only clients
        whose certificate it signed can connect at all, each under the certificate's common name;
        such clients need a key too if `keys` are given. Port 0 takes a free one. `announced`
        returns what clients are told beside the server's statistics.
        """
        self._context = server_context(certificate, private_key, client_ca)
        self._host, self._address = host, resolve(host, port)
        if self._context is None and not is_loopback(self._address.host):
            raise ConfigError(
                f"{host} can be reached from other hosts, and plain HTTP, by which clients' keys "
                "could be read on the way, is for this one; give a certificate and its private "
                "key (--tls-cert, --tls-key), or bind localhost"
            )
        if keys is None and client_ca is None:
            raise ConfigError(
                "a service is for clients that it knows, and neither their keys nor a CA of their "
                "certificates was given; give keys={'alice': key}, the file in which "
                "Keys(path).issue('alice') has put them, or client_ca"
            )
        self.limits = limits or Limits()
        if server.round_bytes > self.limits.memory_bytes:
            raise ConfigError(
                f"a round holds {server.round_bytes} bytes of updates before it is complete, and "
                f"memory_bytes allows {self.limits.memory_bytes}; raise it (--memory), or lower "
                "quorum or update_frequency (--quorum, --every)"
            )
        self._threads = ThreadPoolExecutor(self.limits.threads, thread_name_prefix="rookery-serve")
        gate = Gate(_known(keys), self.limits, certificates=client_ca is not None)
        self._messages = Messages(server, announced, gate, self._threads)
        self.connections = Connections(self.limits, self._note_garbage)
        pages = Pages(self._messages, gate, self.connections, host, status_token)
        self._server = HttpServer(_app(self._messages, pages), self.connections, self._context)
        self._thread: threading.Thread | None = None

    def start(self) -> str:
        """Binds, and returns the URL as soon as it answers."""
        if self._thread is not None:
            raise ProtocolError("a service is started once; make a new one")
        bound = listen(self._address)
        self._address = self._address._replace(port=bound.getsockname()[1])
        self._thread = threading.Thread(
            target=self._run, args=(bound,), name="rookery-service", daemon=True
        )
        self._thread.start()
        try:
            self._server.ready.result(START_S)
        except TimeoutError as error:
            raise StalledError(
                f"the service at {self.url} did not start in {START_S:.0f} s"
            ) from error
        except Exception as error:  # of another library
            raise LostError(f"the service at {self.url} ended at once") from error
        return self.url

    def _run(self, bound: socket.socket) -> None:
        try:
            self._server.run([bound])
        except BaseException as error:
            if not self._server.ready.done():
                self._server.ready.set_exception(error)
            raise
        finally:
            bound.close()

    @property
    def url(self) -> str:
        """Where clients find it."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{'http' if self._context is None else 'https'}://{host}:{self._address.port}"

    @property
    def alive(self) -> bool:
        """Whether requests are still answered there."""
        return self._thread is not None and self._thread.is_alive()

    def stop(self) -> None:
        """Answers the open requests, for a few seconds at most, and closes everything."""
        self._messages.watch.ended = True
        self._server.should_exit = True
        if self._thread is not None:
            self._thread.join(GRACE_S + START_S)
            if self._thread.is_alive():
                raise StalledError(f"the service at {self.url} does not end; end its process")
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _note_garbage(self) -> None:
        cure = "speak HTTP here, or TLS if the URL says https"
        self._messages.refused.note(RefusedError(f"no HTTP request; {cure}", "garbage"), "-")


def _known(keys: Keys | Mapping[str, str] | str | Path | None) -> Keys | dict[str, str] | None:
    if isinstance(keys, Mapping):
        return checked_keys(keys)
    return Keys(keys) if isinstance(keys, str | Path) else keys


def _app(messages: Messages, pages: "Pages") -> Starlette:
    app = Starlette(
        routes=[
            Route(wire_format.PATH, messages, methods=["POST"]),
            *(Route(path, pages.show) for path in Pages.ANSWERS),
        ]
    )
    app.router.redirect_slashes = False
    return app


@dataclass(frozen=True)
class Pages:
    """The pages that can be watched, for this host alone or for requests with the status token.

    Without a token any user of the host can ask, so a private server then shows nothing of who took
    part, and the request must name this host: the name of another site may have been made to lead
    here (DNS rebinding).
    """

    messages: Messages
    gate: Gate
    connections: Connections
    host: str  # the name that was bound
    token: str | None

    async def show(self, request: Request) -> Response:
        """Answers with the page of the request's path, if the request may see it."""
        path, messages = request.url.path, self.messages
        if not self._may_look(request):
            refusal = RefusedError(f"{path} is not for all; {CURE}", "auth")
            messages.refused.note(refusal, str(request.client and request.client.host))
            return JSONResponse({"code": "auth", "message": CURE}, 401)
        # in a thread: asking may end a round, which waits for the disk
        stats = await asyncio.get_running_loop().run_in_executor(messages.threads, self._stats)
        private = self.token is None and bool(stats.get("differential_privacy"))
        return self.ANSWERS[path](self, stats, private)

    def _stats(self) -> dict[str, Any]:
        return self.messages.stats(every=self.token is not None)

    def _status(self, stats: dict[str, Any], private: bool) -> Response:
        """Without counts of messages from a private server: they would tell who took part."""
        metrics = self.messages.metrics
        facts: dict[str, Any] = {
            "version": stats["version"],
            "uptime_s": metrics.uptime_s,
            "connections": len(self.connections),
        }
        if not private:
            known = self.gate.clients.items()
            facts["clients"] = {name: {"messages": each.messages} for name, each in known}
            facts |= metrics.totals()
        return JSONResponse(plain(facts | {"server": stats}))

    def _numbers(self, stats: dict[str, Any], private: bool) -> Response:
        gauges: dict[str, Any] = stats | {"connections": len(self.connections)}
        if not private:
            gauges["clients"] = len(self.gate.clients)
        text = self.messages.metrics.text(gauges, counters=not private)
        return PlainTextResponse(text, media_type=CONTENT_TYPE)

    ANSWERS: ClassVar = {"/status": _status, "/metrics": _numbers}

    def _may_look(self, request: Request) -> bool:
        if self.token is not None:
            given = request.headers.get(wire_format.AUTHORIZATION, "")
            return wire_format.equal(given, wire_format.BEARER + self.token)
        near = request.client is not None and is_loopback(request.client.host)
        return near and self._names_this_host(request.headers.get("host", ""))

    def _names_this_host(self, header: str) -> bool:
        """Returns whether it is `localhost`, a loopback address or the name that was bound."""
        try:
            name = urlsplit(f"//{header}").hostname or ""
        except ValueError:
            return False
        return name == self.host.lower() or is_loopback(name)
