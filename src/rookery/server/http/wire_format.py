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
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, TypeAlias

from rookery.errors import ConfigError, RefusedError
from rookery.server.http.compression import Codec

Bytes: TypeAlias = bytes | bytearray | memoryview

PATH = "/v1/message"
CLIENT, MESSAGE, AUTHORIZATION = "rookery-client", "rookery-message", "authorization"
BEARER = "Bearer "  # before a key, in the header `authorization`
EMPTY = hashlib.sha256().hexdigest()  # of a message without a body
TEXT_LIMIT = 200  # characters of a name or an id
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,99}")
_WORKER = re.compile(_NAME.pattern + r"(/[A-Za-z0-9_.@-]{1,99})?")


class Kind(StrEnum):
    """What a client asks for."""

    REGISTER = "register"
    UNREGISTER = "unregister"
    PULL = "pull"
    PUSH = "push"
    STATS = "stats"


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a client says."""

    kind: Kind
    client: str  # travels in a header of its own
    worker: str = ""  # the client itself, or "client/part"
    sha256: str = EMPTY
    size: int = 0  # bytes of the body
    version: int = -1  # pull: newer than; push: what the update was computed from, -1: unsaid
    push_id: str = ""  # every push has one
    weight: float = 1.0
    codec: Codec = Codec.NONE
    wait_s: float = 0.0  # pull: how long to wait for a newer version


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What the server says."""

    accepted: bool = True
    code: str = ""  # why it was not accepted
    message: str = ""
    version: int = -1
    sha256: str = EMPTY
    size: int = 0
    codec: Codec = Codec.NONE


def digest(body: Bytes) -> str:
    """Returns a body's SHA-256 as hex."""
    return hashlib.sha256(body).hexdigest()


def headers(message: Request | Answer) -> dict[str, str]:
    """Returns the HTTP headers of a message, but for the key."""
    fields = asdict(message)
    client = fields.pop("client", None)
    text = json.dumps(fields, separators=(",", ":"), allow_nan=False)
    said = {MESSAGE: base64.urlsafe_b64encode(text.encode()).decode()}
    return said if client is None else said | {CLIENT: client}


def equal(one: str, other: str) -> bool:
    """Compares secrets in constant time."""
    return hmac.compare_digest(one.encode(), other.encode())


def request(token: bytes, client: str) -> Request:
    """Reads a request of a client that has proved who it is; refuses what is none."""
    return Request(client=client, **_fields(token, _REQUEST, ("kind",)))


def answer(token: bytes) -> Answer:
    """Reads an answer; refuses what is none."""
    return Answer(**_fields(token, _ANSWER, ("accepted",)))


def _fields(
    token: bytes, checks: Mapping[str, Callable[[Any], Any]], needed: tuple[str, ...]
) -> dict[str, Any]:
    try:
        said = json.loads(base64.b64decode(token, b"-_", validate=True), parse_constant=_no)
        missing = [name for name in needed if name not in said]
        if missing or not isinstance(said, dict):
            raise ValueError(f"it lacks {', '.join(missing) or 'everything'}")
        return {name: checks[name](value) for name, value in said.items()}
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise RefusedError(
            f"this message cannot be read: {error!r:.200}; use a client of the same release",
            code="malformed",
        ) from error


def _no(constant: str) -> Any:
    raise ValueError(f"{constant} is no number")


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.isascii() or len(value) > TEXT_LIMIT:
        raise ValueError(f"{value!r:.50} is no plain text of up to {TEXT_LIMIT} characters")
    return value


def _whole(value: Any) -> int:
    if type(value) is not int or not -1 <= value < 1 << 62:
        raise ValueError(f"{value!r:.50} is no whole number")
    return value


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{value!r:.50} is no number")
    return float(value)


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{value!r:.50} is neither true nor false")
    return value


_REQUEST: dict[str, Callable[[Any], Any]] = {
    "kind": Kind,
    "worker": _text,
    "sha256": _text,
    "size": _whole,
    "version": _whole,
    "push_id": _text,
    "weight": _number,
    "codec": Codec,
    "wait_s": _number,
}
_ANSWER: dict[str, Callable[[Any], Any]] = {
    "accepted": _flag,
    "code": _text,
    "message": str,
    "version": _whole,
    "sha256": _text,
    "size": _whole,
    "codec": Codec,
}


def checked_name(client: str) -> str:
    """Returns a client's name; refuses one that could not stand in a header or a log."""
    if not _NAME.fullmatch(client):
        raise ConfigError(
            f"a client's name is {client!r:.120}; use letters, digits, '_', '-', '.' and '@', a "
            "letter or digit first, at most 100"
        )
    return client


def checked_key(client: str, key: str) -> str:
    """Returns a client's key; refuses one that could not stand in a header, without showing it."""
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise ConfigError(
            f"the key of {client} is empty, or has blanks or letters that HTTP does not carry; use "
            "one of Keys.issue"
        )
    return key


def belongs(worker: str, client: str) -> bool:
    """May this client speak for this worker: itself, or a part of it, as in "client/part"?"""
    return _WORKER.fullmatch(worker) is not None and worker.partition("/")[0] == client
