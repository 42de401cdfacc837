"""The parameter server over real sockets: uvicorn on loopback, TLS, several clients at once."""

import logging
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch

from certificates import Authority
from eventually import eventually
from rookery.errors import ConfigError, ProtocolError, RefusedError, StalledError
from rookery.server.federated import OPEN, FederatedParameterServer
from rookery.server.http import remote_server as client_module
from rookery.server.http.client_keys import Keys
from rookery.server.http.limits import Limits
from rookery.server.http.remote_server import RemoteParameterServer
from rookery.server.parameter_server import ParameterServer

KEYS = {name: f"{name}-{'k' * 40}" for name in ("alice", "bob", "carol", "dave")}
INITIAL = {
    "weight": np.arange(12, dtype=np.float32).reshape(3, 4),
    "bias": np.ones(5, np.float32),
}
ONES = {name: np.ones_like(array) for name, array in INITIAL.items()}


def own_threads() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name.startswith("rookery-serv")]


@pytest.fixture
def server() -> Iterator[ParameterServer]:
    server = ParameterServer(INITIAL, update_frequency=1, lr=0.5)
    yield server
    server.stop_server()


@pytest.fixture
def url(server: ParameterServer) -> str:
    return server.start_server("localhost", 0, keys=KEYS)


@pytest.fixture
def alice(url: str) -> Iterator[RemoteParameterServer]:
    with RemoteParameterServer(url, "alice", KEYS["alice"], patience_s=20.0) as alice:
        yield alice


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


def messages(url: str, client: str) -> int:
    standing = httpx.get(url + "/status").json()["clients"].get(client, {"messages": 0})
    return int(standing["messages"])


