"""Clients that lie, weigh too much, come late or not at all, over real sockets."""

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path
from signal import SIGKILL
from typing import Any

import numpy as np
import pytest

from eventually import eventually
from rookery.errors import RefusedError
from rookery.server.federated import FederatedParameterServer
from rookery.server.http.remote_server import RemoteParameterServer
from rookery.server.parameter_server import ParameterServer
from rookery.types import Array
from run_processes import CommandForker
from server_processes import House

pytest.importorskip("httpx")
NAMES = tuple("abcde")
KEYS = {name: f"{name}-{'k' * 40}" for name in NAMES}
GOAL = np.linspace(-1.0, 1.0, 16, dtype=np.float32)
WITHIN_S = 120.0


def there(value: float) -> dict[str, Array]:
    return {"w": np.full(16, value, np.float32)}


@contextlib.contextmanager
def served(server: ParameterServer, clients: int) -> Iterator[list[RemoteParameterServer]]:
    """Puts a server on the network; yields clients that have registered."""
    url = server.start_server("localhost", 0, keys=KEYS)
    with contextlib.ExitStack() as stack:
        stack.callback(server.stop_server)
        found = []
        for name in NAMES[:clients]:
            remote = RemoteParameterServer(url, name, KEYS[name], patience_s=20.0)
            found.append(stack.enter_context(remote))
            remote.register_worker(name)
        yield found


def counts(server: ParameterServer) -> dict[str, int]:
    return dict(server.get_server_stats()["counts"])


def distance(method: str, liars: int) -> float:
    """Has five clients look for a goal, some of which want the opposite, 1000 times as much."""
    server = ParameterServer(there(0.0), method, synchronous=True, lr=0.5, byzantine=1)
    rng = np.random.default_rng(0)
    with served(server, 5) as clients:
        for _ in range(20):
            for number, client in enumerate(clients):
                version, arrays = client.get_parameters()
                gradient = arrays["w"] - GOAL + rng.normal(0, 0.01, 16).astype(np.float32)
                lie = np.float32(-1000.0 if number < liars else 1.0)
                client.push_gradients(NAMES[number], {"w": lie * gradient}, version=version)
    found = server.get_parameters()
    assert found is not None
    return float(np.abs(found.arrays["w"] - GOAL).max())


@pytest.mark.parametrize("method", ["median", "trimmed_mean", "krum"])
def test_robust_rules_learn_although_one_client_lies(method):
    assert distance(method, liars=1) < 0.1


@pytest.mark.filterwarnings("ignore:overflow")
def test_an_average_learns_without_a_liar_and_with_one_does_not():
    assert distance("average", liars=0) < 0.1
    assert not distance("average", liars=1) < 1e3  # or NaN


@pytest.mark.parametrize("weight", [-1.0, float("nan"), float("inf"), -float("inf")])
def test_a_weight_that_is_none_is_refused_and_the_round_goes_on(weight):
    server = ParameterServer(there(0.0), "weighted", synchronous=True, lr=1.0)
    with served(server, 2) as (a, b):
        with pytest.raises(RefusedError) as refused:
            a.push_gradients("a", there(9.0), weight)
        a.push_gradients("a", there(1.0))
        b.push_gradients("b", there(3.0), 0.0)  # no say
        found = b.get_parameters()

    assert refused.value.code == "weight"
    assert found.version == 1
    np.testing.assert_array_equal(found.arrays["w"], there(-1.0)["w"])


def test_an_enormous_weight_counts_for_no_more_than_the_largest():
    server = ParameterServer(there(0.0), "weighted", synchronous=True, lr=1.0, max_weight=3.0)
    with served(server, 2) as (a, b):
        a.push_gradients("a", there(4.0), 1e300)
        b.push_gradients("b", there(0.0), 1.0)
        found = b.get_parameters()

    np.testing.assert_array_equal(found.arrays["w"], there(-3.0)["w"])
    assert counts(server)["weight_clamped"] == 1


def test_a_round_of_weights_that_are_all_zero_comes_to_nothing():
    server = ParameterServer(there(0.0), "weighted", synchronous=True)
    with served(server, 2) as clients:
        for name, client in zip(NAMES, clients, strict=False):
            assert client.push_gradients(name, there(1.0), 0.0).accepted

    assert (server.version, counts(server)["skipped_weight"]) == (0, 1)


