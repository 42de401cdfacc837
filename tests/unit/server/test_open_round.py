"""An open round after a restart with other settings: what it began with still binds it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rookery.errors import CheckpointError, ConfigError
from rookery.server.federated import FederatedParameterServer
from rookery.server.privacy import noise
from rookery.server.privacy.privacy_budget import Ledger, Spent
from rookery.server.store import Store
from rookery.types import Array

SIZE, CLIENTS = 1000, 4
pytest.importorskip("dp_accounting")


class House:
    """A folder in which one server after the other is started."""

    def __init__(self, folder: Path):
        self.folder, self.now = folder, 0.0
        self.server: FederatedParameterServer | None = None

    def start(
        self, *, rate: float | None = 1.0, multiplier: float = 1.0, **settings: Any
    ) -> FederatedParameterServer:
        """Starts a server as after a kill; with `rate` None it is not private."""
        self.end()
        if rate is not None:
            settings = self._private(rate, multiplier) | settings
        self.server = FederatedParameterServer(
            {"w": np.zeros(SIZE, np.float32)},
            **{"aggregation_method": "average", "quorum": 2, "deadline_s": 600.0} | settings,
            checkpoint_path=self.folder / "served",
            clock=lambda: self.now,
        )
        for client in ("alice", "bob"):
            self.server.register_worker(client)
        return self.server

    def _private(self, rate: float, multiplier: float) -> dict[str, Any]:
        book = Ledger(
            1e6,
            0.1,
            noise_multiplier=multiplier,
            sample_rate=rate,
            clients=CLIENTS,
            path=self.folder / "ledger.json",
        )
        return {"differential_privacy": True, "ledger": book}

    def end(self) -> None:
        if self.server is not None:
            self.server.close()
            if self.server.ledger is not None:
                self.server.ledger.close()


@pytest.fixture
def house(tmp_path: Path) -> Any:
    made = House(tmp_path)
    yield made
    made.end()


def spike(value: float) -> dict[str, Array]:
    """An update with a single entry that is not 0."""
    update = np.zeros(SIZE, np.float32)
    update[0] = value
    return {"w": update}


def shown(server: FederatedParameterServer) -> Array:
    found = server.get_parameters()
    assert found is not None
    return found.arrays["w"]


def skipped(server: FederatedParameterServer) -> int:
    return int(server.get_server_stats()["counts"].get("skipped_settings", 0))


def no_space(kept: Store, records: Any) -> None:
    raise CheckpointError("the journal cannot be written: no space left; free some")


def test_after_a_restart_with_a_smaller_clip_the_noise_covers_what_is_released(house, monkeypatch):
    house.start(clip_norm=100.0).push_gradients("alice", spike(1000.0), version=0)
    monkeypatch.setattr(noise, "noise", lambda size, scale: np.zeros(size))

    server = house.start(clip_norm=1.0)
    assert skipped(server) == 1
    server.push_gradients("alice", spike(1000.0), version=0)
    assert server.push_gradients("bob", spike(0.0), version=0).version == 1

    assert abs(shown(server)[0]) == pytest.approx(1.0 / CLIENTS, rel=1e-5)


@pytest.mark.parametrize("ledger", [True, False])
def test_what_was_pushed_before_privacy_was_promised_is_not_released_under_the_promise(
    house, ledger
):
    house.start(rate=None).push_gradients("alice", spike(1000.0), 7.0, version=0)

    promise: dict[str, Any] = {} if ledger else {"rate": None, "differential_privacy": True}
    server = house.start(clip_norm=1.0, **promise)

    assert skipped(server) == 1
    assert server.get_server_stats()["pending"] == 0
    assert server.push_gradients("alice", spike(0.0), version=0).code == "ok"


@pytest.mark.parametrize("after", ["plain", "noise without a ledger"])
def test_what_was_pushed_under_a_promise_is_not_released_without_it(house, after):
    house.start().push_gradients("alice", spike(1000.0), version=0)

    server = house.start(rate=None, differential_privacy=after != "plain")

    assert skipped(server) == 1
    server.push_gradients("alice", spike(0.0), version=0)
    assert server.push_gradients("bob", spike(0.0), version=0).version == 1
    if after == "plain":
        assert not shown(server).any()


def test_with_another_rule_an_open_round_is_skipped_and_stays_skipped(house):
    house.start(rate=None).push_gradients("alice", spike(1.0), version=0)

    assert skipped(house.start(rate=None, aggregation_method="sum")) == 1
    server = house.start(rate=None)

    assert skipped(server) == 1
    assert server.get_server_stats()["pending"] == 0


def test_with_the_same_settings_or_another_deadline_an_open_round_goes_on(house):
    house.start().push_gradients("alice", spike(0.5), version=0)

    server = house.start(deadline_s=5.0)

    assert skipped(server) == 0
    assert server.get_server_stats()["pending"] == 1
    assert server.push_gradients("bob", spike(0.5), version=0).version == 1
    assert server.ledger is not None
    assert server.ledger.spent == (Spent(1.0, 1.0, 1),)


@pytest.mark.parametrize(
    "changed", [{"multiplier": 2.0}, {"rate": 0.01}, {"clip_norm": 0.5}, {"clip_norm": 2.0}]
)
def test_with_another_promise_an_open_round_is_skipped_and_the_next_one_is_charged_as_drawn(
    house, monkeypatch, changed
):
    monkeypatch.setattr(noise, "noise", lambda size, scale: np.zeros(size))
    monkeypatch.setattr(noise, "subsample", lambda clients, rate: ["alice", "bob"])
    house.start().push_gradients("alice", spike(0.5), version=0)

    server = house.start(**changed)
    assert skipped(server) == 1
    assert server.ledger is not None
    assert server.ledger.rounds == 0  # nothing was shown
    for client in ("alice", "bob"):
        server.push_gradients(client, spike(0.25), version=0)
    house.now = 601.0

    assert server.version == 1
    rate, multiplier = changed.get("rate", 1.0), changed.get("multiplier", 1.0)
    assert server.ledger.spent == (Spent(multiplier, rate, 1),)
    assert abs(shown(server)[0]) == pytest.approx(0.5 / (rate * CLIENTS), rel=1e-5)


def test_a_start_that_is_refused_leaves_the_open_round_as_it_was(house):
    server = house.start(rate=None)
    for client in ("alice", "bob", "alice"):
        server.push_gradients(client, spike(1.0))

    with pytest.raises(ConfigError, match="1 versions"):
        house.start()
    house.server = None
    server = house.start(rate=None)

    assert skipped(server) == 0
    assert server.get_server_stats()["pending"] == 1


def test_a_checkpoint_of_an_open_server_brings_no_round_into_a_private_one(house, tmp_path):
    other = FederatedParameterServer({"w": np.zeros(SIZE)}, quorum=2)
    for client in ("alice", "bob"):
        other.register_worker(client)
    other.push_gradients("alice", spike(1000.0))
    file = other.save_checkpoint(tmp_path / "other")
    server = house.start(rate=None, differential_privacy=True, clip_norm=1.0)

    server.load_checkpoint(file)

    assert server.get_server_stats()["pending"] == 0
    assert skipped(server) == 1


def test_a_journal_that_cannot_be_written_costs_one_round_however_often_it_is_tried(
    house, monkeypatch
):
    server = house.start()
    server.push_gradients("alice", spike(0.5), version=0)
    append = Store.append

    monkeypatch.setattr(Store, "append", no_space)
    for _ in range(3):
        with pytest.raises(CheckpointError):
            server.push_gradients("bob", spike(0.5), version=0)
    monkeypatch.setattr(Store, "append", append)
    assert server.push_gradients("bob", spike(0.5), version=0).version == 1

    assert server.ledger is not None
    assert server.ledger.rounds == 1


def test_a_round_that_was_charged_goes_out_though_the_budget_has_room_for_no_other(
    house, monkeypatch
):
    """Its journal could not be written at first: the budget is not spent on nothing."""
    server = house.start()
    server.ledger.target_epsilon = server.ledger.would_be()
    server.push_gradients("alice", spike(0.5), version=0)

    with monkeypatch.context() as patched:
        patched.setattr(Store, "append", no_space)
        with pytest.raises(CheckpointError):
            server.push_gradients("bob", spike(0.5), version=0)

    assert server.ledger.rounds == 1
    assert server.push_gradients("bob", spike(0.5), version=0).version == 1
