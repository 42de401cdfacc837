"""The components with processes: environments, workers that learn, signals, a Ray of their own."""

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import psutil
import pytest

from eventually import eventually
from rookery import (
    AsyncAgent,
    AsyncMainLoop,
    DistributedAgent,
    DistributedEnvironment,
    DistributedMainLoop,
    MainLoop,
    ParameterServer,
    ReplayBufferPool,
)
from rookery.engines.ray import RayNode
from rookery.envs.toy.basic import Corridor, Echo
from rookery.errors import ConfigError, LostError
from user_components import OwnAgent, OwnBuffer, OwnEnvironment, OwnFront, OwnServer

pytestmark = pytest.mark.timeout(240)

START_S = 90.0  # for processes to come up on a machine that is busy
SMALL: dict[str, Any] = {"net.hidden": [8], "actor.envs": 2, "actor.chunk": 16}


@pytest.fixture(autouse=True)
def nobody_is_left() -> Iterator[None]:
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    yield
    assert eventually(
        lambda: {child.pid for child in psutil.Process().children(recursive=True)} <= before,
        within_s=20,
    )


def lean(obs: Any) -> int:
    return int(obs[2] > 0)


def test_workers_in_processes_play_what_workers_here_play():
    played = []
    for engine in ("inline", "processes"):
        with DistributedEnvironment(lambda: gym.make("CartPole-v1"), 2, engine=engine) as env:
            played.append(env.generate_experiences(lean, 3))
            played.append(env.generate_batch_experiences(lean, 20))

    for one, other in zip(played[0], played[2], strict=True):
        for key in one:
            np.testing.assert_array_equal(one[key], other[key])
    for key in played[1]:
        np.testing.assert_array_equal(played[1][key], played[3][key])


def test_a_worker_that_is_killed_is_replaced():
    with DistributedEnvironment(Echo, 2) as environment:
        environment.generate_experiences(lambda obs: 0, 2)
        pids = environment.get_environment_stats()["pids"]
        os.kill(pids["actor-0"], signal.SIGKILL)
        steps = environment.generate_experiences(lambda obs: 0, 4)
        stats = environment.get_environment_stats()

    assert len(steps) == 40
    assert stats["restarts"] == 1
    assert stats["pids"]["actor-0"] != pids["actor-0"]


def test_workers_end_with_an_environment_that_is_garbage_collected():
    environment = DistributedEnvironment(Echo, 1)
    environment.generate_experiences(lambda obs: 0, 1)
    (pid,) = environment.get_environment_stats()["pids"].values()
    del environment

    assert eventually(lambda: not psutil.pid_exists(pid), within_s=20)


def parts(algorithm: str, **settings: Any) -> tuple[Any, Any, DistributedAgent]:
    agent = DistributedAgent(algorithm, batch_size=16, env=Corridor, settings=SMALL | settings)
    return DistributedEnvironment(Corridor, 2), ReplayBufferPool(2, 1_000), agent


@pytest.mark.parametrize("algorithm", ["a2c", "dqn"])
def test_workers_compute_gradients_and_the_server_applies_them(algorithm):
    environment, buffer, agent = parts(algorithm, **{"replay.learning_starts": 32})
    server = ParameterServer(agent.get_policy_parameters(), update_frequency=1, optimizer="adam")
    before = agent.get_policy_parameters()
    loop = AsyncMainLoop(environment, buffer, agent, server, num_workers=2)

    done = loop.run_async_training(total_steps=600)

    assert done["env_steps"] >= 600
    assert done["reason"] == "env_steps"
    assert done["gradients"] - done["refused"] == server.version == done["version"]
    assert sum(done["stale"].values()) == done["gradients"] > 5
    assert server.get_server_stats()["workers"] == ["main"]  # the workers have left
    newest, after = server.get_parameters().arrays, agent.get_policy_parameters()
    assert all(np.array_equal(newest[name], after[name]) for name in after)
    assert any(not np.array_equal(before[name], after[name]) for name in after)


