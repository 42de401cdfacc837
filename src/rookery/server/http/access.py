"""The gate: who may speak, and how often.

Every check needs the head of a request only. In this order:

    size        the declared length, against the limit (`message_handler.py`)
    auth        the key of the client that the request names, its certificate, or both
    rate        a token bucket for each client

Nothing is remembered of a client before it has proved who it is, so strangers cannot fill the
memory. A gate belongs to one thread.
"""

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from rookery.errors import RefusedError
from rookery.server.http import wire_format
from rookery.server.http.client_keys import Keys
from rookery.server.http.limits import Limits
from rookery.server.http.wire_format import Request

Clock = Callable[[], float]


class Head(NamedTuple):
    """What a request says before its body, and what its connection proves."""

    client: str
    token: bytes
    authorization: str = ""
    certified: str = ""  # the common name of the client's certificate; "": it has shown none


class Bucket:
    """Tokens that come back at a steady rate, up to as many as the bucket holds."""

    def __init__(self, rate: float, burst: int, clock: Clock = time.monotonic):
        self._rate, self._burst, self._clock = rate, burst, clock
        self._tokens, self._seen = float(burst), clock()

    def take(self) -> bool:
        """Takes a token, if there is one."""
        now = self._clock()
        self._tokens = min(self._burst, self._tokens + (now - self._seen) * self._rate)
        self._seen = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


@dataclass
class ClientStanding:
    """What is remembered of a client."""

    bucket: Bucket
    messages: int = 0


class Gate:
    """Lets a request in by its head, or raises `RefusedError`."""

    def __init__(
        self,
        keys: Keys | None,
        limits: Limits,
        clock: Clock = time.monotonic,
        *,
        certificates: bool = False,
    ):
        """Asks each client for its key, for a certificate with its name, or for both.

        With `keys` None there must be `certificates`.
        """
        self.keys, self.limits, self._certificates = keys, limits, certificates
        self.standings: dict[str, ClientStanding] = {}
        self._clock, self._nobody = clock, secrets.token_urlsafe(32)

    def authenticate(self, head: Head) -> Request:
        """Returns what a client says, once it has proved who it is.

        A stranger costs what a wrong key costs, and hears the same.
        """
        if not self._proved(head):
            raise RefusedError(
                f"{head.client!r:.120} has not proved who it is; check the client's name and its "
                "key or certificate",
                code="auth",
            )
        said = wire_format.request(head.token, head.client)
        if not wire_format.belongs(said.worker or said.client, said.client):
            raise RefusedError(
                f"{said.client} speaks for {said.worker!r:.120}; a client speaks for itself and "
                'for its parts, as in "client/part"',
                code="auth",
            )
        return said

    def _proved(self, head: Head) -> bool:
        if self._certificates and head.certified != head.client:
            return False
        if self.keys is None:
            return self._certificates
        key = self.keys.get(head.client)
        wanted = wire_format.BEARER + (self._nobody if key is None else key)
        return wire_format.equal(head.authorization, wanted)

    def admit(self, said: Request) -> ClientStanding:
        """Counts a request of a known client; refuses it where there have been too many."""
        standing = self.standing(said.client)
        if not standing.bucket.take():
            raise RefusedError(
                f"{said.client} sends more than {self.limits.rate:g} messages/s; wait",
                code="rate",
            )
        standing.messages += 1
        return standing

    def standing(self, client: str) -> ClientStanding:
        """Returns what is known of a client that has proved who it is."""
        if client not in self.standings:
            bucket = Bucket(self.limits.rate, self.limits.burst, self._clock)
            self.standings[client] = ClientStanding(bucket)
        return self.standings[client]