@pytest.mark.parametrize(
    ("staleness", "code", "moved", "counted"),
    [
        ("drop", "stale", 0.0, "stale"),
        ("discount", "ok", 0.25, "discounted"),  # 1 / (1 + 3)
        ("keep", "ok", 1.0, "ok"),
    ],
)
def test_an_old_gradient_is_worth_what_the_policy_says_and_is_counted(
    staleness, code, moved, counted
):
    most = 2 if staleness == "drop" else 16
    server = ParameterServer(
        there(0.0), update_frequency=1, lr=1.0, staleness=staleness, max_staleness=most
    )
    with served(server, 2) as (a, b):
        for _ in range(3):
            b.push_gradients("b", there(0.0))
        receipt = a.push_gradients("a", there(-1.0), version=0)
        found = a.get_parameters()

    assert receipt.code == code
    np.testing.assert_allclose(found.arrays["w"], there(moved)["w"])
    assert counts(server)[counted] == (4 if staleness == "keep" else 1)


def test_in_rounds_what_comes_after_its_round_does_not_count():
    server = ParameterServer(there(0.0), synchronous=True, quorum=1, lr=1.0)
    with served(server, 2) as (a, b):
        assert a.push_gradients("a", there(1.0), version=0).code == "ok"
        assert b.push_gradients("b", there(1.0), version=0).code == "stale"

    assert server.version == 1


def vanish(client: RemoteParameterServer) -> None:
    """Breaks off in the middle of a push, and never says goodbye."""
    client.close()
    host, port = client._url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as half:
        half.sendall(b"POST /v1/message HTTP/1.1\r\nhost: x\r\ncontent-length: 64\r\n\r\nhalf")


@pytest.mark.parametrize("kind", [ParameterServer, FederatedParameterServer])
def test_a_round_ends_at_its_deadline_without_the_one_that_vanished(kind):
    settings: dict[str, Any] = {"synchronous": True, "deadline_s": 1.0}
    server = kind(there(0.0), **settings)
    with served(server, 3) as (a, b, c):
        vanish(c)
        a.push_gradients("a", there(1.0), version=0)
        b.push_gradients("b", there(1.0), version=0)
        found = a.get_parameters(newer_than=0, wait_s=20.0)

    assert found is not None
    assert found.version == 1


def test_with_too_few_the_round_is_skipped_and_the_next_one_is_not():
    now = [0.0]
    server = FederatedParameterServer(
        there(0.0), min_workers_for_update=2, deadline_s=5.0, clock=lambda: now[0]
    )
    with served(server, 3) as (a, b, c):
        vanish(c)
        a.push_gradients("a", there(1.0), version=0)
        now[0] = 6.0
        assert a.get_parameters(newer_than=0) is None
        assert counts(server)["skipped_quorum"] == 1
        a.push_gradients("a", there(1.0), version=0)
        b.push_gradients("b", there(1.0), version=0)
        now[0] = 12.0
        found = a.get_parameters(newer_than=0)

    assert found.version == 1


def test_rounds_go_on_at_their_deadline_without_a_client_that_was_killed(
    forker: CommandForker, tmp_path: Path
):
    house = House(forker, tmp_path, "alice", "bob", "carol")
    server = house.serve(
        "--mode", "federated", "--round-steps", "200", "--deadline", "3", "--rounds", "5"
    )
    alice, bob, carol = (house.join(name) for name in ("alice", "bob", "carol"))
    assert eventually(lambda: workers(house) == 3, WITHIN_S), server.said + carol.said
    carol.send(SIGKILL)

    assert carol.wait(WITHIN_S) == -SIGKILL
    assert [alice.wait(WITHIN_S), bob.wait(WITHIN_S)] == [0, 0], alice.said + bob.said
    assert server.wait(WITHIN_S) == 0, server.said
    assert server.answer["version"] == 5


def workers(house: House) -> int:
    """Returns how many are registered: who was killed still is."""
    return len(house.status().get("server", {}).get("workers", ()))
