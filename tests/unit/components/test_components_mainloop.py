"""The main loop: its order of calls, its server, what it can be told, what it saves."""

import signal
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from beartype.roar import BeartypeCallHintViolation

from rookery.checkpoints import checkpoint, run_folder
from rookery.components.agents import DistributedAgent
from rookery.components.async_loop import AsyncMainLoop, agreed
from rookery.components.cluster_loop import DistributedMainLoop
from rookery.components.environment import DistributedEnvironment
from rookery.components.loop_parts import LoopPlan
from rookery.components.main_loop import LoopConfig, MainLoop
from rookery.components.replay_buffers import (
    PrioritizedReplayBuffer,
    ReplayBuffer,
    ReplayBufferPool,
)
from rookery.config.schema import ClusterConfig
from rookery.envs.toy.basic import Corridor
from rookery.errors import CheckpointError, ConfigError
from rookery.report.trackers import jsonl
from rookery.server.parameter_server import ParameterServer
from user_components import OwnAgent, OwnBuffer, OwnEnvironment, OwnRanked, OwnServer
from whole_checkpoints import intact

OPTIMUM = Corridor().optimal_return


def ours(**settings: Any) -> DistributedAgent:
    return DistributedAgent(
        batch_size=8, update_frequency=4, env=Corridor, settings={"net.hidden": [8], **settings}
    )


def loop_of(**parts: Any) -> MainLoop:
    """A loop of a user's own parts, but for those that are given."""
    config = {"warmup": 16, **parts.pop("config", {})}
    return MainLoop(
        parts.get("environment", OwnEnvironment()),
        parts.get("replay_buffer", OwnBuffer()),
        parts.get("agent", OwnAgent()),
        parts.get("server"),
        config,
    )


@pytest.mark.parametrize("part", ["environment", "replay_buffer", "agent", "server", None])
def test_each_part_may_be_a_users_own(part):
    """All but one are ours; in the last case, all are the user's."""
    agent = OwnAgent() if part in ("agent", None) else ours(**{"actor.epsilon_steps": 500})
    server = OwnServer(agent.get_policy_parameters()) if part in ("server", None) else None
    inline = DistributedEnvironment(Corridor, 2, engine="inline")
    own = part == "environment" or part is None
    loop = MainLoop(
        OwnEnvironment() if own else inline,
        OwnBuffer() if part in ("replay_buffer", None) else ReplayBufferPool(2, 1_000),
        agent,
        server,
        {"warmup": 16},
    )

    done = loop.run_training(4, max_steps=30, evaluation_frequency=2)

    assert (done["episode"], done["reason"]) == (4, "episodes")
    assert done["gradients"] == done["version"] > 0
    assert done["evaluation"] is not None
    if part is None:
        assert server.workers == ["main"]
    inline.shutdown()


def test_a_users_own_parts_learn():
    agent = OwnAgent()
    loop = loop_of(agent=agent, server=OwnServer(agent.get_policy_parameters()))
    done = loop.run_training(60, evaluation_frequency=60)

    assert done["evaluation"] == pytest.approx(OPTIMUM)


def test_a_users_own_priorities_are_told_how_surprising_each_row_was():
    buffer = OwnRanked()
    loop = loop_of(agent=ours(), environment=_Played(), replay_buffer=buffer)
    loop.run_training(3)

    assert loop.gradients > 0
    assert len(buffer.ranks) >= 8
    assert len(set(buffer.ranks.values())) > 1


def test_the_integrated_server_steps_as_the_agents_own_learner_does():
    """The same batches: a buffer that gives them out one after another."""
    rng = np.random.default_rng(0)
    eye = np.eye(8, dtype=np.float32)
    batches = [
        {
            "obs": eye[rng.integers(8, size=8)],
            "action": rng.integers(2, size=8),
            "reward": rng.normal(size=8).astype(np.float32),
            "next_obs": eye[rng.integers(8, size=8)],
            "terminated": rng.random(8) < 0.2,
        }
        for _ in range(30)
    ]

    class Script(OwnBuffer):
        def sample_batch(self, batch_size):
            return batches.pop(0)

    plain, served = ours(), ours()
    for batch in list(batches):
        plain.learn_from_batch(batch)
    loop = loop_of(
        agent=served, replay_buffer=Script(), config={"batches_per_round": 30, "warmup": 0}
    )
    loop.run_single_episode()

    one, other = plain.get_policy_parameters(), served.get_policy_parameters()
    assert all(np.array_equal(one[name], other[name]) for name in one)
    assert loop.get_training_progress()["version"] == 30


