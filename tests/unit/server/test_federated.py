"""The federated server: changes instead of gradients, three rules, and privacy."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rookery.errors import BudgetError, ConfigError, RefusedError
from rookery.server import server_state as roster
from rookery.server.federated import (
    OPEN,
    STEPPING,
    FederatedParameterServer,
    ServerRule,
)
from rookery.server.parameter_server import Receipt
from rookery.server.privacy import noise as privacy
from rookery.types import Array, Floats

SIZE = 6
NAMES = ("a", "b", "c")


def delta(value: float) -> dict[str, Array]:
    return {"w": np.full(SIZE, value, np.float32)}


def server(*workers: str, **settings: Any) -> FederatedParameterServer:
    made = FederatedParameterServer({"w": np.full(SIZE, 10.0)}, **settings)
    for worker in workers:
        made.register_worker(worker)
    return made


def weights(served: FederatedParameterServer) -> Floats:
    found = served.get_parameters()
    assert found is not None
    return found.arrays["w"]


class Budget:
    """A ledger that counts rounds; the real one is tested with its accountant."""

    def __init__(self, rounds: int, *, clients: int = 3, sample_rate: float = 1.0):
        self.left, self.clients, self.sample_rate = rounds, clients, sample_rate
        self.noise_multiplier, self.target_epsilon, self.delta = 1e-6, float(rounds), 1e-5
        self.epsilon = 0.0

    def would_be(self) -> float:
        return self.epsilon + 1

    def charge(self) -> float:
        assert self.would_be() <= self.target_epsilon, "asked for more than there is"
        self.epsilon += 1
        return self.epsilon


def private(*workers: str, ledger: Budget, **settings: Any) -> FederatedParameterServer:
    """A private server with a ledger that does without an accountant."""
    served = server(*workers, differential_privacy=True, clip_norm=100.0, **settings)
    served.ledger = ledger  # type: ignore[assignment]
    served.noise_scale = ledger.noise_multiplier
    return served


def test_every_rule_has_its_row():
    assert set(STEPPING) == set(ServerRule)


def test_changes_are_averaged_by_samples_and_added():
    served = server("a", "b")

    served.push_gradients("a", delta(1.0), 30)
    served.push_gradients("b", delta(5.0), 10)

    assert served.version == 1
    assert np.array_equal(weights(served), np.full(SIZE, 12.0))


def test_trained_weights_are_averaged():
    served = server("a", "b", pushes="weights")

    served.push_gradients("a", delta(4.0), 1)
    served.push_gradients("b", delta(8.0), 3)

    assert np.allclose(weights(served), 7.0)


def test_one_client_alone_is_not_enough():
    now = [0.0]
    served = server("a", deadline_s=5.0, clock=lambda: now[0])

    served.push_gradients("a", delta(1.0))
    assert served.federated_averaging() is None
    now[0] = 6.0

    assert served.version == 0
    assert served.get_server_stats()["counts"]["skipped_quorum"] == 1


def test_at_the_deadline_the_fewest_allowed_will_do():
    now = [0.0]
    served = server(*"abcde", min_workers_for_update=2, deadline_s=5.0, clock=lambda: now[0])
    for worker in "ab":
        served.push_gradients(worker, delta(2.0))
    now[0] = 6.0

    assert served.version == 1


def test_a_round_can_be_ended_by_hand():
    served = server(*NAMES)
    for worker in "ab":
        served.push_gradients(worker, delta(2.0))

    found = served.federated_averaging()

    assert found is not None
    assert found.version == 1
    assert np.all(found.arrays["w"] == 12.0)


def test_the_aggregate_is_what_the_optimizer_goes_against():
    served = server(*NAMES)
    served.push_gradients("a", delta(2.0))

    assert served.aggregate_gradients()["w"].tolist() == [-2.0] * SIZE  # type: ignore[index]


def test_fedadam_is_adam_on_the_negative_change():
    served = server("a", "b", server_rule="fedadam", lr=0.1)
    parameter = torch.nn.Parameter(torch.full((SIZE,), 10.0))
    adam = torch.optim.Adam([parameter], lr=0.1, betas=(0.9, 0.99), eps=1e-3)

    for step in range(5):
        for worker, value in (("a", 1.0 + step), ("b", -2.0)):
            served.push_gradients(worker, delta(value))
        parameter.grad = torch.full((SIZE,), -(1.0 + step - 2.0) / 2)
        adam.step()

    assert np.allclose(weights(served), parameter.detach().numpy(), rtol=1e-6)


def test_clients_learn_the_rule_from_the_statistics():
    stats = server(server_rule="fedprox", mu=0.3, pushes="weights").get_server_stats()

    assert (stats["server_rule"], stats["mu"], stats["update_kind"]) == ("fedprox", 0.3, "weights")
    assert server().get_server_stats()["mu"] == 0.0


@pytest.mark.parametrize(
    ("worker", "update", "fits"),
    [
        ("a", delta(1.0), True),
        ("nobody", delta(1.0), False),
        ("a", delta(np.nan), False),
        ("a", {"v": np.zeros(SIZE, np.float32)}, False),
        ("a", {"w": np.zeros(SIZE)}, False),
    ],
)
def test_an_update_can_be_validated_without_pushing_it(worker, update, fits):
    served = server("a")

    assert served.validate_worker_update(worker, update) is fits
    assert served.get_server_stats()["counts"] == {}


def test_a_liar_breaks_federated_averaging_and_not_the_median():
    def learned(method: str) -> float:
        served = server(*NAMES, aggregation_method=method)
        for _ in range(20):
            for worker in NAMES:
                change = -0.5 * weights(served)
                lie = -1000.0 if worker == "c" and abs(change).max() < 1e6 else 1.0
                served.push_gradients(worker, {"w": change * np.float32(lie)})
        return float(abs(weights(served)).max())

    assert learned("median") < 1e-3
    assert learned("federated") > 1e3


# Privacy.


def test_updates_are_clipped_whatever_they_say():
    served = server("a", "b", differential_privacy=True, clip_norm=1.0, noise_scale=1e-6)

    for worker in "ab":
        served.push_gradients(worker, delta(1e9))

    moved = float(np.linalg.norm(weights(served) - 10.0))
    assert moved == pytest.approx(1.0, abs=1e-3)


def test_noise_is_added_once_and_is_as_large_as_said(monkeypatch):
    asked: list[tuple[int, float]] = []

    def noise(size: int, scale: float) -> Floats:
        asked.append((size, scale))
        return np.full(size, 0.5)

    monkeypatch.setattr(privacy, "noise", noise)
    served = server("a", "b", differential_privacy=True, clip_norm=3.0, noise_scale=2.0)
    for worker in "ab":
        served.push_gradients(worker, delta(1.0))

    assert asked == [(SIZE, 2.0 * 3.0)]  # of the sum
    assert np.allclose(weights(served), 10.0 - (-2.0 + 0.5) / 2)  # and this is the mean of two
    summed = served.add_differential_privacy_noise(delta(1.0))
    assert asked[-1] == (SIZE, 6.0)
    assert np.allclose(summed["w"], 1.5)


def test_two_runs_of_the_same_pushes_have_other_noise():
    def run() -> Floats:
        served = server("a", "b", differential_privacy=True, noise_scale=1.0)
        for worker in "ab":
            served.push_gradients(worker, delta(0.1))
        return weights(served)

    assert not np.array_equal(run(), run())


def test_after_a_restart_the_noise_is_the_same(tmp_path):
    def started() -> FederatedParameterServer:
        settings = {"differential_privacy": True, "noise_scale": 1.0, "save_frequency": 1000}
        return server("a", "b", checkpoint_path=tmp_path / "served", **settings)

    served = started()
    for worker in "ab":
        served.push_gradients(worker, delta(0.1))
    before = weights(served)
    served.close()

    assert np.array_equal(weights(started()), before)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"noise_scale": 0.0}, "noise_multiplier"),
        ({"clip_norm": 0.0}, "clip_norm"),
        ({"aggregation_method": "weighted"}, "weight multiplies its influence"),
        ({"aggregation_method": "median"}, "take average"),
        ({"synchronous": False}, "without rounds"),
        ({"differential_privacy": False, "ledger": "yes"}, "without differential_privacy"),
        ({"min_workers_for_update": 0}, "min_workers_for_update"),
        ({"mu": -1.0, "server_rule": "fedprox"}, "mu"),
        ({"server_rule": "fedsgd"}, "must be one of fedavg"),
        ({"pushes": "gradients"}, "must be one of deltas"),
    ],
)
def test_promises_that_would_not_be_kept_are_refused(settings, said, tmp_path):
    if settings.get("ledger"):
        ledger = pytest.importorskip("dp_accounting") and _ledger(tmp_path)
        settings = settings | {"ledger": ledger}

    with pytest.raises(ConfigError, match=said):
        server(**{"differential_privacy": True} | settings)


def test_weights_and_aggregates_are_not_for_private_servers():
    served = server("a", "b", differential_privacy=True)

    with pytest.raises(RefusedError, match="weight 1") as refused:
        served.push_gradients("a", delta(1.0), 2.0)
    assert refused.value.code == "weight"
    served.push_gradients("a", delta(1.0))
    with pytest.raises(RefusedError, match="with noise"):
        served.aggregate_gradients()


# Privacy with a ledger.


def test_the_mean_is_over_the_clients_that_were_expected():
    served = private("a", ledger=Budget(5, clients=4), quorum=1, deadline_s=1e6)

    served.push_gradients("a", delta(8.0))  # all that are registered

    assert np.allclose(weights(served), 12.0, atol=1e-3)


def test_every_round_is_charged_and_the_budget_ends_them():
    served = private("a", "b", ledger=Budget(2, clients=2))

    for _ in range(2):
        for worker in "ab":
            served.push_gradients(worker, delta(1.0))
    with pytest.raises(BudgetError, match="training ends here") as refused:
        served.push_gradients("a", delta(1.0))

    assert refused.value.code == "budget"
    assert served.version == 2
    assert served.get_server_stats()["epsilon"] == 2.0


def test_a_round_goes_out_at_its_deadline_whoever_came():
    now = [0.0]
    ledger = Budget(5, clients=3)
    served = private(*NAMES, ledger=ledger, deadline_s=5.0, clock=lambda: now[0])

    served.push_gradients("a", delta(3.0))
    now[0] = 6.0

    assert served.version == 1
    assert np.allclose(weights(served), 11.0, atol=1e-3)
    assert ledger.epsilon == 1


def test_who_was_not_drawn_stays_out(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(privacy, "subsample", lambda clients, rate: ["b"])
    ledger = Budget(5, clients=3, sample_rate=0.5)
    served = private(*NAMES, ledger=ledger, deadline_s=5.0, clock=lambda: now[0])

    answers = [served.push_gradients(worker, delta(1.5)) for worker in NAMES[:2]]
    now[0] = 6.0

    assert answers[0] == Receipt(False, "uninvited", 0)
    assert answers[1] == Receipt(True, "ok", 0)
    assert served.version == 1
    assert np.allclose(weights(served), 11.0, atol=1e-3)


@pytest.mark.parametrize("drawn", [[], ["a"], ["a", "b"]])
def test_a_round_takes_its_deadline_and_costs_as_much_whomever_it_drew(drawn, monkeypatch):
    """How soon it is over would tell who was drawn; nobody's round goes out as noise."""
    now = [0.0]
    monkeypatch.setattr(privacy, "subsample", lambda clients, rate: drawn)
    ledger = Budget(5, clients=2, sample_rate=0.5)
    served = private("a", "b", ledger=ledger, deadline_s=5.0, clock=lambda: now[0])

    for worker in "ab":
        served.push_gradients(worker, delta(1.0))
    now[0] = 4.9
    assert (served.version, ledger.epsilon) == (0, 0)
    now[0] = 5.1

    assert (served.version, ledger.epsilon) == (1, 1)


