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

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rookery.errors import ConfigError, ProtocolError, StalledError
from rookery.server.http import wire_format
from rookery.server.http.access import Gate
from rookery.server.http.client_keys import Keys, checked_keys
from rookery.server.http.limits import Limits
from rookery.server.http.network import File, is_loopback, listen, missing, server_context
from rookery.server.parameter_server import ParameterServer

try:
    from starlette.applications import Starlette
    from starlette.routing import Route

    from rookery.server.http.connection import GRACE_S, HttpServer
    from rookery.server.http.message_handler import Messages
    from rookery.server.http.pages import Pages
except ImportError as error:
    raise missing(error) from error

PATIENCE_S = 15.0  # for the thread to end


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
        self._host, self._port, limits = host, port, limits or Limits()
        if self._context is None and not is_loopback(host):
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
        if server.round_bytes > limits.memory_bytes:
            raise ConfigError(
                f"a round holds {server.round_bytes} bytes of updates before it is complete, and "
                f"memory_bytes allows {limits.memory_bytes}; raise it (--memory), or lower "
                "quorum or update_frequency (--quorum, --every)"
            )
        self._threads = ThreadPoolExecutor(limits.threads, thread_name_prefix="rookery-serve")
        gate = Gate(_known(keys), limits, certificates=client_ca is not None)
        self._messages = Messages(server, announced, gate, self._threads)
        pages = Pages(self._messages, host, status_token)
        routes = [
            Route(wire_format.PATH, self._messages.answer, methods=["POST"]),
            Route("/status", pages.status),
            Route("/metrics", pages.metrics),
        ]
        app = Starlette(routes=routes)
        app.router.redirect_slashes = False
        self._server = HttpServer(app, limits, self._messages.refused, self._context)
        self._thread: threading.Thread | None = None

    def start(self) -> str:
        """Binds, and returns the URL, which answers from now on."""
        if self._thread is not None:
            raise ProtocolError("a service is started once; make a new one")
        bound = listen(self._host, self._port)  # what connects waits in the socket's queue
        self._port = bound.getsockname()[1]
        self._thread = threading.Thread(
            target=self._server.run, args=([bound],), name="rookery-service", daemon=True
        )
        self._thread.start()
        return self.url

    @property
    def url(self) -> str:
        """Where clients find it."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{'http' if self._context is None else 'https'}://{host}:{self._port}"

    @property
    def alive(self) -> bool:
        """Whether requests are still answered there."""
        return self._thread is not None and self._thread.is_alive()

    def stop(self) -> None:
        """Answers the open requests, for a few seconds at most, and closes everything."""
        self._messages.watch.ended = True
        self._server.should_exit = True
        if self._thread is not None:
            self._thread.join(GRACE_S + PATIENCE_S)
            if self._thread.is_alive():
                raise StalledError(f"the service at {self.url} does not end; end its process")
        self._threads.shutdown(wait=False, cancel_futures=True)


def _known(keys: Keys | Mapping[str, str] | str | Path | None) -> Keys | dict[str, str] | None:
    if isinstance(keys, Mapping):
        return checked_keys(keys)
    return Keys(keys) if isinstance(keys, str | Path) else keys
