"""The wire format: a message in HTTP headers, and a body of named arrays.

A request is `POST /v1/message`, with

    rookery-client      the client's name
    authorization       `Bearer KEY`, where the service knows its clients by keys
    rookery-message     base64url of a JSON object: `Request`, or `Answer`
    the body            `size` bytes with the SHA-256 that the message names

Its answer has the last two. The key is compared before anything is decoded. TLS proves who the
server is and that nothing was changed or read on the way; without it keys do not leave this host.
An update has an id of its own (`push_id`): sent again after a lost answer, it counts once. Bodies
are safetensors, or JSON in an answer to `stats`.
"""

import base64
import hashlib
import hmac
import json
import re
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Annotated, NamedTuple, TypeVar

from rookery.config.checks import Limit
from rookery.config.section import Section
from rookery.errors import ConfigError, RefusedError
from rookery.server.http.compression import Codec

Message = TypeVar("Message")

PATH = "/v1/message"
CLIENT, MESSAGE, AUTHORIZATION = "rookery-client", "rookery-message", "authorization"
BEARER = "Bearer "  # before a key, in the header `authorization`
EMPTY = hashlib.sha256().hexdigest()  # of a message without a body
SHORTEST = 32  # characters of a key that was not made here
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,99}")
_WORKER = re.compile(_NAME.pattern + r"(/[A-Za-z0-9_.@-]{1,99})?")

Word = Annotated[
    str, Limit("must be 200 ASCII characters or fewer", {"pattern": r"[\0-\x7f]{0,200}"})
]
Number = Annotated[int, Limit("must be at least -1", {"minimum": -1})]


class Kind(StrEnum):
    """What a client asks for."""

    REGISTER = "register"
    UNREGISTER = "unregister"
    PULL = "pull"
    PUSH = "push"
    STATS = "stats"


@dataclass(frozen=True, kw_only=True)
class Request(Section):
    """What a client says."""

    kind: Kind
    client: Word  # travels in a header of its own
    worker: Word = ""  # the client itself, or "client/part"
    sha256: Word = EMPTY
    size: Number = 0  # bytes of the body
    version: Number = -1  # pull: newer than; push: what the update was computed from, -1: unsaid
    push_id: Word = ""  # every push has one
    weight: float = 1.0
    codec: Codec = Codec.NONE
    wait_s: float = 0.0  # pull: how long to wait for a newer version


@dataclass(frozen=True, kw_only=True)
class Answer(Section):
    """What the server says."""

    accepted: bool
    code: Word = ""  # why it was not accepted
    message: str = ""
    version: Number = -1
    sha256: Word = EMPTY
    size: Number = 0
    codec: Codec = Codec.NONE


class Reply(NamedTuple):
    """An answer and its body."""

    answer: Answer
    body: bytes = b""


def reply(version: int, body: bytes, codec: Codec = Codec.NONE) -> Reply:
    """Returns what a client asked for, with its digest."""
    size, sha256 = len(body), digest(body)
    return Reply(
        Answer(accepted=True, version=version, size=size, sha256=sha256, codec=codec), body
    )


def digest(body: bytes) -> str:
    """Returns a body's SHA-256 as hex."""
    return hashlib.sha256(body).hexdigest()


def headers(message: Request | Answer) -> dict[str, str]:
    """Returns the HTTP headers of a message, but for the key."""
    said = asdict(message)
    client = said.pop("client", None)
    text = json.dumps(said, separators=(",", ":"), allow_nan=False)
    found = {MESSAGE: base64.urlsafe_b64encode(text.encode()).decode()}
    return found if client is None else found | {CLIENT: client}


def equal(one: str, other: str) -> bool:
    """Compares secrets in constant time."""
    return hmac.compare_digest(one.encode(), other.encode())


def read_request(token: bytes, client: str) -> Request:
    """Reads a request of a client that has proved its name; refuses what is none."""
    return _read(Request, token, client=client)


def read_answer(token: bytes) -> Answer:
    """Reads an answer; refuses what is none."""
    return _read(Answer, token)


def _read(message: type[Message], token: bytes, **proved: str) -> Message:
    """Reads a message; it may not say itself what has been `proved`."""
    try:
        return message(**proved, **json.loads(base64.b64decode(token, b"-_", validate=True)))
    except (ValueError, TypeError, RecursionError) as error:
        raise RefusedError(
            f"this message cannot be read: {error!r:.200}; use a client of the same release",
            code="malformed",
        ) from error


def checked_name(client: str) -> str:
    """Returns a client's name; refuses one that could not stand in a header or a log."""
    if not _NAME.fullmatch(client):
        raise ConfigError(
            f"a client's name is {client!r:.120}; use letters, digits, '_', '-', '.' and '@', a "
            "letter or digit first, at most 100"
        )
    return client


def checked_key(client: str, key: object) -> str:
    """Returns a client's key; refuses, without showing it, one that is short or cannot be sent."""
    if not isinstance(key, str):
        wrong = f"is no text, but of type {type(key).__name__}"
    elif not key.isascii() or not key.isprintable() or not key or " " in key:
        wrong = "is empty, or has blanks or letters that HTTP does not carry"
    elif len(key) < SHORTEST:
        wrong = f"has {len(key)} characters and could be guessed; use at least {SHORTEST}"
    else:
        return key
    raise ConfigError(f"the key of {client} {wrong}; use one of Keys(path).issue({client!r})")


def belongs(worker: str, client: str) -> bool:
    """May this client speak for this worker: itself, or a part of it, as in "client/part"?"""
    return _WORKER.fullmatch(worker) is not None and worker.partition("/")[0] == client