class TestMethods:
    def test_parameters_come_bit_for_bit(self, server: ParameterServer, alice):
        found = alice.get_parameters()

        assert found.version == server.version
        assert found.arrays.keys() == INITIAL.keys()
        for name, array in INITIAL.items():
            assert found.arrays[name].dtype == np.float32
            assert (found.arrays[name] == array).all()

    def test_a_push_from_afar_is_a_push(self, server: ParameterServer, alice):
        twin = ParameterServer(INITIAL, update_frequency=1, lr=0.5)
        for who in (alice, twin):
            who.register_worker("alice")
            receipt = who.push_gradients("alice", ONES, 2.0, version=0, push_id="p1")

        assert receipt == twin.push_gradients("alice", ONES, push_id="p1")._replace(code="ok")
        for name in INITIAL:
            assert (
                server.get_parameters().arrays[name] == twin.get_parameters().arrays[name]
            ).all()

    def test_nothing_newer_is_none_and_costs_no_body(self, url: str, alice):
        version = alice.get_parameters().version
        before = httpx.get(url + "/status").json()["sent_bytes_total"]["pull"]

        assert alice.get_parameters(newer_than=version) is None
        assert httpx.get(url + "/status").json()["sent_bytes_total"]["pull"] == before

    def test_waiting_for_news_ends_with_them(self, server: ParameterServer, alice):
        alice.register_worker("alice")
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(alice.get_parameters, 0, wait_s=20.0)
            alice.push_gradients("alice", ONES)

            assert waiting.result(20).version == 1

    def test_a_client_that_waits_asks_once(self, server: ParameterServer, url: str, alice):
        server.register_worker("bob")
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(alice.get_parameters, 0, wait_s=20.0)
            assert not eventually(lambda: waiting.done() or messages(url, "alice") > 1, 0.5)
            server.push_gradients("bob", ONES)

            assert waiting.result(20).version == 1
        assert messages(url, "alice") == 1

    def test_a_wait_ends_when_its_time_is_over(self, alice):
        begun = time.monotonic()

        assert alice.get_parameters(newer_than=0, wait_s=0.2) is None
        assert 0.2 <= time.monotonic() - begun < 5.0

    def test_a_server_holds_no_wait_for_longer_than_its_limit(self, server: ParameterServer):
        url = server.start_server("localhost", 0, keys=KEYS, limits=Limits(wait_s=0.05))
        with RemoteParameterServer(url, "alice", KEYS["alice"]) as alice:
            assert alice.get_parameters(newer_than=0, wait_s=0.3) is None

        assert messages(url, "alice") >= 2

    def test_a_deadline_passes_while_all_clients_wait(self):
        served = ParameterServer(INITIAL, synchronous=True, quorum=1, deadline_s=0.1)
        served._complete = lambda pending: False  # type: ignore[method-assign]  # only the deadline
        url = served.start_server("localhost", 0, keys=KEYS)
        try:
            with RemoteParameterServer(url, "alice", KEYS["alice"]) as alice:
                alice.register_worker("alice")
                alice.push_gradients("alice", ONES)
                assert alice.get_parameters(newer_than=0, wait_s=20.0).version == 1
        finally:
            served.stop_server()

    def test_a_server_that_stops_keeps_no_client_waiting(self, server: ParameterServer, url: str):
        with (
            RemoteParameterServer(url, "alice", KEYS["alice"], patience_s=0.1) as alice,
            ThreadPoolExecutor(1) as pool,
        ):
            waiting = pool.submit(alice.get_parameters, 0, wait_s=20.0)
            assert eventually(lambda: messages(url, "alice") == 1, 10.0)
            begun = time.monotonic()
            server.stop_server()
            stopped_s = time.monotonic() - begun
            with pytest.raises(StalledError):
                waiting.result(10)

        assert stopped_s < 4.0  # less than uvicorn's grace

    def test_giving_up_ends_a_wait_at_once(self, url: str, alice):
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(alice.get_parameters, 0, wait_s=20.0)
            assert eventually(lambda: messages(url, "alice") == 1, 10.0)
            alice.give_up()

            assert waiting.result(5) is None

    def test_tensors_travel_as_well_as_arrays(self, alice):
        alice.register_worker("alice")
        grads = {name: torch.ones(array.shape, requires_grad=True) for name, array in ONES.items()}

        assert alice.push_gradients("alice", grads).accepted

    def test_statistics_come_over(self, server: ParameterServer, alice):
        alice.register_worker("alice/1")

        assert alice.get_server_stats()["workers"] == ["alice/1"]
        alice.unregister_worker("alice/1")
        assert alice.get_server_stats()["workers"] == []

    def test_a_client_speaks_for_no_other_worker(self, alice):
        with pytest.raises(ConfigError, match="cannot speak for 'bob'"):
            alice.register_worker("bob")

    def test_refusals_are_the_servers_own_with_their_code(self, alice):
        alice.register_worker("alice")

        with pytest.raises(RefusedError, match="bias") as refused:
            alice.push_gradients("alice", {"weight": ONES["weight"]})

        assert refused.value.code == "schema"

    @pytest.mark.parametrize(
        ("code", "value", "settings"),
        [("finite", np.nan, {}), ("overflow", 1e25, {}), ("norm", 1e3, {"max_norm": 10.0})],
    )
    def test_the_log_names_the_client_whose_update_shows_a_fault(
        self, code, value, settings, caplog
    ):
        served = ParameterServer(INITIAL, update_frequency=1, optimizer="adam", **settings)
        url = served.start_server("localhost", 0, keys=KEYS)
        faulty = {name: np.full_like(array, value) for name, array in INITIAL.items()}
        try:
            with (
                caplog.at_level(logging.WARNING, "rookery.server"),
                RemoteParameterServer(url, "alice", KEYS["alice"]) as alice,
            ):
                alice.register_worker("alice")
                assert alice.push_gradients("alice", faulty).code == code
        finally:
            served.stop_server()

        (line,) = [record.getMessage() for record in caplog.records]
        assert line.startswith(f"refused ({code}) alice at ")
        assert served.version == 0

    def test_a_worker_that_did_not_register_is_told_to(self, alice):
        with pytest.raises(RefusedError, match="register_worker") as refused:
            alice.push_gradients("alice", ONES)

        assert refused.value.code == "unknown_worker"


