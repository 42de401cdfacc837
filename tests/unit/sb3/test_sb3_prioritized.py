"""Priorities for Stable-Baselines3: what is drawn, how it is weighted, and who is reranked."""

import pickle

import numpy as np
import pytest
import torch

from rookery import (
    PrioritizedDistributedReplayBuffer,
    create_distributed_registry,
)
from rookery.errors import ConfigError, EmptyReplayError, ProtocolError
from sb3_steps import POINT, PUSH, Story


@pytest.fixture
def registry(tmp_path):
    registry = create_distributed_registry(10_000, path=tmp_path / "pool")
    yield registry
    registry.stop()


def prioritized(n_envs=1, rows=20, **settings):
    settings = {"seed": 5, "gamma": 0.9} | settings
    return PrioritizedDistributedReplayBuffer(
        rows * n_envs, POINT, PUSH, "cpu", n_envs=n_envs, **settings
    )


def member(registry, run_id, **settings):
    buffer_id = registry.register_buffer(run_id=run_id, algorithm="SAC")
    return prioritized(registry=registry, buffer_id=buffer_id, **settings)


def ranked(buffer, td_error):
    """Gives each of the buffer's newest rows its TD error."""
    newest = buffer._written
    buffer.update_priorities(np.arange(newest - len(td_error), newest), np.array(td_error))
    return np.array(td_error)


@pytest.mark.parametrize("n_envs", [1, 2])
def test_rows_are_drawn_by_their_td_errors(n_envs):
    buffer = prioritized(n_envs, rows=4, alpha=0.5)
    Story(6, n_envs).tell(buffer)
    ranked(buffer, [1.0, 4.0, 9.0, 16.0] * n_envs)

    rows = np.concatenate([buffer.sample(50).rows for _ in range(100)])
    share = np.bincount(rows - 2 * n_envs, minlength=4 * n_envs) / rows.size
    expected = np.tile([0.1, 0.2, 0.3, 0.4], n_envs) / n_envs
    assert np.abs(share - expected).max() < 5 * np.sqrt(0.25 / rows.size)


def test_weights_undo_what_priorities_do():
    buffer = prioritized(rows=4, alpha=0.5, beta=0.7, beta_steps=10**9)
    Story(4).tell(buffer)
    error = ranked(buffer, [1.0, 4.0, 9.0, 16.0])

    batch = buffer.sample(200)
    expected = (error[0] / error[batch.rows]) ** (0.5 * 0.7)
    assert batch.weights.shape == (200, 1)
    assert batch.weights[:, 0].numpy() == pytest.approx(expected, rel=1e-4)


def test_beta_rises_to_one():
    buffer = prioritized(beta=0.4, beta_steps=4)
    Story(4).tell(buffer)

    seen = []
    for _ in range(6):
        seen.append(buffer.beta_now)
        buffer.sample(2)
    assert seen == pytest.approx([0.4, 0.55, 0.7, 0.85, 1.0, 1.0])


@pytest.mark.parametrize("n_steps", [1, 3])
@pytest.mark.parametrize("n_envs", [1, 3])
def test_samples_are_the_rows_they_name(n_envs, n_steps):
    story, buffer = Story(30, n_envs), prioritized(n_envs, n_steps=n_steps)
    story.tell(buffer)

    batch = buffer.sample(64)
    assert batch.rows.min() >= 10 * n_envs
    for i, row in enumerate(batch.rows):
        window = story.window(int(row), n_steps, 0.9)
        assert np.array_equal(batch.observations[i], story.obs(row))
        assert np.array_equal(batch.next_observations[i], story.next_obs(window.last))
        assert np.array_equal(batch.actions[i], story.action(row))
        assert batch.rewards[i].item() == pytest.approx(window.reward, abs=1e-5)
        assert batch.dones[i].item() == window.done
        assert n_steps == 1 or batch.discounts[i].item() == pytest.approx(window.discount)


