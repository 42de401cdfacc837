"""The parameter server in one process: who may push, what counts, and what becomes of it."""

import pickle
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from beartype.roar import BeartypeCallHintViolation

from eventually import eventually
from rookery.algorithms.dqn import Dqn
from rookery.config.algorithms import DqnConfig
from rookery.config.schema import EnvConfig, LearnerConfig, NetConfig, Optimizer
from rookery.errors import CheckpointError, ConfigError, RefusedError
from rookery.learner.learner import Learner
from rookery.server.optimizer_step import optimizers
from rookery.server.parameter_server import Parameters, ParameterServer, Receipt
from rookery.server.server_rules import SCALES, Staleness
from rookery.types import Array, Batch
from scripted_roles import flat_spec

START: dict[str, Array] = {"w": np.zeros((2, 3), np.float32), "b": np.ones(4, np.float32)}
NAMES = ("a", "b", "c", "d", "e")


def grads(value: float = 1.0, **changes: Array) -> dict[str, Array]:
    return {name: np.full_like(array, value) for name, array in START.items()} | changes


def server(*workers: str, **settings: Any) -> ParameterServer:
    made = ParameterServer(START, **{"update_frequency": 1, "lr": 1.0} | settings)
    for worker in workers:
        made.register_worker(worker)
    return made


def moved(served: ParameterServer) -> float:
    """Returns how far the parameters went against the gradient, which is the same everywhere."""
    arrays = now(served).arrays
    distances = {float(d) for name in START for d in (START[name] - arrays[name]).ravel()}
    assert len(distances) == 1
    return distances.pop()


def now(served: ParameterServer) -> Parameters:
    found = served.get_parameters()
    assert found is not None
    return found


def counts(served: ParameterServer) -> dict[str, int]:
    return dict(served.get_server_stats()["counts"])