def test_a_killed_worker_of_a_worker_group_is_replaced():
    environment, buffer, agent = parts("a2c")
    killed: list[int] = []

    def once(told: dict[str, Any]) -> None:
        assert loop.parts is not None
        workers: Any = loop.parts.actors
        if not killed and loop.gradients > 2:
            killed.append(workers.pids["worker-0"])
            os.kill(killed[0], signal.SIGKILL)
        if workers.restarts and workers.seats[0].watch.heard:
            loop.stop_training()

    loop = AsyncMainLoop(environment, buffer, agent, num_workers=2, config={"callback": once})
    done = loop.run_async_training(total_steps=10_000_000)

    assert killed
    assert (done["reason"], done["restarts"]) == ("callback", 1)


class Broken(Corridor):
    """Cannot be played."""

    def step(self, action: Any) -> Any:
        raise RuntimeError("the floor is gone")


def test_workers_that_cannot_play_end_training_with_their_own_words():
    agent = DistributedAgent("a2c", env=Corridor, settings=SMALL | {"actor.max_restarts": 0})
    loop = AsyncMainLoop(DistributedEnvironment(Broken), OwnBuffer(), agent, num_workers=1)

    with pytest.raises(LostError, match="the floor is gone"):
        loop.run_async_training(total_steps=100)


def test_a_users_own_agent_environment_buffer_and_server_train_asynchronously():
    agent = OwnAgent()
    server = OwnServer(agent.get_policy_parameters(), lr=0.5)
    loop = AsyncMainLoop(OwnEnvironment(), OwnBuffer(), agent, server, num_async_workers=2)

    done = loop.run_async_training(total_steps=6_000)

    assert server.version == done["gradients"] > 100
    assert agent.evaluate_policy().reward == pytest.approx(Corridor().optimal_return)


@pytest.mark.parametrize("own", [False, True])
def test_run_training_of_an_async_loop_trains_by_its_workers(own):
    """Counted in episodes, and none of them is longer than `max_steps`."""
    environment, buffer, agent = parts("a2c")
    given: Any = OwnAgent() if own else agent
    loop = AsyncMainLoop(environment, buffer, given, num_workers=2)

    done = loop.run_training(30, max_steps=9, evaluation_frequency=20)

    assert done["reason"] == "episodes"
    assert done["episode"] >= 30
    assert sum(done["stale"].values()) == done["gradients"] > 0
    assert environment.get_environment_stats()["env_steps"] == 0  # it played nothing itself
    assert buffer.get_total_experiences() == 0
    assert done["env_steps"] <= 9 * done["episode"] + 2 * 64  # and episodes in progress
    assert done["evaluation"] is not None


def test_a_restored_async_loop_counts_each_gradient_once(tmp_path):
    """Learner steps decide about exploration and target networks."""
    for _ in range(2):
        environment, buffer, agent = parts("a2c")
        config = {"checkpoint_path": tmp_path}
        loop = AsyncMainLoop(environment, buffer, agent, config=config, num_workers=1)
        if list(tmp_path.iterdir()):
            loop.load_checkpoint()
        before = loop.gradients
        done = loop.run_async_training(loop.env_steps + 400, checkpoint_frequency=400)

        assert agent.learner_steps == done["gradients"] > before


def test_an_environment_without_a_factory_cannot_be_played_by_workers():
    class Bare(OwnEnvironment):
        env_factory = None

    loop = AsyncMainLoop(Bare(), OwnBuffer(), OwnAgent())
    with pytest.raises(ConfigError, match="no env_factory"):
        loop.run_async_training(total_steps=10)


