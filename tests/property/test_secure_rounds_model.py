"""Secure rounds in any order: clients act, stall, leave and come back, time passes, servers die."""

import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("cryptography")

from rookery.errors import RefusedError
from rookery.server.participant import Fate, Participant
from rookery.server.protocol import Kind
from rookery.server.rounds import Ended
from rookery.server.secure import SecureParameterServer
from rookery.types import Floats

NAMES = ("a", "b", "c", "d")
SIZE = 3
DEADLINE_S = 10.0
START = {"w": np.zeros(SIZE, np.float32)}


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Sent(NamedTuple):
    """An update, by whose it is and which of its own."""

    client: str
    serial: int


class Watched(SecureParameterServer):
    """Notes whose updates each sum claims to be of, and how it changed the parameters."""

    def watch(self, world: "World") -> "Watched":
        self.world = world
        return self

    def _records(self, ended: Ended):
        records = super()._records(ended)
        if ended.total is not None:
            self.world.summed(ended)
        return records


class World:
    """Clients with an update each, and whatever server there is."""

    def __init__(self, folder: Path):
        self.folder, self.clock = folder, Clock()
        self.applied: list[Sent] = []
        self.heard: list[Sent] = []  # by clients
        self.now: dict[str, Sent] = {}  # what each client has
        self.masked: dict[str, Sent] = {}  # and what it last sent
        self.updates: dict[Sent, Floats] = {}
        self.server = self.start()
        self.clients: dict[str, Participant] = {}
        for name in NAMES:
            self.server.register_worker(name)
            self.clients[name] = Participant(self.server, name)
            self.begin(name)

    def start(self) -> Watched:
        return Watched(
            START, checkpoint_path=self.folder, deadline_s=DEADLINE_S, clock=self.clock
        ).watch(self)

    def begin(self, name: str) -> None:
        """Trains: a new update, which no other one is equal to."""
        serial = self.now[name].serial + 1 if name in self.now else 0
        sent = self.now[name] = Sent(name, serial)
        rng = np.random.default_rng([NAMES.index(name), serial])
        self.updates[sent] = rng.normal(size=SIZE).astype(np.float32)
        self.clients[name].begin(self.updates[sent], self.server.version)

    def summed(self, ended: Ended) -> None:
        """The sum is that of exactly those it names; no update is in two sums."""
        sent = [self.masked[name] for name in ended.clients]
        expected = sum(self.updates[each].astype(np.float64) for each in sent)
        np.testing.assert_allclose(ended.total, expected, atol=1e-9)
        assert len(sent) >= 2
        assert not set(sent) & set(self.applied)
        self.applied += sent

    def act(self, name: str) -> None:
        fate = self.clients[name].step()
        if Kind.MASK in self.clients[name]._written:
            self.masked[name] = self.now[name]
        if fate is Fate.APPLIED:
            self.heard.append(self.now[name])
        if fate is not None:
            self.begin(name)

    def wait(self, name: str) -> None:
        self.clock.now += DEADLINE_S / 2
        assert self.server.version >= 0

    def leave(self, name: str) -> None:
        self.server.unregister_worker(name)

    def anew(self, name: str) -> None:
        """Another process of the same client."""
        self.clients[name] = Participant(self.server, name)
        self.begin(name)

    def kill(self, name: str) -> None:
        before = self.server.version
        self.server.close()
        self.server = self.start()
        assert self.server.version == before
        for client in self.clients.values():
            client._server = self.server


DEEDS = {"act": World.act, "wait": World.wait, "leave": World.leave, "anew": World.anew}
DEEDS |= {"kill": World.kill}
OFTEN = ["act"] * 20 + ["wait"] * 2 + ["leave", "anew", "kill"]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(OFTEN), st.sampled_from(NAMES)), max_size=120))
def test_every_sum_is_of_whom_it_names_and_no_update_is_in_two(deeds):
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder))
        for deed, name in deeds:
            DEEDS[deed](world, name)
        versions = world.server.version

        for _ in range(40):  # whatever happened, those who are there come to a sum in the end
            for name in NAMES:
                world.act(name)
            world.clock.now += DEADLINE_S / 8
        assert world.server.version > versions
        assert set(world.heard) <= set(world.applied)
        assert world.server.get_server_stats()["counts"]["ok"] == len(world.applied)
        world.server.close()


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["advertise", "share", "mask", "unmask"]),
    st.dictionaries(
        st.sampled_from(["keys", "vector", "sealed.a", "digests.a", "key.a", "seed.b", "x", ""]),
        st.builds(
            np.zeros,
            st.sampled_from([(), (0,), (2, 32), (66,), (148,), (SIZE,)]),
            st.sampled_from(["uint8", "uint64", "float32"]),
        ),
        max_size=4,
    ),
    st.integers(0, 12),
)
def test_garbage_is_refused_and_the_others_come_to_their_sum(stage, letter, when):
    server = SecureParameterServer(START, deadline_s=DEADLINE_S, clock=(clock := Clock()))
    for name in NAMES:
        server.register_worker(name)
    clients = {name: Participant(server, name) for name in NAMES[:3]}
    for client in clients.values():
        client.begin(np.ones(SIZE, np.float32), 0)
    for i in range(90):
        if i == when:
            session = "" if server._round is None else server._round.session
            assert not accepted(server, Kind(stage), letter, session)
        if server.version == 0:
            list(clients.values())[i % 3].step()
        clock.now += DEADLINE_S / 9
    assert server.version >= 1
    assert server.get_parameters().arrays["w"] == pytest.approx(np.ones(SIZE))


def accepted(server, stage, letter, session) -> bool:
    try:
        return bool(server.take_stage("d", stage, letter, session=session).accepted)
    except RefusedError:
        return False