class Clock:
    """A clock that goes when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


# Versions.


def test_it_starts_with_what_it_was_given_as_version_0():
    version, arrays = now(server())

    assert version == 0
    assert all(np.array_equal(arrays[name], START[name]) for name in START)


def test_an_applied_update_is_a_new_version():
    served = server("a")

    receipt = served.push_gradients("a", grads())

    assert receipt == Receipt(True, "ok", 1)
    assert served.version == 1
    assert moved(served) == 1.0


def test_there_is_nothing_newer_than_the_newest():
    served = server("a")
    served.push_gradients("a", grads())

    assert served.get_parameters(newer_than=1) is None
    assert served.get_parameters(newer_than=0) is not None


def test_what_readers_have_does_not_change_under_them():
    served = server("a")
    before = now(served)

    served.push_gradients("a", grads())

    assert before.version == 0
    assert np.array_equal(before.arrays["w"], START["w"])
    with pytest.raises(ValueError, match="read-only"):
        before.arrays["w"][:] = 1


def test_it_keeps_a_copy_of_what_was_pushed():
    served, pushed = server("a", update_frequency=2), grads()

    served.push_gradients("a", pushed)
    pushed["w"][:] = 1e9
    served.push_gradients("a", grads())

    assert moved(served) == 1.0


def test_updates_are_applied_when_so_many_have_come():
    served = server("a", "b", update_frequency=3)

    versions = [served.push_gradients(w, grads()).version for w in ("a", "b", "a", "a", "b", "b")]

    assert versions == [0, 0, 1, 1, 1, 2]


def test_updates_can_be_applied_before_with_a_learning_rate_for_once():
    served = server("a", update_frequency=10, lr=1.0)
    served.push_gradients("a", grads())

    assert served.update_parameters(learning_rate=0.25) == 1
    assert moved(served) == 0.25
    served.push_gradients("a", grads())
    assert served.update_parameters() == 2
    assert moved(served) == 1.25


def test_without_updates_nothing_is_aggregated_nor_applied():
    served = server("a")

    assert served.aggregate_gradients() is None
    assert served.update_parameters() == 0


def test_what_is_pending_can_be_seen_and_stays_pending():
    served = server("a", update_frequency=3)
    served.push_gradients("a", grads(1.0))
    served.push_gradients("a", grads(3.0))

    seen = served.aggregate_gradients()

    assert seen is not None
    assert np.all(seen["w"] == 2.0)
    assert served.get_server_stats()["pending"] == 2


def test_subscribers_hear_of_every_version_and_may_fail():
    served, heard = server("a"), []

    def fail(_: Parameters) -> None:
        raise RuntimeError("not our worker's fault")

    served.subscribe(fail)
    served.subscribe(lambda parameters: heard.append(parameters.version))
    served.push_gradients("a", grads())
    served.push_gradients("a", grads())
    told = served.broadcast_parameters()

    assert heard == [1, 2, 2]
    assert told.version == 2
    assert counts(served)["listener_failed"] == 3


def test_torch_tensors_are_arrays_too():
    served = ParameterServer({"w": torch.zeros(3, dtype=torch.bfloat16)}, update_frequency=1, lr=1)
    served.register_worker("a")

    served.push_gradients("a", {"w": torch.ones(3)})

    assert now(served).arrays["w"].tolist() == [-1, -1, -1]


# What is refused, and what does not count.


@pytest.mark.parametrize(
    ("pushed", "said"),
    [
        ({"w": START["w"]}, "'b' is missing"),
        (grads(c=np.zeros(1, np.float32)), "'c' is unknown"),
        (grads(w=np.zeros((3, 2), np.float32)), r"'w' is \(3, 2\) for \(2, 3\)"),
        (grads(b=np.zeros(4, np.float64)), "'b' is float64 for float32"),
        (grads(b=np.zeros(4, np.int64)), "'b' is int64 for float32"),
    ],
)
def test_an_update_of_another_network_is_refused_with_its_differences(pushed, said):
    served = server("a")

    with pytest.raises(RefusedError, match=said) as refused:
        served.push_gradients("a", pushed)

    assert refused.value.code == "schema"
    assert served.version == 0
    assert counts(served) == {"refused_schema": 1}
    assert served.push_gradients("a", grads()).accepted  # and it goes on


def test_who_is_not_registered_is_refused():
    served = server("a")
    served.unregister_worker("a")

    for worker in ("a", "b"):
        with pytest.raises(RefusedError, match="register_worker") as refused:
            served.push_gradients(worker, grads())
        assert refused.value.code == "unknown_worker"


def test_to_register_twice_is_to_register_once():
    served = server("a", "a", synchronous=True)

    assert served.register_worker("a") == 0
    assert served.push_gradients("a", grads()).version == 1


@pytest.mark.parametrize("name", ["", "x" * 129])
def test_names_have_a_length(name):
    with pytest.raises(RefusedError, match="1 to 128 characters"):
        server().register_worker(name)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_dropped_counted_and_ends_in_quarantine(bad):
    served = server("a", "b", quarantine_after=3)
    pushed = grads()
    pushed["w"][1, 1] = bad

    answers = [served.push_gradients("a", pushed) for _ in range(3)]

    assert answers == [Receipt(False, "finite", 0)] * 3
    assert counts(served) == {"finite": 3}
    assert served.get_server_stats()["quarantined"] == ["a"]
    with pytest.raises(RefusedError, match="quarantine") as refused:
        served.push_gradients("a", grads())
    assert refused.value.code == "quarantined"
    assert served.push_gradients("b", grads()).accepted


def test_quarantine_counts_in_a_row_and_ends_by_pardon_alone():
    served = server("a", quarantine_after=2)
    bad = grads(np.nan)

    served.push_gradients("a", bad)
    served.push_gradients("a", grads())
    served.push_gradients("a", bad)
    assert served.push_gradients("a", grads()).accepted
    served.push_gradients("a", bad)
    served.push_gradients("a", bad)
    served.unregister_worker("a")
    served.register_worker("a")
    with pytest.raises(RefusedError, match="quarantine"):
        served.push_gradients("a", grads())
    served.pardon_worker("a")

    assert served.push_gradients("a", grads()).accepted


@pytest.mark.parametrize("weight", [-1.0, np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("method", ["weighted", "average"])
def test_a_weight_that_is_none_is_refused(weight, method):
    served = server("a", aggregation_method=method)

    with pytest.raises(RefusedError, match="finite and 0 or more") as refused:
        served.push_gradients("a", grads(), float(weight))

    assert refused.value.code == "weight"
    assert served.version == 0


def test_an_enormous_weight_is_cut_to_the_largest():
    served = server("a", "b", aggregation_method="weighted", update_frequency=2, max_weight=3.0)

    served.push_gradients("a", grads(0.0), 1)
    served.push_gradients("b", grads(1.0), 1e30)

    assert moved(served) == 0.75
    assert counts(served)["weight_clamped"] == 1


def test_a_weight_of_zero_has_no_say():
    served = server("a", "b", aggregation_method="weighted", update_frequency=2)

    served.push_gradients("a", grads(5.0), 0)
    served.push_gradients("b", grads(1.0), 0.5)

    assert moved(served) == 1.0


def test_where_all_weights_are_zero_the_round_is_skipped():
    served = server("a", "b", aggregation_method="weighted", update_frequency=2)

    served.push_gradients("a", grads(), 0)
    receipt = served.push_gradients("b", grads(), 0)

    assert receipt == Receipt(True, "ok", 0)
    assert counts(served)["skipped_weight"] == 1
    assert served.get_server_stats()["pending"] == 0


def test_a_sum_that_overflows_is_not_applied():
    served = server("a", aggregation_method="sum", update_frequency=2)

    served.push_gradients("a", grads(3e38))
    served.push_gradients("a", grads(3e38))

    assert served.version == 0
    assert counts(served)["skipped_overflow"] == 1


def test_the_same_push_counts_once():
    served = server("a", "b")

    first = served.push_gradients("a", grads(), push_id="1")
    again = served.push_gradients("a", grads(), push_id="1")
    other = served.push_gradients("b", grads(), push_id="1")  # another worker's 1

    assert (first.code, again, other.code) == ("ok", Receipt(True, "duplicate", 1), "ok")
    assert moved(served) == 2.0


def test_a_late_repeat_of_one_who_left_and_came_back_counts_once():
    served = server("a")
    served.push_gradients("a", grads(), push_id="1")
    served.unregister_worker("a")
    served.register_worker("a")

    assert served.push_gradients("a", grads(), push_id="1").code == "duplicate"


def test_a_client_has_so_many_parts_and_one_that_leaves_makes_room():
    served = server(*(f"a/{i}" for i in range(256)))

    with pytest.raises(RefusedError, match="256 parts") as refused:
        served.register_worker("a/256")
    assert refused.value.code == "clients"
    served.register_worker("b/256")
    served.unregister_worker("a/0")
    served.register_worker("a/256")


def test_what_is_remembered_of_pushes_is_bounded():
    served = server("a")
    for i in range(300):
        served.push_gradients("a", grads(0.0), push_id=str(i))

    assert len(served._machine.roster.workers["a"].applied) == 256


def test_those_who_left_are_forgotten_in_the_end():
    served = server(*(str(i) for i in range(1100)))
    for i in range(1100):
        served.unregister_worker(str(i))

    assert len(served._machine.roster.workers) == 1024


# Age.


def at_version(version: int, **settings: Any) -> ParameterServer:
    served = server("a", **settings)
    for _ in range(version):
        served.push_gradients("a", grads(0.0))
    return served


@pytest.mark.parametrize(
    ("staleness", "age", "counted"),
    [
        ("drop", 0, 1.0),
        ("drop", 2, 1.0),
        ("drop", 3, None),
        ("discount", 0, 1.0),
        ("discount", 1, 0.5),
        ("discount", 3, None),
        ("keep", 5, 1.0),
        ("keep", -1, None),  # of a version that never was
    ],
)
def test_an_old_update_counts_as_its_policy_says(staleness, age, counted):
    served = at_version(5, staleness=staleness, max_staleness=2)

    receipt = served.push_gradients("a", grads(), version=5 - age)

    assert receipt.accepted == (counted is not None)
    assert moved(served) == (counted or 0.0)
    assert counts(served).get("stale", 0) == (counted is None)
    assert counts(served).get("discounted", 0) == (counted == 0.5)


def test_every_policy_has_its_row():
    assert set(SCALES) == set(Staleness)


# Rounds.


def test_a_round_closes_when_all_have_pushed():
    served = server("a", "b", "c", synchronous=True)

    versions = [
        served.push_gradients(w, grads(v)).version for w, v in (("a", 1), ("b", 2), ("c", 6))
    ]

    assert versions == [0, 0, 1]
    assert moved(served) == 3.0


def test_a_round_closes_when_the_quorum_has_pushed_and_the_late_are_too_late():
    served = server("a", "b", "c", synchronous=True, quorum=2)

    served.push_gradients("a", grads(1.0), version=0)
    served.push_gradients("b", grads(3.0), version=0)
    late = served.push_gradients("c", grads(9.0), version=0)

    assert late == Receipt(False, "stale", 1)
    assert moved(served) == 2.0


def test_a_worker_pushes_once_a_round():
    served = server("a", "b", synchronous=True)

    served.push_gradients("a", grads())
    again = served.push_gradients("a", grads())

    assert again == Receipt(False, "round", 0)


def test_at_the_deadline_more_than_half_will_do():
    clock = Clock()
    served = server(*NAMES, synchronous=True, deadline_s=5.0, clock=clock)
    for worker in NAMES[:3]:
        served.push_gradients(worker, grads())

    clock.now += 4.9
    assert served.get_parameters(newer_than=0) is None
    clock.now += 0.2

    assert served.get_parameters(newer_than=0) is not None
    assert served.version == 1


@pytest.mark.parametrize("quorum", [None, 3])
def test_too_few_at_the_deadline_skip_the_round_and_the_next_one_goes_on(quorum):
    clock = Clock()
    served = server(*NAMES[:4], synchronous=True, quorum=quorum, deadline_s=5.0, clock=clock)
    for worker in NAMES[:2]:
        served.push_gradients(worker, grads())
    clock.now += 5.0

    assert served.version == 0
    assert counts(served) == {"ok": 2, "skipped_quorum": 1}
    for worker in NAMES[:4]:
        served.push_gradients(worker, grads())
    assert served.version == 1


def test_a_deadline_begins_with_the_first_push():
    clock = Clock()
    served = server("a", "b", synchronous=True, deadline_s=5.0, clock=clock)
    clock.now += 1_000.0

    served.push_gradients("a", grads())

    assert served.get_server_stats()["pending"] == 1
    assert "skipped_quorum" not in counts(served)


def test_who_leaves_or_is_quarantined_is_not_waited_for():
    served = server("a", "b", "c", synchronous=True, quarantine_after=1)
    served.push_gradients("a", grads())

    served.unregister_worker("b")
    assert served.version == 0
    served.push_gradients("c", grads(np.nan))

    assert served.version == 1


def test_one_who_waits_is_woken_by_the_version_and_never_for_longer_than_it_said():
    served, found = server("a"), []
    waiting = threading.Thread(target=lambda: found.append(served.get_parameters(0, wait_s=30.0)))
    waiting.start()

    served.push_gradients("a", grads())
    waiting.join(10.0)

    assert found[0].version == 1
    assert served.get_parameters(1, wait_s=0.01) is None


def test_one_who_waits_in_a_round_gets_what_the_deadline_brings():
    served = server("a", "b", "c", synchronous=True, deadline_s=0.02)
    served.push_gradients("a", grads())
    served.push_gradients("b", grads())

    assert served.get_parameters(0, wait_s=10.0) is not None


def test_the_time_of_day_does_not_matter(monkeypatch):
    def jumped() -> float:
        raise AssertionError("a clock that can be set was asked")

    monkeypatch.setattr(time, "time", jumped)
    monkeypatch.setattr(time, "time_ns", jumped)
    served = server("a", "b", "c", synchronous=True, deadline_s=0.005)
    served.push_gradients("a", grads())
    served.push_gradients("b", grads())

    assert eventually(lambda: served.version == 1, within_s=5.0)
    assert served.get_server_stats()["uptime_s"] >= 0


# Liars.


def quadratic(method: str, **settings: Any) -> float:
    """Descends on |x|^2 / 2 from 10 with five workers, of which one lies; returns |x|."""
    served = ParameterServer({"x": np.full(4, 10.0)}, method, lr=0.1, **settings)
    for worker in NAMES:
        served.register_worker(worker)
    rng = np.random.default_rng(0)
    for _ in range(100):
        version, arrays = now(served)
        for worker in NAMES:
            gradient = arrays["x"] + rng.normal(0, 0.01, 4).astype(np.float32)
            lie = -1000.0 if worker == "e" and abs(gradient).max() < 1e6 else 1.0
            served.push_gradients(worker, {"x": gradient * np.float32(lie)}, version=version)
    return float(np.linalg.norm(now(served).arrays["x"]))


@pytest.mark.parametrize("method", ["median", "trimmed_mean", "krum"])
@pytest.mark.parametrize("settings", [{"synchronous": True}, {"update_frequency": 5}])
def test_a_liar_does_not_keep_robust_servers_from_learning(method, settings):
    assert quadratic(method, **settings) < 0.1


def test_a_liar_breaks_an_average():
    assert quadratic("average", synchronous=True) > 1e3


def test_a_hasty_liar_has_one_vote():
    served = server(*NAMES[:3], aggregation_method="median", update_frequency=6)

    for worker in ("a", "a", "a", "a", "b", "c"):
        served.push_gradients(worker, grads(-1000.0 if worker == "a" else 1.0))

    assert moved(served) == 1.0


def test_a_hasty_liar_alone_is_not_applied_and_costs_others_none_of_their_pushes():
    served = server(*NAMES, aggregation_method="median", update_frequency=3)

    served.push_gradients("b", grads(1.0))
    codes = [served.push_gradients("a", grads(-1000.0)).code for _ in range(5)]
    assert codes == ["ok"] * 3 + ["round"] * 2
    assert served.version == 0
    served.push_gradients("c", grads(2.0))

    assert moved(served) == 1.0
    assert not any(code.startswith("skipped") for code in counts(served))


# The same as one learner.

SPEC = flat_spec(width=3, actions=2)


def batch(seed: int, size: int) -> Batch:
    rng = np.random.default_rng(seed)
    return Batch(
        obs=torch.from_numpy(rng.normal(size=(size, 3)).astype(np.float32)),
        action=torch.from_numpy(rng.integers(0, 2, size)),
        reward=torch.from_numpy(rng.normal(size=size).astype(np.float32)),
        discount=torch.full((size,), 0.9),
        next_obs=torch.from_numpy(rng.normal(size=(size, 3)).astype(np.float32)),
        weight=torch.ones(size),
        rows=np.arange(size),
    )


def part(whole: Batch, rows: slice) -> Batch:
    return Batch(*(None if value is None else value[rows] for value in whole))


def dqn() -> Dqn:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return Dqn(DqnConfig(target_period=4), NetConfig(hidden=(8,)), EnvConfig(), SPEC)


def trained(algorithm: Dqn) -> dict[str, Any]:
    (group,) = algorithm.groups().values()
    return {str(i): parameter for i, parameter in enumerate(group)}


def gradient(algorithm: Dqn, rows: Batch, step: int) -> dict[str, Array]:
    """Computes the gradient of the algorithm's loss, as a worker would."""
    parameters = trained(algorithm)
    (loss,) = algorithm.losses(rows, step=step, rng=torch.Generator())
    found = torch.autograd.grad(loss.value, list(parameters.values()))
    return {name: grad.numpy() for name, grad in zip(parameters, found, strict=True)}


