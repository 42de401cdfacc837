"""The agent: what its replay draws from trajectories, and what its file holds."""

import json
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from rookery.api.dqn_agent import DqnAgent, read
from rookery.api.rollout_worker import rollout_worker
from rookery.api.trajectories import Trajectory
from rookery.errors import CheckpointError, ConfigError, EmptyReplayError
from rookery.export.bundle import KEY
from rookery.runtime.machine import open_files
from rookery.types import Batch

CORRIDOR, ECHO = "rookery.envs.toy.basic:Corridor", "rookery.envs.toy.basic:Echo"
SMALL = {
    "net.hidden": [8],
    "replay.capacity": 500,
    "replay.learning_starts": 8,
    "replay.batch_size": 8,
}
GAMMA = 0.9


@pytest.fixture
def agent() -> Callable[..., DqnAgent]:
    return lambda env=CORRIDOR, **settings: DqnAgent.new(env, settings={**SMALL, **settings})


def told(length: int, end: str, number: int = 0) -> Trajectory:
    """An episode whose observations say which episode and which step they are."""
    flags = {name: np.zeros(length, dtype=bool) for name in ("terminated", "truncated")}
    if end in flags:
        flags[end][-1] = True
    return Trajectory(
        obs=np.array([_obs(number, t) for t in range(length)]),
        action=np.arange(length) % 2,
        reward=np.arange(length) * 1.0 + number,
        final_obs=_obs(number, length),
        **flags,
    )


def _obs(number: int, t: int) -> Any:
    return np.array([number, t, 0, 0, 0, 0, 0, 0], dtype=np.float32)


def drawn(
    agent: DqnAgent, batch: int = 400
) -> Iterator[tuple[int, int, float, float, list[float]]]:
    """Yields (episode, step, reward, discount, next observation) of many draws."""
    found: Batch = agent._parts.replay.sample(batch)
    for i in range(batch):
        number, t = found.obs[i, :2].astype(int).tolist()
        assert found.action[i] == t % 2
        yield number, t, found.reward[i], found.discount[i], found.next_obs[i].tolist()


class TestReplay:
    @pytest.mark.parametrize("n", [1, 3])
    @pytest.mark.parametrize("end", ["terminated", "truncated", "neither"])
    def test_what_is_drawn_from_a_trajectory_is_its_definition(self, agent, n, end) -> None:
        length = 5
        one = agent(**{"algo.n_step": n, "algo.gamma": GAMMA})
        one.add_trajectory_to_buffer(told(length, end))

        seen = set()
        for _, t, reward, discount, following in drawn(one):
            stop = min(t + n, length)
            died = end == "terminated" and stop == length
            assert reward == pytest.approx(sum(GAMMA ** (k - t) * k for k in range(t, stop)))
            assert discount == pytest.approx(0.0 if died else GAMMA ** (stop - t))
            assert following == _obs(0, stop).tolist()
            seen.add(t)
        assert seen == set(range(length))  # every step, and never the final observation

    def test_episodes_are_never_joined(self, agent) -> None:
        one = agent(**{"algo.n_step": 4, "algo.gamma": GAMMA})
        for number in range(3):
            one.add_trajectory_to_buffer(told(3, "truncated", number))

        found = list(drawn(one))

        assert {number for number, *_ in found} == {0, 1, 2}
        assert all(following == _obs(number, 3).tolist() for number, *_, following in found)

    def test_an_episode_longer_than_its_ring_is_one_episode(self, agent) -> None:
        one = agent(**{"replay.capacity": 5_000, "algo.n_step": 2, "algo.gamma": 1.0})
        length = one._ring.capacity * 2 + 7
        one.add_trajectory_to_buffer(told(length, "terminated"))

        for _, t, reward, discount, following in drawn(one, 4_000):
            assert reward == sum(range(t, min(t + 2, length)))
            assert discount == (t + 2 < length)
            assert following == _obs(0, min(t + 2, length)).tolist()

    def test_it_counts_what_it_was_given(self, agent) -> None:
        one = agent()
        one.add_trajectory_to_buffer(told(4, "terminated")._asdict())
        one.add_trajectory_to_buffer(told(3, "truncated"))

        assert one.returns == [6.0, 3.0]
        assert (one._parts.counters.env_steps, one._parts.counters.episodes) == (7, 2)
        assert one._parts.limiter.stored == 7

    def test_statistics_of_observations_follow(self, agent) -> None:
        one = agent(**{"env.normalize_obs": True})
        one.add_trajectory_to_buffer(told(4, "terminated"))

        mean = next(w for name, w in one.get_weights().items() if name.endswith("norm.mean"))
        assert mean[1] == pytest.approx(np.mean([0, 1, 2, 3, 4]))

    def test_a_trajectory_of_another_environment_is_refused(self, agent) -> None:
        with pytest.raises(ConfigError, match="whole numbers from 0 to 1"):
            agent().add_trajectory_to_buffer(told(2, "truncated")._replace(action=np.array([5, 5])))

    def test_learning_from_nothing_says_so(self, agent) -> None:
        with pytest.raises(EmptyReplayError):
            agent().learn()


