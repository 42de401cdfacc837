"""The vocabulary of a secure sum: its terms, its messages, and what both sides refuse.

`secrets` has the two sides and the order in which they talk.
"""

import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from rookery.errors import ConfigError, ProtocolError, RefusedError
from rookery.server.masks import Grid, Words

SESSION = 16  # bytes


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What all parties of one sum know. The session is new for every sum: keys hang on it."""

    session: bytes
    size: int  # P
    bound: float  # of every number of an update; also that of its L2 norm, where it is clipped
    clients: int  # that may take part, at most
    threshold: int  # that must stay to the end; so many together could unmask one of the others

    def __post_init__(self) -> None:
        if len(self.session) != SESSION or self.size < 1:
            raise ConfigError(
                f"a secure sum has a session of {SESSION} bytes and 1 parameter or more, got "
                f"{len(self.session)} and {self.size}; make its terms with Terms.fresh"
            )
        if not self.clients / 2 < self.threshold <= self.clients or self.clients < 2:
            raise ConfigError(
                "a secure sum needs 2 clients or more and a threshold above half of them, got "
                f"{self.clients} and {self.threshold}; two thirds is usual"
            )
        Grid(self.bound, self.clients)

    @classmethod
    def fresh(
        cls, *, size: int, bound: float, clients: int, threshold: int | None = None
    ) -> "Terms":
        """Makes terms for a new sum; the threshold is above two thirds where none is given."""
        return cls(
            session=os.urandom(SESSION),
            size=size,
            bound=bound,
            clients=clients,
            threshold=clients * 2 // 3 + 1 if threshold is None else threshold,
        )

    def about(self, *words: str) -> bytes:
        """Returns what keys and seals of this sum are for."""
        return self.session + json.dumps(["rookery secure sum", *words]).encode()


class Advert(NamedTuple):
    """A client's two public keys, 32 bytes each: to seal shares with, and to agree on masks."""

    client: str
    seal_key: bytes
    mask_key: bytes


class Pair(NamedTuple):
    """One holder's shares of one client's two secrets, or the digests of those."""

    key: bytes  # of its private mask key
    seed: bytes  # of its own mask


class Parcel(NamedTuple):
    """Shares on their way, sealed; the digests let the server know them again in step 4."""

    sender: str
    receiver: str
    sealed: bytes
    digests: Pair


class Masked(NamedTuple):
    """An update nobody can read."""

    client: str
    vector: Words  # [P]


class Question(NamedTuple):
    """Whose masks are in the sum, and who left only a gap in others' masks."""

    survivors: frozenset[str]
    dropped: frozenset[str]


class Answer(NamedTuple):
    """The shares that one client holds of what the question is about."""

    client: str
    keys: dict[str, bytes]  # of those who dropped out
    seeds: dict[str, bytes]  # of those who stayed


def digests_of(terms: Terms, owner: str, holder: str, pair: Pair) -> Pair:
    return Pair(
        digest_of(terms, owner, holder, "key", pair.key),
        digest_of(terms, owner, holder, "seed", pair.seed),
    )


def digest_of(terms: Terms, owner: str, holder: str, kind: str, share: bytes) -> bytes:
    """Returns what a share is known by. A share is too random to be guessed from it."""
    return hashlib.sha256(terms.about("digest", kind, owner, holder) + share).digest()


def wrong_share(owner: str, holder: str) -> RefusedError:
    return RefusedError(
        f"the shares that {holder} has of {owner} are not those that {owner} made; leave one of "
        "them out, or begin another sum",
        "share",
    )


def refuse_few(there: int, terms: Terms, did: str) -> None:
    if there < terms.threshold:
        raise RefusedError(
            f"{there} clients {did}, and a secure sum needs {terms.threshold}; wait for more, or "
            "begin another with a lower threshold",
            "quorum",
        )


def refuse_twice(client: str, known: Iterable[str]) -> None:
    if client in set(known):
        raise RefusedError(
            f"{client} has come to this step already, and each client may once; wait for the next",
            "duplicate",
        )


def refuse_stranger(client: str, known: Iterable[str]) -> None:
    if client not in set(known):
        raise RefusedError(
            f"{client} did not take the step before this one; wait for the next sum",
            "unknown_worker",
        )


def in_order(holds: bool, order: str) -> None:
    if not holds:
        raise ProtocolError(f"a secure sum has four steps, each once: {order}; begin another sum")