def take(algorithm: Dqn, served: ParameterServer) -> None:
    with torch.no_grad():
        for name, parameter in trained(algorithm).items():
            parameter.copy_(torch.from_numpy(now(served).arrays[name].copy()))


def test_two_workers_with_half_a_batch_each_are_one_with_the_whole():
    alone, halves, start = dqn(), dqn(), trained(dqn())
    one = ParameterServer(start, update_frequency=1, optimizer="adam", lr=0.01)
    two = ParameterServer(start, synchronous=True, optimizer="adam", lr=0.01)
    one.register_worker("a")
    two.register_worker("a")
    two.register_worker("b")

    for step in range(1, 11):
        whole = batch(step, 16)
        one.push_gradients("a", gradient(alone, whole, step))
        two.push_gradients("a", gradient(halves, part(whole, slice(0, 8)), step))
        two.push_gradients("b", gradient(halves, part(whole, slice(8, 16)), step))
        take(alone, one)
        take(halves, two)

    assert one.version == two.version == 10
    for name, array in now(one).arrays.items():
        assert np.allclose(array, now(two).arrays[name], rtol=1e-4, atol=1e-6)
        assert not np.allclose(array, start[name].detach().numpy(), atol=1e-3)  # and it learned


@pytest.mark.parametrize(
    ("optimizer", "kwargs"),
    [("adam", {}), ("adamw", {}), ("rmsprop", {}), ("sgd", {"momentum": 0.9})],
)
def test_one_worker_is_the_plain_learner_bit_for_bit(optimizer, kwargs):
    plain, worker = dqn(), dqn()
    config = LearnerConfig(
        lr=0.01, optimizer=Optimizer(optimizer), optimizer_kwargs=kwargs, max_grad_norm=None
    )
    learner = Learner(plain, config, EnvConfig(), torch.device("cpu"))
    served = ParameterServer(
        trained(worker), update_frequency=1, optimizer=optimizer, lr=0.01, optimizer_kwargs=kwargs
    )
    served.register_worker("a")

    for step in range(1, 11):
        rows = batch(step, 16)
        learner.learn(_as_arrays(rows))
        served.push_gradients("a", gradient(worker, rows, step), version=step - 1)
        take(worker, served)
        worker.update_targets(step)

    for name, parameter in trained(plain).items():
        assert np.array_equal(parameter.detach().numpy(), now(served).arrays[name])