class TestLearning:
    def test_learning_changes_what_acts(self, agent) -> None:
        one = agent(ECHO, **{"learner.lr": 0.05, "run.seed": 1, "algo.gamma": 0.0})
        for trajectory in rollout_worker(one.policy(), episodes=30, epsilon=1.0):
            one.add_trajectory_to_buffer(trajectory)
        loss = one.learn(150)

        assert one.learner_steps == 150
        assert 0.0 < loss < 1.0
        assert [int(one.act(cue)) for cue in np.eye(4, dtype=np.float32)] == [0, 1, 2, 3]

    def test_weights_can_be_taken_elsewhere(self, agent) -> None:
        one, other = agent(ECHO, **{"run.seed": 1}), agent(ECHO, **{"run.seed": 2})
        assert one.weights_sha256 != other.weights_sha256

        other.set_weights(one.get_weights())

        assert one.weights_sha256 == other.weights_sha256
        assert one.policy().get_weights().keys() == other.get_weights().keys()
        cues = np.eye(4, dtype=np.float32)
        assert [one.act(cue) for cue in cues] == [other.act(cue) for cue in cues]

    def test_new_weights_are_the_target_networks_too(self, agent) -> None:
        one, other = agent(**{"run.seed": 1}), agent(**{"run.seed": 2})
        other.set_weights(one.get_weights())

        arrays = other._parts.learner.state()[1]
        for name in one.get_weights():
            np.testing.assert_array_equal(arrays[f"net.target.{name}"], one.get_weights()[name])

    def test_weights_of_another_network_are_refused(self, agent) -> None:
        with pytest.raises(CheckpointError, match="another network"):
            agent().set_weights(agent(**{"net.hidden": [9]}).get_weights())


class TestFile:
    def test_what_was_saved_comes_back(self, agent, tmp_path) -> None:
        one = agent(**{"run.seed": 7, "algo.dueling": True})
        one.add_trajectory_to_buffer(told(20, "terminated"))
        one.learn(3)

        path = one.save(tmp_path / "agent")
        other = DqnAgent.open(path)

        assert other.weights_sha256 == one.weights_sha256
        assert other.learner_steps == 3
        assert other.config == one.config
        ours, theirs = one._parts.learner.state()[1], other._parts.learner.state()[1]
        assert ours.keys() == theirs.keys()
        assert all((ours[name] == theirs[name]).all() for name in ours)  # the optimizer's too

    def test_an_agent_can_go_back_to_what_it_saved(self, agent, tmp_path) -> None:
        one = agent()
        before, path = one.weights_sha256, one.save(tmp_path / "agent")
        one.add_trajectory_to_buffer(told(20, "terminated"))
        one.learn(2)
        assert one.weights_sha256 != before

        one.load(path)

        assert (one.weights_sha256, one.learner_steps) == (before, 0)

    @pytest.mark.parametrize(
        ("given", "written"),
        [
            ("agent", "agent.safetensors"),
            ("a/b/agent", "a/b/agent.safetensors"),
            ("x.bin", "x.bin"),
        ],
    )
    def test_a_path_without_an_extension_gets_one(self, agent, tmp_path, given, written) -> None:
        one = agent()

        assert one.save(tmp_path / given) == tmp_path / written
        one.load(str(tmp_path / given))
        assert [path.name for path in (tmp_path / written).parent.iterdir()] == [Path(written).name]

    def test_a_class_from_a_script_is_handed_over_again(self, agent, tmp_path) -> None:
        from rookery.envs.toy.basic import Corridor

        class Mine(Corridor):
            pass

        path = agent(Mine).save(tmp_path / "agent")

        with pytest.raises(ConfigError, match="pass it again"):
            DqnAgent.open(path)
        assert DqnAgent.open(path, env=Mine).act(np.zeros(8, np.float32)) in (0, 1)

    def test_another_network_or_optimizer_is_refused(self, agent, tmp_path) -> None:
        path = agent().save(tmp_path / "agent")

        with pytest.raises(CheckpointError, match="another network"):
            agent(**{"net.hidden": [9]}).load(path)
        with pytest.raises(CheckpointError, match="with the optimizer adam, this agent has sgd"):
            agent(**{"learner.optimizer": "sgd"}).load(path)

    def test_a_file_that_is_not_an_agent_is_refused_and_never_unpickled(self, tmp_path) -> None:
        class Trap:
            def __reduce__(self) -> Any:
                return print, ("unpickled",)

        (tmp_path / "pickle.safetensors").write_bytes(pickle.dumps(Trap()))
        (tmp_path / "empty.safetensors").write_bytes(b"")
        save_file({"w": np.zeros(2)}, tmp_path / "plain.safetensors")
        old = json.dumps({"format": 99, "rookery": "9.9"})
        save_file({"w": np.zeros(2)}, tmp_path / "newer.safetensors", {KEY: old})
        save_file({"w": np.zeros(2)}, tmp_path / "deep.safetensors", {KEY: "[" * 100_000})

        for name in ("pickle", "empty", "plain", "deep", "absent"):
            with pytest.raises(CheckpointError, match="cannot be read as an agent"):
                read(tmp_path / name)
        with pytest.raises(CheckpointError, match=r"format 99, written by Rookery 9\.9"):
            read(tmp_path / "newer")

    def test_what_cannot_be_written_leaves_nothing_behind(self, agent, tmp_path) -> None:
        (tmp_path / "file").write_text("")

        with pytest.raises(CheckpointError, match="could not be written"):
            agent().save(tmp_path / "file" / "agent")
        with pytest.raises(CheckpointError, match="could not be written"):
            agent(**{"env.kwargs": {"length": np.int64(8)}}).save(tmp_path / "agent")
        assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_an_agent_without_references_frees_its_memory_at_once(agent) -> None:
    before = open_files()
    one = agent()
    assert open_files() > before

    del one

    assert open_files() == before


@pytest.mark.parametrize("steps", [0, -1])
def test_fewer_than_one_learner_step_is_refused(steps: int) -> None:
    agent = DqnAgent.new("rookery.envs.toy.basic:Corridor")

    with pytest.raises(ConfigError, match=f"learner_steps must be above 0, got {steps}"):
        agent.learn(steps)
