"""The wire format: a signed header, and a body of named arrays.

A request is `POST /v1/message`, and its answer comes back, with

    rookery-client      the client's name
    rookery-message     base64url of a JSON object: `Request`, or `Answer`
    rookery-signature   hex HMAC-SHA256, with the client's key, of the message as it stands there
    rookery-nonce       in answers: a nonce and the server's time for the client's next request
    the body            `size` bytes with the SHA-256 that the message names

So a signature is checked before anything is decoded, and one covers the body too. Requests and
answers are signed apart, so that neither can be sent back as the other. An answer names the nonce
of its request: an old answer is no answer. Clients never look at a clock of theirs; `time` is the
server's, as it came with the nonce. Bodies are safetensors, or JSON in an answer to `stats`;
`letters.py` has those of secure sums.
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
from typing import Any, NamedTuple, TypeAlias

from rookery.errors import ConfigError, RefusedError
from rookery.server.compress import Codec

Bytes: TypeAlias = bytes | bytearray | memoryview

PATH, NONCE_PATH = "/v1/message", "/v1/nonce"
CLIENT, MESSAGE, SIGNATURE = "rookery-client", "rookery-message", "rookery-signature"
NONCE = "rookery-nonce"
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
    ADVERTISE = "advertise"  # the stages of a secure sum, in their order
    SHARE = "share"
    MASK = "mask"
    UNMASK = "unmask"
    LOOK = "look"  # where a secure sum stands


STAGES = (Kind.ADVERTISE, Kind.SHARE, Kind.MASK, Kind.UNMASK)
BODIED = frozenset({Kind.PUSH, *STAGES})  # messages that bring something


class Side(StrEnum):
    """Who speaks; part of what is signed."""

    CLIENT = "rookery 1 client\n"
    SERVER = "rookery 1 server\n"


class Nonce(NamedTuple):
    """A number used once, and the server's time at which it was made."""

    time: int  # ms since the server started
    value: str

    def __str__(self) -> str:
        return f"{self.time}.{self.value}"

    @classmethod
    def parse(cls, text: str) -> "Nonce":
        time, _, value = text.partition(".")
        return cls(int(time), value)


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a client says."""

    kind: Kind
    client: str
    nonce: str
    time: int  # the server's, in ms, as it came with the nonce
    worker: str = ""  # the client itself, or "client/part"
    sha256: str = EMPTY
    size: int = 0  # bytes of the body
    version: int = -1  # pull: newer than; push: what the update was computed from, -1: unsaid
    push_id: str = ""  # in a secure sum: its session
    weight: float = 1.0
    codec: Codec = Codec.NONE


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What the server says."""

    re: str  # the nonce of the request
    accepted: bool = True
    code: str = ""  # why it was not accepted
    message: str = ""
    version: int = -1
    sha256: str = EMPTY
    size: int = 0
    codec: Codec = Codec.NONE


Signed: TypeAlias = Request | Answer


def digest(body: Bytes) -> str:
    """Returns a body's SHA-256 as hex."""
    return hashlib.sha256(body).hexdigest()


def seal(message: Signed, key: str) -> dict[str, str]:
    """Returns the HTTP headers that say a message and prove who says it."""
    text = json.dumps(asdict(message), separators=(",", ":"), allow_nan=False)
    token = base64.urlsafe_b64encode(text.encode())
    side = Side.CLIENT if isinstance(message, Request) else Side.SERVER
    return {MESSAGE: token.decode(), SIGNATURE: signature(token, key, side)}


def signature(token: bytes, key: str, side: Side) -> str:
    """Returns what whoever has the key would sign a message with."""
    return hmac.new(key.encode(), side.encode() + token, hashlib.sha256).hexdigest()


def authentic(token: bytes, claimed: bytes, key: str, side: Side) -> bool:
    """Is this the signature of whoever has the key? Takes equally long for all wrong ones."""
    return hmac.compare_digest(signature(token, key, side).encode(), claimed)


def equal(one: str, other: str) -> bool:
    """Compares secrets or digests in constant time."""
    return hmac.compare_digest(one.encode(), other.encode())


def request(token: bytes) -> Request:
    """Reads a request whose signature has been checked; refuses what is none."""
    return Request(**_fields(token, _REQUEST, ("kind", "client", "nonce", "time")))


def answer(token: bytes) -> Answer:
    """Reads an answer whose signature has been checked."""
    return Answer(**_fields(token, _ANSWER, ("re",)))


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
    "client": _text,
    "nonce": _text,
    "time": _whole,
    "worker": _text,
    "sha256": _text,
    "size": _whole,
    "version": _whole,
    "push_id": _text,
    "weight": _number,
    "codec": Codec,
}
_ANSWER: dict[str, Callable[[Any], Any]] = {
    "re": _text,
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


def belongs(worker: str, client: str) -> bool:
    """May this client speak for this worker: itself, or a part of it, as in "client/part"?"""
    return _WORKER.fullmatch(worker) is not None and worker.partition("/")[0] == client