@pytest.mark.parametrize(("quorum", "needed"), [(None, 3), (2, 2), (5, 5)])
def test_nothing_is_drawn_or_charged_before_enough_clients_have_joined(quorum, needed):
    ledger = Budget(5, clients=5)
    served = private(ledger=ledger, quorum=quorum)

    for number in range(needed):
        served.register_worker(f"w{number}")
        receipt = served.push_gradients("w0", delta(1.0))
        assert receipt.code == ("early" if number < needed - 1 else "ok")

    assert served.get_server_stats()["counts"].get("early", 0) == needed - 1
    assert (served.version, ledger.epsilon) == (0, 0)


def test_an_update_that_is_too_old_begins_no_round():
    ledger = Budget(5, clients=2)
    served = private("a", "b", ledger=ledger)
    for worker in "ab":
        served.push_gradients(worker, delta(1.0))

    assert served.push_gradients("a", delta(1.0), version=0).code == "stale"
    assert served._machine.invited is None


def test_a_last_version_is_not_passed_by_a_round_that_ends_as_the_next_update_comes():
    now = [0.0]
    served = server(*NAMES, min_workers_for_update=1, deadline_s=5.0, clock=lambda: now[0])
    served.last_version = 1
    served.push_gradients("a", delta(1.0))
    now[0] = 6.0

    with pytest.raises(RefusedError, match="over at version 1") as refused:
        served.push_gradients("b", delta(1.0))
    now[0] = 60.0

    assert refused.value.code == "over"
    assert served.version == 1


