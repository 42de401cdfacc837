"""Secure sums: a server learns the sum of its clients' updates and nothing of any single one.

    terms = Terms.fresh(size=P, bound=1.0, clients=100)            # server → everybody
    client = Contributor(terms, "alice");  server = Collector(terms)

    server.admit(client.advertise())                               # 1 keys
    server.post(client.share(server.roster()))                     # 2 shares, sealed for others
    server.collect(client.mask(server.deliver("alice"), update))   # 3 what is added up
    server.answer(client.unmask(server.question()))                # 4 what takes the masks away
    total = server.total()

A line is for all clients before the next one is for any. This is the protocol of Bonawitz et al.
2017, *Practical secure aggregation for privacy-preserving machine learning*, for a server that is
curious but keeps to the order of calls. Every two clients agree on a mask that one adds and the
other subtracts, so that they vanish from the sum. Whoever sends no masked update leaves its
partners' masks behind: `threshold` others together hold the key it made them with. Since a server
might call somebody lost who is only slow, every client adds a second mask of its own, whose seed is
shared in the same way. Of one client the server gets the key *or* the seed, and clients answer one
question each: with a threshold above half of the clients no two questions find enough holders.

A step closes when its result is asked for: who has not come by then has left. Before step 2 that
is of no consequence; after it, `threshold` clients must stay, or the sum is refused ("quorum").

What it does not do: the server passes on the clients' keys and is believed to do so (the paper's
signatures against one that does not need keys that clients have of each other); nobody sees
whether an update was clipped; the sum itself tells what it tells, all the more the fewer are in it.
"""

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rookery.errors import RefusedError
from rookery.server.masks import Grid, Key, Words, seal, stream, unseal
from rookery.server.shamir import SHARE, join, split
from rookery.server.sums import (
    Advert,
    Answer,
    Masked,
    Pair,
    Parcel,
    Question,
    Terms,
    digest_of,
    digests_of,
    in_order,
    refuse_few,
    refuse_stranger,
    refuse_twice,
    wrong_share,
)
from rookery.types import Array

DID = ("sent their keys", "shared their secrets", "sent their updates", "answered")  # by step


class KeyPair(NamedTuple):
    """A client's private keys for one sum."""

    seal_key: Key
    mask_key: Key

    @classmethod
    def fresh(cls) -> "KeyPair":
        return cls(Key.fresh(), Key.fresh())

    def advert(self, client: str) -> Advert:
        return Advert(client, self.seal_key.public, self.mask_key.public)


