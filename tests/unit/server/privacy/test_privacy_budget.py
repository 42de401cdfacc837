"""The ledger: no more than was promised, also after a restart, a full disk, or damage."""

import hashlib
import json
import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from rookery.errors import BudgetError, CheckpointError, ConfigError
from rookery.server.privacy.privacy_budget import Ledger, Spent, epsilon_of


def ledger(target_epsilon=12.0, delta=1e-3, **changed):
    """Everybody in every round: quick to compute. A round costs 3.5, two 5.3, three 6.9."""
    settings = {"noise_multiplier": 1.0, "sample_rate": 1.0, "clients": 100, **changed}
    return Ledger(target_epsilon, delta, **settings)


def test_nothing_spent_is_zero():
    assert ledger().epsilon == 0


def test_a_charge_costs_what_was_foretold():
    book = ledger()
    foretold = []
    for _ in range(3):
        foretold.append(book.would_be())
        assert book.charge() == pytest.approx(foretold[-1])
    assert book.epsilon == pytest.approx(foretold[-1])
    assert foretold == sorted(foretold)


def test_a_round_that_would_pass_the_target_is_refused_and_not_charged():
    book = ledger()
    while book.would_be() <= book.target_epsilon:
        book.charge()
    rounds, epsilon = book.rounds, book.epsilon

    for _ in range(3):
        with pytest.raises(BudgetError, match="12") as refused:
            book.charge()

    assert refused.value.code == "budget"
    assert (book.rounds, book.epsilon) == (rounds, epsilon)
    assert epsilon <= 12.0 < book.would_be()
    assert rounds > 1


def test_sampling_fewer_clients_costs_less():
    few, all_of_them = (epsilon_of((Spent(1.0, q, 5),), 1e-3) for q in (0.01, 1.0))
    assert few < all_of_them / 5


def test_a_restart_goes_on_from_what_is_spent(tmp_path):
    first = ledger(path=tmp_path / "ledger.json")
    spent = [first.charge(), first.charge()][-1]
    first.close()

    second = ledger(path=tmp_path / "ledger.json")

    assert (second.rounds, second.epsilon) == (2, spent)


def test_a_restart_of_a_spent_ledger_refuses_at_once(tmp_path):
    first = ledger(target_epsilon=4.0, path=tmp_path / "ledger.json")
    first.charge()
    first.close()

    second = ledger(target_epsilon=4.0, path=tmp_path / "ledger.json")

    with pytest.raises(BudgetError):
        second.charge()


def test_a_restart_with_other_noise_counts_both(tmp_path):
    first = ledger(path=tmp_path / "ledger.json")
    first.charge()
    first.close()

    second = ledger(noise_multiplier=4.0, path=tmp_path / "ledger.json")
    second.charge()

    assert second.spent == (Spent(1.0, 1.0, 1), Spent(4.0, 1.0, 1))
    assert second.epsilon == pytest.approx(epsilon_of(second.spent, 1e-3))
    assert second.epsilon > epsilon_of((Spent(1.0, 1.0, 1),), 1e-3)


def test_a_round_is_on_the_disk_before_its_charge_returns(tmp_path, monkeypatch):
    path = tmp_path / "ledger.json"
    book = ledger(path=path)
    synced = []
    sync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (synced.append(os.fstat(fd).st_ino), sync(fd)))

    book.charge()

    assert synced == [path.stat().st_ino, tmp_path.stat().st_ino]  # the file, then its name
    assert json.loads(path.read_text())["spent"] == [[1.0, 1.0, 1]]


def test_a_round_that_cannot_be_written_down_is_not_granted(tmp_path, monkeypatch):
    book = ledger(path=tmp_path / "ledger.json")
    book.charge()

    def full(fd):
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CheckpointError, match="no space left"):
        book.charge()
    assert book.rounds == 1


