"""What an open round takes of the memory, and what of it a checkpoint has."""

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aggregated import aggregate
from rookery.server import store
from rookery.server.aggregate import Aggregation
from rookery.server.federated import FederatedParameterServer
from rookery.server.parameter_server import ParameterServer
from rookery.types import Array

SIZE = 200_003  # several blocks, and not a whole number of them
NAMES = [f"w{number}" for number in range(9)]
BYTES = 4 * SIZE


def server(**settings: Any) -> ParameterServer:
    made = ParameterServer(
        {"w": np.zeros(SIZE, np.float32)}, synchronous=True, lr=1.0, deadline_s=1e6, **settings
    )
    for name in NAMES:
        made.register_worker(name)
    return made


def update(number: int, kept: int, *, zero: float = 0.0) -> dict[str, Array]:
    rng = np.random.default_rng(number)
    found = np.full(SIZE, zero, np.float32)
    found[rng.choice(SIZE, kept, replace=False)] = rng.normal(size=kept)
    return {"w": found}


@pytest.mark.parametrize("kind", [ParameterServer, FederatedParameterServer])
def test_an_open_round_takes_one_sum_however_many_updates_it_has(kind):
    served = kind({"w": np.zeros(SIZE, np.float32)}, synchronous=True, deadline_s=1e6)
    for name in NAMES:
        served.register_worker(name)
    served.push_gradients("w0", update(0, SIZE))
    tracemalloc.start()
    try:
        for number, name in enumerate(NAMES[1:-1], 1):
            served.push_gradients(name, update(number, SIZE))
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert served.get_server_stats()["pending"] == 8
    assert served.get_server_stats()["pending_bytes"] == served.round_bytes == 2 * BYTES
    assert held < BYTES / 4


def test_a_hundred_pending_updates_of_a_model_of_20_mb_take_less_than_200_mb():
    size = 5_000_000
    pushed = {"w": np.ones(size, np.float32)}
    tracemalloc.start()
    try:
        served = ParameterServer({"w": np.zeros(size, np.float32)}, update_frequency=101)
        served.register_worker("a")
        for _ in range(100):
            served.push_gradients("a", pushed)
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert served.get_server_stats()["pending"] == 100
    assert held < 120e6  # twice the parameters, and the sum
    assert peak < 200e6


def test_closing_a_round_does_not_take_the_model_for_every_update():
    served = server()
    for number, name in enumerate(NAMES[:-1]):
        served.push_gradients(name, update(number, 100))
    last = update(8, 100)
    served.aggregate_gradients()  # what is allocated once, is
    tracemalloc.start()
    try:
        served.push_gradients(NAMES[-1], last)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert served.version == 1
    assert peak < 7 * BYTES  # of the push itself, the mean, the version; 9 updates would be more


@pytest.mark.parametrize("method", list(Aggregation))
@pytest.mark.parametrize("kept", [50, SIZE])
@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_the_aggregate_of_pushes_is_that_of_their_vectors_bit_for_bit(method, kept, zero):
    served = server(aggregation_method=method.value)
    pushed = [update(number, kept, zero=zero)["w"] for number in range(len(NAMES) - 1)]
    weights = np.arange(1.0, len(NAMES))
    for name, array, weight in zip(NAMES, pushed, weights, strict=False):
        served.push_gradients(name, {"w": array}, float(weight))

    expected = aggregate(method, np.stack(pushed), weights)
    found = served.aggregate_gradients()

    assert found is not None
    assert np.array_equal(found["w"].view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("saved", [True, False])
@pytest.mark.parametrize("method", ["average", "weighted", "median"])
def test_an_open_round_outlasts_the_server(method, saved, tmp_path: Path):
    def started() -> ParameterServer:
        return server(checkpoint_path=tmp_path / "served", aggregation_method=method)

    served = started()
    for number, name in enumerate(NAMES[:-1]):
        kept = 50 if number % 2 else SIZE
        change = update(number, kept, zero=-0.0)
        served.push_gradients(name, change, 1.0 + number, push_id=name)
    before = served.aggregate_gradients()
    if saved:
        served.save_checkpoint()
    served.close()

    again = started()
    after = again.aggregate_gradients()
    assert before is not None
    assert after is not None
    assert np.array_equal(before["w"].view(np.uint32), after["w"].view(np.uint32))
    assert again.get_server_stats()["pending"] == 8
    assert again.get_server_stats()["pending_bytes"] == (8 if method == "median" else 2) * BYTES
    again.close()


def test_a_checkpoint_of_an_earlier_release_has_every_pending_update_by_itself(tmp_path: Path):
    served, other = server(), server()
    for number, name in enumerate(NAMES[:3]):
        served.push_gradients(name, update(number, SIZE))
    found = store.read_checkpoint(served.save_checkpoint(tmp_path / "saved"))
    del found.arrays["pending.sum"]
    for number in range(3):
        found.arrays[f"pending.{number}"] = update(number, SIZE)["w"]
    store.write_checkpoint(tmp_path / "earlier.safetensors", found)

    other.load_checkpoint(tmp_path / "earlier.safetensors")

    assert other.get_server_stats()["pending"] == 3
    before, after = served.aggregate_gradients(), other.aggregate_gradients()
    assert before is not None
    assert after is not None
    assert np.array_equal(before["w"], after["w"])