def test_a_batch_is_learned_from_for_so_many_steps():
    agent = OwnAgent()
    agent.update_frequency = 4
    loop = loop_of(agent=agent, config={"warmup": 0})
    done = loop.run_training(5, max_steps=10)

    assert done["gradients"] == done["env_steps"] // 4


def test_nothing_is_learned_before_the_warm_up():
    done = loop_of(config={"warmup": 10_000}).run_training(3)

    assert done["gradients"] == 0
    assert done["experiences"] == done["env_steps"] > 0


@pytest.mark.parametrize("kind", [ReplayBuffer, PrioritizedReplayBuffer])
def test_a_single_buffer_will_do(kind):
    buffer = kind(500)
    loop = loop_of(agent=ours(), environment=_Played(), replay_buffer=buffer)
    loop.run_training(3)

    assert loop.gradients > 0
    if kind is PrioritizedReplayBuffer:  # new ones have a priority of 1
        assert not np.allclose(buffer.contents()[1], 1.0)


class _Played(OwnEnvironment):
    """Plays a library's agent, at random."""

    def generate_experiences(self, policy, num_episodes, max_steps_per_episode=1000):
        return super().generate_experiences(
            OwnAgent(epsilon=1.0), num_episodes, max_steps_per_episode
        )


def test_a_single_episode_tells_what_it_earned():
    told = loop_of().run_single_episode(max_steps=5)

    assert told == {"reward": pytest.approx(-0.05), "length": 5, "episode": 1}


class Watched(OwnEnvironment):
    """A user's environment that counts what the agent chooses while it plays."""

    def __init__(self):
        super().__init__()
        self.actions: list[int] = []

    def _episode(self, policy, most):
        steps = super()._episode(policy, most)
        self.actions += [int(step["action"]) for step in steps]
        return steps


@pytest.mark.parametrize("algorithm", ["dqn", "a2c"])
def test_an_agent_explores_in_a_users_environment_that_calls_act(algorithm):
    agent = DistributedAgent(algorithm, env=Corridor, settings={"net.hidden": [8]})
    environment = Watched()
    loop = loop_of(agent=agent, environment=environment, config={"warmup": 10_000})
    loop.run_training(3, max_steps=50)
    obs = np.eye(8, dtype=np.float32)[0]

    assert set(environment.actions) == {0, 1}
    assert len({agent.act(obs) for _ in range(30)}) == 1  # greedy again afterwards


@pytest.mark.parametrize("algorithm", ["ppo", "a2c"])
@pytest.mark.parametrize("own", [False, True])
def test_on_policy_agents_learn_from_what_they_have_just_played(algorithm, own):
    agent = DistributedAgent(algorithm, env=Corridor, settings={"net.hidden": [8]})
    before = agent.get_policy_parameters()
    with DistributedEnvironment(Corridor, 2, engine="inline") as environment:
        played = OwnEnvironment() if own else environment
        done = loop_of(agent=agent, environment=played).run_training(4)
    epochs, after = agent.config.algo.epochs, agent.get_policy_parameters()

    rounds = 4 if own else 2
    assert done["episode"] == 4
    assert done["gradients"] == done["version"] >= epochs * rounds
    assert any(not np.array_equal(before[name], after[name]) for name in after)