class TestManyClients:
    def test_four_clients_at_once_lose_and_double_nothing(self, server: ParameterServer, url: str):
        def work(name: str) -> int:
            with RemoteParameterServer(url, name, KEYS[name], patience_s=60.0) as own:
                own.register_worker(name)
                accepted = 0
                for _ in range(10):
                    version, _ = own.get_parameters()
                    accepted += own.push_gradients(name, ONES, version=version).accepted
                return accepted

        with ThreadPoolExecutor(4) as pool:
            accepted = list(pool.map(work, KEYS))

        assert accepted == [10] * 4
        assert server.version == 40

    def test_threads_share_one_client(self, server: ParameterServer, alice):
        for k in range(8):
            alice.register_worker(f"alice/{k}")

        with ThreadPoolExecutor(8) as pool:
            receipts = pool.map(lambda k: alice.push_gradients(f"alice/{k}", ONES), range(8))

        assert all(receipt.accepted for receipt in receipts)
        assert server.version == 8

    def test_a_large_model_arrives_whole(self):
        rng = np.random.default_rng(0)
        initial = {f"w{k}": rng.standard_normal(700_001, np.float32) for k in range(5)}
        server = ParameterServer(initial, update_frequency=1, lr=1.0)
        url = server.start_server("localhost", 0, keys=KEYS)
        try:
            with RemoteParameterServer(url, "alice", KEYS["alice"]) as alice:
                alice.register_worker("alice")
                alice.push_gradients("alice", initial)

                assert all(not array.any() for array in alice.get_parameters().arrays.values())
        finally:
            server.stop_server()


class TestMemory:
    def test_updates_of_an_open_round_count_against_the_memory(self):
        size = 5_000
        settings = {"synchronous": True, "deadline_s": 1e6}
        served = ParameterServer({"w": np.zeros(size)}, "median", **settings)
        limits = Limits(memory_bytes=3 * 4 * size + 2_000)
        url = served.start_server("localhost", 0, keys=KEYS, limits=limits)
        update = {"w": np.ones(size, np.float32)}
        try:
            for name in (*KEYS, "local", "late"):
                served.register_worker(name)
            served.push_gradients("local", update)
            for name in ("alice", "bob"):
                with RemoteParameterServer(url, name, KEYS[name]) as own:
                    assert own.push_gradients(name, update).code == "ok"
            with (
                RemoteParameterServer(url, "carol", KEYS["carol"], patience_s=0.2) as carol,
                pytest.raises(StalledError, match=r"wait for the end of their round.*--memory"),
            ):
                carol.push_gradients("carol", update)
        finally:
            served.stop_server()

        assert served.get_server_stats()["pending"] == 3

    def test_a_running_sum_counts_once_however_many_updates_are_in_it(self):
        size = 5_000
        served = ParameterServer({"w": np.zeros(size)}, update_frequency=100)
        limits = Limits(memory_bytes=3 * 4 * size + 2_000)
        url = served.start_server("localhost", 0, keys=KEYS, limits=limits)
        try:
            with RemoteParameterServer(url, "alice", KEYS["alice"]) as alice:
                alice.register_worker("alice")
                for _ in range(10):
                    assert alice.push_gradients("alice", {"w": np.ones(size, np.float32)}).accepted
        finally:
            served.stop_server()

        assert served.get_server_stats()["pending"] == 10
        assert served.pending_bytes == 8 * size

    @pytest.mark.parametrize(
        "settings", [{"update_frequency": 10}, {"synchronous": True, "quorum": 10}]
    )
    def test_a_round_that_could_never_be_complete_is_refused_at_the_start(self, settings):
        served = ParameterServer({"w": np.zeros(5_000)}, "median", **settings)

        with pytest.raises(ConfigError, match=r"200000 bytes.*raise it \(--memory\)"):
            served.start_server("localhost", 0, keys=KEYS, limits=Limits(memory_bytes=150_000))


