"""The network under the service: addresses, the listening socket and TLS."""

import ipaddress
import socket
import ssl
from pathlib import Path

from rookery.errors import ConfigError

File = str | Path | None


def missing(error: ImportError) -> ConfigError:
    """Returns the error that says how to install what the network needs."""
    return ConfigError(
        f"a parameter server on the network needs {error.name}, which is not installed; "
        "pip install 'rookery[server]'"
    )


def is_loopback(host: str) -> bool:
    """Returns whether only this host can be reached under a name or an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def listen(host: str, port: int) -> socket.socket:
    """Binds an address of this host; port 0 takes a free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    both = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
    try:
        return socket.create_server((host, port), family=family, dualstack_ipv6=both)
    except OSError as error:
        raise ConfigError(
            f"{host}:{port} cannot be bound: {error}; give an address of this host and another "
            "port, or port 0 for a free one (--bind)"
        ) from error


def client_context(ca: File, certificate: File, private_key: File) -> ssl.SSLContext:
    """Trusts `ca` alone, without it the CAs of the system; shows `certificate`, if it is given."""
    return _context(ssl.Purpose.SERVER_AUTH, ca, certificate, private_key)


def server_context(certificate: File, private_key: File, client_ca: File) -> ssl.SSLContext | None:
    """Asks clients for a certificate that `client_ca` signed, if it is given; None: no TLS."""
    if certificate is None:
        if private_key or client_ca:
            raise ConfigError(
                "private_key (--tls-key) and client_ca (--client-ca) were given without a "
                "certificate of the server; give it too (--tls-cert)"
            )
        return None
    context = _context(ssl.Purpose.CLIENT_AUTH, client_ca, certificate, private_key)
    if client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _context(
    purpose: ssl.Purpose, ca: File, certificate: File, private_key: File
) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(purpose, cafile=None if ca is None else str(ca))
        if certificate is not None:
            context.load_cert_chain(certificate, private_key)
    except (OSError, ssl.SSLError) as error:
        flag = "--ca" if purpose is ssl.Purpose.SERVER_AUTH else "--client-ca"
        raise ConfigError(
            f"certificate {certificate} (--tls-cert), private key {private_key} (--tls-key) and CA "
            f"{ca} ({flag}) cannot be used: {error}; they are PEM files, and the first two belong "
            "together"
        ) from error
    return context