def test_a_round_that_was_begun_does_not_pass_a_last_version_that_is_set_later():
    now = [0.0]
    served = server("a", min_workers_for_update=1, deadline_s=5.0, clock=lambda: now[0])
    served.push_gradients("a", delta(1.0))
    served.register_worker("b")
    served.push_gradients("a", delta(1.0))
    served.last_version = 1  # started again with fewer --rounds
    now[0] = 6.0

    assert served.version == 1


def test_clients_of_a_private_server_are_not_told_who_took_part():
    def told(*taking_part: str) -> dict[str, Any]:
        served = private(*NAMES, ledger=Budget(5), deadline_s=1e6)
        for worker in taking_part:
            served.push_gradients(worker, delta(1.0))
        assert served.get_server_stats()["pushes"]["a"] == ("a" in taking_part)  # the operator is
        return served.get_client_stats()

    assert told("a", "b") == told("b") == told()
    assert told()["epsilon"] == 0.0
    assert set(told()) == set(OPEN)
    assert server("a").get_client_stats()["workers"] == ["a"]  # nothing was promised there


@pytest.mark.parametrize("ending", ["applied", "killed"])
def test_a_private_round_that_is_over_leaves_no_single_update_on_the_disk(
    ending, tmp_path, monkeypatch
):
    settings = {"differential_privacy": True, "noise_scale": 1e-6, "clip_norm": 1e6}
    if ending == "killed":  # before the checkpoint that forgets
        monkeypatch.setattr(FederatedParameterServer, "_save_now", lambda self: None)
    served = _of_three(tmp_path, **settings)
    for worker, value in zip(NAMES, (1.25, 2.5, 4.75), strict=True):
        served.push_gradients(worker, delta(value))
    served.close()
    monkeypatch.undo()
    if ending == "killed":
        assert _on_disk(tmp_path, 1.25)
        _of_three(tmp_path, **settings).close()

    assert served.version == 1
    assert not any(_on_disk(tmp_path, value) for value in (1.25, 2.5, 4.75))