class TestOneVoice:
    @pytest.mark.parametrize(
        "settings", [{"synchronous": True, "quorum": 5}, {"aggregation_method": "median"}]
    )
    def test_where_workers_are_counted_a_client_has_no_parts(self, settings):
        server = ParameterServer(INITIAL, **settings)
        url = server.start_server("localhost", 0, keys=KEYS)
        try:
            with RemoteParameterServer(url, "alice", KEYS["alice"], patience_s=20.0) as alice:
                server.register_worker("alice/2")  # of a journal from before, or in this process
                for ask in (alice.register_worker, lambda w: alice.push_gradients(w, ONES)):
                    with pytest.raises(RefusedError, match="counts once") as refused:
                        ask("alice/2")
                    assert refused.value.code == "clients"
                alice.unregister_worker("alice/2")
                alice.register_worker("alice")

                assert alice.push_gradients("alice", ONES).accepted
        finally:
            server.stop_server()

    def test_elsewhere_it_may_have_some(self, alice):
        for part in ("alice/1", "alice/2"):
            alice.register_worker(part)
            assert alice.push_gradients(part, ONES).accepted


class TestCodecs:
    def test_half_precision_goes_both_ways(self, server: ParameterServer, url: str):
        with RemoteParameterServer(url, "bob", KEYS["bob"], codec="fp16") as bob:
            bob.register_worker("bob")
            bob.push_gradients("bob", ONES)
            found = bob.get_parameters()

        assert found.arrays["weight"].dtype == np.float32
        assert found.arrays["weight"] == pytest.approx(INITIAL["weight"] - 0.5, abs=1e-2)

    def test_top_k_pushes_the_largest_entries(self, server: ParameterServer, url: str):
        update = {"weight": np.zeros((3, 4), np.float32), "bias": np.zeros(5, np.float32)}
        update["weight"][1, 2], update["bias"][4] = 8.0, -8.0
        with RemoteParameterServer(url, "bob", KEYS["bob"], codec="top_k", keep=0.01) as bob:
            bob.register_worker("bob")
            bob.push_gradients("bob", update)

        moved = server.get_parameters().arrays
        assert moved["weight"][1, 2] == INITIAL["weight"][1, 2] - 4.0
        assert moved["bias"].tolist() == [1, 1, 1, 1, 5]

    def test_what_is_left_of_an_update_waits_until_the_server_takes_it(self, url: str):
        spoilt = {name: np.full_like(array, np.nan) for name, array in ONES.items()}
        with RemoteParameterServer(
            url, "alice", KEYS["alice"], codec="top_k", keep=0.01, patience_s=20.0
        ) as alice:
            alice.register_worker("alice")

            codes = [alice.push_gradients("alice", update).code for update in (spoilt, ONES, ONES)]

        assert codes == ["finite", "ok", "ok"]

    def test_an_update_whose_round_came_to_nothing_is_pushed_again_as_it_was(self):
        now = [0.0]
        server = ParameterServer(
            INITIAL, synchronous=True, quorum=2, deadline_s=1.0, lr=1.0, clock=lambda: now[0]
        )
        server.register_worker("bob")
        url = server.start_server("localhost", 0, keys=KEYS)
        grads = {"weight": np.arange(12, dtype=np.float32).reshape(3, 4), "bias": ONES["bias"]}
        with RemoteParameterServer(
            url, "alice", KEYS["alice"], codec="top_k", keep=0.01, patience_s=20.0
        ) as alice:
            alice.register_worker("alice")
            alice.push_gradients("alice", grads, version=0)
            now[0] = 2.0  # the deadline: one is not enough
            alice.take_back("alice")
            alice.push_gradients("alice", grads, version=0)
            server.push_gradients("bob", {name: 0 * array for name, array in ONES.items()})
        server.stop_server()

        moved = INITIAL["weight"] - server.get_parameters().arrays["weight"]
        assert moved.max() == 11 / 2  # and not twice what the skipped round was sent
        assert np.count_nonzero(moved) == 1


