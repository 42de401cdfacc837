"""The state of an SB3 model in a checkpoint: a restored model learns on as the saved one."""

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm

from rookery.checkpoints.saver import Saver
from rookery.errors import CheckpointError
from rookery.networks.named_arrays import arrays_of, fingerprint
from rookery.sb3 import models
from rookery.sb3.model_state import model_state, restore_model
from rookery.sb3.replay_rows import ReplayRows
from rookery.sb3.shared_buffer import stored_arrays
from sb3_runs import SMALL, small

ARRAYS_MAY_WAIT_S = 10.0


@contextmanager
def model_of(algorithm: str, seed: int = 3, **changes: Any) -> Iterator[BaseAlgorithm]:
    config = small(algorithm, **changes)
    envs = models.environments(config, None, config.sb3.envs)
    device, capacity = torch.device("cpu"), config.replay.capacity
    yield models.build(config, envs, capacity=capacity, device=device, seed=seed)
    envs.close()


def trained(model: BaseAlgorithm, steps: int) -> str:
    """Trains a model on new episodes; returns the fingerprint of its networks."""
    model._last_obs = None
    model.env.seed(7)
    model.learn(steps, log_interval=None, reset_num_timesteps=model.num_timesteps == 0)
    return fingerprint(arrays_of(model.policy))


@pytest.mark.parametrize("algorithm", SMALL)
def test_a_restored_model_learns_on_as_the_saved_one(algorithm, tmp_path):
    changes = {"replay.capacity": 200}  # the buffer wraps around
    with model_of(algorithm, **changes) as model, model_of(algorithm, seed=9, **changes) as other:
        trained(model, 330)
        numbers, arrays = model_state(model)
        saved = json.loads(json.dumps(numbers))
        if isinstance(model, OffPolicyAlgorithm):
            segments, state = written(model, tmp_path)
            restore_model(other, saved, arrays)
            ReplayRows(other).restore(state, segments)
            end(model)
        expected = trained(model, 130)

        restore_model(other, saved, arrays)
        assert trained(other, 130) == expected
        assert other.num_timesteps == model.num_timesteps
        assert other._n_updates == model._n_updates


def written(model: OffPolicyAlgorithm, folder: Path) -> Any:
    """Writes the rows of a model to segment files."""
    rows = ReplayRows(model)
    with closing(Saver(folder, keep=1)) as saver:
        for block in rows.blocks(0):
            saver.rows(block.first, block.columns)
        saver.flush(ARRAYS_MAY_WAIT_S)
        return list(saver._segments), json.loads(json.dumps(rows.state()))


def end(model: OffPolicyAlgorithm) -> None:
    """Ends the newest step by a time limit, as a resumed run does."""
    buffer = model.replay_buffer
    last = (buffer.pos - 1) % buffer.buffer_size
    buffer.timeouts[last] = buffer.dones[last] == 0
    buffer.dones[last] = 1


@pytest.mark.parametrize("steps", [0, 120, 200, 332])  # SB3's DQN collects 4 steps at once
def test_rows_are_restored_where_they_were(steps, tmp_path):
    changes = {"replay.capacity": 200, "sb3.envs": 2}
    with model_of("DQN", **changes) as model, model_of("DQN", **changes) as other:
        if steps:
            trained(model, 2 * steps)
            end(model)
        segments, state = written(model, tmp_path)
        other.num_timesteps = model.num_timesteps
        linked = ReplayRows(other).restore(state, segments)

        assert linked == segments
        assert state["committed"] == steps
        size = model.replay_buffer.size()
        assert (other.replay_buffer.size(), other.replay_buffer.pos) == (
            size,
            model.replay_buffer.pos,
        )
        copies = stored_arrays(other.replay_buffer)
        for name, array in stored_arrays(model.replay_buffer).items():
            assert np.array_equal(copies[name][:size], array[:size]), name


def test_only_new_rows_are_written_again():
    with model_of("DQN", **{"replay.capacity": 200}) as model:
        rows = ReplayRows(model)
        trained(model, 120)
        first = list(rows.blocks(0))
        trained(model, 120)
        second = list(rows.blocks(120))

        assert [block.first for block in first + second] == [0, 120]
        assert [len(block.columns["reward"]) for block in first + second] == [120, 120]
        assert (rows.oldest, rows.committed) == (40, 240)


def test_a_step_that_was_not_stored_leaves_rows_and_files_in_place():
    """An interrupt comes after a step of the environment and before it is stored."""
    with model_of("DQN", **{"replay.capacity": 200}) as model:
        rows = ReplayRows(model)
        trained(model, 120)
        model.num_timesteps += 1
        assert rows.committed == 120
        trained(model, 12)
        assert rows.committed == 132


def test_rows_before_a_damaged_file_are_left_out(tmp_path):
    with model_of("DQN", **{"replay.capacity": 200}) as model, model_of("DQN") as other:
        rows = ReplayRows(model)
        with closing(Saver(tmp_path, keep=1)) as saver:
            for upto in (52, 88, 120):
                saved = rows.committed
                trained(model, upto - saved)
                for block in rows.blocks(saved):
                    saver.rows(block.first, block.columns)
            saver.flush(ARRAYS_MAY_WAIT_S)
            segments = list(saver._segments)
        segments[1] = replace(segments[1], intact=False)
        other.num_timesteps = 120
        restored = ReplayRows(other)

        assert restored.restore(rows.state(), segments) == []
        assert (restored.committed, other.replay_buffer.size()) == (32, 32)
        newest = model.replay_buffer.observations[88:120]
        assert np.array_equal(other.replay_buffer.observations[:32], newest)


def test_returns_of_several_steps_do_not_cross_the_point_of_a_resumption(tmp_path):
    with model_of("DQN") as model, model_of("DQN") as other:
        trained(model, 40)
        model.replay_buffer.dones[39] = 0
        model.replay_buffer.timeouts[39] = 0
        segments, state = written(model, tmp_path)
        other.num_timesteps = 40
        rows = ReplayRows(other)
        rows.restore(state, segments)

        assert (other.replay_buffer.dones[39, 0], other.replay_buffer.timeouts[39, 0]) == (1, 1)
        assert rows.state()["breaks"] == [39]


def test_a_model_of_other_networks_is_refused():
    changed = {"sb3.kwargs": {"policy_kwargs": {"net_arch": [16]}}}
    with model_of("DQN") as model, model_of("DQN", **changed) as other:
        numbers, arrays = model_state(model)
        with pytest.raises(CheckpointError, match="weights are of another network"):
            restore_model(other, numbers, arrays)
