"""What a service allows, in one place."""

from dataclasses import dataclass

from rookery.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Bounds of a service; each default suits a few dozen clients."""

    body_bytes: int = 0  # of one update; 0: as many as the parameters have, and 64 KiB
    memory_bytes: int = 1 << 30  # of all updates that are being received, or in an open round
    header_bytes: int = 16384  # of an HTTP request's head
    connections: int = 4096  # open at once; the oldest idle one gives way to a new one
    client_connections: int = 128  # of one client; its oldest idle one gives way to a new one
    header_s: float = 10.0  # for a TLS handshake, and for a request's head to arrive
    body_s: float = 10.0  # for a body to arrive, beside its bytes at `body_rate`
    body_rate: float = 1e6  # bytes/s that a client must reach over a whole body
    idle_s: float = 75.0  # a connection may rest so long between two requests
    stall_s: float = 20.0  # a client may not read what it asked for so long
    wait_s: float = 50.0  # a pull may wait so long for a newer version
    linger_s: float = 1.0  # a refused body is read and thrown away so long
    rate: float = 500.0  # messages/s of one client
    burst: int = 1000  # messages of one client at once
    threads: int = 4  # that check and apply updates

    def __post_init__(self) -> None:
        wrong = [
            f"{name}={value}"
            for name, value in vars(self).items()
            if not value > 0 and (name, value) != ("body_bytes", 0)
        ]
        if wrong:
            raise ConfigError(
                f"a service's limits are positive numbers, got {', '.join(wrong)}; leave out those "
                "that are to stay as they are (--limit)"
            )

    def patience_s(self, size: int) -> float:
        """Returns how long a body of so many bytes may take."""
        return self.body_s + size / self.body_rate