def _on_disk(folder: Path, value: float) -> bool:
    update = np.full(SIZE, -value, np.float32).tobytes()  # as a gradient
    return any(update in path.read_bytes() for path in (folder / "served").iterdir())


def test_an_invited_client_that_never_comes_does_not_stop_the_server(monkeypatch):
    now = [0.0]
    drawn = iter([["c"], ["a"]])
    monkeypatch.setattr(privacy, "subsample", lambda clients, rate: next(drawn))
    ledger = Budget(5)
    served = private(*NAMES, ledger=ledger, deadline_s=5.0, clock=lambda: now[0])

    assert served.push_gradients("a", delta(1.0)).code == "uninvited"
    now[0] = 6.0

    assert served.push_gradients("a", delta(1.0)) == Receipt(True, "ok", 2)
    assert ledger.epsilon == 2


def test_no_more_clients_take_part_than_the_promise_is_about():
    served = private(*NAMES, ledger=Budget(9, clients=3))

    with pytest.raises(RefusedError, match=r"promised to 3 clients, and 4.*--clients") as refused:
        served.register_worker("d")

    assert refused.value.code == "clients"
    assert served.register_worker("a") == 0  # who is known is no newcomer
    assert served.get_server_stats()["workers"] == list(NAMES)


@pytest.mark.parametrize("took_part", [True, False])
def test_who_joined_and_left_counts_whether_it_took_part_or_not(took_part):
    """Room for another would tell that it was never drawn."""
    served = private("a", "b", ledger=Budget(9, clients=2))
    for worker in "ab" if took_part else "":
        served.push_gradients(worker, delta(1.0))
    served.unregister_worker("b")

    with pytest.raises(RefusedError, match="2 clients, and 3"):
        served.register_worker("c")
    assert served.register_worker("b") == int(took_part)  # it is no newcomer


