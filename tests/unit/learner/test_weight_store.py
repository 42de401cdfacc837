"""The weight store: readers get what was published, complete, and never an older version."""

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from rookery.errors import ClosedError, ConfigError, ProtocolError
from rookery.learner.weight_store import SLOTS, TRIES, WeightStore
from rookery.replay import shared_arrays as module
from rookery.types import Array

DTYPES = ["float16", "float32", "float64", "int8", "uint8", "int32", "int64", "bool"]
SHAPES = [(), (1,), (7,), (3, 5), (2, 0, 3), (2, 3, 4, 5)]


def weights(value: float) -> dict[str, Array]:
    return {"w": np.full((3, 2), value, dtype=np.float32), "b": np.float32([value])}


@pytest.fixture
def weight_store() -> Iterator[WeightStore]:
    with closing(WeightStore(weights(0))) as weight_store:
        yield weight_store


@pytest.fixture
def twin(weight_store: WeightStore) -> Iterator[WeightStore]:
    """The same weight store, as another process would map it."""
    with closing(WeightStore(weights(0), fd=os.dup(weight_store.fd))) as twin:
        yield twin


def test_before_the_first_version_there_is_none(weight_store: WeightStore) -> None:
    assert weight_store.version == 0
    assert weight_store.latest(0) is None
    assert weight_store.misses == 0


def test_versions_count_from_one(weight_store: WeightStore) -> None:
    assert [weight_store.publish(weights(k)) for k in range(6)] == [1, 2, 3, 4, 5, 6]
    assert weight_store.version == 6


def test_the_newest_version_arrives_once(weight_store: WeightStore, twin: WeightStore) -> None:
    for k in range(1, 11):
        weight_store.publish(weights(k))

        found = twin.latest(k - 1)

        assert found is not None
        assert found.version == k
        assert found.arrays["w"].tolist() == [[k, k]] * 3
        assert twin.latest(k) is None


def test_a_reader_that_slept_gets_the_newest_version_alone(
    weight_store: WeightStore, twin: WeightStore
) -> None:
    for k in range(1, 11):
        weight_store.publish(weights(k))

    found = twin.latest(2)

    assert found is not None
    assert (found.version, found.arrays["b"].tolist()) == (10, [10.0])


def test_all_dtypes_and_shapes_come_back_as_they_were() -> None:
    rng = np.random.default_rng(0)
    arrays = {
        f"{dtype}{shape}": np.asarray(rng.normal(size=shape) * 50).astype(dtype)
        for dtype in DTYPES
        for shape in SHAPES
    }
    with closing(WeightStore(arrays)) as weight_store:
        weight_store.publish(arrays)

        found = weight_store.latest(0)

        assert found is not None
        assert found.arrays.keys() == arrays.keys()
        for name, array in arrays.items():
            copy = found.arrays[name]
            assert (copy.shape, copy.dtype) == (array.shape, array.dtype)
            assert copy.tobytes() == array.tobytes()


def test_a_copy_is_the_readers_own(weight_store: WeightStore) -> None:
    weight_store.publish(weights(1))
    found = weight_store.latest(0)

    for k in range(SLOTS + 1):
        weight_store.publish(weights(k))

    assert found is not None
    assert found.arrays["w"].tolist() == [[1, 1]] * 3


def test_after_a_resume_versions_go_on_from_the_given_one(
    weight_store: WeightStore, twin: WeightStore
) -> None:
    weight_store.publish(weights(1))

    assert weight_store.publish(weights(41), version=41) == 41
    assert weight_store.publish(weights(42)) == 42
    found = twin.latest(1)
    assert found is not None
    assert (found.version, found.arrays["b"].tolist()) == (42, [42.0])


@pytest.mark.parametrize("version", [4, 0, -1])
def test_a_version_never_goes_back(weight_store: WeightStore, version: int) -> None:
    weight_store.publish(weights(5), version=5)

    with pytest.raises(ProtocolError, match=f"versions only grow: 5 is published, got {version}"):
        weight_store.publish(weights(0), version=version)

    found = weight_store.latest(0)
    assert found is not None
    assert found.arrays["b"].tolist() == [5.0]


class Overtaken(WeightStore):
    """A weight store whose publisher laps the reader between its two checks, `laps` times."""

    laps = 0

    @property
    def version(self) -> int:
        seen = super().version
        if self.laps > 0:
            self.laps -= 1
            for k in range(SLOTS):
                WeightStore.publish(self.publisher, weights(seen + k + 1))
        return seen


@pytest.mark.parametrize(
    ("laps", "misses", "version"),
    [(0, 0, 1), (1, 1, 5), (2, 2, 9), (TRIES, TRIES, None), (TRIES + 5, TRIES, None)],
)
def test_a_copy_that_was_overtaken_is_made_anew_three_times_at_most(
    weight_store: WeightStore, laps: int, misses: int, version: int | None
) -> None:
    weight_store.publish(weights(1))
    with closing(Overtaken(weights(0), fd=os.dup(weight_store.fd))) as reader:
        reader.publisher, reader.laps = weight_store, laps

        found = reader.latest(0)

        assert reader.misses == misses
        assert (found and found.version) == version
        if found is not None:
            assert found.arrays["w"].tolist() == [[version] * 2] * 3


def test_a_publisher_that_died_in_mid_version_leaves_the_one_before(
    weight_store: WeightStore, twin: WeightStore
) -> None:
    weight_store.publish(weights(1))

    with pytest.raises(KeyError):
        weight_store.publish({"w": np.zeros((3, 2))})  # "b" is missing

    found = twin.latest(0)
    assert found is not None
    assert (found.version, found.arrays["w"].tolist()) == (1, [[1, 1]] * 3)
    assert twin.publish(weights(2)) == 2  # and the next one goes on


def test_a_half_written_slot_is_a_miss(weight_store: WeightStore, twin: WeightStore) -> None:
    for k in range(1, SLOTS + 1):
        weight_store.publish(weights(k))
    with pytest.raises(KeyError):
        weight_store.publish({"w": np.zeros((3, 2))}, version=SLOTS * 2)  # into version 4's slot

    assert twin.latest(0) is None
    assert twin.misses == TRIES


def test_a_weight_store_has_no_name(weight_store: WeightStore) -> None:
    assert os.fstat(weight_store.fd).st_nlink == 0


def test_closing_twice_is_refused() -> None:
    weight_store = WeightStore(weights(0))
    weight_store.close()

    with pytest.raises(ClosedError, match="closed before"):
        weight_store.close()


def test_no_space_is_an_error_and_no_descriptor_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened = []

    def full(fd: int, size: int, directory: Path, *, what: str) -> None:
        opened.append(fd)
        raise ConfigError(f"{what} does not fit into {directory}")

    monkeypatch.setattr(module, "allocate", full)

    with pytest.raises(ConfigError, match="a weight store does not fit"):
        WeightStore(weights(0))

    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(opened[0])
