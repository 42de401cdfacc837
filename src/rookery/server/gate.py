"""The gate: who may speak, how often, and who has said too much nonsense.

Every check needs the head of a request only. In this order:

    size        the declared length, against the limit
    auth        the signature, with the key of the client that the request names
    nonce       it is one of ours, of this start of the server, and not too old
    replay      it was not used before
    rate        a token bucket for each client
    quarantine  updates of a client whose last updates were bad

Nothing is remembered of a client before it has proved who it is, so strangers cannot fill the
memory. A gate belongs to one thread.
"""

import hashlib
import hmac
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from rookery.errors import RefusedError
from rookery.server import protocol
from rookery.server.keys import Keys
from rookery.server.limits import Limits
from rookery.server.protocol import Nonce, Request, Side

# refusals of an update for what is in it; those of a message are not the client's fault alone
BAD = frozenset({"schema", "finite", "weight", "malformed"})
_MAC = 32  # hex digits of a nonce that prove it ours
Clock = Callable[[], float]


class Head(NamedTuple):
    """What a request says before its body."""

    client: str
    token: bytes
    signature: bytes


class Nonces:
    """Numbers used once. They prove themselves: none is remembered before it is used."""

    def __init__(self, lifetime_s: float, clock: Clock = time.monotonic):
        self._secret, self._clock = secrets.token_bytes(32), clock
        self._lifetime_ms, self._begun = int(lifetime_s * 1000), clock()

    def issue(self) -> Nonce:
        now, value = self._now(), secrets.token_hex(16)
        return Nonce(now, value + self._mac(now, value))

    def good(self, nonce: Nonce) -> bool:
        """Is it ours, and young enough?"""
        value, mac = nonce.value[:-_MAC], nonce.value[-_MAC:]
        ours = protocol.equal(self._mac(nonce.time, value), mac)
        return ours and 0 <= self._now() - nonce.time <= self._lifetime_ms

    def _now(self) -> int:
        return int((self._clock() - self._begun) * 1000)

    def _mac(self, now: int, value: str) -> str:
        return hmac.new(self._secret, f"{now}.{value}".encode(), hashlib.sha256).hexdigest()[:_MAC]


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


class Used:
    """Nonces that were used, for as long as they would still be good."""

    def __init__(self, lifetime_s: float, capacity: int, clock: Clock = time.monotonic):
        self._lifetime_s, self._capacity, self._clock = lifetime_s, capacity, clock
        self._until: OrderedDict[str, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._until)

    def __contains__(self, value: str) -> bool:
        return value in self._until

    def add(self, value: str) -> bool:
        """Remembers one; False where there is no room, since forgetting one would let it in."""
        now = self._clock()
        while self._until and next(iter(self._until.values())) < now:
            self._until.popitem(last=False)
        if len(self._until) >= self._capacity:
            return False
        self._until[value] = now + self._lifetime_s
        return True


@dataclass
class Standing:
    """What is remembered of a client."""

    bucket: Bucket
    used: Used
    messages: int = 0
    bad: int = 0  # updates in a row
    quarantined_until: float = field(default=float("-inf"))


class Gate:
    """Lets a request in by its head, or raises `RefusedError`."""

    def __init__(self, keys: Keys, limits: Limits, clock: Clock = time.monotonic):
        self.keys, self.limits, self.nonces = keys, limits, Nonces(limits.nonce_s, clock)
        self.standings: dict[str, Standing] = {}
        self._clock, self._nobody = clock, secrets.token_urlsafe(32)

    def authenticate(self, head: Head) -> tuple[Request, str]:
        """Returns what a client says, and its key, once it has proved who it is.

        A stranger costs what a wrong key costs, and hears the same.
        """
        key = self.keys.get(head.client)
        proved = protocol.authentic(head.token, head.signature, key or self._nobody, Side.CLIENT)
        if key is None or not proved:
            raise RefusedError(
                f"the signature of {head.client!r:.120} is not that of a key known here; check "
                "the client's name and its key",
                code="auth",
            )
        said = protocol.request(head.token)
        worker = said.worker or said.client
        if said.client != head.client or not protocol.belongs(worker, said.client):
            raise RefusedError(
                f"{head.client} speaks for {said.client!r:.120}, {said.worker!r:.120}; a client "
                'speaks for itself and for its parts, as in "client/part"',
                code="auth",
            )
        return said, key

    def admit(self, said: Request) -> Standing:
        """Counts an authentic request; refuses it where its time, number or sender is not right."""
        if not self.nonces.good(Nonce(said.time, said.nonce)):
            raise RefusedError(
                "the nonce is not one of this server's, or too old; ask for a new one and sign "
                "the message again",
                code="nonce",
            )
        standing = self.standing(said.client)
        if said.nonce in standing.used:
            raise RefusedError(
                "this message was received before; sign a new one with a new nonce", code="replay"
            )
        if not standing.used.add(said.nonce) or not standing.bucket.take():
            raise RefusedError(
                f"{said.client} sends more than {self.limits.rate:g} messages/s; wait",
                code="rate",
            )
        standing.messages += 1
        if said.kind in protocol.BODIED and self.quarantined(standing):
            raise RefusedError(
                f"updates of {said.client} are refused for {self.limits.quarantine_s:g} s after "
                f"{self.limits.quarantine_after} bad ones in a row; find out why they were bad",
                code="quarantined",
            )
        return standing

    def standing(self, client: str) -> Standing:
        """Returns what is known of a client that has proved who it is."""
        if client not in self.standings:
            limits = self.limits
            self.standings[client] = Standing(
                Bucket(limits.rate, limits.burst, self._clock),
                Used(limits.nonce_s, limits.replay_cache, self._clock),
            )
        return self.standings[client]

    def judge(self, client: str, code: str) -> None:
        """Hears what became of an update; "" is a good one."""
        standing = self.standing(client)
        standing.bad = standing.bad + 1 if code in BAD else 0 if not code else standing.bad
        if standing.bad >= self.limits.quarantine_after:
            standing.bad = 0
            standing.quarantined_until = self._clock() + self.limits.quarantine_s

    def quarantined(self, standing: Standing) -> bool:
        return self._clock() < standing.quarantined_until