def test_however_many_have_left_none_is_forgotten_that_counts(monkeypatch, tmp_path):
    monkeypatch.setattr(roster, "DEPARTED", 2)
    served = private(ledger=Budget(9, clients=5), quorum=1, checkpoint_path=tmp_path / "served")
    for number in range(5):
        served.register_worker(f"w{number}")
        served.push_gradients(f"w{number}", delta(1.0))
        served.unregister_worker(f"w{number}")
    served.close()
    again = private(ledger=Budget(9, clients=5), checkpoint_path=tmp_path / "served")

    with pytest.raises(RefusedError, match="5 clients, and 6"):
        again.register_worker("another")


def test_under_privacy_a_client_cannot_count_twice_as_its_parts():
    served = server("a", differential_privacy=True)

    with pytest.raises(RefusedError, match="register as 'b'") as refused:
        served.register_worker("b/1")

    assert refused.value.code == "clients"
    assert server("b/1", "b/2").get_server_stats()["workers"] == ["b/1", "b/2"]


def test_however_many_register_at_once_there_are_no_more_than_promised():
    served = private(ledger=Budget(9, clients=3))

    def register(number: int) -> bool:
        try:
            return served.register_worker(f"w{number}") == 0
        except RefusedError:
            return False

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(register, range(24))) == 3


def _ledger(folder: Path, target: float = 4.0) -> Any:
    from rookery.server.privacy.privacy_budget import Ledger

    path = folder / "ledger.json"
    return Ledger(target, 1e-3, noise_multiplier=1.0, sample_rate=1.0, clients=3, path=path)


def _of_three(folder: Path, **settings: Any) -> FederatedParameterServer:
    return server(*NAMES, checkpoint_path=folder / "served", **settings)


def _played(served: FederatedParameterServer) -> None:
    for worker in NAMES:
        served.push_gradients(worker, delta(0.1))
    assert served.version == 1
    served.close()
    if served.ledger is not None:
        served.ledger.close()


@pytest.mark.parametrize("before", ["private", "open"])
def test_versions_that_no_ledger_knows_of_are_not_gone_on_from(before, tmp_path):
    """The ledger was lost, or clients have shown everything before anything was promised."""
    pytest.importorskip("dp_accounting")
    settings = {"differential_privacy": True, "ledger": _ledger(tmp_path / "first")}
    _played(_of_three(tmp_path, **(settings if before == "private" else {})))

    with pytest.raises(ConfigError, match="1 versions, and its ledger knows of 0 rounds"):
        _of_three(tmp_path, differential_privacy=True, ledger=_ledger(tmp_path / "other"))
    assert _of_three(tmp_path).version == 1  # the refused one has let go of the folder


