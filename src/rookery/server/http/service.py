"""The parameter server on the network: HTTP, with TLS where it leaves this host.

    keys = Keys("server-keys.json")
    keys.issue("alice")
    service = Service(server, "0.0.0.0", 8888, keys=keys, certificate="cert.pem",
                      private_key="key.pem")
    print(service.start())      # https://0.0.0.0:8888
    ...
    service.stop()

It runs in a thread of this process, and so may the learner that reads what clients pushed. What
is checked in which order: `access.py`. What travels: `wire_format.py`.
"""

import ipaddress
import socket
import ssl
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rookery.errors import ConfigError, LostError, ProtocolError, RefusedError, StalledError
from rookery.server.http.access import Gate
from rookery.server.http.client_keys import Keys
from rookery.server.http.connection import GRACE_S, Crowd, HttpServer
from rookery.server.http.limits import Limits
from rookery.server.http.message_handler import Answering
from rookery.server.http.routes import Application

START_S = 10.0


class Service:
    """Serves a parameter server to the clients that have keys."""

    def __init__(
        self,
        server: Answering,
        host: str = "localhost",
        port: int = 8888,
        *,
        keys: Keys | Mapping[str, str] | str | Path | None = None,
        certificate: str | Path | None = None,
        private_key: str | Path | None = None,
        client_ca: str | Path | None = None,
        status_token: str | None = None,
        limits: Limits | None = None,
    ):
        """Binds nothing yet.

        `keys` are clients' names and keys, or the file they are in. With `client_ca` only clients
        whose certificate it signed can connect at all, each under the certificate's common name;
        such clients need a key too where `keys` are given. Port 0 takes a free one.
        """
        self._context = _tls(certificate, private_key, client_ca)
        self._host, self._port = host, port
        self._address = _resolve(host, port)
        if self._context is None and not _is_loopback(self._address):
            raise ConfigError(
                f"{host} can be reached from other hosts, and plain HTTP, by which clients' keys "
                "could be read on the way, is for this one; give a certificate and its private "
                "key (--tls-cert, --tls-key), or bind localhost"
            )
        self.limits = limits or Limits()
        if server.round_bytes > self.limits.memory_bytes:
            raise ConfigError(
                f"a round holds {server.round_bytes} bytes of updates before it is complete, and "
                f"memory_bytes allows {self.limits.memory_bytes}; raise it (--memory), or lower "
                "quorum or update_frequency (--quorum, --every)"
            )
        certified = client_ca is not None
        known = None if keys is None and certified else _keys(keys)
        self.gate = Gate(known, self.limits, certificates=certified)
        self._threads = ThreadPoolExecutor(self.limits.threads, thread_name_prefix="rookery-serve")
        self.crowd = Crowd(self.limits, self._note_garbage)
        self._application = Application(
            server,
            self.gate,
            threads=self._threads,
            crowd=lambda: len(self.crowd),
            status_token=status_token,
            host=host,
        )
        self._server = HttpServer(self._application.app, self.crowd, self._context)
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None

    def start(self) -> str:
        """Binds, and returns the URL as soon as it answers."""
        if self._thread is not None:
            raise ProtocolError("a service is started once; make a new one")
        bound = _bound(self._address)
        self._port = bound.getsockname()[1]
        self._thread = threading.Thread(
            target=self._run, args=(bound,), name="rookery-service", daemon=True
        )
        self._thread.start()
        until = time.monotonic() + START_S
        while not self._server.started:
            if not self._thread.is_alive():
                raise LostError(f"the service at {self.url} ended at once") from self._failure
            if time.monotonic() > until:
                raise StalledError(f"the service at {self.url} did not start in {START_S:.0f} s")
            time.sleep(0.002)
        return self.url

    def _run(self, bound: socket.socket) -> None:
        try:
            self._server.run([bound])
        except BaseException as error:  # of another library; `start` reports it
            self._failure = error
            raise
        finally:
            bound.close()

    @property
    def url(self) -> str:
        """Where clients find it."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{'http' if self._context is None else 'https'}://{host}:{self._port}"

    @property
    def alive(self) -> bool:
        """Does anybody answer there?"""
        return self._thread is not None and self._thread.is_alive()

    def stop(self) -> None:
        """Answers what is being asked, for a few seconds, and closes everything."""
        self._application.messages.watch.ended = True
        self._server.should_exit = True
        if self._thread is not None:
            self._thread.join(GRACE_S + START_S)
            if self._thread.is_alive():
                raise StalledError(f"the service at {self.url} does not end; end its process")
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _note_garbage(self) -> None:
        cure = "speak HTTP here, or TLS if the URL says https"
        self._application.refused.note(RefusedError(f"no HTTP request; {cure}", "garbage"), "-")


def _keys(keys: Keys | Mapping[str, str] | str | Path | None) -> Keys:
    if keys is None:
        raise ConfigError(
            "a service is for clients that have keys, got none; give keys={'alice': key}, the "
            "file in which Keys(path).issue('alice') has put them, or client_ca"
        )
    if isinstance(keys, Keys):
        return keys
    if isinstance(keys, str | Path):
        return Keys(keys)
    made = Keys()
    for client, key in keys.items():
        made.add(client, key)
    return made


def _tls(
    certificate: str | Path | None, private_key: str | Path | None, client_ca: str | Path | None
) -> ssl.SSLContext | None:
    if certificate is None:
        if private_key or client_ca:
            raise ConfigError("private_key and client_ca go with a certificate; give it too")
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, private_key)
        if client_ca is not None:
            context.load_verify_locations(client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"certificate {certificate}, private_key {private_key} and client_ca {client_ca} "
            f"cannot be used: {error}; they are PEM files, and the first two belong together"
        ) from error
    return context


def _resolve(host: str, port: int) -> tuple[socket.AddressFamily, tuple[str, int]]:
    """Returns one address of a host, an old-style one where it has both."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ConfigError(
            f"{host} has no address: {error}; bind an address of this host"
        ) from error
    family, _, _, _, address = min(found, key=lambda entry: entry[0] != socket.AF_INET)
    return family, (str(address[0]), int(address[1]))


def _is_loopback(address: tuple[socket.AddressFamily, tuple[str, int]]) -> bool:
    return ipaddress.ip_address(address[1][0]).is_loopback


def _bound(address: tuple[socket.AddressFamily, tuple[str, int]]) -> socket.socket:
    family, place = address
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(place)
    except OSError as error:
        bound.close()
        raise ConfigError(
            f"{place[0]}:{place[1]} cannot be bound: {error}; name another port, or 0 for any"
        ) from error
    return bound