class TestTls:
    @pytest.fixture
    def tls(self, server: ParameterServer, authority: Authority) -> str:
        own = authority.sign("server")
        return server.start_server("localhost", 0, keys=KEYS, **own._asdict())

    def test_a_client_that_trusts_the_authority_gets_through(self, tls: str, authority: Authority):
        assert tls.startswith("https://localhost:")
        with RemoteParameterServer(tls, "alice", KEYS["alice"], ca=authority.certificate) as alice:
            assert alice.register_worker("alice") == 0
            assert alice.push_gradients("alice", ONES).accepted
            assert alice.get_parameters().version == 1

    def test_a_server_with_an_untrusted_certificate_is_refused_at_once(self, tls: str):
        with (
            RemoteParameterServer(tls, "alice", KEYS["alice"]) as alice,
            pytest.raises(RefusedError, match=r"TLS with .* failed") as refused,
        ):
            alice.register_worker("alice")

        assert refused.value.code == "auth"

    def test_with_a_client_authority_only_its_clients_get_through(
        self, server: ParameterServer, authority: Authority
    ):
        own, hers = authority.sign("server"), authority.sign("alice")
        url = server.start_server(
            "localhost", 0, keys=KEYS, client_ca=authority.certificate, **own._asdict()
        )
        trust = {"ca": authority.certificate, "patience_s": 1.0}
        with RemoteParameterServer(url, "alice", KEYS["alice"], **trust, **hers._asdict()) as alice:
            assert alice.register_worker("alice") == 0
        with (
            RemoteParameterServer(url, "alice", KEYS["alice"], **trust) as without,
            pytest.raises(StalledError, match="a client's certificate"),
        ):
            without.register_worker("alice")

    def test_a_certificate_alone_says_who_a_client_is(
        self, server: ParameterServer, authority: Authority
    ):
        own, hers = authority.sign("server"), authority.sign("alice")
        url = server.start_server("localhost", 0, client_ca=authority.certificate, **own._asdict())
        trust = {"ca": authority.certificate, **hers._asdict()}
        with RemoteParameterServer(url, "alice", **trust) as alice:
            alice.register_worker("alice")
            assert alice.push_gradients("alice", ONES).accepted
        with (
            RemoteParameterServer(url, "bob", KEYS["bob"], **trust) as forged,
            pytest.raises(RefusedError, match="key or certificate") as refused,
        ):
            forged.register_worker("bob")
        assert refused.value.code == "auth"
        assert server.get_server_stats()["workers"] == ["alice"]

    def test_where_keys_are_given_too_a_certificate_alone_is_not_enough(
        self, server: ParameterServer, authority: Authority
    ):
        own, hers = authority.sign("server"), authority.sign("alice")
        url = server.start_server(
            "localhost", 0, keys=KEYS, client_ca=authority.certificate, **own._asdict()
        )
        with (
            RemoteParameterServer(
                url, "alice", ca=authority.certificate, **hers._asdict()
            ) as alice,
            pytest.raises(RefusedError) as refused,
        ):
            alice.register_worker("alice")
        assert refused.value.code == "auth"

    def test_files_that_do_not_belong_together_are_refused_before_anything_is_bound(
        self, server: ParameterServer, authority: Authority
    ):
        one, other = authority.sign("one"), authority.sign("other")

        with pytest.raises(ConfigError, match="belong together"):
            server.start_server(
                "localhost",
                0,
                keys=KEYS,
                certificate=one.certificate,
                private_key=other.private_key,
            )