def _as_arrays(rows: Batch) -> Batch:
    return Batch(*(v.numpy() if isinstance(v, torch.Tensor) else v for v in rows))


# Optimizers.


@pytest.mark.parametrize("name", sorted(set(optimizers()) - {"muon"}))
def test_any_optimizer_of_torch_steps_and_goes_on_where_it_was(name, tmp_path):
    lr = 0.1
    served = server("a", optimizer=name, lr=lr)
    served.push_gradients("a", grads())
    file = served.save_checkpoint(tmp_path / "saved")
    served.push_gradients("a", grads(0.5))

    other = server(optimizer=name, lr=lr)
    assert other.load_checkpoint(file) == 1
    other.push_gradients("a", grads(0.5))

    for array, again in zip(now(served).arrays.values(), now(other).arrays.values(), strict=True):
        assert np.array_equal(array, again)
        assert not np.array_equal(array, START["w"])


def test_an_optimizer_of_ones_own_gets_the_parameters_in_their_shapes():
    shapes = []

    def made(parameters: list[torch.nn.Parameter], lr: float) -> torch.optim.Optimizer:
        shapes.extend(tuple(parameter.shape) for parameter in parameters)
        return torch.optim.SGD(parameters, lr=lr)

    served = server("a", optimizer=made)
    served.push_gradients("a", grads())

    assert shapes == [(2, 3), (4,)]
    assert moved(served) == 1.0


