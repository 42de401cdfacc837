"""SB3's algorithms with our buffers: the same training without a pool, shared training with one."""

import copy
import subprocess
import sys
import warnings
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch
from stable_baselines3 import DDPG, DQN, SAC, TD3
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

from rookery import (
    DistributedReplayBuffer,
    PrioritizedDistributedReplayBuffer,
    PrioritizedDQN,
    PrioritizedSAC,
    PrioritizedTD3,
    create_distributed_registry,
)
from rookery.errors import ConfigError
from sb3_steps import POINT, PUSH, Story

SMALL = {"batch_size": 32, "device": "cpu", "seed": 7, "buffer_size": 90, "learning_starts": 50}
DDPG_IS = {"policy_delay": 1, "target_policy_noise": 0.0, "target_noise_clip": 0.0}


@pytest.fixture(autouse=True)
def one_thread():
    """Small networks are slower on several threads, the more so beside other tests."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def registry(tmp_path):
    registry = create_distributed_registry(10_000, path=tmp_path / "pool")
    yield registry
    if registry.available:
        registry.stop()


def task(algorithm):
    return "CartPole-v1" if issubclass(algorithm, DQN) else "Pendulum-v1"


def trained(algorithm, steps=120, n_envs=1, normalised=False, **settings):
    short = {"max_episode_steps": 25}  # episodes end by time, as often as the buffer goes round
    env = make_vec_env(task(algorithm), n_envs=n_envs, seed=7, env_kwargs=short)
    env = VecNormalize(env) if normalised else env
    settings = SMALL | {"policy_kwargs": {"net_arch": [16]}} | settings
    return algorithm("MlpPolicy", env, **settings).learn(steps)


def weights(model):
    return torch.cat([value.flatten().float() for value in model.policy.state_dict().values()])


# --- without a pool: the same computation


@pytest.mark.parametrize(
    "how", [{}, {"n_envs": 3}, {"normalised": True}, {"gradient_steps": 2, "train_freq": 3}]
)
@pytest.mark.parametrize("algorithm", [DQN, SAC, TD3, DDPG])
def test_training_without_a_pool_is_sb3s_bit_for_bit(algorithm, how):
    mine = trained(algorithm, replay_buffer_class=DistributedReplayBuffer, **how)

    assert torch.equal(weights(mine), weights(trained(algorithm, **how)))


@pytest.mark.parametrize("algorithm", [DQN, SAC, TD3])
def test_n_step_training_without_a_pool_is_sb3s_bit_for_bit(algorithm):
    mine = trained(
        algorithm,
        replay_buffer_class=DistributedReplayBuffer,
        replay_buffer_kwargs={"n_steps": 3, "gamma": 0.99},
    )

    assert torch.equal(weights(mine), weights(trained(algorithm, n_steps=3)))


@pytest.mark.parametrize("how", [{"cross_sample_ratio": 0.0}, {"sample_strategy": "local_only"}])
def test_lending_does_not_change_training(registry, how):
    peer = registry.register_buffer(run_id="peer", algorithm="SAC")
    trained(
        SAC,
        replay_buffer_class=DistributedReplayBuffer,
        replay_buffer_kwargs={"registry": registry, "buffer_id": peer},
    )
    own = registry.register_buffer(run_id="own", algorithm="SAC")
    mine = trained(
        SAC,
        replay_buffer_class=DistributedReplayBuffer,
        replay_buffer_kwargs={"registry": registry, "buffer_id": own, **how},
    )

    assert torch.equal(weights(mine), weights(trained(SAC)))


# --- with one


def test_the_snippet_of_the_documentation_runs():
    env = gym.make("Pendulum-v1")
    # 1. Create shared registry (usually in main process)
    registry = create_distributed_registry(max_buffer_size=1000000)

    # 2. Register this run's buffer
    buffer_id = registry.register_buffer(run_id="my_run_1", algorithm="SAC")

    # 3. Create distributed replay buffer
    replay_buffer = DistributedReplayBuffer(
        buffer_size=1000000,
        observation_space=env.observation_space,
        action_space=env.action_space,
        device="cpu",
        registry=registry,
        buffer_id=buffer_id,
        sample_strategy="self_heavy",
        cross_sample_ratio=0.2,
    )

    # 4. Use with SB3 model
    model = SAC(
        "MlpPolicy",
        env,
        replay_buffer_class=DistributedReplayBuffer,
        replay_buffer_kwargs={
            "registry": registry,
            "buffer_id": buffer_id,
            "sample_strategy": "self_heavy",
            "cross_sample_ratio": 0.2,
        },
    )

    # 5. Train normally - sampling happens automatically
    model.learn(total_timesteps=120)

    stats = replay_buffer.get_stats()
    assert f"{stats['distributed_ratio']:.2%}" == "0.00%"
    assert (stats["local_samples"], stats["local_size"]) == (20 * 256, 120)
    assert stats == model.replay_buffer.get_stats()
    # 6. Cleanup when done
    registry.deregister_buffer(buffer_id)
    registry.stop()
    assert not registry.path.exists()


@pytest.mark.parametrize("algorithm", [DQN, SAC, TD3, DDPG])
def test_runs_of_sb3_learn_from_each_other(registry, algorithm):
    models = []
    for name in ("first", "second"):
        buffer_id = registry.register_buffer(run_id=name, algorithm=algorithm.__name__)
        settings = {"registry": registry, "buffer_id": buffer_id, "cross_sample_ratio": 0.25}
        models.append(
            trained(
                algorithm,
                replay_buffer_class=DistributedReplayBuffer,
                replay_buffer_kwargs=settings,
            )
        )

    first, second = (model.replay_buffer.get_stats() for model in models)
    assert (first["distributed_samples"], first["num_shared_buffers"]) == (0, 0)
    assert second["distributed_ratio"] == 0.25
    assert second["by_peer"] == {models[0].replay_buffer.buffer_id: second["distributed_samples"]}
    assert not torch.equal(weights(models[0]), weights(models[1]))


def test_a_model_is_saved_and_loaded_with_its_pool(registry, tmp_path):
    buffer_id = registry.register_buffer(run_id="a", algorithm="SAC")
    model = trained(
        SAC,
        replay_buffer_class=DistributedReplayBuffer,
        replay_buffer_kwargs={"registry": registry, "buffer_id": buffer_id},
    )
    model.save(tmp_path / "model")
    model.save_replay_buffer(tmp_path / "rows")
    model.replay_buffer.close()

    loaded = SAC.load(tmp_path / "model", env=model.get_env(), device="cpu")
    loaded.load_replay_buffer(tmp_path / "rows")
    assert np.array_equal(loaded.replay_buffer.rewards, model.replay_buffer.rewards)
    loaded.learn(20, reset_num_timesteps=False)
    ring = registry.open_ring(buffer_id)
    assert ring.committed % ring.capacity == loaded.replay_buffer.pos
    ring.close()


def test_a_loaded_model_and_a_copied_buffer_do_not_keep_a_stopped_pool(registry, tmp_path):
    buffer_id = registry.register_buffer(run_id="a", algorithm="DQN")
    kwargs = {"registry": registry, "buffer_id": buffer_id}
    model = trained(DQN, replay_buffer_class=DistributedReplayBuffer, replay_buffer_kwargs=kwargs)
    model.save(tmp_path / "model")
    loaded = DQN.load(tmp_path / "model", env=model.env, device="cpu")
    copied = copy.deepcopy(model.replay_buffer)

    registry.deregister_buffer(buffer_id)
    registry.stop()

    assert not registry.path.exists()
    assert copied.size() == model.replay_buffer.size()
    with pytest.warns(UserWarning, match="stays local|is gone"):
        loaded.learn(60)
    assert not registry.path.exists()


def test_a_model_whose_pool_is_gone_is_loaded_with_a_local_buffer(registry, tmp_path):
    buffer_id = registry.register_buffer(run_id="a", algorithm="SAC")
    model = trained(
        SAC,
        replay_buffer_class=DistributedReplayBuffer,
        replay_buffer_kwargs={"registry": registry, "buffer_id": buffer_id},
    )
    model.save(tmp_path / "model")
    registry.stop()

    with pytest.warns(UserWarning, match="stays local") as caught:
        loaded = SAC.load(tmp_path / "model", env=model.get_env(), device="cpu")
    assert len(caught) == 1
    loaded.learn(120)
    assert loaded.replay_buffer.get_stats()["local_samples"] > 0


@pytest.mark.parametrize("n_steps", [1, 3])
def test_rows_of_a_run_that_writes_and_is_killed_are_never_torn(registry, n_steps):
    script = Path(__file__).parent.parent / "support" / "sb3_writer_process.py"
    code = [sys.executable, str(script), str(registry.path)]
    buffer_id = registry.register_buffer(run_id="own", algorithm="SAC")
    settings = {"registry": registry, "buffer_id": buffer_id, "cross_sample_ratio": 1.0}
    buffer = DistributedReplayBuffer(64, POINT, PUSH, "cpu", n_steps=n_steps, gamma=1.0, **settings)
    Story(5, first=-9000).tell(buffer)  # for rows that the writer was too quick for
    full = 0
    with subprocess.Popen(code, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout.readline() == "full\n"
        for batch in range(3000):
            if batch == 2000:
                writer.kill()
            samples = buffer.sample(32)
            lent = samples.observations[:, 0] >= 0
            mark = samples.observations[lent, :1]
            assert (samples.observations[lent] == mark).all()
            assert (samples.actions[lent] == mark).all()
            ahead = (samples.next_observations[lent] - 0.5 - mark) % 2000  # the marks' period
            assert (ahead == ahead[:, :1]).all()
            steps = ahead[:, 0] / 2 + 1  # of two environments; fewer than n at the newest row
            assert set(steps.tolist()) <= set(range(1, n_steps + 1))
            full += int((steps == n_steps).sum())
            whole = mark[:, 0] < 1990
            total = steps * mark[:, 0] + steps * (steps - 1)
            assert (samples.rewards[lent][whole, 0] == total[whole]).all()
    lent_rows = buffer.get_stats()["distributed_samples"]
    assert lent_rows > 32 * 1000
    assert full > 0.8 * lent_rows


# --- priorities

PAIRS = [(PrioritizedDQN, DQN, {}), (PrioritizedSAC, SAC, {}), (PrioritizedTD3, TD3, {})]


class Even(PrioritizedDistributedReplayBuffer):
    """Draws as SB3 does, with weights of 1: what is left is the arithmetic of `train()`."""

    def sample(self, batch_size, env=None):
        samples = DistributedReplayBuffer.sample(self, batch_size, env)
        rows = np.full(batch_size, -1)
        batch = (*samples, torch.ones(batch_size, 1), rows)
        return type(super().sample(1, env))._make(batch)


@pytest.mark.parametrize(
    "how",
    [{}, {"n_envs": 3, "gradient_steps": 3}, {"normalised": True}],
)
@pytest.mark.parametrize(("ours", "theirs"), [pair[:2] for pair in PAIRS])
def test_with_equal_weights_training_is_sb3s(ours, theirs, how):
    model = trained(ours, steps=150, replay_buffer_class=Even, **how)
    mine, reported = weights(model), losses(model)

    stock = trained(theirs, steps=150, **how)
    assert torch.allclose(mine, weights(stock), atol=1e-6)
    assert reported == pytest.approx(losses(stock), rel=1e-4)


def losses(model):
    """Returns what one more gradient step reports."""
    model.logger.dump()
    model.train(gradient_steps=2, batch_size=32)
    return {key: value for key, value in model.logger.name_to_value.items() if "loss" in key}


class Mute(PrioritizedDistributedReplayBuffer):
    def sample(self, batch_size, env=None):
        samples = super().sample(batch_size, env)
        return samples._replace(weights=torch.zeros(batch_size, 1))


@pytest.mark.parametrize("ours", [pair[0] for pair in PAIRS])
def test_rows_without_weight_teach_a_critic_nothing(ours):
    model = trained(ours, steps=49, replay_buffer_class=Mute)
    critic = model.q_net if ours is PrioritizedDQN else model.critic
    before = torch.nn.utils.parameters_to_vector(critic.parameters()).clone()
    answers = model.replay_buffer._answers
    model.train(gradient_steps=3, batch_size=32)

    assert torch.equal(torch.nn.utils.parameters_to_vector(critic.parameters()), before)
    assert model.replay_buffer._answers == answers + 3


def test_with_equal_weights_and_ddpgs_settings_td3_is_ddpg():
    critics = {"policy_kwargs": {"net_arch": [16], "n_critics": 1}}
    mine = trained(PrioritizedTD3, steps=150, replay_buffer_class=Even, **DDPG_IS, **critics)

    assert torch.allclose(weights(mine), weights(trained(DDPG, steps=150)), atol=1e-6)


@pytest.mark.parametrize("how", [{"ent_coef": 0.2}, {"use_sde": True, "sde_sample_freq": 4}])
def test_settings_of_sac_are_kept(how):
    mine = trained(PrioritizedSAC, steps=120, replay_buffer_class=Even, **how)

    assert torch.allclose(weights(mine), weights(trained(SAC, steps=120, **how)), atol=1e-6)


@pytest.mark.parametrize("ours", [pair[0] for pair in PAIRS])
def test_priorities_follow_td_errors_and_are_saved(ours, tmp_path):
    model = trained(ours, steps=200, n_steps=3, buffer_size=240)
    buffer = model.replay_buffer
    assert isinstance(buffer, PrioritizedDistributedReplayBuffer)
    assert (buffer.n_steps, buffer.gamma) == (3, model.gamma)
    ranks = buffer._ranks.leaves[:200]
    assert len(np.unique(ranks)) > 50

    model.save(tmp_path / "model")
    model.save_replay_buffer(tmp_path / "rows")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded = ours.load(tmp_path / "model", env=model.get_env(), device="cpu")
    loaded.load_replay_buffer(tmp_path / "rows")
    assert np.array_equal(loaded.replay_buffer._ranks.leaves[:200], ranks)
    loaded.learn(20, reset_num_timesteps=False)


def test_a_stock_algorithm_with_priorities_is_told_what_is_missing():
    with pytest.warns(UserWarning, match="without a call of update_priorities"):
        trained(SAC, steps=200, replay_buffer_class=PrioritizedDistributedReplayBuffer)


def test_prioritized_algorithms_refuse_another_buffer():
    with pytest.raises(ConfigError, match="PrioritizedDQN has a DistributedReplayBuffer"):
        trained(PrioritizedDQN, replay_buffer_class=DistributedReplayBuffer)
