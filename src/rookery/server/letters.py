"""What is said in a secure sum, as named arrays: what travels is safetensors of these.

| letter | from | arrays |
|---|---|---|
| advert | client | `keys` uint8 [2, 32]: to seal with, to agree on masks with |
| invitation | server | `session` uint8 [16], `bound` float64, `keys.NAME` of all, |
|  |  | `numbers` int64 [3]: size, clients, threshold |
| parcels | client | `sealed.NAME` uint8 [148], `digests.NAME` uint8 [2, 32]; NAME receives |
|  | server | the same; NAME has sent it |
| masked | client | `vector` uint64 [P] |
| question | server | `stayed.NAME`, `left.NAME`, uint8 [0] |
| answer | client | `key.NAME` of who left, `seed.NAME` of who stayed, uint8 [66] |

Names of clients stand behind the first point. What has other names, shapes or dtypes is refused
("schema"), whoever sent it.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeAlias

import numpy as np

from rookery.errors import ConfigError, RefusedError
from rookery.server.shamir import SHARE
from rookery.server.sums import (
    SESSION,
    Advert,
    Answer,
    Masked,
    Pair,
    Parcel,
    Question,
    Terms,
)
from rookery.types import Array

Letter: TypeAlias = Mapping[str, Array]
KEY, DIGEST, TAG = 32, 32, 16  # bytes; the last is what sealing adds
SEALED = 2 * SHARE + TAG
ENTRY = 1024  # bytes of one client's parcel with its names, at most


class Invitation(NamedTuple):
    """What those who advertised are told: the terms, and who takes part."""

    terms: Terms
    roster: dict[str, Advert]


def of_advert(advert: Advert) -> Letter:
    return {"keys": _two(advert.seal_key, advert.mask_key)}


def advert(client: str, letter: Letter) -> Advert:
    _refuse_others(letter, {"keys"})
    return Advert(client, *_halves(_plain(letter, "keys", (2, KEY))))


def of_invitation(invitation: Invitation) -> Letter:
    terms, roster = invitation
    return {
        "session": _array(terms.session),
        "numbers": np.array([terms.size, terms.clients, terms.threshold], np.int64),
        "bound": np.array(terms.bound, np.float64),
        **{f"keys.{name}": of_advert(advert)["keys"] for name, advert in roster.items()},
    }


def invitation(letter: Letter) -> Invitation:
    """Reads what a server says; terms under which nothing is secret are refused ("terms")."""
    _refuse_others(letter, {"session", "numbers", "bound"}, "keys")
    size, clients, threshold = map(int, _plain(letter, "numbers", (3,), np.int64))
    try:
        terms = Terms(
            session=_plain(letter, "session", (SESSION,)).tobytes(),
            size=size,
            bound=float(_plain(letter, "bound", (), np.float64)),
            clients=clients,
            threshold=threshold,
        )
    except ConfigError as error:
        raise RefusedError(f"the server's terms are refused: {error}", "terms") from error
    keys = _under(letter, "keys", (2, KEY))
    return Invitation(terms, {name: Advert(name, *_halves(two)) for name, two in keys.items()})


def of_posted(parcels: Iterable[Parcel]) -> Letter:
    """Writes one sender's parcels, each under its receiver."""
    return _parcels({parcel.receiver: parcel for parcel in parcels})


def posted(sender: str, letter: Letter) -> list[Parcel]:
    return [Parcel(sender, name, *rest) for name, rest in _contents(letter)]


def of_delivered(parcels: Iterable[Parcel]) -> Letter:
    """Writes one receiver's parcels, each under its sender."""
    return _parcels({parcel.sender: parcel for parcel in parcels})


def delivered(receiver: str, letter: Letter) -> list[Parcel]:
    return [Parcel(name, receiver, *rest) for name, rest in _contents(letter)]


def of_masked(masked: Masked) -> Letter:
    return {"vector": masked.vector}


def masked(client: str, letter: Letter, size: int) -> Masked:
    _refuse_others(letter, {"vector"})
    return Masked(client, _plain(letter, "vector", (size,), np.uint64))


def of_question(question: Question) -> Letter:
    nothing = np.zeros(0, np.uint8)
    stayed = {f"stayed.{name}": nothing for name in question.survivors}
    return stayed | {f"left.{name}": nothing for name in question.dropped}


def question(letter: Letter) -> Question:
    _refuse_others(letter, set(), "stayed", "left")
    return Question(
        frozenset(_under(letter, "stayed", (0,))), frozenset(_under(letter, "left", (0,)))
    )


def of_answer(answer: Answer) -> Letter:
    keys = {f"key.{name}": _array(share) for name, share in answer.keys.items()}
    return keys | {f"seed.{name}": _array(share) for name, share in answer.seeds.items()}


def answer(client: str, letter: Letter) -> Answer:
    _refuse_others(letter, set(), "key", "seed")
    return Answer(client, _texts(letter, "key"), _texts(letter, "seed"))


def _parcels(by_name: Mapping[str, Parcel]) -> Letter:
    sealed = {f"sealed.{name}": _array(parcel.sealed) for name, parcel in by_name.items()}
    return sealed | {f"digests.{name}": _two(*p.digests) for name, p in by_name.items()}


def _contents(letter: Letter) -> list[tuple[str, tuple[bytes, Pair]]]:
    _refuse_others(letter, set(), "sealed", "digests")
    sealed, digests = _under(letter, "sealed", (SEALED,)), _under(letter, "digests", (2, DIGEST))
    if lacking := sorted(sealed.keys() ^ digests.keys()):
        raise _misfit(f"{lacking[0]!r:.120} has a parcel without digests, or digests without one")
    return [(n, (sealed[n].tobytes(), Pair(*_halves(digests[n])))) for n in sorted(sealed)]


def _texts(letter: Letter, prefix: str) -> dict[str, bytes]:
    return {name: share.tobytes() for name, share in _under(letter, prefix, (SHARE,)).items()}


def _under(letter: Letter, prefix: str, shape: tuple[int, ...]) -> dict[str, Array]:
    """Returns what stands under names with a prefix, without it."""
    whole = [name for name in letter if name.startswith(f"{prefix}.")]
    return {name[len(prefix) + 1 :]: _plain(letter, name, shape) for name in whole}


def _plain(
    letter: Letter, name: str, shape: tuple[int, ...], dtype: type[np.generic] = np.uint8
) -> Array:
    array = letter.get(name)
    if array is None or array.shape != shape or array.dtype != dtype:
        given = "nothing" if array is None else f"{array.dtype} {array.shape}"
        raise _misfit(f"{name!r:.120} must be {np.dtype(dtype)} {shape}, got {given}")
    return array


def _refuse_others(letter: Letter, names: set[str], *prefixes: str) -> None:
    known = tuple(f"{prefix}." for prefix in prefixes)
    if wrong := [n for n in letter if n not in names and not (known and n.startswith(known))]:
        allowed = ", ".join([*sorted(names), *(f"{prefix}.NAME" for prefix in prefixes)])
        raise _misfit(f"{wrong[0]!r:.120} is none of {allowed}")


def _misfit(what: str) -> RefusedError:
    return RefusedError(
        f"this is no letter of a secure sum: {what}; use a client of the same release", "schema"
    )


def _two(first: bytes, second: bytes) -> Array:
    return _array(first + second).reshape(2, -1)


def _halves(two: Array) -> tuple[bytes, bytes]:
    return two[0].tobytes(), two[1].tobytes()


def _array(text: bytes) -> Array:
    return np.frombuffer(text, np.uint8)