@pytest.mark.parametrize("optimizer", ["lbfgs", "adma", torch.optim.LBFGS])
def test_an_optimizer_that_cannot_step_from_a_gradient_is_refused(optimizer):
    with pytest.raises(ConfigError, match="adamw"):
        server(optimizer=optimizer)


# Settings.


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"aggregation_method": "mean"}, "must be one of average, sum"),
        ({"staleness": "forget"}, "must be one of drop, discount, keep"),
        ({"update_frequency": 0}, "update_frequency must be above 0"),
        ({"save_frequency": 0}, "save_frequency must be above 0"),
        ({"quorum": 0}, "quorum must be above 0"),
        ({"deadline_s": float("inf")}, "deadline_s must be finite and above 0"),
        ({"max_weight": 0.0}, "max_weight must be finite"),
        ({"max_norm": 0.0}, "max_norm must be finite"),
        ({"max_staleness": -1}, "max_staleness must be at least 0"),
        ({"trim": 0.5}, "trim must be"),
        ({"byzantine": -1}, "byzantine must be at least 0"),
        ({"aggregation_method": "median"}, "needs updates of 3 workers"),
        ({"aggregation_method": "krum", "update_frequency": 6, "byzantine": 2}, "raise it to 7"),
        (
            {"aggregation_method": "krum", "synchronous": True, "quorum": 2},
            r"quorum is 2 \(--quorum\)",
        ),
        ({"lr": -1.0}, "does not take"),
        ({"optimizer_kwargs": {"momentums": 1}}, "does not take"),
    ],
)
def test_settings_that_mean_nothing_are_refused(settings, said):
    with pytest.raises(ConfigError, match=said):
        server(**settings)