def test_a_rollout_has_the_advantages_of_generalised_estimation():
    """A_t = delta_t + gamma lambda A_(t+1), which ends with the episode (Schulman et al. 2016)."""
    agent = DistributedAgent("a2c", env=Corridor, settings={"net.hidden": [8]})
    steps = OwnEnvironment().generate_experiences(OwnAgent(), 2, 6)
    (batch,) = agent.rollout_batches(steps)
    networks = agent.learner.algorithm
    obs, after = (
        networks.outputs(torch.from_numpy(np.stack([step[key] for step in steps])))[1].detach()
        for key in ("obs", "next_obs")
    )
    algo, expected, carried = agent.config.algo, {}, 0.0
    for i in reversed(range(len(steps))):
        step, v, n = steps[i], float(obs[i]), float(after[i])
        carried = 0.0 if step["terminated"] or step["truncated"] else carried
        delta = step["reward"] + algo.gamma * (0.0 if step["terminated"] else n) - v
        expected[i] = carried = delta + algo.gamma * algo.gae_lambda * carried

    for row, advantage in zip(batch.rows, batch.extras["advantage"], strict=True):
        assert advantage == pytest.approx(expected[int(row)], abs=1e-5)
    assert sorted(batch.rows.tolist()) == list(range(len(steps)))


class Shy(OwnEnvironment):
    """Plays one episode at most, however many it is asked for."""

    num_workers = 3

    def generate_experiences(self, policy, num_episodes, max_steps_per_episode=1000):
        return super().generate_experiences(policy, min(1, num_episodes), max_steps_per_episode)


def test_episodes_asked_are_episodes_played():
    """Counted as they came back, not as they were asked for."""
    loop = loop_of(environment=Shy())
    done = loop.run_training(5, max_steps=9)

    assert done["episode"] == len(loop._ended) == 5
    Shy.generate_experiences = lambda *_: []  # type: ignore[method-assign]
    with pytest.raises(ConfigError, match="returned no step"):
        loop.run_training(6)


def test_a_server_without_an_optimizer_takes_the_agents():
    """One worker's gradients are applied one by one, bit for bit as by the loop's own server."""
    learned = []
    for own in (False, True):
        agent = ours()
        server = ParameterServer(agent.get_policy_parameters()) if own else None
        loop = loop_of(agent=agent, environment=_Played(), server=server)
        loop.run_training(4)
        assert loop.gradients == loop.parameter_server.version > 0
        learned.append(agent.get_policy_parameters())

    assert all(np.array_equal(learned[0][name], learned[1][name]) for name in learned[0])


def test_a_servers_own_optimizer_stays():
    agent = ours()
    server = ParameterServer(agent.get_policy_parameters(), optimizer="sgd", lr=0.5)
    loop_of(agent=agent, environment=_Played(), server=server).run_training(4)

    assert server.version < 10  # ten gradients make an update


def test_a_checkpoint_counts_env_steps(tmp_path):
    loop = loop_of(config={"checkpoint_path": tmp_path})
    loop.run_training(3, max_steps=20)
    (folder,) = tmp_path.glob("ckpt-*")

    assert intact(folder).env_steps == loop.env_steps > 3


def test_a_checkpoint_with_the_servers_file_beside_it_is_restored(tmp_path):
    """Earlier ones were named by episodes, and had the server's file next to them."""
    first = loop_of(agent=ours(), environment=_Played())
    first.run_training(4)
    found = intact(first.save_checkpoint(tmp_path / "now"))
    arrays, state = found.arrays(), found.state()
    (tmp_path / "server-4.safetensors").write_bytes(arrays.pop("server").tobytes())
    state |= {"server": "server-4.safetensors", "loop": state["loop"] | {"_unlearned": 0.5}}
    content = checkpoint.Content(
        4, found.manifest["version"], False, False, {}, found.weights(), state, arrays
    )
    checkpoint.write(tmp_path, checkpoint.name_of(4), content)
    other = loop_of(agent=ours(), environment=_Played())

    assert other.load_checkpoint(tmp_path) == 4
    assert (other.counters, other.version) == (first.counters, first.version)
    one, two = (loop.parameter_server.get_parameters().arrays for loop in (first, other))
    assert all(np.array_equal(one[name], two[name]) for name in one)


