"""Secure rounds: stages and their deadlines, who may drop out when, and what nobody ever sees."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cryptography")

from rookery.errors import CheckpointError, ConfigError, ProtocolError, RefusedError
from rookery.server.letters import Letter
from rookery.server.masks import Grid
from rookery.server.parameters import Receipt
from rookery.server.participant import Fate, Participant
from rookery.server.protocol import STAGES, Kind
from rookery.server.rounds import Conduct, View
from rookery.server.secure import SecureParameterServer
from rookery.types import Floats

NAMES = ("alice", "bob", "carol")
START = {"w": np.full((2, 2), 10.0, np.float32), "a": np.zeros(3, np.float32)}  # not in order
SIZE = 7
DEADLINE_S = 30.0
EXACT = 1e-6


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Hall:
    """A server, its clock, and clients that do one thing at a time."""

    def __init__(self, *names: str, clock: Clock | None = None, **settings: Any):
        self.clock = clock or Clock()
        self.server = SecureParameterServer(
            START, deadline_s=DEADLINE_S, clock=self.clock, **settings
        )
        self.clients: dict[str, Participant] = {}
        self.updates: dict[str, Floats] = {}
        for name in names:
            self.enter(name)

    def enter(self, name: str, **settings: Any) -> Participant:
        self.server.register_worker(name)
        self.clients[name] = Participant(self.server, name, **settings)
        self.renew(name)
        return self.clients[name]

    def renew(self, name: str) -> None:
        seed = sum(map(ord, name)) + self.server.version
        self.updates[name] = np.random.default_rng(seed).normal(size=SIZE).astype(np.float32)
        self.clients[name].begin(self.updates[name], self.server.version)

    def step(self, *names: str) -> list[Fate | None]:
        return [self.clients[name].step() for name in names or self.clients]

    def until(self, stage: Kind, *names: str) -> None:
        """Lets clients act until the round is at a stage, and nobody has come to it yet."""
        for _ in range(9):
            if self.server.get_server_stats()["stage"] == stage.value:
                return
            self.step(*names)
        raise AssertionError(f"never at {stage}")

    def fates(self, *names: str) -> list[Fate | None]:
        """Lets clients act until each knows what became of its update."""
        found: dict[str, Fate | None] = dict.fromkeys(names or self.clients)
        for _ in range(20):
            for name, fate in found.items():
                found[name] = fate or self.clients[name].step()
        return list(found.values())

    def wait(self) -> None:
        self.clock.now += DEADLINE_S
        assert self.server.version >= 0  # which notices the time

    def change(self) -> Floats:
        """Returns how far the parameters are from where they began, in the order of names."""
        now = self.server.get_parameters().arrays
        return np.concatenate([np.ravel(now[n] - START[n]) for n in sorted(START)])

    def mean(self, *names: str) -> Floats:
        return np.mean([self.updates[name] for name in names], axis=0)

    @property
    def counts(self) -> dict[str, int]:
        return dict(self.server.get_server_stats()["counts"])


def refused(code: str) -> Any:
    return pytest.raises(RefusedError, check=lambda error: error.code == code)


def test_a_round_moves_the_parameters_by_the_mean_of_all_updates():
    hall = Hall(*NAMES)

    assert hall.fates() == [Fate.APPLIED] * 3
    assert hall.server.version == 1
    np.testing.assert_allclose(hall.change(), hall.mean(*NAMES), atol=EXACT)
    assert hall.counts["ok"] == 3


def test_rounds_follow_each_other():
    hall = Hall(*NAMES)
    hall.fates()
    first = hall.change()
    for name in NAMES:
        hall.renew(name)

    assert hall.fates() == [Fate.APPLIED] * 3
    assert hall.server.version == 2
    np.testing.assert_allclose(hall.change() - first, hall.mean(*NAMES), atol=1e-5)


def test_sum_is_the_sum():
    hall = Hall(*NAMES, aggregation_method="sum")
    hall.fates()

    np.testing.assert_allclose(hall.change(), 3 * hall.mean(*NAMES), atol=1e-5)


def test_the_stages_come_in_their_order_and_each_waits_for_all():
    hall = Hall(*NAMES)
    seen = []
    for stage in STAGES:
        hall.step("alice", "bob") if stage is Kind.ADVERTISE else hall.until(stage)
        seen.append(hall.server.get_server_stats()["stage"])
        if stage is Kind.ADVERTISE:
            hall.step("alice", "bob")  # look, and wait for carol
            assert hall.server.get_server_stats()["stage_clients"] == ["alice", "bob"]

    assert seen == ["advertise", "share", "mask", "unmask"]
    assert hall.server.version == 0


class TestDropout:
    @pytest.mark.parametrize("stage", [Kind.SHARE, Kind.MASK], ids=str)
    def test_who_drops_out_before_its_masked_update_is_not_in_the_sum(self, stage):
        hall = Hall(*NAMES)
        hall.until(stage)

        hall.step("alice", "bob")
        hall.wait()
        assert hall.fates("alice", "bob") == [Fate.APPLIED] * 2
        np.testing.assert_allclose(hall.change(), hall.mean("alice", "bob"), atol=EXACT)

    def test_who_drops_out_after_it_is_and_nobody_waits_for_it(self):
        hall = Hall(*NAMES)
        hall.until(Kind.UNMASK)

        assert hall.fates("alice", "bob") == [Fate.APPLIED] * 2
        np.testing.assert_allclose(hall.change(), hall.mean(*NAMES), atol=EXACT)
        assert hall.fates("carol") == [Fate.APPLIED]  # as it hears when it comes back

    def test_who_never_comes_is_waited_for_until_the_deadline(self):
        hall = Hall(*NAMES)
        hall.step("alice", "bob")
        assert hall.step("alice", "bob") == [None, None]
        hall.wait()

        assert hall.fates("alice", "bob") == [Fate.APPLIED] * 2
        np.testing.assert_allclose(hall.change(), hall.mean("alice", "bob"), atol=EXACT)

    @pytest.mark.parametrize("stage", STAGES[1:], ids=str)
    def test_too_few_survivors_end_the_round_and_training_goes_on(self, stage):
        hall = Hall(*NAMES)
        hall.until(stage)
        hall.step("alice")
        hall.wait()

        assert hall.server.version == 0
        assert not hall.change().any()
        assert hall.counts["skipped_quorum"] == 1
        assert "skipped_range" not in hall.counts
        for name in NAMES:
            hall.renew(name)
        assert hall.fates() == [Fate.APPLIED] * 3
        np.testing.assert_allclose(hall.change(), hall.mean(*NAMES), atol=EXACT)

    def test_one_client_alone_makes_no_round_however_long_it_waits(self):
        hall = Hall("alice")
        for _ in range(5):
            hall.step()
            hall.wait()

        assert hall.server.version == 0
        assert hall.counts["skipped_quorum"] >= 2

    def test_who_leaves_is_not_waited_for(self):
        hall = Hall(*NAMES)
        hall.until(Kind.MASK)
        hall.server.unregister_worker("carol")

        assert hall.fates("alice", "bob") == [Fate.APPLIED] * 2
        np.testing.assert_allclose(hall.change(), hall.mean("alice", "bob"), atol=EXACT)

    def test_who_was_forgotten_within_a_round_says_that_it_is_there(self):
        hall = Hall(*NAMES)
        hall.until(Kind.SHARE)
        hall.server.unregister_worker("alice")

        assert hall.fates() == [Fate.APPLIED] * 3
        assert "alice" in hall.server.get_server_stats()["workers"]

    def test_who_leaves_before_the_round_has_begun_is_not_in_it(self):
        hall = Hall(*NAMES)
        hall.step("carol")
        hall.server.unregister_worker("carol")

        assert hall.fates("alice", "bob") == [Fate.APPLIED] * 2

    def test_who_comes_late_waits_for_the_next_round(self):
        hall = Hall("alice", "bob")
        hall.until(Kind.SHARE)
        hall.enter("carol")

        assert hall.step("carol") == [None]
        assert hall.fates("alice", "bob") == [Fate.APPLIED] * 2
        assert hall.step("carol") == [Fate.STALE]

    def test_a_quorum_begins_a_round_without_the_others(self):
        hall = Hall(*NAMES, quorum=2)
        hall.step("alice", "bob")

        assert hall.server.get_server_stats()["stage"] == "share"

    def test_an_update_that_was_sent_masked_is_not_sent_again(self):
        """The difference of two sums that differ in one client would be its update."""
        hall = Hall(*NAMES)
        hall.until(Kind.UNMASK)
        hall.wait()

        assert hall.step() == [Fate.LOST] * 3

    def test_one_that_was_not_sent_yet_takes_part_in_the_next_round(self):
        hall = Hall(*NAMES)
        hall.until(Kind.MASK)
        hall.wait()

        assert hall.fates() == [Fate.APPLIED] * 3
        np.testing.assert_allclose(hall.change(), hall.mean(*NAMES), atol=EXACT)


class TestLetters:
    def test_a_letter_that_comes_again_counts_once(self):
        hall = Hall(*NAMES)
        repeated = 0
        take = hall.server.take_stage

        def twice(*given: Any, **more: Any) -> Receipt:
            nonlocal repeated
            first, again = take(*given, **more), take(*given, **more)
            repeated += again.code == "duplicate"
            assert first.accepted
            return again

        for client in hall.clients.values():
            client._server = Through(hall.server, twice)

        assert hall.fates() == [Fate.APPLIED] * 3
        assert hall.server.version == 1
        assert repeated >= 9  # the round is over with the last of them
        np.testing.assert_allclose(hall.change(), hall.mean(*NAMES), atol=EXACT)

    def test_another_letter_under_a_name_that_has_come_is_refused(self):
        hall = Hall(*NAMES)
        hall.until(Kind.MASK)
        hall.step("alice")
        letter = {"vector": np.zeros(SIZE, np.uint64)}

        with refused("twice"):
            hall.server.take_stage("alice", Kind.MASK, letter, session=session(hall))

    def test_until_a_round_begins_the_latest_keys_of_a_client_count(self):
        hall = Hall(*NAMES)
        hall.step("alice")
        hall.enter("alice")  # started anew

        assert hall.fates() == [Fate.APPLIED] * 3

    @pytest.mark.parametrize(
        ("stage", "letter"),
        [
            (Kind.ADVERTISE, {}),
            (Kind.ADVERTISE, {"keys": np.zeros((2, 31), np.uint8)}),
            (Kind.ADVERTISE, {"keys": np.zeros((2, 32), np.float32)}),
            (Kind.SHARE, {"sealed.alice": np.zeros(148, np.uint8)}),
            (Kind.SHARE, {"sealed.alice": np.zeros(1, np.uint8)}),
            (Kind.SHARE, {}),
            (Kind.MASK, {"vector": np.zeros(SIZE, np.float32)}),
            (Kind.MASK, {"vector": np.zeros(SIZE + 1, np.uint64)}),
            (Kind.MASK, {"vector": np.zeros(SIZE, np.uint64), "w": np.zeros(4, np.float32)}),
            (Kind.UNMASK, {"key.alice": np.zeros(66, np.uint8)}),
            (Kind.UNMASK, {"secret.alice": np.zeros(66, np.uint8)}),
        ],
        ids=lambda value: value.value if isinstance(value, Kind) else "-".join(value) or "empty",
    )
    def test_what_is_no_letter_of_its_stage_is_refused_and_the_round_goes_on(self, stage, letter):
        hall = Hall(*NAMES)
        if stage is not Kind.ADVERTISE:
            hall.until(stage)

        with refused("schema"):
            hall.server.take_stage("alice", stage, letter, session=session(hall))
        assert hall.fates() == [Fate.APPLIED] * 3
        assert hall.counts["refused_schema"] == 1

    def test_a_letter_of_a_stage_that_is_still_to_come_is_refused(self):
        hall = Hall(*NAMES)
        letter = {"vector": np.zeros(SIZE, np.uint64)}
        hall.step("alice")

        with refused("early"):
            hall.server.take_stage("alice", Kind.MASK, letter)

    def test_keys_of_another_client_are_refused(self):
        hall = Hall(*NAMES)
        seen: list[Letter] = []
        hall.clients["alice"]._server = Through(hall.server, watching(hall.server, seen))
        hall.step("alice")

        with refused("key"):
            hall.server.take_stage("bob", Kind.ADVERTISE, seen[0])

    def test_strangers_and_updates_that_can_be_read_are_refused(self):
        hall = Hall(*NAMES)

        with refused("unknown_worker"):
            hall.server.take_stage("mallory", Kind.ADVERTISE, {"keys": np.zeros((2, 32), np.uint8)})
        with refused("masked"):
            hall.server.push_gradients("alice", {n: np.zeros_like(a) for n, a in START.items()})

    def test_a_client_has_one_seat(self):
        hall = Hall(*NAMES)
        hall.enter("alice/2")

        with refused("clients"):
            hall.step("alice/2")

    def test_a_server_that_has_forgotten_a_client_is_told(self):
        hall = Hall(*NAMES)
        hall.server.unregister_worker("alice")

        assert hall.fates() == [Fate.APPLIED] * 3

    def test_an_update_of_an_older_version_is_stale(self):
        hall = Hall(*NAMES)
        hall.fates()
        hall.clients["alice"].begin(hall.updates["alice"], 0)

        assert hall.step("alice") == [Fate.STALE]
        assert hall.clients["alice"].server_version == 1


class Through:
    """A server whose letters go through a function."""

    def __init__(self, server: SecureParameterServer, take: Any):
        self.take_stage, self._server = take, server

    def show_stage(self, worker: str, session: str = "") -> View:
        return self._server.show_stage(worker, session)

    def register_worker(self, worker: str) -> int:
        return self._server.register_worker(worker)


def watching(server: SecureParameterServer, seen: list[Letter]) -> Any:
    def take(worker: str, stage: Kind, letter: Letter, **more: Any) -> Receipt:
        seen.append(letter)
        return server.take_stage(worker, stage, letter, **more)

    return take


def session(hall: Hall) -> str:
    assert hall.server._round is None or hall.server._round.session is not None
    return "" if hall.server._round is None else hall.server._round.session


class TestSecrecy:
    def held(self, hall: Hall) -> bytes:
        """Everything that the server has in memory, but what cannot be pickled: locks."""
        server = hall.server
        return pickle.dumps((vars(server._round), server._machine.state(), server._shown))

    def traces(self, update: Floats) -> list[bytes]:
        """An update as it would look in memory: as it is, negated, in steps, in double."""
        steps = Grid(1e4, 3).quantise(update)
        forms = [update, -update, steps, update.astype(np.float64), -steps.astype(np.int64)]
        return [number.tobytes() for form in forms for number in form]

    def test_no_number_of_an_update_is_ever_in_the_servers_state(self):
        hall = Hall(*NAMES)
        for name in NAMES:
            hall.updates[name] = hall.updates[name] * np.float32(1.2345e-3)
            hall.clients[name].begin(hall.updates[name], 0)
        looked = 0
        for name in NAMES * 5:
            hall.step(name)
            if hall.server._round is not None:
                state, looked = self.held(hall), looked + 1
                for update in hall.updates.values():
                    assert not [trace for trace in self.traces(update) if trace in state]
        assert hall.server.version == 1
        assert looked >= 9

    def test_nor_in_what_it_writes_down(self, tmp_path: Path):
        hall = Hall(*NAMES, checkpoint_path=tmp_path)
        hall.fates()

        assert hall.server.version == 1
        written = b"".join(path.read_bytes() for path in tmp_path.iterdir())
        for update in hall.updates.values():
            assert not [trace for trace in self.traces(update) if trace in written]
        sums = self.traces(-hall.mean(*NAMES).astype(np.float32))
        assert any(trace in written for trace in sums)  # the search would find one
        hall.server.close()

    def test_a_client_that_wants_a_larger_crowd_stays_out_and_the_others_go_on(self):
        hall = Hall("alice", "bob", "carol")
        shy = hall.enter("dave", at_least=4)
        hall.until(Kind.SHARE)
        for _ in range(3):
            assert shy.step() is None
        hall.step(*NAMES)
        hall.wait()

        assert hall.fates(*NAMES) == [Fate.APPLIED] * 3
        assert hall.step("dave") == [None]
        np.testing.assert_allclose(hall.change(), hall.mean(*NAMES), atol=EXACT)

    @pytest.mark.parametrize(
        "change",
        [
            {"numbers": np.array([SIZE, 3, 1], np.int64)},
            {"numbers": np.array([SIZE, 1, 1], np.int64)},
            {"bound": np.array(0.0)},
        ],
        ids=["half", "alone", "bound"],
    )
    def test_terms_under_which_nothing_is_secret_are_refused_by_clients(self, change):
        hall = Hall(*NAMES)
        hall.until(Kind.SHARE)
        server = Through(hall.server, hall.server.take_stage)
        told = hall.server.show_stage("alice")
        server.show_stage = lambda *_: View("share", {**told.letter, **change})  # type: ignore
        hall.clients["alice"]._server = server

        with refused("terms"):
            hall.step("alice")

    def test_an_update_beyond_the_bound_is_refused_before_secrets_are_shared(self):
        hall = Hall(*NAMES)
        hall.clients["alice"].begin(np.full(SIZE, 1e9, np.float32), 0)
        hall.until(Kind.SHARE)

        with refused("range"):
            hall.step("alice")
        assert hall.server.get_server_stats()["stage_clients"] == []

    def test_an_update_of_another_network_is_refused(self):
        hall = Hall(*NAMES)
        hall.clients["alice"].begin(np.zeros(SIZE + 1, np.float32), 0)
        hall.until(Kind.SHARE)

        with refused("schema"):
            hall.step("alice")

    def test_a_sum_that_cannot_be_is_given_up(self):
        hall = Hall(*NAMES)
        hall.until(Kind.MASK)
        garbage = np.random.default_rng(0).integers(0, 2**64, SIZE, dtype=np.uint64)
        hall.step("alice", "bob")
        hall.server.take_stage("carol", Kind.MASK, {"vector": garbage}, session=session(hall))
        hall.step("alice", "bob")

        assert hall.server.version == 0
        assert hall.counts["skipped_range"] == 1

    def test_a_server_that_says_something_else_is_refused(self):
        hall = Hall(*NAMES)
        hall.step("alice")
        server = Through(hall.server, hall.server.take_stage)
        server.show_stage = lambda *_: View("reveal", {})  # type: ignore[method-assign]
        hall.clients["alice"]._server = server

        with refused("malformed"):
            hall.step("alice")


class TestRestart:
    def test_a_round_is_begun_anew_by_the_next_server_and_nothing_counts_twice(self, tmp_path):
        hall = Hall(*NAMES, checkpoint_path=tmp_path)
        hall.fates()
        before = hall.change()
        for name in NAMES:
            hall.renew(name)
        hall.until(Kind.MASK)
        hall.server.close()  # as a kill would: nothing of a round is on the disk

        again = Hall(checkpoint_path=tmp_path)
        assert again.server.version == 1
        assert again.server.get_server_stats()["stage"] == ""
        np.testing.assert_array_equal(again.change(), before)
        again.clients, again.updates = hall.clients, hall.updates
        for client in again.clients.values():
            client._server = again.server
        assert again.fates() == [Fate.APPLIED] * 3
        assert again.server.version == 2
        np.testing.assert_allclose(again.change() - before, again.mean(*NAMES), atol=1e-5)
        again.server.close()

    def test_a_client_hears_of_its_sum_from_the_next_server(self, tmp_path):
        hall = Hall(*NAMES, checkpoint_path=tmp_path)
        hall.until(Kind.UNMASK)
        hall.step("alice", "bob")  # with whose answers the sum is there
        assert hall.server.version == 1
        hall.server.close()

        again = Hall(checkpoint_path=tmp_path)
        for client in hall.clients.values():
            client._server = again.server
        assert [client.step() for client in hall.clients.values()] == [Fate.APPLIED] * 3
        assert again.server.version == 1
        again.server.close()

    def test_a_sum_that_cannot_be_written_down_is_not_shown_and_not_lost(self, tmp_path):
        hall = Hall(*NAMES, checkpoint_path=tmp_path)
        hall.until(Kind.UNMASK)
        hall.step("alice")
        append, hall.server._store.append = hall.server._store.append, full_disk

        with pytest.raises(CheckpointError):
            hall.step("bob")
        assert not hall.change().any()
        hall.server._store.append = append
        assert hall.server.get_server_stats()["version"] == 1
        hall.server.close()

    def test_a_round_of_a_checkpoint_that_was_put_back_is_forgotten(self, tmp_path):
        hall = Hall(*NAMES)
        saved = hall.server.save_checkpoint(tmp_path / "early")
        hall.fates()
        for name in NAMES:
            hall.renew(name)
        hall.until(Kind.SHARE)
        hall.server.load_checkpoint(saved)

        assert hall.server.get_server_stats()["stage"] == ""
        assert hall.step("alice") == [None]
        assert hall.step("alice") == [Fate.STALE]


def full_disk(records: Any) -> None:
    raise CheckpointError("no space")


class TestSettings:
    @pytest.mark.parametrize(
        "method", ["median", "trimmed_mean", "krum", "weighted", "federated"], ids=str
    )
    def test_rules_that_need_single_updates_or_weights_are_refused(self, method):
        with pytest.raises(ConfigError, match="choose average or sum"):
            SecureParameterServer(START, method)

    @pytest.mark.parametrize("stay", [0.5, 0.0, 1.1, float("nan")])
    def test_a_threshold_of_half_or_less_is_refused(self, stay):
        with pytest.raises(ConfigError, match=r"above 0\.5"):
            SecureParameterServer(START, stay=stay)

    def test_a_sum_of_one_is_refused(self):
        with pytest.raises(ConfigError, match="a sum of one is that one's update"):
            SecureParameterServer(START, min_workers_for_update=1)

    @pytest.mark.parametrize(
        ("clients", "stay", "threshold"),
        [(2, 2 / 3, 2), (3, 2 / 3, 2), (4, 2 / 3, 3), (6, 2 / 3, 4), (6, 0.51, 4), (5, 1.0, 5)],
    )
    def test_the_threshold_is_a_share_and_above_half(self, clients, stay, threshold):
        assert Conduct(size=1, stay=stay).threshold(clients) == threshold

    def test_statistics_say_that_sums_are_secure(self):
        stats = Hall(*NAMES).server.get_server_stats()

        assert stats["secure_sums"] is True
        assert (stats["stage"], stats["stage_clients"], stats["threshold"]) == ("", [], 0)

    def test_taking_part_without_an_update_is_our_own_mistake(self):
        hall = Hall(*NAMES)
        with pytest.raises(ProtocolError):
            Participant(hall.server, "alice").step()