@pytest.mark.parametrize(
    ("start", "said"),
    [
        ({}, "at least one"),
        ({"n": np.zeros(3, np.int64)}, "'n' is int64"),
        ({"w": np.array([np.nan])}, "NaN or Inf"),
    ],
)
def test_parameters_that_are_none_are_refused(start, said):
    with pytest.raises(ConfigError, match=said):
        ParameterServer(start)


def test_arguments_of_a_wrong_type_are_refused():
    served = server("a")

    with pytest.raises(BeartypeCallHintViolation):
        served.push_gradients(3, grads())  # type: ignore[arg-type]
    with pytest.raises(BeartypeCallHintViolation):
        served.push_gradients("a", [1.0])  # type: ignore[arg-type]
    with pytest.raises(BeartypeCallHintViolation):
        ParameterServer(START, update_frequency="often")  # type: ignore[arg-type]
    with pytest.raises(BeartypeCallHintViolation):
        ParameterServer(START, quorum="all")  # type: ignore[arg-type]


def test_a_refusal_survives_being_sent():
    refusal = pickle.loads(pickle.dumps(RefusedError("no", "schema")))

    assert (str(refusal), refusal.code) == ("no", "schema")


# Threads.


def test_pushes_of_many_threads_all_count_once():
    served = server(*NAMES, update_frequency=3, staleness="keep", aggregation_method="sum")

    def work(worker: str) -> None:
        for i in range(60):
            for _ in range(2):  # each twice
                served.push_gradients(worker, grads(1.0), push_id=str(i))
            served.get_parameters(newer_than=i)

    threads = [threading.Thread(target=work, args=(worker,)) for worker in NAMES]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30.0)

    assert served.version == 100
    assert moved(served) == 300.0
    assert counts(served) == {"ok": 300, "duplicate": 300}