class TestStarting:
    def test_a_service_without_keys_is_refused_with_the_way_to_make_some(
        self, server: ParameterServer
    ):
        with pytest.raises(ConfigError, match=r"Keys\(path\)\.issue"):
            server.start_server("localhost", 0)

    def test_plain_http_does_not_leave_this_host(self, server: ParameterServer):
        with pytest.raises(ConfigError, match="--tls-cert"):
            server.start_server("0.0.0.0", 0, keys=KEYS)

    def test_with_a_certificate_it_does(self, server: ParameterServer, authority: Authority):
        own = authority.sign("server")._asdict()

        assert server.start_server("0.0.0.0", 0, keys=KEYS, **own).startswith("https://0.")

    @pytest.mark.parametrize("host", ["192.0.2.1", "trainer.example", "[2001:db8::1]", "0.0.0.0"])
    def test_a_client_does_not_send_its_key_plainly_to_another_host(self, host: str, monkeypatch):
        monkeypatch.setattr(httpx, "Client", lambda **_: pytest.fail("a connection was made"))

        with pytest.raises(ConfigError, match="use https") as refused:
            RemoteParameterServer(f"http://{host}:8888", "alice", KEYS["alice"])

        assert KEYS["alice"] not in str(refused.value)

    def test_a_client_follows_no_redirect_with_its_key(self):
        """The server's port is another's now, who says that the service has moved."""
        got: list[bytes] = []
        moved = b"HTTP/1.1 307 Moved\r\nlocation: http://192.0.2.1/v1/message\r\n"

        def answer(door: socket.socket) -> None:
            connection, _ = door.accept()
            with connection:
                got.append(connection.recv(65536))
                connection.sendall(moved + b"content-length: 0\r\n\r\n")

        with socket.create_server(("127.0.0.1", 0)) as door, ThreadPoolExecutor(1) as pool:
            answering = pool.submit(answer, door)
            url = f"http://localhost:{door.getsockname()[1]}"
            with (
                RemoteParameterServer(url, "alice", KEYS["alice"], patience_s=5.0) as alice,
                pytest.raises(RefusedError, match="307"),
            ):
                alice.register_worker("alice")
            answering.result(20)

        assert len(got) == 1

    def test_a_client_without_a_key_and_a_certificate_is_refused(self):
        with pytest.raises(ConfigError, match="neither a key nor a certificate"):
            RemoteParameterServer("http://localhost:8888", "alice")

    @pytest.mark.parametrize("key", ["", "two words", "line\r\nx: y", "schlüssel"])
    def test_a_key_that_no_header_can_carry_is_refused_unseen(self, key: str):
        with pytest.raises(ConfigError, match="HTTP does not carry") as refused:
            RemoteParameterServer("http://localhost:8888", "alice", key)

        assert not key or key not in str(refused.value)

    def test_a_port_that_is_taken_is_named(self, server: ParameterServer):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]

            with pytest.raises(ConfigError, match=f"localhost:{port} cannot be bound"):
                server.start_server("localhost", port, keys=KEYS)

    def test_a_service_is_started_once(self, server: ParameterServer, url: str):
        with pytest.raises(ProtocolError):
            server.start_server("localhost", 0, keys=KEYS)

    def test_after_it_was_stopped_nothing_is_left(self, server: ParameterServer, url: str, alice):
        alice.register_worker("alice")
        server.stop_server()

        assert eventually(lambda: not own_threads(), 5.0), own_threads()
        with pytest.raises(httpx.ConnectError):
            httpx.get(url + "/status")

    def test_keys_from_a_file_are_taken_and_given_back_while_it_runs(
        self, server: ParameterServer, tmp_path: Path
    ):
        keys = Keys(tmp_path / "keys.json")
        key = keys.issue("erin")
        url = server.start_server("localhost", 0, keys=tmp_path / "keys.json")
        with RemoteParameterServer(url, "erin", key, patience_s=5.0) as erin:
            erin.register_worker("erin")
            keys.revoke("erin")

            def refused() -> bool:
                try:
                    erin.get_server_stats()
                except RefusedError as error:
                    return error.code == "auth"
                return False

            assert eventually(refused, 5.0)