def test_an_older_copy_of_the_ledger_is_refused_and_the_newest_is_not(tmp_path):
    pytest.importorskip("dp_accounting")
    book = tmp_path / "ledger.json"
    _played(_of_three(tmp_path, differential_privacy=True, ledger=_ledger(tmp_path, 50.0)))
    older = book.read_bytes()
    served = _of_three(tmp_path, differential_privacy=True, ledger=_ledger(tmp_path, 50.0))
    for worker in NAMES:
        served.push_gradients(worker, delta(0.1))
    assert served.version == 2
    served.close()
    served.ledger.close()  # type: ignore[union-attr]
    newest = book.read_bytes()

    book.write_bytes(older)
    with pytest.raises(ConfigError, match="2 versions, and its ledger knows of 1 rounds"):
        _of_three(tmp_path, differential_privacy=True, ledger=_ledger(tmp_path, 50.0))
    book.write_bytes(newest)

    assert (
        _of_three(tmp_path, differential_privacy=True, ledger=_ledger(tmp_path, 50.0)).version == 2
    )


def test_under_a_ledger_no_checkpoint_comes_from_elsewhere(tmp_path):
    file = server().save_checkpoint(tmp_path / "other")
    served = private(*NAMES, ledger=Budget(5), checkpoint_path=tmp_path / "served")

    with pytest.raises(RefusedError, match="with this ledger") as refused:
        served.load_checkpoint(file)

    assert refused.value.code == "ledger"
    assert served.load_checkpoint() == 0


def test_a_quorum_that_the_promise_has_no_room_for_is_refused(tmp_path):
    pytest.importorskip("dp_accounting")

    with pytest.raises(ConfigError, match=r"4 clients.*promised to 3.*lower the quorum"):
        server(differential_privacy=True, ledger=_ledger(tmp_path), quorum=4)


def test_a_server_of_more_clients_than_are_promised_now_does_not_start(tmp_path):
    pytest.importorskip("dp_accounting")
    settings = {"differential_privacy": True, "ledger": _ledger(tmp_path)}
    _played(_of_three(tmp_path, **settings))
    fewer = _ledger(tmp_path)
    fewer.clients = 2

    with pytest.raises(ConfigError, match="promised to 2 clients, and 3"):
        _of_three(tmp_path, differential_privacy=True, ledger=fewer)


def test_with_the_real_ledger_the_spend_outlasts_the_server(tmp_path):
    pytest.importorskip("dp_accounting")

    def started() -> FederatedParameterServer:
        return server(
            *NAMES,
            differential_privacy=True,
            ledger=_ledger(tmp_path),
            checkpoint_path=tmp_path / "served",
        )

    def play(served: FederatedParameterServer) -> None:
        for worker in NAMES:
            served.push_gradients(worker, delta(0.1))

    def play_on(served: FederatedParameterServer) -> None:
        while True:
            play(served)

    first = started()
    play(first)
    first.ledger.close()  # type: ignore[union-attr]
    first.close()
    served = started()
    assert served.ledger is not None
    with pytest.raises(BudgetError):
        play_on(served)

    assert served.version == served.ledger.rounds
    assert served.get_server_stats()["epsilon"] <= 4.0 < served.ledger.would_be()


@pytest.mark.parametrize("pushes", ["deltas", "weights"])
def test_a_client_that_pushes_the_largest_floats_cannot_make_parameters_infinite(pushes):
    served = server("a", "eve", quorum=2, deadline_s=1e6, pushes=pushes)
    start = 0.0 if pushes == "deltas" else 10.0

    for turn in range(4):
        served.push_gradients("a", delta(start + 0.1), version=served.version)
        sign = 1.0 if pushes == "deltas" else (-1.0) ** turn
        served.push_gradients("eve", delta(sign * 3e38), weight=1e6, version=served.version)

    assert np.isfinite(weights(served)).all()
    assert served.get_server_stats()["counts"]["overflow"] >= 1


def test_the_largest_norm_is_of_the_change_where_clients_push_weights():
    served = server("a", "b", quorum=2, pushes="weights", max_norm=1.0)

    assert served.push_gradients("a", delta(10.1)).accepted
    assert served.push_gradients("b", delta(11.0)).code == "norm"