# Checkpoints in files.


def test_a_checkpoint_has_everything(tmp_path):
    served = server("a", "b", update_frequency=3, optimizer="adam", lr=0.1)
    for i in range(5):
        served.push_gradients("a", grads(i), 2.0, push_id=str(i))
    file = served.save_checkpoint(tmp_path / "saved")

    other = server(update_frequency=3, optimizer="adam", lr=0.1)
    assert other.load_checkpoint(str(file)) == 1

    assert file == tmp_path / "saved.safetensors"
    assert other.get_server_stats()["pending"] == 2
    assert other.get_server_stats()["workers"] == ["a", "b"]
    assert other.push_gradients("a", grads(), push_id="4").code == "duplicate"
    for each in (served, other):
        each.push_gradients("b", grads(7.0))
    assert np.array_equal(now(other).arrays["w"], now(served).arrays["w"])


def test_an_older_checkpoint_becomes_a_new_version(tmp_path):
    served = server("a")
    served.push_gradients("a", grads())
    file = served.save_checkpoint(tmp_path / "old")
    for _ in range(3):
        served.push_gradients("a", grads())

    assert served.load_checkpoint(file) == 5
    assert moved(served) == 1.0


def test_another_history_of_the_same_length_becomes_a_new_version(tmp_path):
    served, other = server("a"), server("a")
    served.push_gradients("a", grads())
    other.push_gradients("a", grads(2.0))
    file = other.save_checkpoint(tmp_path / "other")

    assert served.load_checkpoint(file) == 2
    assert served.get_parameters(newer_than=1) is not None
    assert moved(served) == 2.0
    assert other.load_checkpoint(file) == 1  # its own: nothing is new


def test_parameters_in_another_order_are_the_same_parameters(tmp_path):
    served = server("a", optimizer="adam", lr=0.1)
    served.push_gradients("a", grads(w=np.arange(6, dtype=np.float32).reshape(2, 3)))
    file = served.save_checkpoint(tmp_path / "saved")

    other = ParameterServer(
        dict(reversed(START.items())), update_frequency=1, optimizer="adam", lr=0.1
    )
    other.load_checkpoint(file)
    for each in (served, other):
        each.push_gradients("a", grads(w=np.ones((2, 3), np.float32)))

    assert np.array_equal(now(other).arrays["w"], now(served).arrays["w"])


def _spoil(file: Path) -> None:
    raw = bytearray(file.read_bytes())
    raw[-1] ^= 1
    file.write_bytes(raw)


def _cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


@pytest.mark.parametrize(
    ("damage", "said"),
    [(_spoil, "checksum"), (_cut, "cannot be read"), (Path.unlink, "cannot be read")],
)
def test_a_damaged_checkpoint_is_refused_and_changes_nothing(damage, said, tmp_path):
    served = server("a")
    served.push_gradients("a", grads())
    file = served.save_checkpoint(tmp_path / "saved")
    damage(file)

    with pytest.raises(CheckpointError, match=said):
        served.load_checkpoint(file)

    assert moved(served) == 1.0


@pytest.mark.parametrize(
    ("start", "optimizer", "said"),
    [
        ({"w": np.zeros((2, 3))}, "sgd", "'b' is unknown"),
        (START, "adam", "of optimizer SGD"),
    ],
)
def test_a_checkpoint_of_another_server_is_refused(start, optimizer, said, tmp_path):
    file = server("a").save_checkpoint(tmp_path / "saved")

    with pytest.raises(CheckpointError, match=said):
        ParameterServer(start, optimizer=optimizer).load_checkpoint(file)


def test_without_a_folder_one_must_name_the_file():
    for call in (server().save_checkpoint, server().load_checkpoint):
        with pytest.raises(ConfigError, match="no checkpoint_path"):
            call()


# Updates that would end training.


