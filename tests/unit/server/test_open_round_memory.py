"""What an open round takes of the memory: sparse updates stay sparse, and nothing else changes."""

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rookery.server import aggregate, server_state
from rookery.server.aggregate import ROBUST, RULES, Aggregation
from rookery.server.federated import FederatedParameterServer
from rookery.server.parameter_server import ParameterServer
from rookery.types import Array, Floats

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


def shown(served: ParameterServer) -> Floats:
    found = served.get_parameters()
    assert found is not None
    return found.arrays["w"]


@pytest.mark.parametrize("kind", [ParameterServer, FederatedParameterServer])
def test_an_open_round_of_sparse_updates_takes_what_was_sent_and_not_the_model_each_time(kind):
    served = kind({"w": np.zeros(SIZE, np.float32)}, synchronous=True, deadline_s=1e6)
    for name in NAMES:
        served.register_worker(name)
    served.push_gradients("w0", update(0, 100))
    tracemalloc.start()
    try:
        for number, name in enumerate(NAMES[1:-1], 1):
            served.push_gradients(name, update(number, 100))
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert served.get_server_stats()["pending"] == 8
    assert served.get_server_stats()["pending_bytes"] == 8 * 100 * 12
    assert held < BYTES / 4


def test_closing_a_round_does_not_take_the_model_for_every_update(monkeypatch):
    monkeypatch.setattr(server_state, "BLOCK", 1 << 12)
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


@pytest.mark.parametrize("method", list(RULES))
@pytest.mark.parametrize("kept", [50, SIZE])
@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_the_aggregate_is_that_of_whole_vectors_bit_for_bit(method, kept, zero):
    served = server(aggregation_method=method.value)
    pushed = [update(number, kept, zero=zero)["w"] for number in range(len(NAMES) - 1)]
    weights = np.arange(1.0, len(NAMES))
    for name, array, weight in zip(NAMES, pushed, weights, strict=False):
        served.push_gradients(name, {"w": array}, float(weight))

    if method in ROBUST:  # each worker has one vote, the mean of what it pushed
        pushed = [aggregate.aggregate(Aggregation.AVERAGE, p[None], np.ones(1)) for p in pushed]
    expected = aggregate.aggregate(method, np.stack(pushed), weights)
    found = served.aggregate_gradients()

    assert found is not None
    assert np.array_equal(found["w"].view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("saved", [True, False])
def test_a_sparse_update_outlasts_the_server(saved, tmp_path: Path):
    def started() -> ParameterServer:
        return server(checkpoint_path=tmp_path / "served")

    served = started()
    for number, name in enumerate(NAMES[:-1]):
        kept = 50 if number % 2 else SIZE
        served.push_gradients(name, update(number, kept, zero=-0.0), push_id=name)
    before = served.aggregate_gradients()
    if saved:
        served.save_checkpoint()
    served.close()

    again = started()
    after = again.aggregate_gradients()
    assert before is not None
    assert after is not None
    assert np.array_equal(before["w"].view(np.uint32), after["w"].view(np.uint32))
    assert again.get_server_stats()["pending_bytes"] == 4 * BYTES + 4 * 50 * 12


def test_a_small_model_and_an_update_without_zeros_are_kept_as_they_came():
    small = ParameterServer({"w": np.zeros(100, np.float32)}, update_frequency=9)
    small.register_worker("a")
    small.push_gradients("a", {"w": np.zeros(100, np.float32)})
    full = server()
    full.push_gradients("w0", update(0, SIZE))

    assert small.get_server_stats()["pending_bytes"] == 400
    assert full.get_server_stats()["pending_bytes"] == BYTES