@pytest.mark.parametrize(
    "damage",
    [
        lambda raw: b"",
        lambda raw: raw[: len(raw) // 2],
        lambda raw: raw.replace(b"[1.0, 1.0, 2]", b"[1.0, 1.0, 1]"),
        lambda raw: b"[]",
        lambda raw: b'{"format": 2, "spent": [], "sha256": ""}',
        lambda raw: b"\xff\xfe",
    ],
)
def test_a_damaged_file_is_never_taken_for_an_empty_one(tmp_path, damage):
    path = tmp_path / "ledger.json"
    book = ledger(path=path)
    book.charge()
    book.charge()
    book.close()
    path.write_bytes(damage(path.read_bytes()))

    with pytest.raises(CheckpointError, match="new clients only"):
        ledger(path=path)


def test_two_servers_cannot_spend_one_budget(tmp_path):
    book = ledger(path=tmp_path / "ledger.json")
    with pytest.raises(ConfigError, match="another server"):
        ledger(path=tmp_path / "ledger.json")
    book.close()
    ledger(path=tmp_path / "ledger.json").charge()


def test_a_ledger_that_is_forgotten_lets_go_of_its_file(tmp_path):
    ledger(path=tmp_path / "ledger.json").charge()
    assert ledger(path=tmp_path / "ledger.json").rounds == 1


def test_a_folder_that_cannot_be_made_is_a_wrong_request(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be kept"):
        ledger(path=tmp_path / "file" / "ledger.json")


@pytest.mark.parametrize(
    "changed",
    [
        {"noise_multiplier": 0.0},
        {"delta": 0.01},  # 1 / clients
        {"sample_rate": 0.0},
        {"target_epsilon": 0.0},
        {"clients": 0},
    ],
)
def test_a_promise_that_holds_nothing_is_refused(tmp_path, changed):
    with pytest.raises(ConfigError):
        ledger(path=tmp_path / "ledger.json", **changed)
    assert not any(tmp_path.iterdir())


def test_threads_together_spend_no_more_than_the_target():
    book = ledger()

    def spend(_):
        try:
            return bool(book.charge())
        except BudgetError:
            return False

    with ThreadPoolExecutor(8) as pool:
        granted = sum(pool.map(spend, range(40)))

    assert granted == book.rounds
    assert book.epsilon <= book.target_epsilon < book.would_be()


def test_a_round_is_written_down_before_another_thread_may_charge(tmp_path, monkeypatch):
    book = ledger(path=tmp_path / "ledger.json")
    alone = []
    monkeypatch.setattr(
        "rookery.server.privacy.privacy_budget.write", lambda *_: alone.append(book._turn.locked())
    )
    book.charge()
    assert alone == [True]


@pytest.mark.parametrize(
    "other", [{"target_epsilon": 24.0}, {"delta": 5e-3}, {"clients": 50}, {"target_epsilon": 6.0}]
)
@pytest.mark.parametrize("rounds", [0, 1])
def test_a_restart_with_another_promise_is_refused(tmp_path, other, rounds):
    first = ledger(path=tmp_path / "ledger.json")
    for _ in range(rounds):
        first.charge()
    first.close()

    with pytest.raises(ConfigError, match=r"promises target_epsilon 12.*start with these") as error:
        ledger(path=tmp_path / "ledger.json", **other)

    assert all(f" {value}" in str(error.value) for value in other.values())
    assert ledger(path=tmp_path / "ledger.json").rounds == rounds  # the refused one has let go


def test_a_ledger_of_an_earlier_release_takes_on_the_promise_it_is_opened_with(tmp_path):
    path = tmp_path / "ledger.json"
    spent = [[1.0, 1.0, 2]]
    seal = hashlib.sha256(json.dumps(spent).encode()).hexdigest()
    path.write_text(json.dumps({"format": 1, "sha256": seal, "spent": spent}))

    first = ledger(path=path)
    assert first.rounds == 2
    first.close()

    with pytest.raises(ConfigError, match="promises target_epsilon 12"):
        ledger(path=path, target_epsilon=24.0)


def test_what_a_ledger_keeps_is_for_its_user_alone(tmp_path):
    def readable() -> set[int]:
        """Returns what others may do with its files."""
        return {path.stat().st_mode & 0o077 for path in tmp_path.iterdir()}

    (tmp_path / "ledger.json.part").touch(0o644)  # of one that was killed
    book = ledger(path=tmp_path / "ledger.json")

    assert readable() == {0}
    book.charge()
    assert readable() == {0}