def test_one_enormous_gradient_does_not_end_training_with_adam():
    served = server("good", "eve", optimizer="adam", lr=0.01)
    served.push_gradients("good", grads())
    before = now(served)

    answer = served.push_gradients("eve", grads(1e25))

    assert answer == Receipt(False, "overflow", 1)
    assert now(served) is before
    for _ in range(10):
        served.push_gradients("good", grads())
    assert np.allclose(now(served).arrays["w"], -0.11, rtol=1e-3)  # as far as without eve
    assert served.get_server_stats()["strikes"] == {"eve": 1}


@pytest.mark.parametrize("name", sorted(set(optimizers()) - {"muon"}))
def test_whatever_is_pushed_parameters_and_optimizer_stay_finite_and_go_on(name):
    served = server("good", "eve", optimizer=name, lr=0.01, quarantine_after=1000)

    for exponent in range(0, 39, 2):
        for sign in (1.0, -1.0):
            served.push_gradients("eve", grads(sign * 10.0**exponent))
        served.push_gradients("good", grads())

    state = served._machine.stepper.state()
    assert all(np.isfinite(array).all() for array in state.values())
    assert all(np.isfinite(array).all() for array in now(served).arrays.values())


def test_several_that_would_overflow_in_a_row_end_in_quarantine():
    served = server("eve", optimizer="adam", quarantine_after=2)

    for _ in range(2):
        served.push_gradients("eve", grads(1e25))

    with pytest.raises(RefusedError, match="quarantine"):
        served.push_gradients("eve", grads())


def test_a_step_that_overflows_with_what_several_pushed_leaves_everything_as_it_was(tmp_path):
    settings = {"optimizer": "adam", "aggregation_method": "sum", "update_frequency": 30}

    def started() -> ParameterServer:
        return server("a", "b", checkpoint_path=tmp_path / "served", lr=0.1, **settings)

    served = started()
    for number in range(30):
        assert served.push_gradients("ab"[number % 2], grads(6e19)).accepted  # each by itself: yes
    before = now(served)
    assert (served.version, counts(served)["skipped_overflow"]) == (0, 1)
    served.close()

    again = started()
    assert counts(again)["skipped_overflow"] == 1
    assert np.array_equal(now(again).arrays["w"], before.arrays["w"])
    for number in range(30):
        again.push_gradients("ab"[number % 2], grads())
    assert np.allclose(now(again).arrays["w"], -0.1, rtol=1e-3)  # the first step of a new Adam


def test_an_update_above_the_largest_norm_is_refused_and_is_no_offence():
    served = server("a", max_norm=4.0, quarantine_after=1)

    assert served.push_gradients("a", grads(2.0)) == Receipt(False, "norm", 0)  # sqrt(10) x 2
    assert served.push_gradients("a", grads(1.0)).accepted

    assert counts(served) == {"norm": 1, "ok": 1}
    assert served.version == 1


def test_a_server_without_an_optimizer_adopts_one_and_averages_no_more_than_its_workers():
    made = ParameterServer(START)
    for worker in ("a", "b"):
        made.register_worker(worker)
    made.adopt_optimizer("adam", 0.5, {})
    made.adopt_optimizer("sgd", 9.0, {})  # the first one counts

    made.push_gradients("a", grads(1.0))
    assert made.version == 0
    made.push_gradients("b", grads(3.0))

    assert made.version == 1
    np.testing.assert_allclose(made.get_parameters().arrays["w"], -0.5, rtol=1e-5)


@pytest.mark.parametrize(
    ("given", "moved"), [({"optimizer": "sgd", "lr": 2.0}, -2.0), ({"lr": 0.25}, -0.25)]
)
def test_what_a_server_was_given_is_not_adopted(given, moved):
    made = ParameterServer(START, update_frequency=1, **given)
    made.register_worker("a")
    made.adopt_optimizer("adam", 0.5, {})
    made.push_gradients("a", grads())

    np.testing.assert_allclose(made.get_parameters().arrays["w"], moved, rtol=1e-5)


def test_an_adopted_optimizer_goes_on_after_a_restart(tmp_path):
    learned = []
    for restarts in (False, True):
        folder = tmp_path / str(restarts)
        made = ParameterServer(START, checkpoint_path=folder)
        made.register_worker("a")
        made.adopt_optimizer("adam", 0.5, {})
        made.push_gradients("a", grads(1.0))
        if restarts:
            made.close()
            made = ParameterServer(START, checkpoint_path=folder)
            made.adopt_optimizer("adam", 0.5, {})
        made.push_gradients("a", grads(2.0))
        learned.append(made.get_parameters().arrays["w"])
        assert made.version == 2
        made.close()

    np.testing.assert_array_equal(*learned)
