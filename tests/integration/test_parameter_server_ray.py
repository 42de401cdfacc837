"""The parameter server as an actor of Ray: the same class, the same answers."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from eventually import eventually
from rookery import DistributedAgent, DistributedEnvironment, MainLoop, ReplayBufferPool
from rookery.config.schema import ClusterConfig
from rookery.engines.ray import Cluster, RayParameterServer
from rookery.envs.toy.basic import Corridor
from rookery.errors import LostError, RefusedError
from rookery.server.federated import FederatedParameterServer
from rookery.server.parameter_server import ParameterServer
from rookery.types import Array

ray = pytest.importorskip("ray")
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]
PATIENCE_S = 60.0
START: dict[str, Array] = {"w": np.zeros((2, 3), np.float32)}
GRADS: dict[str, Array] = {"w": np.ones((2, 3), np.float32)}


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    opened = Cluster.open(ClusterConfig(), cpus=2, store_bytes=0)
    try:
        yield
    finally:
        opened.close()


def ask(reference: Any) -> Any:
    return ray.get(reference, timeout=PATIENCE_S)


def test_as_an_actor_it_answers_as_it_does_here_and_outlives_a_kill(cluster, tmp_path):
    # pushes have ids: Ray may ask again whatever was on its way
    remote = ray.remote(num_cpus=0, max_restarts=1, max_task_retries=-1)(ParameterServer)
    settings = {"update_frequency": 1, "optimizer": "adam", "checkpoint_path": tmp_path}
    actor = remote.remote(START, **settings)
    here = ParameterServer(START, **settings | {"checkpoint_path": None})

    for name in ("a", "b"):
        assert ask(actor.register_worker.remote(name)) == here.register_worker(name) == 0
    for i, name in enumerate(("a", "b", "a")):
        push = (name, GRADS)
        there = ask(actor.push_gradients.remote(*push, version=i, push_id=str(i)))
        assert there == here.push_gradients(*push, version=i, push_id=str(i))
    with pytest.raises(RefusedError, match="not registered"):
        ask(actor.push_gradients.remote("c", GRADS))
    expected = here.get_parameters()
    assert expected is not None
    assert_same(ask(actor.get_parameters.remote()), expected)

    ray.kill(actor, no_restart=False)

    assert_same(ask(actor.get_parameters.remote()), expected)
    assert ask(actor.push_gradients.remote("a", GRADS, push_id="2")).code == "duplicate"
    assert ask(actor.get_parameters.remote(newer_than=3)) is None
    assert ask(actor.get_server_stats.remote())["version"] == 3


def test_a_loop_learns_with_an_actor_as_its_server(cluster):
    agent = DistributedAgent("dqn", batch_size=16, env=Corridor, settings={"net.hidden": [8]})
    actor = ray.remote(num_cpus=0)(ParameterServer).remote(
        agent.get_policy_parameters(), update_frequency=1
    )
    server = RayParameterServer(actor, patience_s=PATIENCE_S)
    loop = MainLoop(DistributedEnvironment(Corridor, 1), ReplayBufferPool(1, 1_000), agent, server)

    done = loop.run_training(10)

    assert done["gradients"] == server.get_server_stats()["version"] > 0
    with pytest.raises(RefusedError, match="not registered"):
        server.push_gradients("c", agent.get_policy_parameters())
    ray.kill(actor)  # which Ray does when it gets to it
    assert eventually(lambda: "is gone" in refusal(server), PATIENCE_S)


def test_so_does_the_federated_one(cluster):
    actor = ray.remote(num_cpus=0)(FederatedParameterServer).remote(START)
    for name in ("a", "b"):
        ask(actor.register_worker.remote(name))

    receipts = [ask(actor.push_gradients.remote(name, GRADS, 5)) for name in ("a", "b")]

    assert [receipt.version for receipt in receipts] == [0, 1]
    assert ask(actor.get_parameters.remote()).arrays["w"].tolist() == [[1, 1, 1]] * 2


def refusal(server: RayParameterServer) -> str:
    """Returns why the server is lost, or nothing where it answers."""
    try:
        server.get_parameters()
    except LostError as error:
        return str(error)
    return ""


def assert_same(found: Any, expected: Any) -> None:
    assert found.version == expected.version
    assert np.array_equal(found.arrays["w"], expected.arrays["w"])