class Contributor:
    """A client's side of one sum. It is used once: keys that mask two updates mask neither."""

    def __init__(self, terms: Terms, client: str, keys: KeyPair | None = None):
        """`keys` are those that were advertised before the terms were known."""
        self.terms, self.client = terms, client
        self._seal_key, self._mask_key = keys or KeyPair.fresh()
        self._seed = os.urandom(32)
        self._roster: dict[str, Advert] = {}
        self._held: dict[str, Pair] = {}  # shares of others, and of this one
        self._masked = False
        self._asked: Question | None = None

    def advertise(self) -> Advert:
        """Returns this client's public keys (step 1)."""
        return KeyPair(self._seal_key, self._mask_key).advert(self.client)

    def share(self, roster: Mapping[str, Advert]) -> list[Parcel]:
        """Shares this client's secrets among all in the roster, itself included (step 2)."""
        in_order(not self._roster, "share comes once")
        self._refuse_roster(roster)
        self._roster = {name: roster[name] for name in sorted(roster)}
        t, n = self.terms.threshold, len(roster)
        shares = zip(split(self._mask_key.secret, t, n), split(self._seed, t, n), strict=True)
        pairs = dict(zip(self._roster, map(Pair._make, shares), strict=True))
        self._held[self.client] = pairs[self.client]
        return [self._parcel(receiver, pair) for receiver, pair in pairs.items()]

    def mask(self, parcels: Iterable[Parcel], update: Array) -> Masked:
        """Returns the update [P] with the masks of all who shared (step 3)."""
        in_order(bool(self._roster) and not self._masked, "mask comes once, after share")
        if update.shape != (self.terms.size,):
            raise RefusedError(
                f"an update must have shape ({self.terms.size},), got {update.shape}; give all "
                "parameters as one vector",
                "schema",
            )
        vector = Grid(self.terms.bound, self.terms.clients).quantise(update)
        held = self._open(parcels)
        refuse_few(len(held), self.terms, DID[1])
        vector += stream(self._seed, self.terms.size)
        for other in held.keys() - {self.client}:
            advert = self._roster[other]
            _add_pair(vector, self.terms, self.client, self._mask_key, advert)
        self._held, self._masked = held, True
        return Masked(self.client, vector)

    def unmask(self, question: Question) -> Answer:
        """Reveals one share for each client: of the seed of who stayed, of the key of who left.

        Both of one client would unmask it: a question that wants both, and a second question that
        is not the first one again, is refused ("both").
        """
        in_order(self._masked, "unmask comes after mask")
        self._refuse_question(question)
        self._asked = question
        return Answer(
            self.client,
            {name: self._held[name].key for name in sorted(question.dropped)},
            {name: self._held[name].seed for name in sorted(question.survivors)},
        )

    def _parcel(self, receiver: str, pair: Pair) -> Parcel:
        about = self.terms.about("shares", self.client, receiver)
        key = self._seal_key.agreed(self._roster[receiver].seal_key, about)
        digests = digests_of(self.terms, self.client, receiver, pair)
        return Parcel(self.client, receiver, seal(key, pair.key + pair.seed, about), digests)

    def _open(self, parcels: Iterable[Parcel]) -> dict[str, Pair]:
        """Returns the shares of each sender; those whose digests are of others are refused."""
        held = dict(self._held)
        for parcel in parcels:
            sender = parcel.sender
            if parcel.receiver != self.client or sender not in self._roster:
                raise RefusedError(
                    f"{self.client} got shares for {parcel.receiver} of {sender}, who must be in "
                    "the roster; deliver each client its own",
                    "unknown_worker",
                )
            if sender == self.client:
                continue
            about = self.terms.about("shares", sender, self.client)
            key = self._seal_key.agreed(self._roster[sender].seal_key, about)
            text = unseal(key, parcel.sealed, about)
            pair = Pair(text[:SHARE], text[SHARE:])
            if parcel.digests != digests_of(self.terms, sender, self.client, pair):
                raise wrong_share(sender, self.client)
            held[sender] = pair
        return held

    def _refuse_roster(self, roster: Mapping[str, Advert]) -> None:
        refuse_few(len(roster), self.terms, DID[0])
        keys = [key for advert in roster.values() for key in (advert.seal_key, advert.mask_key)]
        named = all(name == advert.client for name, advert in roster.items())
        if (
            len(roster) > self.terms.clients
            or len(set(keys)) < len(keys)
            or not named
            or roster.get(self.client) != self.advertise()
        ):
            raise RefusedError(
                f"a roster must have this client's own keys, and other keys for each of up to "
                f"{self.terms.clients} others, got {len(roster)} clients with {len(set(keys))} "
                "different keys; begin another sum",
                "roster",
            )

    def _refuse_question(self, question: Question) -> None:
        if question.survivors & question.dropped or self._asked not in (None, question):
            raise RefusedError(
                "a client reveals the key or the seed of another and never both, and was asked "
                f"for both; {self.client} takes no further part in this sum",
                "both",
            )
        if question.survivors | question.dropped != self._held.keys():
            raise RefusedError(
                f"a question must be about the {len(self._held)} clients whose masks "
                f"{self.client} added, got {len(question.survivors)} that stayed and "
                f"{len(question.dropped)} that left; begin another sum",
                "unknown_worker",
            )
        refuse_few(len(question.survivors), self.terms, DID[2])