@pytest.mark.parametrize("own", [False, True])
def test_a_loop_with_a_run_dir_reports_like_a_run(own, tmp_path, capsys):
    run_dir = tmp_path / "run"
    agent = OwnAgent() if own else ours(**{"report.log_period": 20})
    config = {"run_dir": run_dir, "checkpoint_path": tmp_path / "saved", "callback": None}
    loop = loop_of(agent=agent, environment=_Played(), config=config)
    loop.run_training(3, max_steps=40, evaluation_frequency=2)
    loop.run_training(5, max_steps=40, evaluation_frequency=2)
    entries = jsonl.read(run_dir)
    kinds = [entry["event"] for entry in entries]

    assert kinds.count("stopped") == 2
    assert {"evaluated", "saved"} <= set(kinds)
    assert own or "logged" in kinds
    assert run_folder.result_of(run_dir)["episodes"] == 5
    assert list(run_dir.rglob("events.out.tfevents*"))
    said = capsys.readouterr().out
    assert "best score" in said
    assert "resumed at" in said
    with pytest.raises(ConfigError, match="already holds a run"):
        loop_of(config={"run_dir": run_dir}).run_training(1)


def test_stopping_from_a_callback_ends_after_the_round():
    loop = loop_of()
    object.__setattr__(loop.config, "callback", lambda told: loop.stop_training())
    done = loop.run_training(100)
    again = loop.run_training(100)

    assert (done["episode"], done["reason"]) == (1, "callback")
    assert again["episode"] == 2


def test_a_paused_loop_waits_until_it_is_resumed():
    import threading

    from eventually import eventually

    loop = loop_of()
    loop.pause_training()
    thread = threading.Thread(target=loop.run_training, args=(3,))
    thread.start()
    assert loop.get_training_progress()["paused"]
    assert loop.episode == 0
    loop.resume_training()

    assert eventually(lambda: loop.episode == 3, within_s=10)
    thread.join()


def test_training_ends_at_its_target():
    done = loop_of(config={"target": -10.0}).run_training(100, evaluation_frequency=7)

    assert (done["episode"], done["reason"]) == (7, "target")


def test_old_signal_handlers_are_back_afterwards():
    before = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)}
    loop_of().run_training(1)

    assert {n: signal.getsignal(n) for n in before} == before


def test_an_interrupt_ends_training_with_a_checkpoint(tmp_path):
    loop = loop_of(config={"checkpoint_path": tmp_path})
    object.__setattr__(loop.config, "callback", lambda told: signal.raise_signal(signal.SIGINT))

    with pytest.raises(KeyboardInterrupt):
        loop.run_training(100)

    assert loop.get_training_progress()["reason"] == "interrupted"
    assert loop_of(config={"checkpoint_path": tmp_path}).load_checkpoint() == 1


def test_a_checkpoint_goes_on_with_the_agent_the_server_and_the_counts(tmp_path):
    buffer = ReplayBufferPool(1, 500, seed=1)
    first = loop_of(agent=ours(), environment=_Played(), replay_buffer=buffer)
    first.run_training(4)
    first.save_checkpoint(tmp_path)

    other = loop_of(agent=ours(), environment=_Played(), replay_buffer=buffer)
    assert other.load_checkpoint(tmp_path) == 4
    batch = buffer.sample_batch(8)
    for loop in (first, other):
        loop.hand_over(loop.agent.compute_gradients(batch))

    one, two = (loop.agent.learner.state()[1] for loop in (first, other))
    assert all(np.array_equal(one[name], two[name]) for name in one if name.startswith("net."))
    assert other.gradients == first.gradients
    assert other.env_steps == first.env_steps


def test_checkpoints_are_kept_up_to_a_number_and_broken_ones_are_skipped(tmp_path):
    config = {"checkpoint_path": tmp_path, "keep": 2}
    loop_of(config=config).run_training(5, checkpoint_frequency=1)
    folders = sorted(tmp_path.glob("ckpt-*"))
    assert len(folders) == len(list(tmp_path.iterdir())) == 2

    (folders[-1] / "state.json").write_text("{}")
    again = loop_of(config=config)
    assert again.load_checkpoint() == 4
    assert again.env_steps == int(folders[0].name[5:17])
    with pytest.raises(CheckpointError, match="it has none"):
        loop_of().load_checkpoint(tmp_path / "nowhere")


