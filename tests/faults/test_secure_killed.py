"""Secure sums over the network: three clients, one killed within a round; a server killed too."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from signal import SIGKILL
from typing import Any

import numpy as np
import pytest

pytest.importorskip("httpx")
pytest.importorskip("cryptography")

from eventually import eventually
from rookery.server.client import RemoteParameterServer
from rookery.server.participant import Fate, Participant
from rookery.server.protocol import Kind
from running import Nursery, Started
from serving import House

WITHIN_S = 120.0
CLIENTS = ("alice", "bob", "carol")
SECURE = ("--mode", "federated", "--secure-sums", "--round-steps", "200")


@pytest.fixture
def house(nursery: Nursery, tmp_path: Path) -> House:
    return House(nursery, tmp_path, *CLIENTS)


def stats(house: House) -> dict[str, Any]:
    found: dict[str, Any] = house.status().get("server", {})
    return found


def at(house: House, stage: str) -> bool:
    return bool(stats(house).get("stage") == stage)


class Walker:
    """A client that this test leads by the hand, over the same network as the others."""

    def __init__(self, house: House, name: str, value: float):
        key = house.key(name).read_text().strip()
        self.remote = RemoteParameterServer(house.url, name, key, patience_s=WITHIN_S)
        self.remote.register_worker(name)
        served = self.remote.get_parameters()
        assert served is not None
        size = sum(array.size for array in served.arrays.values())
        self.update = np.full(size, value, np.float32)
        self.participant = Participant(self.remote, name)
        self.participant.begin(self.update, served.version)

    def step(self) -> Fate | None:
        return self.participant.step()

    def close(self) -> None:
        self.remote.close()


@pytest.fixture
def walk(house: House) -> Iterator[Any]:
    made: list[Walker] = []

    def start(name: str, value: float) -> Walker:
        made.append(Walker(house, name, value))
        return made[-1]

    yield start
    for walker in made:
        walker.close()


def parameters(house: House, walker: Walker) -> np.ndarray:
    served = walker.remote.get_parameters()
    assert served is not None
    return np.concatenate([np.ravel(served.arrays[name]) for name in sorted(served.arrays)])


def lead(walkers: list[Walker], house: House, stage: str) -> None:
    """Lets clients act, one after the other, until the round is at a stage."""
    for _ in range(20):
        if at(house, stage):
            return
        for walker in walkers:
            walker.step()
    raise AssertionError(f"never at {stage}: {stats(house)}")


def fates(walkers: list[Walker]) -> list[Fate | None]:
    found: list[Fate | None] = [None] * len(walkers)

    def all_known() -> bool:
        for i, walker in enumerate(walkers):
            found[i] = found[i] or walker.step()
        return all(found)

    assert eventually(all_known, WITHIN_S), found
    return found


def test_three_clients_learn_what_no_single_update_was_seen_for(house: House):
    server = house.serve(*SECURE, "--deadline", "60", "--rounds", "8")
    clients = [house.join(name, "--at-least", "2") for name in CLIENTS]

    assert [client.wait(WITHIN_S) for client in clients] == [0, 0, 0], clients[0].said
    assert server.wait(WITHIN_S) == 0, server.said
    assert "secure sums" in server.said
    assert server.answer["version"] == 8
    assert server.answer["counts"]["ok"] == sum(c.answer["accepted"] for c in clients)
    judged = house.start(["evaluate", str(house.run_dir), "--episodes", "20", "--json"])
    assert judged.wait(WITHIN_S) == 0, judged.said
    assert judged.answer["mean_return"] > 0.9


@pytest.mark.parametrize(("stage", "summed"), [("share", 2), ("mask", 3)])
def test_a_client_killed_within_a_round_does_not_end_it(house: House, walk, stage, summed):
    """One that the test leads holds the round at a stage until bob has come to it, and is dead."""
    server = house.serve(*SECURE, "--deadline", "8", "--rounds", "3")
    assert eventually(lambda: bool(house.status()), WITHIN_S), server.said
    carol = walk("carol", 0.001)
    alice, bob = house.join("alice"), house.join("bob")
    assert eventually(lambda: len(stats(house)["workers"]) == 3, WITHIN_S), server.said
    hold(carol, house, stage)

    bob.send(SIGKILL)
    assert bob.wait(WITHIN_S) == -SIGKILL
    assert house.version == 0
    assert fates([carol]) == [Fate.APPLIED]
    assert house.version == 1
    assert stats(house)["counts"]["ok"] == summed  # with bob's update if it had come

    carol.remote.unregister_worker("carol")
    again = house.join("bob")
    assert [alice.wait(WITHIN_S), again.wait(WITHIN_S)] == [0, 0], alice.said + again.said
    assert server.wait(WITHIN_S) == 0, server.said
    assert server.answer["version"] == 3
    assert "Traceback" not in server.said


def hold(walker: Walker, house: House, stage: str) -> None:
    """Brings a round to a stage, and waits until the two others have come to it."""

    def held() -> bool:
        now = stats(house)
        if now.get("stage") != stage:
            walker.step()
        return bool(now.get("stage") == stage and len(now["stage_clients"]) == 2)

    assert eventually(held, WITHIN_S), stats(house)


def test_a_server_killed_within_a_round_begins_it_anew_and_counts_nothing_twice(house: House, walk):
    server = house.serve(*SECURE, "--deadline", "60", "--rounds", "2")
    assert eventually(lambda: bool(house.status()), WITHIN_S), server.said
    walkers = [walk(name, 0.001 * (i + 1)) for i, name in enumerate(CLIENTS)]
    start = parameters(house, walkers[0])
    lead(walkers, house, "mask")
    server = restarted(house, server)
    assert house.version == 0
    assert stats(house)["stage"] == ""

    assert fates(walkers) == [Fate.APPLIED] * 3  # the same updates, under keys that are new
    assert house.version == 1
    np.testing.assert_allclose(parameters(house, walkers[0]) - start, 0.002, atol=1e-6)

    server = restarted(house, server)  # and after the sum it is there, once
    assert house.version == 1
    np.testing.assert_allclose(parameters(house, walkers[0]) - start, 0.002, atol=1e-6)
    assert stats(house)["counts"]["ok"] == 3


def restarted(house: House, server: Started) -> Started:
    server.send(SIGKILL)
    assert server.wait(WITHIN_S) == -SIGKILL
    again = house.serve(*SECURE, "--deadline", "60", "--rounds", "2")
    assert eventually(lambda: bool(house.status()), WITHIN_S), again.said
    return again


def test_clients_outlive_a_server_that_is_killed_at_any_moment(house: House):
    limit = (*SECURE, "--deadline", "10", "--rounds", "6")
    server = house.serve(*limit)
    clients = [house.join(name) for name in CLIENTS]
    for life in (1, 3):
        assert eventually(lambda life=life: house.version >= life, WITHIN_S), server.said
        seen = house.version
        server.send(SIGKILL)
        assert server.wait(WITHIN_S) == -SIGKILL
        server = house.serve(*limit)
        assert eventually(lambda: bool(house.status()), WITHIN_S), server.said
        assert house.version >= seen

    assert [client.wait(WITHIN_S) for client in clients] == [0, 0, 0], clients[0].said
    assert server.wait(WITHIN_S) == 0, server.said
    assert server.answer["version"] == 6
    acknowledged = sum(client.answer["accepted"] for client in clients)
    assert acknowledged <= server.answer["counts"]["ok"] <= 18


def test_a_clear_update_is_refused_and_a_plain_server_takes_no_letter(house: House, walk):
    server = house.serve(*SECURE)
    assert eventually(lambda: bool(house.status()), WITHIN_S), server.said
    alice = walk("alice", 0.0)
    with pytest.raises(Exception, match="masked updates only"):
        alice.remote.push_gradients("alice", dict(alice.remote.get_parameters().arrays))
    squeezed = house.join("bob", "--compress", "fp16")
    assert squeezed.wait(WITHIN_S) == 2
    assert "leave --compress out" in squeezed.said

    server.send(SIGKILL)
    assert server.wait(WITHIN_S) == -SIGKILL
    house.serve("--mode", "federated", "--aggregation", "average")
    assert eventually(lambda: bool(house.status()), WITHIN_S)
    with pytest.raises(Exception, match="no secure sums"):
        alice.remote.show_stage("alice")
    careful = house.join("bob", "--at-least", "3")
    assert careful.wait(WITHIN_S) == 2
    assert "would see every update of this client" in careful.said
    assert stats(house)["counts"].get("ok", 0) == 0
    assert json.dumps(house.status())


def test_two_letters_at_once_are_two_letters(house: House, walk):
    """Requests are answered by several threads; a round is one."""
    server = house.serve(*SECURE, "--rounds", "1", "--deadline", "60")
    assert eventually(lambda: bool(house.status()), WITHIN_S), server.said
    walkers = [walk(name, 0.001) for name in CLIENTS]
    found: dict[int, Fate | None] = {}

    def work(i: int) -> None:
        def known() -> bool:
            found[i] = walkers[i].step()
            return found[i] is not None

        eventually(known, WITHIN_S)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert set(found.values()) == {Fate.APPLIED}
    assert house.version == 1
    assert Kind.MASK.value in house.status()["messages_total"]