class TestReconnecting:
    def test_a_client_waits_for_a_server_that_comes_later(self, server: ParameterServer):
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        with (
            RemoteParameterServer(f"http://localhost:{port}", "alice", KEYS["alice"]) as alice,
            ThreadPoolExecutor(1) as pool,
        ):
            waiting = pool.submit(alice.register_worker, "alice")
            server.start_server("localhost", port, keys=KEYS)

            assert waiting.result(20) == 0

    def test_a_client_goes_on_with_a_server_that_was_started_anew(self, server: ParameterServer):
        url = server.start_server("localhost", 0, keys=KEYS)
        port = int(url.rpartition(":")[2])
        with RemoteParameterServer(url, "alice", KEYS["alice"], patience_s=20.0) as alice:
            alice.register_worker("alice")
            server.stop_server()
            server.start_server("localhost", port, keys=KEYS)

            assert alice.push_gradients("alice", ONES).accepted

    def test_patience_ends(self):
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        with (
            RemoteParameterServer(
                f"http://localhost:{port}", "alice", KEYS["alice"], patience_s=0.2
            ) as alice,
            pytest.raises(StalledError, match="is the server"),
        ):
            alice.register_worker("alice")

    def test_rests_grow_and_differ_between_clients(self, url: str, monkeypatch):
        def rests(seed: int) -> list[float]:
            own = RemoteParameterServer(url, "alice", KEYS["alice"], patience_s=1000.0)
            slept: list[float] = []

            def fail(*_: object) -> None:
                raise httpx.ConnectError("nobody is there")

            def rest(seconds: float) -> bool:
                slept.append(seconds)
                return len(slept) == 12

            monkeypatch.setattr(own, "_attempt", fail)
            monkeypatch.setattr(own, "_rest", rest)
            with pytest.raises(StalledError, match="was closed"):
                own.register_worker("alice")
            own.close()
            return slept

        one, other = rests(0), rests(1)

        assert one != other
        assert sum(one[6:]) > sum(one[:5])
        assert max(one) <= 1.5 * client_module.LONGEST_S

    def test_an_answer_that_is_lost_does_not_double_an_update(
        self, server: ParameterServer, alice, monkeypatch
    ):
        """The server has applied it; the connection breaks before the client hears so."""
        alice.register_worker("alice")
        lost = iter([True])
        answered = client_module._answered

        def cut(got: httpx.Response):
            if next(lost, False):
                raise httpx.ReadError("cut")
            return answered(got)

        monkeypatch.setattr(client_module, "_answered", cut)

        assert alice.push_gradients("alice", ONES).code == "duplicate"
        assert server.version == 1

    def test_a_closed_client_does_not_keep_waiting(self):
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        alice = RemoteParameterServer(
            f"http://localhost:{port}", "alice", KEYS["alice"], patience_s=500.0
        )
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(alice.register_worker, "alice")
            alice.close()

            with pytest.raises((StalledError, RuntimeError)):
                waiting.result(20)


