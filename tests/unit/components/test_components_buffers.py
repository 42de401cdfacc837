"""Replay buffers of the components: what is kept, how it is drawn, how it is saved."""

import json
from typing import Any

import numpy as np
import pytest
from beartype.roar import BeartypeCallHintViolation

from rookery.components.replay_buffers import (
    PrioritizedReplayBuffer,
    ReplayBuffer,
    ReplayBufferPool,
)
from rookery.errors import CheckpointError, ConfigError, EmptyReplayError

KEYS = ("obs", "reward")


def step(number: int) -> dict[str, Any]:
    return {"obs": np.full(2, number, dtype=np.float32), "reward": float(number)}


def steps(count: int, first: int = 0) -> list[dict[str, Any]]:
    return [step(first + i) for i in range(count)]


def rewards(pool: ReplayBufferPool) -> list[float]:
    return sorted(r for b in pool.buffers for r in b.contents()[0].get("reward", []))


def test_a_buffer_keeps_the_newest_of_what_it_was_given():
    buffer = ReplayBuffer(5, KEYS)
    buffer.add(step(0))
    buffer.add_batch(steps(11, first=1))

    assert (buffer.size(), len(buffer), buffer.is_full()) == (5, 5, True)
    assert buffer.contents()[0]["reward"].tolist() == [7, 8, 9, 10, 11]


def test_arrays_and_dictionaries_are_the_same_batch():
    one, other = ReplayBuffer(9, KEYS), ReplayBuffer(9, KEYS)
    one.add_batch(steps(4))
    other.add_batch({k: np.stack([s[k] for s in steps(4)]) for k in KEYS})

    for key in KEYS:
        np.testing.assert_array_equal(one.contents()[0][key], other.contents()[0][key])


def test_every_experience_is_drawn_equally_often():
    """A share of 1/8 of 16,000 draws: six deviations are 0.016, which fails once in 10**8."""
    buffer = ReplayBuffer(8, KEYS)
    buffer.add_batch(steps(8))

    batch = buffer.sample(16_000)

    assert batch["obs"].shape == (16_000, 2)
    assert np.bincount(batch["reward"].astype(int)) / 16_000 == pytest.approx(0.125, abs=0.016)


def test_experiences_are_drawn_by_their_priorities_and_weighed_accordingly():
    buffer = PrioritizedReplayBuffer(4, KEYS, alpha=1.0, beta=1.0)
    for number in range(4):
        buffer.add(step(number), priority=number + 1.0)

    batch, weights, indices = buffer.sample(20_000)

    shares = np.bincount(batch["reward"].astype(int)) / 20_000
    assert shares == pytest.approx(np.array([1, 2, 3, 4]) / 10, abs=0.01)  # one of each stratum
    np.testing.assert_allclose(weights, 1 / (batch["reward"] + 1), rtol=1e-5)
    assert indices.min() == 0
    assert indices.max() == 3


def test_new_priorities_count_and_those_of_what_is_gone_do_not():
    buffer = PrioritizedReplayBuffer(2, KEYS, alpha=1.0)
    buffer.add_batch(steps(2))
    _, _, before = buffer.sample(2)
    buffer.add_batch(steps(2, first=2))

    buffer.update_priorities(before, np.full(2, 1e6))  # overwritten
    buffer.update_priorities([2, 3], [0.0, 1.0])

    assert set(buffer.sample(100)[0]["reward"].tolist()) == {3.0}


def test_beta_rises_to_one():
    buffer = PrioritizedReplayBuffer(2, KEYS, beta=0.9, beta_increment=0.06)
    buffer.add(step(0))
    buffer.sample(1)
    assert buffer.beta == pytest.approx(0.96)
    buffer.sample(1)
    assert buffer.beta == 1.0


def test_a_cleared_buffer_is_empty_and_forgets_old_indices():
    buffer = PrioritizedReplayBuffer(4, KEYS)
    buffer.add_batch(steps(4))
    _, _, old = buffer.sample(4)
    buffer.clear()

    assert buffer.size() == 0
    with pytest.raises(EmptyReplayError, match="empty"):
        buffer.sample(1)

    buffer.add_batch(steps(4, first=10))
    buffer.update_priorities(old[:1], np.full(1, 1e9))
    assert len(set(buffer.sample(200)[0]["reward"].tolist())) == 4


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"obs": np.zeros(2)}, "add reward"),
        ({"obs": np.zeros(3), "reward": 0.0}, r"shape \(2,\), got \(3,\)"),
        ({"obs": np.array(["a", "b"]), "reward": 0.0}, "hold numbers"),
    ],
)
def test_an_experience_that_does_not_fit_is_refused_and_changes_nothing(wrong, says):
    buffer = ReplayBuffer(4, KEYS)
    buffer.add(step(1))

    with pytest.raises(ConfigError, match=says):
        buffer.add(wrong)

    assert buffer.contents()[0]["reward"].tolist() == [1.0]


