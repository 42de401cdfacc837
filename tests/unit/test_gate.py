"""Who is let in, by the head of a request alone; clocks are of glass."""

import logging
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from rookery.errors import ConfigError, RefusedError
from rookery.server import protocol
from rookery.server.gate import BAD, Bucket, Gate, Head, Nonces, Used
from rookery.server.keys import Keys
from rookery.server.limits import Limits
from rookery.server.metrics import Metrics, plain
from rookery.server.protocol import Kind, Nonce, Request
from rookery.server.refusals import PERIOD_S, Refusals

KEYS = {"alice": "a" * 40, "bob": "b" * 40}
LIMITS = Limits(rate=1.0, burst=5, replay_cache=8, nonce_s=30.0, quarantine_after=2)


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
    keys = Keys()
    for client, key in KEYS.items():
        keys.add(client, key)
    return Gate(keys, LIMITS, clock)


def asking(gate: Gate, client: str = "alice", kind: Kind = Kind.PULL) -> Request:
    nonce = gate.nonces.issue()
    return Request(kind=kind, client=client, nonce=nonce.value, time=nonce.time)


def head(said: Request, key: str, client: str | None = None) -> Head:
    headers = protocol.seal(said, key)
    token, claimed = headers[protocol.MESSAGE], headers[protocol.SIGNATURE]
    return Head(client or said.client, token.encode(), claimed.encode())


def refusal(work, *args) -> str:
    with pytest.raises(RefusedError) as refused:
        work(*args)
    return refused.value.code


class TestAuthentication:
    def test_a_client_with_its_key_is_heard(self, gate: Gate):
        said = asking(gate)

        assert gate.authenticate(head(said, KEYS["alice"])) == (said, KEYS["alice"])

    def test_a_wrong_key_a_stranger_and_no_signature_hear_the_same(self, gate: Gate):
        said = asking(gate)
        wrong = head(said, "x" * 40)
        strange = head(replace(said, client="carol"), "x" * 40)
        unsigned = Head("alice", wrong.token, b"")

        assert {refusal(gate.authenticate, who) for who in (wrong, strange, unsigned)} == {"auth"}

    def test_the_key_of_one_client_does_not_speak_for_another(self, gate: Gate):
        said = asking(gate, "bob")

        assert refusal(gate.authenticate, head(said, KEYS["alice"])) == "auth"
        assert refusal(gate.authenticate, head(said, KEYS["alice"], client="alice")) == "auth"

    def test_a_worker_of_somebody_else_is_refused(self, gate: Gate):
        said = replace(asking(gate), worker="bob")

        assert refusal(gate.authenticate, head(said, KEYS["alice"])) == "auth"

    def test_nothing_is_remembered_of_strangers(self, gate: Gate):
        for k in range(20):
            refusal(gate.authenticate, head(asking(gate, f"stranger{k}"), "x" * 40))

        assert not gate.standings

    def test_a_message_is_not_decoded_before_its_signature_is_right(self, gate: Gate, monkeypatch):
        def never(token: bytes) -> Request:
            raise AssertionError("decoded")

        monkeypatch.setattr(protocol, "request", never)

        assert refusal(gate.authenticate, Head("alice", b"garbage", b"00")) == "auth"


class TestNonces:
    def test_a_nonce_is_good_once(self, gate: Gate):
        said = asking(gate)
        gate.admit(said)

        assert refusal(gate.admit, said) == "replay"

    def test_a_nonce_is_not_good_for_ever(self, gate: Gate, clock: Clock):
        said = asking(gate)
        clock.now += LIMITS.nonce_s + 1

        assert refusal(gate.admit, said) == "nonce"

    def test_a_nonce_of_another_start_of_the_server_is_refused(self, gate: Gate, clock: Clock):
        said = asking(Gate(gate.keys, LIMITS, clock))

        assert refusal(gate.admit, said) == "nonce"

    @pytest.mark.parametrize("change", [{"nonce": ""}, {"nonce": "0" * 64}, {"time": 7}])
    def test_a_nonce_that_was_made_up_is_refused(self, gate: Gate, change: dict[str, object]):
        assert refusal(gate.admit, replace(asking(gate), **change)) == "nonce"

    def test_a_replay_does_not_count_against_its_victim(self, gate: Gate):
        said = asking(gate)
        gate.admit(said)
        for _ in range(50):
            assert refusal(gate.admit, said) == "replay"

        assert gate.admit(asking(gate)).messages == 2

    def test_a_used_nonce_is_remembered_as_long_as_it_would_be_good(self, clock: Clock):
        nonces, used = Nonces(30.0, clock), Used(30.0, 100, clock)
        nonce = nonces.issue()
        clock.now += 29
        used.add(nonce.value)
        clock.now += 29
        used.add("another")

        assert nonce.value in used
        assert not nonces.good(nonce)

    def test_nonces_that_are_past_use_are_forgotten(self, clock: Clock):
        used = Used(30.0, 4, clock)
        for round_ in range(10):
            assert all(used.add(f"{round_} {k}") for k in range(4))
            assert not used.add("one too many")
            clock.now += 31

        assert len(used) == 4

    def test_clocks_of_the_world_do_not_matter(self, monkeypatch):
        """Hours forth and back on the wall; nonces go by a clock that only counts."""
        nonces = Nonces(30.0)
        nonce = nonces.issue()
        for jump in (-36000.0, 36000.0):
            monkeypatch.setattr("time.time", lambda jump=jump: jump)

            assert nonces.good(nonce)

    def test_an_issued_nonce_has_the_servers_time(self, clock: Clock):
        nonces = Nonces(30.0, clock)
        clock.now += 2.5

        assert nonces.issue().time == 2500
        assert nonces.good(Nonce.parse(str(nonces.issue())))