class Collector:
    """The server's side of one sum.

    A message that is not taken is a RefusedError, and the sum goes on without it. Of masked updates
    it keeps their sum only.
    """

    def __init__(self, terms: Terms):
        self.terms = terms
        self._adverts: dict[str, Advert] = {}
        self._parcels: dict[str, dict[str, Parcel]] = {}  # by sender and receiver
        self._total = np.zeros(terms.size, np.uint64)
        self._masked: set[str] = set()
        self._answers: dict[str, Answer] = {}
        self._came: tuple[Collection[str], ...] = (
            self._adverts,
            self._parcels,
            self._masked,
            self._answers,
        )
        self._closed = 0  # steps

    def admit(self, advert: Advert) -> None:
        """Takes a client's keys (step 1)."""
        self._refuse_untimely(1)
        refuse_twice(advert.client, self._adverts)
        if len(self._adverts) == self.terms.clients:
            raise RefusedError(
                f"{advert.client} would be more than {self.terms.clients} clients, for whom the "
                "sum has room; wait for the next",
                "full",
            )
        refuse_keys(advert)
        self._adverts[advert.client] = advert

    def roster(self) -> dict[str, Advert]:
        """Closes step 1 and returns who takes part; the same when it is asked for again."""
        self._close(1)
        return {name: self._adverts[name] for name in sorted(self._adverts)}

    def post(self, parcels: Sequence[Parcel]) -> None:
        """Takes all shares of one sender (step 2)."""
        self._refuse_untimely(2)
        senders = {parcel.sender for parcel in parcels}
        receivers = [parcel.receiver for parcel in parcels]
        if len(senders) != 1 or sorted(receivers) != sorted(self._adverts):
            raise RefusedError(
                f"one sender must post one parcel for each of {len(self._adverts)} clients, got "
                f"{len(parcels)} of {len(senders)}; send those that share returned",
                "schema",
            )
        (sender,) = senders
        refuse_stranger(sender, self._adverts)
        refuse_twice(sender, self._parcels)
        self._parcels[sender] = {parcel.receiver: parcel for parcel in parcels}

    def deliver(self, receiver: str) -> list[Parcel]:
        """Closes step 2 and returns the parcels for one client."""
        self._close(2)
        refuse_stranger(receiver, self._parcels)
        return [parcels[receiver] for _, parcels in sorted(self._parcels.items())]

    def collect(self, masked: Masked) -> None:
        """Adds a masked update (step 3)."""
        self._refuse_untimely(3)
        refuse_stranger(masked.client, self._parcels)
        refuse_twice(masked.client, self._masked)
        if masked.vector.shape != (self.terms.size,) or masked.vector.dtype != np.uint64:
            raise RefusedError(
                f"a masked update must be uint64 ({self.terms.size},), got {masked.vector.dtype} "
                f"{masked.vector.shape} from {masked.client}; send what mask returned",
                "schema",
            )
        self._total += masked.vector
        self._masked.add(masked.client)

    def question(self) -> Question:
        """Closes step 3 and returns what survivors are asked."""
        self._close(3)
        return Question(frozenset(self._masked), frozenset(self._parcels.keys() - self._masked))

    def answer(self, answer: Answer) -> None:
        """Takes a survivor's shares (step 4); wrong ones are refused and do no harm."""
        self._refuse_untimely(4)
        survivors, dropped = self.question()
        refuse_stranger(answer.client, survivors)
        refuse_twice(answer.client, self._answers)
        if answer.keys.keys() != dropped or answer.seeds.keys() != survivors:
            raise RefusedError(
                f"{answer.client} must answer for {len(survivors)} that stayed and {len(dropped)} "
                f"that left, got {len(answer.seeds)} and {len(answer.keys)}; send what unmask "
                "returned",
                "schema",
            )
        for owner, share in answer.keys.items():
            self._refuse_share(owner, answer.client, "key", share)
        for owner, share in answer.seeds.items():
            self._refuse_share(owner, answer.client, "seed", share)
        self._answers[answer.client] = answer

    def total(self) -> npt.NDArray[np.float64]:
        """Closes step 4 and returns the sum [P] of the survivors' updates."""
        self._close(4)
        survivors, dropped = self.question()
        total = self._total.copy()
        for name in sorted(survivors):
            seed = self._joined({c: a.seeds[name] for c, a in self._answers.items()})
            total -= stream(seed, self.terms.size)
        for name in sorted(dropped):
            self._fill_gap(total, name, survivors)
        return Grid(self.terms.bound, self.terms.clients).restore(total, len(survivors))

    def _fill_gap(self, total: Words, name: str, survivors: Iterable[str]) -> None:
        """Adds the masks that a lost client would have added, but for its own."""
        private = Key(self._joined({c: a.keys[name] for c, a in self._answers.items()}))
        if private.public != self._adverts[name].mask_key:
            raise wrong_share(name, "everybody")
        for survivor in survivors:
            _add_pair(total, self.terms, name, private, self._adverts[survivor])

    def _joined(self, shares: Mapping[str, bytes]) -> bytes:
        places = {name: place for place, name in enumerate(sorted(self._adverts), start=1)}
        return join({places[name]: share for name, share in shares.items()}, self.terms.threshold)

    def _refuse_share(self, owner: str, holder: str, kind: str, share: bytes) -> None:
        known: bytes = getattr(self._parcels[owner][holder].digests, kind)
        if known != digest_of(self.terms, owner, holder, kind, share):
            raise wrong_share(owner, holder)

    def _refuse_untimely(self, step: int) -> None:
        if self._closed != step - 1:
            raise RefusedError(
                f"step {step} of this sum takes no message now, {self._closed} steps are closed; "
                "wait for the next sum",
                "late" if self._closed >= step else "early",
            )

    def _close(self, step: int) -> None:
        """Closes this step and those before it, where enough clients came to each."""
        for at in range(self._closed, step):
            refuse_few(len(self._came[at]), self.terms, DID[at])
            self._closed = at + 1


def refuse_keys(advert: Advert) -> None:
    """Refuses bytes that are no keys ("key")."""
    for key in (advert.seal_key, advert.mask_key):
        Key.fresh().agreed(key, b"")  # raises where it is none


def _add_pair(vector: Words, terms: Terms, own: str, private: Key, other: Advert) -> None:
    """Adds the mask of two clients in place: one adds what the other subtracts."""
    about = terms.about("mask", *sorted((own, other.client)))
    mask = stream(private.agreed(other.mask_key, about), terms.size)
    if own < other.client:
        vector += mask
    else:
        vector -= mask