def test_a_new_row_is_as_likely_as_the_likeliest():
    buffer = prioritized(alpha=1.0)
    Story(3).tell(buffer)
    ranked(buffer, [0.5, 7.0, 1.0])
    Story(1).tell(buffer)

    assert buffer._ranks.leaves[:4] == pytest.approx([0.5, 7.0, 1.0, 7.0], abs=1e-5)


def test_a_td_error_of_an_overwritten_row_is_skipped():
    buffer = prioritized(rows=4)
    Story(4).tell(buffer)
    batch = buffer.sample(8)
    Story(4).tell(buffer)
    before = buffer._ranks.leaves.copy()

    buffer.update_priorities(batch.rows, np.full(8, 100.0))
    assert np.array_equal(buffer._ranks.leaves, before)


def test_loans_get_the_mean_weight_and_are_never_reranked(registry):
    buffer, peer = member(registry, "own", cross_sample_ratio=0.25), member(registry, "peer")
    Story(20).tell(buffer)
    Story(20, first=1000).tell(peer)
    ranked(buffer, np.arange(1.0, 21.0))

    batch = buffer.sample(64)
    lent = batch.observations[:, 0] >= 1000
    assert lent.sum() == 16
    assert (batch.rows[lent.numpy()] == -1).all()
    assert batch.weights[lent].unique().item() == pytest.approx(batch.weights[~lent].mean().item())
    before = buffer._ranks.leaves.copy()
    buffer.update_priorities(batch.rows, np.full(64, 50.0))
    changed = np.flatnonzero(buffer._ranks.leaves != before)
    assert set(changed) == set(batch.rows[batch.rows >= 0])
    assert np.ptp(peer._ranks.leaves[:20]) == 0


def test_a_batch_of_loans_alone_weighs_one(registry):
    buffer, peer = member(registry, "own", cross_sample_ratio=1.0), member(registry, "peer")
    Story(20, first=1000).tell(peer)

    batch = buffer.sample(16)
    assert (batch.weights == 1).all()
    buffer.update_priorities(batch.rows, np.ones(16))


def test_a_reset_buffer_has_no_priorities():
    buffer = prioritized()
    Story(7).tell(buffer)
    buffer.reset()

    with pytest.raises(EmptyReplayError):
        buffer.sample(2)
    Story(2, first=500).tell(buffer)
    assert (buffer.sample(8).observations[:, 0] >= 500).all()


@pytest.mark.parametrize("pool", [False, True])
def test_a_loaded_buffer_draws_the_same_rows(registry, pool):
    settings = {"cross_sample_ratio": 0.0, "n_envs": 2}
    buffer = member(registry, "own", **settings) if pool else prioritized(n_envs=2)
    Story(25, 2).tell(buffer)
    ranked(buffer, np.arange(1.0, 31.0))

    loaded = pickle.loads(pickle.dumps(buffer))
    mine, theirs = buffer.sample(32), loaded.sample(32)
    assert np.array_equal(mine.rows, theirs.rows)
    assert torch.equal(mine.observations, theirs.observations)
    assert torch.equal(mine.weights, theirs.weights)


def test_a_diverged_td_error_is_an_error():
    buffer = prioritized()
    Story(4).tell(buffer)

    with pytest.raises(ProtocolError, match="finite"):
        buffer.update_priorities(buffer.sample(2).rows, np.array([1.0, np.nan]))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"alpha": 1.5}, r"alpha=1\.5"),
        ({"beta": -0.1}, r"beta=-0\.1"),
        ({"beta_steps": 0}, "beta_steps=0"),
        ({"optimize_memory_usage": True}, "excludes a row"),
    ],
)
def test_requests_that_make_no_sense_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        prioritized(**settings)


@pytest.mark.parametrize("given", [{"alpha": "0.6"}, {"beta": None}, {"beta_steps": "1"}])
def test_settings_of_priorities_of_another_type_are_refused_by_name(given):
    with pytest.raises(ConfigError, match=rf"{next(iter(given))}.*; give"):
        prioritized(**given)


def test_an_argument_of_hindsight_replay_is_refused_here_too():
    with pytest.raises(ConfigError, match=r"n_sampled_goal.*HerReplayBuffer"):
        prioritized(n_sampled_goal=4)
