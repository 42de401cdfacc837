"""A server killed while clients train with it, and what their privacy cost before."""

import json
from collections.abc import Callable
from pathlib import Path
from signal import SIGKILL

import pytest

from eventually import eventually
from rookery.server.privacy.privacy_budget import Spent, epsilon_of
from rookery.server.run_server import LEDGER
from run_processes import CommandForker, Started
from server_processes import House

pytest.importorskip("httpx")
WITHIN_S = 120.0
LIVES = 3
ROUNDS = ("--mode", "federated", "--round-steps", "200", "--deadline", "60")
PROMISE = {"target": 9.0, "delta": 0.01, "noise": 2.0}


@pytest.fixture
def house(forker: CommandForker, tmp_path: Path) -> House:
    return House(forker, tmp_path, "alice", "bob")


def killed(house: House, server: Started, when: Callable[[], bool]) -> int:
    """Kills a server at a moment; returns the last version that anybody was told of."""
    assert eventually(when, WITHIN_S), server.said
    version = house.version
    server.send(SIGKILL)
    assert server.wait(WITHIN_S) == -SIGKILL
    return version


def answers(house: House) -> bool:
    return bool(house.status())


def test_gradients_are_counted_once_each_over_three_deaths(house: House):
    limit = ("--rounds", "400")
    server = house.serve(*limit)
    clients = [house.join("alice"), house.join("bob")]
    for life in range(1, LIVES + 1):
        seen = killed(house, server, lambda life=life: house.version >= 80 * life)
        server = house.serve(*limit)
        assert eventually(lambda: answers(house), WITHIN_S), server.said
        assert house.version >= seen

    assert [client.wait(WITHIN_S) for client in clients] == [0, 0], clients[0].said
    assert server.wait(WITHIN_S) == 0, server.said
    assert server.answer["version"] == 400
    acknowledged = sum(client.answer["accepted"] for client in clients)
    assert acknowledged == 400  # each of them applied, and none of them twice
    assert "Traceback" not in server.said


def test_a_round_goes_on_where_its_server_was_killed(house: House):
    limit = (*ROUNDS, "--rounds", "3")
    server = house.serve(*limit)
    alice = house.join("alice")
    half = killed(house, server, lambda: house.status().get("server", {}).get("pending") == 1)
    assert half == 0

    server = house.serve(*limit)
    assert eventually(lambda: answers(house), WITHIN_S), server.said
    assert house.status()["server"]["pending"] == 1  # alice's, as it was
    bob = house.join("bob")

    assert [alice.wait(WITHIN_S), bob.wait(WITHIN_S)] == [0, 0], alice.said + bob.said
    assert server.wait(WITHIN_S) == 0, server.said
    assert server.answer["version"] == 3
    assert [alice.answer["codes"], bob.answer["codes"]] == [{"ok": 3}, {"ok": 3}]


def test_what_privacy_has_cost_is_not_forgotten(house: House):
    pytest.importorskip("dp_accounting")
    words = ["--target-epsilon", PROMISE["target"], "--delta", PROMISE["delta"]]
    words += ["--noise", PROMISE["noise"], "--clip", 1, "--sample-rate", 1, "--clients", 2]
    argv = (*ROUNDS, *map(str, words))
    server = house.serve(*argv)
    clients = [house.join("alice"), house.join("bob")]

    killed(house, server, lambda: house.version >= 2)
    spent = json.loads((house.run_dir / LEDGER).read_text())["spent"]
    server = house.serve(*argv)
    assert eventually(lambda: answers(house), WITHIN_S), server.said
    assert house.status()["server"]["epsilon"] >= cost(sum(n for *_, n in spent))

    assert server.wait(WITHIN_S) == 0, server.said
    assert [client.wait(WITHIN_S) for client in clients] == [0, 0], clients[0].said
    assert server.answer["reason"] == "budget"
    assert server.answer["version"] <= affordable()  # in both lives together
    assert cost(1) < server.answer["epsilon"] <= PROMISE["target"]


def cost(rounds: int) -> float:
    return epsilon_of((Spent(PROMISE["noise"], 1.0, rounds),), PROMISE["delta"])


def affordable() -> int:
    return next(n for n in range(1000) if cost(n + 1) > PROMISE["target"])
