"""The gate: which requests are let in, by their heads alone.

In this order:

    size        the declared length, against the limit (`message_handler.py`)
    auth        the key of the client that the request names, its certificate, or both
    rate        a token bucket for each client

The server remembers nothing of a client that has not proved its name, so strangers cannot fill the
memory. A gate belongs to one thread.
"""

import secrets
import time
from collections.abc import Callable, Mapping
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


class ClientRecord:
    """A client's messages, and its token bucket, which refills at a steady rate."""

    def __init__(self, limits: Limits, clock: Clock):
        self.messages = 0
        self._limits, self._clock = limits, clock
        self._tokens, self._seen = float(limits.burst), clock()

    def take(self) -> bool:
        """Takes a token and returns True, if there is one."""
        now = self._clock()
        refilled = self._tokens + (now - self._seen) * self._limits.rate
        self._tokens, self._seen = min(self._limits.burst, refilled), now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


class Gate:
    """Lets a request in by its head, or raises `RefusedError`."""

    def __init__(
        self,
        keys: Keys | Mapping[str, str] | None,
        limits: Limits,
        clock: Clock = time.monotonic,
        *,
        certificates: bool = False,
    ):
        """Asks each client for its key, for a certificate with its name, or for both.

        With `keys` None there must be `certificates`.
        """
        self.keys, self.limits, self._certificates = keys, limits, certificates
        self.clients: dict[str, ClientRecord] = {}
        self._clock, self._unknown = clock, secrets.token_urlsafe(32)

    def authenticate(self, head: Head) -> Request:
        """Returns what a client says, once it has proved its name.

        Refusing a stranger takes as long as refusing a wrong key, with the same answer.
        """
        if not self._proved(head):
            raise RefusedError(
                f"{head.client!r:.120} has not proved who it is; check the client's name and its "
                "key or certificate",
                code="auth",
            )
        request = wire_format.read_request(head.token, head.client)
        if not wire_format.belongs(request.worker or request.client, request.client):
            raise RefusedError(
                f"{request.client} speaks for {request.worker!r:.120}; a client speaks for itself "
                'and for its parts, as in "client/part"',
                code="auth",
            )
        return request

    def _proved(self, head: Head) -> bool:
        if self._certificates and head.certified != head.client:
            return False
        if self.keys is None:
            return self._certificates
        wanted = wire_format.BEARER + (self.keys.get(head.client) or self._unknown)
        return wire_format.equal(head.authorization, wanted)

    def admit(self, request: Request) -> ClientRecord:
        """Counts a request of a known client; refuses it if there have been too many."""
        record = self.clients.setdefault(request.client, ClientRecord(self.limits, self._clock))
        if not record.take():
            raise RefusedError(
                f"{request.client} sends more than {self.limits.rate:g} messages/s; wait",
                code="rate",
            )
        record.messages += 1
        return record