class TestWatching:
    def test_status_says_version_clients_and_counts(self, url: str, alice):
        alice.register_worker("alice")
        alice.push_gradients("alice", ONES)

        found = httpx.get(url + "/status").json()

        assert found["version"] == 1
        assert found["clients"]["alice"] == {"messages": 2}
        assert found["messages_total"] == {"register": 1, "push": 1}
        assert found["server"]["workers"] == ["alice"]

    def test_status_requests_do_not_block_the_event_loop(self):
        """Asking for a version can end a round, which takes sums and a disk."""
        asked_by: list[str] = []

        class Watched(ParameterServer):
            @property
            def version(self) -> int:
                asked_by.append(threading.current_thread().name)
                return super().version

        server = Watched(INITIAL)
        url = server.start_server("localhost", 0, keys=KEYS)
        asked_by.clear()
        try:
            answers = [httpx.get(url + page).status_code for page in ("/status", "/metrics")]
        finally:
            server.stop_server()

        assert answers == [200, 200]
        assert asked_by == []

    def test_what_a_private_server_tells_its_clients_it_tells_its_operator_and_more(self):
        served = FederatedParameterServer(INITIAL, differential_privacy=True)
        url = served.start_server("localhost", 0, keys=KEYS, status_token="look")
        headers = {"authorization": "Bearer look"}
        try:
            with RemoteParameterServer(url, "alice", KEYS["alice"], patience_s=20.0) as alice:
                alice.register_worker("alice")
                alice.push_gradients("alice", ONES)
                told, seen = alice.get_server_stats(), httpx.get(url + "/status", headers=headers)
        finally:
            served.stop_server()

        assert set(told) == set(OPEN)
        assert seen.json()["server"]["pushes"] == {"alice": 1}
        assert seen.json()["clients"] == {"alice": {"messages": 3}}

    def test_without_a_token_a_private_server_shows_no_user_of_the_host_who_took_part(self):
        def shown(*taking_part: str) -> list[str]:
            served = FederatedParameterServer(INITIAL, differential_privacy=True, deadline_s=1e6)
            url = served.start_server("localhost", 0, keys=KEYS)
            for name in KEYS:
                served.register_worker(name)
            try:
                for name in taking_part:
                    with RemoteParameterServer(url, name, KEYS[name], patience_s=20.0) as own:
                        own.push_gradients(name, ONES)
                status = httpx.get(url + "/status").json()
                text = httpx.get(url + "/metrics").text
            finally:
                served.stop_server()
            assert status.pop("uptime_s") >= 0
            assert status["server"]["differential_privacy"] is True
            status.pop("connections")
            lines = [line for line in text.splitlines() if "uptime" not in line]
            return [str(status), *(line for line in lines if "connections" not in line)]

        assert shown("alice", "bob") == shown("carol") == shown()

    @pytest.mark.parametrize("page", ["/status", "/metrics"])
    def test_a_page_of_another_site_cannot_look_under_a_name_of_its_own(self, url: str, page):
        """DNS rebinding: a browser on this host asks under a name that now leads here."""
        port = url.rpartition(":")[2]
        own = ("localhost", f"localhost:{port}", f"127.0.0.1:{port}", f"[::1]:{port}", "LOCALHOST")
        foreign = (f"evil.example:{port}", "evil.example", "localhost.evil.example", "10.0.0.1", "")

        def answer(host: str) -> int:
            return httpx.get(url + page, headers={"host": host}).status_code

        assert [answer(host) for host in own] == [200] * len(own)
        assert [answer(host) for host in foreign] == [401] * len(foreign)

    def test_metrics_are_prometheus_text(self, url: str, alice):
        alice.register_worker("alice")

        found = httpx.get(url + "/metrics")

        assert found.headers["content-type"].startswith("text/plain; version=0.0.4")
        assert 'rookery_server_messages_total{kind="register"} 1.0\n' in found.text
        assert "rookery_server_version 0.0\n" in found.text

    def test_with_a_token_only_its_owners_can_look(self, server: ParameterServer):
        url = server.start_server("localhost", 0, keys=KEYS, status_token="look")

        assert httpx.get(url + "/status").status_code == 401
        assert httpx.get(url + "/metrics").status_code == 401
        told = {"authorization": "Bearer look"}
        assert httpx.get(url + "/status", headers=told).status_code == 200

    def test_keys_are_in_no_log_no_repr_and_no_status(self, url: str, caplog):
        wrong = "wrong" * 10
        with (
            caplog.at_level(logging.DEBUG),
            RemoteParameterServer(url, "alice", KEYS["alice"]) as alice,
            RemoteParameterServer(url, "alice", wrong) as impostor,
        ):
            alice.register_worker("alice")
            with pytest.raises(RefusedError) as refused:
                impostor.register_worker("alice")

        said = [caplog.text, repr(alice), repr(impostor), str(refused.value)]
        said += [httpx.get(url + page).text for page in ("/status", "/metrics")]
        assert not any(key in text for key in (KEYS["alice"], wrong) for text in said)


def test_a_request_for_a_service_without_the_extra_says_how_to_get_it(monkeypatch):
    import sys

    for name in [n for n in sys.modules if n.startswith("rookery.server.") and "conn" in n]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "rookery.server.http.service")
    monkeypatch.setitem(sys.modules, "uvicorn", None)

    with pytest.raises(ConfigError, match=r"rookery\[server\]"):
        ParameterServer(INITIAL).start_server("localhost", 0, keys=KEYS)