def test_loops_learn_through_a_server_behind_a_socket_what_they_learn_beside_it():
    client = pytest.importorskip("rookery.server.http.remote_server")
    key, learned = "k" * 40, []
    for remote in (False, True):
        agent = DistributedAgent(env=Corridor, settings={"net.hidden": [8]})
        server = ParameterServer(
            agent.get_policy_parameters(), update_frequency=1, optimizer="adam", lr=0.01
        )
        url = server.start_server("localhost", 0, keys={"alice": key})
        with (
            DistributedEnvironment(Corridor, 1, engine="inline") as environment,
            client.RemoteParameterServer(url, "alice", key) as far,
        ):
            buffer, config = ReplayBufferPool(1, 1_000), {"worker": "alice", "warmup": 50}
            loop = MainLoop(environment, buffer, agent, far if remote else server, config)
            loop.run_training(4, evaluation_frequency=0)
            if remote:
                workers = AsyncMainLoop(environment, buffer, agent, far, config, num_workers=1)
                assert workers.run_async_training(total_steps=200)["refused"] == 0
        learned.append(loop)
        server.stop_server()

    near, far_loop = (loop.get_training_progress() for loop in learned)
    assert near["gradients"] == near["version"] == far_loop["version"] > 20
    assert near["mean_reward"] == far_loop["mean_reward"]


def test_an_agent_learns_in_the_background_until_it_is_stopped():
    agent = AsyncAgent("a2c", num_workers=2, env=Corridor, settings=SMALL)
    before = agent.get_policy_parameters()
    agent.start_async_training()
    try:
        with pytest.raises(ConfigError, match="training already"):
            agent.start_async_training()
        learned = eventually(lambda: agent.get_training_stats()["gradients"] > 5, START_S)
    finally:
        stats = agent.stop_async_training()

    assert learned
    assert stats["learner_steps"] > 5
    after = agent.get_policy_parameters()
    assert any(not np.array_equal(before[name], after[name]) for name in after)


def test_an_agent_in_the_background_learns_through_a_users_own_server():
    agent = AsyncAgent("a2c", num_workers=1, env=Corridor, settings=SMALL)
    server = OwnServer(agent.get_policy_parameters(), lr=0.01)
    agent.start_async_training(server)
    try:
        learned = eventually(lambda: server.version > 5, START_S)
    finally:
        agent.stop_async_training()

    assert learned
    arrays = agent.get_policy_parameters()
    assert all(np.array_equal(arrays[name], server.arrays[name]) for name in arrays)


SCRIPT = """
import signal, sys
from rookery import AsyncMainLoop, DistributedAgent, DistributedEnvironment, MainLoop
from rookery import ReplayBufferPool
from rookery.envs.toy.basic import Corridor

def told(progress):
    print("round", flush=True)

small = {"net.hidden": [8], "actor.envs": 2, "actor.chunk": 16}
agent = DistributedAgent(sys.argv[2], env=Corridor, settings=small)
environment = DistributedEnvironment(Corridor, 1)
config = {"checkpoint_path": sys.argv[1], "callback": told}
before = signal.getsignal(signal.SIGTERM)
kind = {"dqn": MainLoop, "a2c": AsyncMainLoop}[sys.argv[2]]
loop = kind(environment, ReplayBufferPool(1, 1_000), agent, None, config)
try:
    if kind is MainLoop:
        loop.run_training(10**9, checkpoint_frequency=0, evaluation_frequency=0)
    else:
        loop.run_async_training(10**9)
finally:
    print("back" if signal.getsignal(signal.SIGTERM) is before else "lost", flush=True)
    environment.shutdown()
"""


@pytest.mark.parametrize("algorithm", ["dqn", "a2c"])
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_training_with_a_checkpoint(algorithm, number, status, forker, tmp_path):
    run = forker.start([str(tmp_path / "saved"), algorithm], tmp_path, script=SCRIPT)
    assert eventually(lambda: run.stdout.read_text().startswith("round\n"), 60.0), run.said
    run.send(number)

    assert run.wait() in (status, -number), run.said  # Python re-raises SIGINT
    assert run.stdout.read_text().splitlines()[-1] == "back", run.said
    (folder,) = (tmp_path / "saved").glob("ckpt-*")
    assert (folder / "MANIFEST.json").is_file()