@pytest.mark.parametrize(
    "make",
    [
        lambda: ReplayBuffer(0),
        lambda: ReplayBuffer(4, ()),
        lambda: ReplayBuffer(4, ("rows",)),
        lambda: PrioritizedReplayBuffer(4, alpha=1.5),
        lambda: ReplayBufferPool(0),
        lambda: PrioritizedReplayBuffer(4, KEYS).add(step(0), priority=float("nan")),
        lambda: ReplayBufferPool(2).sample_batch(1, buffer_id=2),
        lambda: ReplayBufferPool(2).save_buffers(),
    ],
)
def test_what_cannot_work_is_refused(make):
    with pytest.raises(ConfigError, match="got"):
        make()


def test_arguments_of_a_wrong_type_are_refused():
    with pytest.raises(BeartypeCallHintViolation):
        ReplayBuffer("many")
    with pytest.raises(BeartypeCallHintViolation):
        ReplayBufferPool().add_experiences(3)


def test_a_pool_shares_experiences_out_evenly_over_several_calls():
    pool = ReplayBufferPool(3, 10, KEYS)
    for count in (1, 4, 2):
        pool.add_experiences(steps(count))

    stats = pool.get_buffer_stats()
    assert (stats["sizes"], stats["total"], stats["added"]) == ([3, 2, 2], 7, 7)
    assert pool.get_total_experiences() == 7
    assert stats["capacity"] == 30


@pytest.mark.parametrize("prioritized", [False, True])
def test_a_pool_draws_as_if_it_were_one_buffer(prioritized):
    pool = ReplayBufferPool(2, 10, KEYS, use_prioritized=prioritized)
    pool.add_experiences(steps(1), buffer_id=0)
    pool.add_experiences(steps(3, first=1), buffer_id=1)

    batch = pool.sample_batch(8_000)

    assert np.bincount(batch["reward"].astype(int)) / 8_000 == pytest.approx(0.25, abs=0.03)
    assert ("weight" in batch) is prioritized
    assert len(set(batch["rows"].tolist())) == 4
    assert set(pool.sample_batch(50, buffer_id=0)["reward"].tolist()) == {0.0}


def test_a_pools_priorities_follow_its_rows():
    pool = ReplayBufferPool(2, 10, KEYS, use_prioritized=True)
    pool.add_experiences(steps(6))
    batch = pool.sample_batch(200)

    pool.update_priorities(batch["rows"], np.where(batch["reward"] == 5, 10.0, 0.0))

    drawn = pool.sample_batch(500)
    assert np.mean(drawn["reward"] == 5) > 0.99
    rare = drawn["weight"][drawn["reward"] == 5].max()
    assert rare <= drawn["weight"].max() == 1.0


def test_balanced_buffers_have_the_same_sizes_and_nothing_is_lost():
    pool = ReplayBufferPool(3, 10, KEYS, use_prioritized=True)
    pool.add_experiences(steps(7), buffer_id=1)
    pool.update_priorities(pool.sample_batch(100)["rows"], np.full(100, 0.5))
    before = rewards(pool)

    pool.balance_buffers()

    assert sorted(pool.get_buffer_stats()["sizes"]) == [2, 2, 3]
    assert rewards(pool) == before
    for buffer in pool.buffers:
        np.testing.assert_allclose(buffer.contents()[1], 0.5, atol=1e-5)


def test_clearing_a_pool_empties_every_buffer():
    pool = ReplayBufferPool(2, 10, KEYS)
    pool.add_experiences(steps(5))
    pool.clear_all_buffers()

    assert pool.get_total_experiences() == 0
    with pytest.raises(EmptyReplayError, match="all buffers are empty"):
        pool.sample_batch(1)


def test_saved_buffers_come_back_with_their_priorities(tmp_path):
    pool = ReplayBufferPool(2, 10, KEYS, use_prioritized=True, save_path=tmp_path)
    pool.add_experiences(steps(5))
    batch = pool.sample_batch(50)
    pool.update_priorities(batch["rows"], batch["reward"])
    pool.save_buffers()
    pool.save_buffers()

    other = ReplayBufferPool(2, 10, KEYS, use_prioritized=True, save_path=tmp_path)
    assert other.load_buffers() == 5
    assert len(list(tmp_path.iterdir())) == 1  # the older save is gone
    for one, same in zip(pool.buffers, other.buffers, strict=True):
        np.testing.assert_array_equal(one.contents()[0]["obs"], same.contents()[0]["obs"])
        np.testing.assert_allclose(one.contents()[1], same.contents()[1], atol=1e-9)


def test_another_number_of_buffers_shares_what_was_saved_out_anew(tmp_path):
    pool = ReplayBufferPool(2, 10, KEYS)
    pool.add_experiences(steps(9))
    pool.save_buffers(tmp_path)

    other = ReplayBufferPool(3, 10, KEYS)
    assert other.load_buffers(tmp_path) == 9
    assert rewards(other) == rewards(pool)


def test_damaged_or_foreign_saves_are_refused(tmp_path):
    pool = ReplayBufferPool(2, 10, KEYS)
    pool.add_experiences(steps(9))
    folder = pool.save_buffers(tmp_path)

    with pytest.raises(CheckpointError, match="experience_keys"):
        ReplayBufferPool(2, 10, ("obs",)).load_buffers(tmp_path)

    state = json.loads((folder / "state.json").read_text())
    (folder / "state.json").write_text(json.dumps({**state, "added": 5}))
    with pytest.raises(CheckpointError, match="does not match"):
        pool.load_buffers(tmp_path)
