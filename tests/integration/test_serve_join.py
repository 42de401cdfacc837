"""`rookery serve` and `rookery join`: a server and two clients, as processes of their own."""

import json
from pathlib import Path
from signal import SIGINT, SIGKILL, SIGTERM

import numpy as np
import pytest

from certificates import Authority
from eventually import eventually
from rookery.errors import StalledError
from rookery.server.http.remote_server import RemoteParameterServer
from run_processes import CommandForker
from server_processes import House, free_port

pytest.importorskip("httpx")
WITHIN_S = 120.0
ROUNDS = ("--mode", "federated", "--round-steps", "300", "--deadline", "60")


@pytest.fixture
def house(forker: CommandForker, tmp_path: Path) -> House:
    return House(forker, tmp_path, "alice", "bob")


def score(house: House) -> float:
    evaluated = house.start(["evaluate", str(house.run_dir), "--episodes", "20", "--json"])
    assert evaluated.wait(WITHIN_S) == 0, evaluated.said
    return float(evaluated.answer["mean_return"])


def test_two_clients_who_send_gradients_find_the_way_out(house: House):
    server = house.serve("--rounds", "800")
    clients = [house.join("alice"), house.join("bob", "--compress", "fp16")]

    assert [client.wait(WITHIN_S) for client in clients] == [0, 0], clients[0].said
    assert server.wait(WITHIN_S) == 0, server.said
    assert server.answer["version"] == 800
    assert server.answer["counts"]["ok"] == 800
    assert sum(client.answer["accepted"] for client in clients) == 800
    assert min(client.answer["accepted"] for client in clients) > 100
    assert score(house) > 0.9


def test_two_clients_who_send_rounds_find_the_way_out(house: House):
    server = house.serve(*ROUNDS, "--rounds", "8")
    clients = [house.join("alice"), house.join("bob")]

    assert [client.wait(WITHIN_S) for client in clients] == [0, 0], clients[0].said
    assert server.wait(WITHIN_S) == 0, server.said
    assert server.answer["version"] == 8
    assert [client.answer["accepted"] for client in clients] == [8, 8]
    assert score(house) > 0.9


def test_a_wrong_key_is_refused_and_named(house: House):
    server = house.serve()
    stranger = house.join("bob", key=house.key("alice"))

    assert stranger.wait(WITHIN_S) == 3
    assert "has not proved who it is; check the client's name and its key" in stranger.said
    assert "Traceback" not in stranger.said
    server.send(SIGTERM)
    assert server.wait(WITHIN_S) == 143


def test_a_server_that_is_not_there_is_named(house: House):
    client = house.join("alice", "--patience", "0.5")

    assert client.wait(WITHIN_S) == 3
    assert f"{house.url} did not answer" in client.said


@pytest.mark.parametrize(("number", "code"), [(SIGINT, 130), (SIGTERM, 143)])
def test_a_signal_ends_a_server_and_its_clients_in_order(house: House, number, code):
    server = house.serve()
    client = house.join("alice")
    assert eventually(lambda: house.version > 5, WITHIN_S), server.said + client.said

    client.send(number)
    assert client.wait(15.0) == code, client.said
    assert client.answer["reason"] in ("interrupted", "terminated")
    assert house.status()["server"]["workers"] == []
    server.send(number)
    assert server.wait(15.0) == code, server.said
    assert server.answer["version"] > 5
    assert "Traceback" not in server.said + client.said


def test_a_client_whose_server_is_away_ends_at_the_first_signal(house: House):
    server = house.serve()
    client = house.join("alice")
    assert eventually(lambda: house.version > 5, WITHIN_S), server.said + client.said
    server.send(SIGKILL)
    assert server.wait(WITHIN_S) == -SIGKILL

    client.send(SIGINT)
    assert client.wait(15.0) == 130, client.said
    assert client.answer["accepted"] > 5


@pytest.mark.parametrize("mode", [(), ROUNDS])
def test_an_environment_with_other_observations_is_refused_with_what_differs(house: House, mode):
    house.serve(*mode)
    client = house.join("alice", "--env-kwargs", "length=4")

    assert client.wait(WITHIN_S) == 2
    assert "of another network" in client.said
    assert "online.body.hidden.0.weight" in client.said


def test_a_started_server_says_how_to_join_and_no_key(house: House):
    server = house.serve("--target-epsilon", "9", "--delta", "0.01", "--noise", "2", *PRIVATE)
    assert eventually(lambda: house.version == 0, WITHIN_S), server.said

    stats = house.status()["server"]
    assert (stats["epsilon"], stats["target_epsilon"]) == (0, 9.0)
    way = f"rookery join {house.url} --client alice --key-file"
    assert eventually(lambda: way in server.said, WITHIN_S), server.said
    keys = json.loads((house.run_dir / "keys.json").read_text())["keys"].values()
    assert not [key for key in keys if key in server.said + json.dumps(house.status())]


PRIVATE = (*ROUNDS, "--clip", "1", "--sample-rate", "1", "--clients", "2")


def test_a_private_server_ends_before_its_budget_is_passed(house: House):
    pytest.importorskip("dp_accounting")
    server = house.serve("--target-epsilon", "6", "--delta", "0.01", "--noise", "1.5", *PRIVATE)
    clients = [house.join("alice"), house.join("bob")]

    assert server.wait(WITHIN_S) == 0, server.said
    assert [client.wait(WITHIN_S) for client in clients] == [0, 0], clients[0].said
    assert server.answer["reason"] == "budget"
    assert 0 < server.answer["epsilon"] <= 6
    assert {client.answer["reason"] for client in clients} <= {"budget", "over"}


def test_over_tls_a_client_says_whom_it_trusts(house: House, tmp_path: Path):
    authority = Authority(tmp_path)
    own = authority.sign("server")
    tls = ("--tls-cert", str(own.certificate), "--tls-key", str(own.private_key))
    house.scheme = "https"
    server = house.serve(*tls, "--rounds", "5")

    stranger = house.join("bob")
    assert stranger.wait(WITHIN_S) == 3
    assert f"TLS with {house.url} failed" in stranger.said
    alice = house.join("alice", "--ca", str(authority.certificate))
    assert alice.wait(WITHIN_S) == 0, alice.said
    assert server.wait(WITHIN_S) == 0, server.said


def test_patience_can_be_ended_from_another_thread():
    with RemoteParameterServer(f"http://localhost:{free_port()}", "a", "k" * 40) as remote:
        remote.give_up()

        with pytest.raises(StalledError):
            remote.push_gradients("a", {"w": np.zeros(1, np.float32)})