@pytest.mark.cluster
def test_a_loop_over_a_ray_of_its_own_learns_and_leaves_nothing(tmp_path):
    environment, buffer, agent = parts("dqn", **{"replay.learning_starts": 64})
    server = ParameterServer(agent.get_policy_parameters(), update_frequency=1, optimizer="adam")
    loop = DistributedMainLoop(
        environment,
        buffer,
        agent,
        server,
        node_id="worker_1",
        cluster_config={"address": "local", "actors_per_node": 2},
        config={"checkpoint_path": tmp_path},
    )
    paused: list[bool] = []

    def resumed() -> None:
        assert eventually(lambda: loop.get_training_progress()["paused"], within_s=10)
        loop.resume_training()

    def once(told: dict[str, Any]) -> None:
        if not paused:
            assert told["actors"] == 2
            paused.append(True)
            loop.pause_training()
            threading.Thread(target=resumed).start()

    object.__setattr__(loop.config, "callback", once)
    done = loop.run_distributed_training(12, max_steps=50, checkpoint_frequency=10)

    assert done["episode"] >= 12
    assert (done["node_id"], done["reason"], done["actors"]) == ("worker_1", "episodes", 0)
    assert done["gradients"] == server.version > 0
    assert paused
    assert loop.synchronize_with_cluster() == server.version
    other = MainLoop(environment, buffer, agent, server, {"checkpoint_path": tmp_path})
    assert other.load_checkpoint() >= 10
    assert not os.environ.get("RAY_AUTH_MODE")


@pytest.mark.cluster
def test_over_a_ray_every_part_may_be_a_users_own_and_a_signal_ends_it(tmp_path):
    _, _, within = parts("dqn", **{"replay.learning_starts": 64})
    agent = OwnFront(within)
    server = OwnServer(agent.get_policy_parameters(), lr=0.01)
    loop = DistributedMainLoop(
        OwnEnvironment(),
        OwnBuffer(),
        agent,
        server,
        node_id="worker_2",
        cluster_config={"address": "local"},
        config={"checkpoint_path": tmp_path},
    )

    def interrupted(told: dict[str, Any]) -> None:
        if told["gradients"] > 5:
            signal.raise_signal(signal.SIGINT)

    object.__setattr__(loop.config, "callback", interrupted)
    with pytest.raises(KeyboardInterrupt):
        loop.run_distributed_training(10**6, max_steps=50)

    assert server.workers == ["worker_2"]
    assert agent.asked >= server.version == loop.gradients > 5
    assert loop.get_training_progress()["reason"] == "interrupted"
    assert len(list(tmp_path.glob("ckpt-*"))) == 1


@pytest.mark.parametrize(
    ("hosts", "refused"),
    [
        ({"here": {"CPU": 4.0, "GPU": 1.0}}, False),
        ({"here": {"CPU": 4.0}}, True),
        ({"here": {"CPU": 4.0}, "elsewhere": {"CPU": 4.0, "GPU": 8.0}}, True),
        ({"elsewhere": {"GPU": 8.0}}, True),
    ],
)
def test_a_host_without_the_learners_resources_is_refused(hosts, refused, monkeypatch):
    monkeypatch.setattr(socket, "gethostname", lambda: "here")
    nodes = [RayNode(name, name, "", resources) for name, resources in hosts.items()]
    cluster = SimpleNamespace(nodes=lambda: nodes)
    embarked: Any = SimpleNamespace(cluster=cluster)
    loop = DistributedMainLoop(
        *parts("dqn"), cluster_config={"address": "auto", "learner_resources": {"GPU": 1}}
    )

    wanted = pytest.raises(ConfigError, match="here, where this loop learns")
    with wanted if refused else contextlib.nullcontext():
        loop._refuse_another_host(embarked)


def test_the_learners_resources_are_those_of_a_cluster_with_an_address():
    environment, buffer, agent = parts("dqn")
    with pytest.raises(ConfigError, match=r"cluster\.address"):
        DistributedMainLoop(
            environment, buffer, agent, cluster_config={"learner_resources": {"GPU": 1}}
        ).run_distributed_training(1)