class TestRates:
    def test_a_burst_is_allowed_and_then_the_rate(self, gate: Gate, clock: Clock):
        for _ in range(LIMITS.burst):
            gate.admit(asking(gate))

        assert refusal(gate.admit, asking(gate)) == "rate"
        clock.now += 1.0
        gate.admit(asking(gate))
        assert refusal(gate.admit, asking(gate)) == "rate"

    def test_one_clients_haste_is_not_anothers(self, gate: Gate):
        for _ in range(LIMITS.burst):
            gate.admit(asking(gate))

        assert gate.admit(asking(gate, "bob")).messages == 1

    def test_a_full_memory_of_nonces_refuses_rather_than_forgets(self, clock: Clock, gate: Gate):
        gate.limits = replace(LIMITS, rate=1e9, burst=10**9)
        first = asking(gate)
        gate.admit(first)
        for _ in range(LIMITS.replay_cache - 1):
            gate.admit(asking(gate))

        assert refusal(gate.admit, asking(gate)) == "rate"
        assert refusal(gate.admit, first) == "replay"

    def test_a_bucket_holds_no_more_than_its_burst(self, clock: Clock):
        bucket = Bucket(10.0, 3, clock)
        clock.now += 1000

        assert [bucket.take() for _ in range(4)] == [True, True, True, False]


class TestQuarantine:
    def test_bad_updates_in_a_row_end_in_quarantine_for_a_while(self, gate: Gate, clock: Clock):
        for _ in range(LIMITS.quarantine_after):
            gate.judge("alice", "finite")

        assert refusal(gate.admit, asking(gate, kind=Kind.PUSH)) == "quarantined"
        clock.now += LIMITS.quarantine_s + 1
        gate.admit(asking(gate, kind=Kind.PUSH))

    def test_who_is_in_quarantine_may_still_pull(self, gate: Gate):
        for _ in range(LIMITS.quarantine_after):
            gate.judge("alice", "schema")

        assert gate.quarantined(gate.admit(asking(gate, kind=Kind.PULL)))

    def test_a_good_update_between_two_bad_ones_starts_the_count_anew(self, gate: Gate):
        for code in ("finite", "", "finite"):
            gate.judge("alice", code)

        assert gate.admit(asking(gate, kind=Kind.PUSH)).bad == 1

    @pytest.mark.parametrize("code", ["digest", "stale", "rate", "replay", "round", "late"])
    def test_what_others_could_cause_brings_nobody_into_quarantine(self, gate: Gate, code: str):
        """Whoever changes a body on its way must not silence the client that sent it."""
        for _ in range(10):
            gate.judge("alice", code)

        assert code not in BAD
        gate.admit(asking(gate, kind=Kind.PUSH))


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

    def test_a_key_is_long_and_another_one_each_time(self):
        keys = Keys()

        assert len({keys.issue("alice") for _ in range(20)}) == 20
        assert len(keys.issue("alice")) >= 43

    def test_a_key_that_could_be_guessed_is_refused(self):
        with pytest.raises(ConfigError, match="could be guessed") as refused:
            Keys().add("alice", "hunter2")

        assert "hunter2" not in str(refused.value)

    def test_a_revoked_key_is_void_for_a_server_that_runs(self, tmp_path, clock: Clock):
        path = tmp_path / "keys.json"
        Keys(path).issue("alice")
        running = Keys(path, clock=clock)
        assert running.get("alice")

        Keys(path).revoke("alice")
        clock.now += 1.1

        assert running.get("alice") is None

    def test_a_server_that_runs_knows_a_new_key(self, tmp_path, clock: Clock):
        path = tmp_path / "keys.json"
        running = Keys(path, clock=clock)
        key = Keys(path).issue("alice")
        clock.now += 1.1

        assert running.get("alice") == key

    def test_a_server_that_runs_keeps_its_keys_when_their_file_is_damaged(
        self, tmp_path, clock: Clock, caplog
    ):
        path = tmp_path / "keys.json"
        key = Keys(path).issue("alice")
        running = Keys(path, clock=clock)
        path.write_text("{")
        clock.now += 1.1

        assert running.get("alice") == key
        assert "stay as they were" in caplog.text

    def test_keys_are_not_shown(self):
        keys = Keys()
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
        lines = metrics.text({"version": 7, "workers": ["a", "b"], "counts": {'o"k': 2}}).split(
            "\n"
        )

        assert 'rookery_server_refused_total{code="auth"} 3' in lines
        assert "# TYPE rookery_server_refused_total counter" in lines
        assert "rookery_server_version 7" in lines
        assert "rookery_server_workers 2" in lines
        assert r'rookery_server_counts{key="o\"k"} 2' in lines

    def test_numpys_numbers_and_nan_become_json(self):
        import numpy as np

        found = plain({"a": np.float32(1.5), "b": float("nan"), "c": np.arange(2), 4: {"x"}})

        assert found == {"a": 1.5, "b": None, "c": [0, 1], "4": ["x"]}


def test_limits_that_are_none_are_refused_by_name():
    with pytest.raises(ConfigError, match=r"rate=0, burst=-1"):
        Limits(rate=0, burst=-1)