def test_a_users_own_agent_is_saved_by_its_parameters(tmp_path):
    agent = OwnAgent()
    loop = loop_of(agent=agent)
    loop.run_training(5)
    loop.save_checkpoint(tmp_path)

    other = OwnAgent()
    loop_of(agent=other).load_checkpoint(tmp_path)
    np.testing.assert_array_equal(agent.table, other.table)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: loop_of(agent=object()), "without compute_gradients"),
        (lambda: loop_of(environment=object()), "environment has generate_experiences"),
        (lambda: loop_of(replay_buffer=object()), "replay_buffer has"),
        (lambda: loop_of(server=object()), "parameter_server has"),
        (lambda: loop_of(config={"warmpu": 3}), "did you mean 'warmup'"),
        (lambda: loop_of(config={"keep": 0}), "keep must be above 0"),
        (lambda: loop_of().run_training(0), "total_episodes must be above 0, got 0"),
        (lambda: loop_of().save_checkpoint(), "got none"),
        (lambda: agreed(3, 4), "the same"),
        (lambda: AsyncMainLoop(None, None, None, num_workers=0), "must be above 0, got 0"),
    ],
)
def test_what_does_not_fit_is_refused_with_what_is_missing(make, says):
    with pytest.raises(ConfigError, match=says):
        make()


def test_a_config_may_be_an_object_too():
    config = LoopConfig(worker="me", warmup=3)

    assert MainLoop(OwnEnvironment(), OwnBuffer(), OwnAgent(), None, config).config is config
    with pytest.raises(BeartypeCallHintViolation):
        loop_of().run_training("many")
    with pytest.raises(BeartypeCallHintViolation, match="Mapping"):
        MainLoop(OwnEnvironment(), OwnBuffer(), OwnAgent(), None, 3)


def test_workers_have_two_names_that_mean_the_same():
    parts = OwnEnvironment(), OwnBuffer(), OwnAgent()

    assert AsyncMainLoop(*parts).num_workers == 4
    assert AsyncMainLoop(*parts, num_workers=8).num_workers == 8
    assert AsyncMainLoop(*parts, num_async_workers=2).num_workers == 2
    assert AsyncMainLoop(*parts, num_workers=3, num_async_workers=3).num_workers == 3


@dataclass
class OwnCluster:
    """A dataclass of a user's, with some of the names."""

    address: str
    actors_per_node: int


@pytest.mark.parametrize(
    "given",
    [
        {"address": "10.0.0.1:6379", "actors_per_node": 3},
        ClusterConfig(address="10.0.0.1:6379", actors_per_node=3),
        OwnCluster("10.0.0.1:6379", 3),
    ],
)
def test_a_cluster_is_told_by_a_mapping_or_an_object(given):
    agent = ours()
    server = ParameterServer(agent.get_policy_parameters())
    loop = DistributedMainLoop(
        OwnEnvironment(), OwnBuffer(), agent, server, node_id="worker_1", cluster_config=given
    )
    config = loop._recipe(LoopPlan("episodes", 1, 100)).config

    assert loop.config.worker == loop.node_id == "worker_1"
    assert (config.cluster.address, config.cluster.actors_per_node) == ("10.0.0.1:6379", 3)
    assert config.replay.capacity == OwnBuffer.capacity
    assert loop.synchronize_with_cluster() == 0


def test_whole_numbers_are_taken_where_seconds_are_asked():
    agent = ours(**{"actor.env_step_timeout_s": 5})
    server = ParameterServer(agent.get_policy_parameters(), deadline_s=30)
    cluster = {"start_s": 60, "lost_s": 30}
    loop = DistributedMainLoop(
        OwnEnvironment(), OwnBuffer(), agent, server, cluster_config=cluster, config={"target": 1}
    )

    assert (loop.cluster.start_s, loop.cluster.lost_s) == (60.0, 30.0)
    assert agent.config.actor.env_step_timeout_s == 5.0
    assert server.get_parameters(0, wait_s=0) is None


def test_local_is_a_ray_of_its_own_and_strangers_are_refused():
    loop = DistributedMainLoop(
        OwnEnvironment(), OwnBuffer(), ours(), cluster_config={"address": "local"}
    )
    assert loop.cluster.address is None
    with pytest.raises(ConfigError, match="without recipe"):
        DistributedMainLoop(OwnEnvironment(), OwnBuffer(), OwnAgent())
    with pytest.raises(ConfigError, match="HOST:PORT"):
        DistributedMainLoop(OwnEnvironment(), OwnBuffer(), ours(), cluster_config={"address": "x"})
