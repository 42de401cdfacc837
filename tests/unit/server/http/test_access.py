"""Who is let in, by the head of a request alone; clocks are of glass."""

import json
import logging
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from rookery.errors import ConfigError, RefusedError
from rookery.server.http import wire_format
from rookery.server.http.access import ClientRecord, Gate, Head
from rookery.server.http.client_keys import Keys, checked_keys
from rookery.server.http.limits import Limits
from rookery.server.http.prometheus import PERIOD_S, Metrics, Refusals
from rookery.server.http.wire_format import Kind, Request

KEYS = {"alice": "a" * 40, "bob": "b" * 40}
LIMITS = Limits(rate=1.0, burst=5)


class Clock:
    """Time that passes when told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def gate(clock: Clock) -> Gate:
    return Gate(KEYS, LIMITS, clock)


def asking(client: str = "alice", kind: Kind = Kind.PULL, worker: str = "") -> Request:
    return Request(kind=kind, client=client, worker=worker)


def head(said: Request, key: str, *, client: str | None = None, certified: str = "") -> Head:
    token = wire_format.headers(said)[wire_format.MESSAGE].encode()
    return Head(client or said.client, token, wire_format.BEARER + key, certified)


def refusal(work, *args) -> str:
    with pytest.raises(RefusedError) as refused:
        work(*args)
    return refused.value.code


class TestAuthentication:
    def test_a_client_with_its_key_is_heard(self, gate: Gate):
        said = asking(worker="alice/2")

        assert gate.authenticate(head(said, KEYS["alice"])) == said

    @pytest.mark.parametrize("given", ["", "Bearer", "Bearer ", "Basic " + KEYS["alice"], "x" * 47])
    def test_without_a_bearer_key_nobody_is_heard(self, gate: Gate, given: str):
        without = head(asking(), "")._replace(authorization=given)

        assert refusal(gate.authenticate, without) == "auth"

    def test_a_wrong_key_and_a_stranger_hear_the_same(self, gate: Gate):
        wrong, strange = head(asking(), "x" * 40), head(asking("carol"), "x" * 40)
        with pytest.raises(RefusedError) as one:
            gate.authenticate(wrong)
        with pytest.raises(RefusedError) as other:
            gate.authenticate(strange)

        assert one.value.code == other.value.code == "auth"
        assert str(one.value).replace("alice", "carol") == str(other.value)

    def test_keys_are_compared_in_constant_time(self, gate: Gate, monkeypatch):
        compared: list[tuple[str, str]] = []
        equal = wire_format.equal
        monkeypatch.setattr(
            wire_format, "equal", lambda *both: bool(compared.append(both)) or equal(*both)
        )

        gate.authenticate(head(asking(), KEYS["alice"]))
        refusal(gate.authenticate, head(asking("carol"), "x" * 40))

        assert len(compared) == 2  # a stranger's too, with a key that nobody has

    def test_the_key_of_one_client_does_not_speak_for_another(self, gate: Gate):
        assert refusal(gate.authenticate, head(asking("bob"), KEYS["alice"])) == "auth"

    def test_a_worker_of_somebody_else_is_refused(self, gate: Gate):
        assert refusal(gate.authenticate, head(asking(worker="bob"), KEYS["alice"])) == "auth"

    def test_nothing_is_remembered_of_strangers(self, gate: Gate):
        for k in range(20):
            refusal(gate.authenticate, head(asking(f"stranger{k}"), "x" * 40))

        assert not gate.clients

    def test_a_message_is_not_decoded_before_its_key_is_right(self, gate: Gate, monkeypatch):
        def never(token: bytes, client: str) -> Request:
            raise AssertionError("decoded")

        monkeypatch.setattr(wire_format, "read_request", never)

        assert refusal(gate.authenticate, Head("alice", b"garbage", "Bearer x")) == "auth"


class TestCertificates:
    """The name in a certificate; that TLS checks the rest: test_parameter_service.py."""

    def test_the_name_in_a_certificate_is_the_clients(self):
        gate = Gate(None, LIMITS, certificates=True)

        assert gate.authenticate(head(asking(), "", certified="alice")) == asking()
        assert refusal(gate.authenticate, head(asking(), "", certified="bob")) == "auth"
        assert refusal(gate.authenticate, head(asking(), "")) == "auth"

    def test_where_there_are_keys_too_both_are_asked_for(self, gate: Gate):
        both = Gate(gate.keys, LIMITS, certificates=True)

        assert both.authenticate(head(asking(), KEYS["alice"], certified="alice")) == asking()
        assert refusal(both.authenticate, head(asking(), KEYS["alice"])) == "auth"
        assert refusal(both.authenticate, head(asking(), "x" * 40, certified="alice")) == "auth"

    def test_without_keys_and_certificates_nobody_is_heard(self):
        assert refusal(Gate(None, LIMITS).authenticate, head(asking(), "")) == "auth"


class TestRates:
    def test_a_burst_is_allowed_and_then_the_rate(self, gate: Gate, clock: Clock):
        for _ in range(LIMITS.burst):
            gate.admit(asking())

        assert refusal(gate.admit, asking()) == "rate"
        clock.now += 1.0
        gate.admit(asking())
        assert refusal(gate.admit, asking()) == "rate"

    def test_one_clients_haste_is_not_anothers(self, gate: Gate):
        for _ in range(LIMITS.burst):
            gate.admit(asking())

        assert gate.admit(asking("bob")).messages == 1

    def test_a_bucket_holds_no_more_than_its_burst(self, clock: Clock):
        record = ClientRecord(Limits(rate=10.0, burst=3), clock)
        clock.now += 1000

        assert [record.take() for _ in range(4)] == [True, True, True, False]


class TestKeys:
    def test_a_file_of_keys_is_for_its_owner_alone(self, tmp_path):
        path = tmp_path / "keys.json"
        key = Keys(path).issue("alice")

        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert Keys(path).get("alice") == key
        assert list(tmp_path.iterdir()) == [path]

    def test_a_file_that_others_can_read_is_refused_with_the_cure(self, tmp_path):
        path = tmp_path / "keys.json"
        Keys(path).issue("alice")
        path.chmod(0o640)

        with pytest.raises(ConfigError, match="chmod 600"):
            Keys(path)

    def test_keys_that_are_added_at_once_are_all_kept(self, tmp_path):
        path = tmp_path / "keys.json"
        clerks = [Keys(path) for _ in range(4)]  # each as in a process of its own
        names = [[f"c{clerk}-{i}" for i in range(20)] for clerk in range(4)]

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda clerk, own: [clerk.issue(n) for n in own], clerks, names))

        assert set(Keys(path)) == {name for own in names for name in own}

    def test_a_key_is_long_and_another_one_each_time(self, tmp_path):
        keys = Keys(tmp_path / "keys.json")

        assert len({keys.issue(f"client-{number}") for number in range(20)}) == 20
        assert len(keys.issue("alice")) >= 43

    def test_a_client_that_has_a_key_keeps_it_when_another_one_is_asked_for(self, tmp_path):
        path = tmp_path / "keys.json"
        other = Keys(path)  # as in another process, which has not read the file since
        key = Keys(path).issue("alice")

        with pytest.raises(ConfigError, match=r"'alice' has a key.*rotate"):
            other.issue("alice")

        assert Keys(path).get("alice") == key

    def test_a_rotated_key_replaces_the_one_before_and_there_must_be_one(self, tmp_path):
        path = tmp_path / "keys.json"
        before = Keys(path).issue("alice")

        after = Keys(path).rotate("alice")

        assert Keys(path).get("alice") == after != before
        with pytest.raises(ConfigError, match="no key of 'bob'"):
            Keys(path).rotate("bob")

    def test_a_key_that_could_be_guessed_is_refused(self):
        with pytest.raises(ConfigError, match="could be guessed") as refused:
            checked_keys({"alice": "hunter2"})

        assert "hunter2" not in str(refused.value)

    @pytest.mark.parametrize("key", ["k" * 40 + " k", "k" * 40 + "\r\nx: y", "ü" * 40])
    def test_a_key_that_no_header_can_carry_is_refused(self, key: str):
        with pytest.raises(ConfigError, match="HTTP does not carry") as refused:
            checked_keys({"alice": key})

        assert key not in str(refused.value)

    def test_a_revoked_key_is_void_for_a_server_that_runs(self, tmp_path):
        path = tmp_path / "keys.json"
        Keys(path).issue("alice")
        running = Keys(path)
        assert running.get("alice")

        Keys(path).revoke("alice")

        assert running.get("alice") is None

    def test_a_server_that_runs_knows_a_new_key(self, tmp_path):
        path = tmp_path / "keys.json"
        running = Keys(path)
        key = Keys(path).issue("alice")

        assert running.get("alice") == key

    def test_a_server_that_runs_keeps_its_keys_when_their_file_is_damaged(self, tmp_path, caplog):
        path = tmp_path / "keys.json"
        key = Keys(path).issue("alice")
        running = Keys(path)
        path.write_text("{")

        assert running.get("alice") == key
        assert "stay as they were" in caplog.text

    def test_keys_are_not_shown(self, tmp_path):
        keys = Keys(tmp_path / "keys.json")
        key = keys.issue("alice")

        assert key not in repr(keys) + str(keys)

    @pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 2, "keys": {}}', "\x80"])
    def test_a_file_of_something_else_is_refused_without_quoting_it(self, tmp_path, text: str):
        path = tmp_path / "keys.json"
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
        path.write_text(text + '{"key": "secret"}')

        with pytest.raises(ConfigError) as refused:
            Keys(path)

        assert "secret" not in str(refused.value)

    @pytest.mark.parametrize("key", [None, False, 0, 4242, ["k" * 40], "", "hunter2", "ü" * 40])
    def test_a_file_with_a_key_that_is_no_key_is_refused(self, tmp_path, key):
        path = tmp_path / "keys.json"
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
        path.write_text(json.dumps({"format": 1, "keys": {"alice": key}}))

        with pytest.raises(ConfigError, match=r"keys\.json.*the key of alice .*; ") as refused:
            Keys(path)

        assert "hunter2" not in str(refused.value)
        assert "4242" not in str(refused.value)

    @pytest.mark.parametrize("key", [None, False, 0])
    def test_a_key_that_is_no_text_is_refused(self, key: Any):
        with pytest.raises(ConfigError, match="the key of alice is no text"):
            checked_keys({"alice": key})


class TestRefusals:
    def test_a_flood_of_refusals_is_one_line_now_and_then(self, caplog, clock: Clock):
        refused = Refusals(metrics := Metrics(), clock)
        with caplog.at_level(logging.WARNING, "rookery.server"):
            for _ in range(1000):
                refused.note(RefusedError("who are you", "auth"), "1.2.3.4")
            clock.now += PERIOD_S
            refused.note(RefusedError("who are you", "auth"), "1.2.3.4")

        assert len(caplog.records) == 2
        assert "999 more" in caplog.records[1].getMessage()
        assert metrics.totals()["refused_total"] == {"auth": 1001}


class TestMetrics:
    def test_prometheus_reads_counters_and_gauges(self):
        metrics = Metrics()
        metrics.count("refused_total", "auth", 3)
        stats = {"version": 7, "workers": ["a", "b"], "counts": {'o"k': 2}, "aggregation": "sum"}
        text = metrics.text(stats)

        families = {family.name: family for family in text_string_to_metric_families(text)}
        assert {name: family.type for name, family in families.items()} == {
            "rookery_server_messages": "counter",
            "rookery_server_refused": "counter",
            "rookery_server_seconds": "counter",
            "rookery_server_received_bytes": "counter",
            "rookery_server_sent_bytes": "counter",
            "rookery_server_uptime_seconds": "gauge",
            "rookery_server_version": "gauge",
            "rookery_server_workers": "gauge",
            "rookery_server_counts": "gauge",
        }
        samples = {
            (sample.name.removeprefix("rookery_server_"), *sample.labels.items()): sample.value
            for family in families.values()
            for sample in family.samples
        }
        assert samples.pop(("uptime_seconds",)) >= 0
        assert samples == {
            ("refused_total", ("code", "auth")): 3,
            ("version",): 7,
            ("workers",): 2,
            ("counts", ("key", 'o"k')): 2,
        }

    def test_each_service_has_counts_of_its_own(self):
        one, other = Metrics(), Metrics()
        one.count("messages_total", "push")

        assert 'kind="push"' in one.text({})
        assert 'kind="push"' not in other.text({})
        assert "rookery_server" not in generate_latest().decode()  # what the process tells itself


def test_limits_that_are_none_are_refused_by_name():
    with pytest.raises(ConfigError, match=r"rate=0, burst=-1"):
        Limits(rate=0, burst=-1)
