"""The parts of a run on a cluster, built on hosts inside the test's process."""

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fake_cluster import FakeCluster, node
from rookery.cluster.cluster_group import NODES_S, ClusterActors
from rookery.config.load import load
from rookery.config.schema import Config
from rookery.training.build import Parts, build_parts

SMALL: dict[str, Any] = {
    "run.engine": "ray",
    "run.mode": "async",
    "replay.capacity": 1_024,
    "replay.learning_starts": 8,
    "replay.batch_size": 8,
    "actor.num": 2,
    "actor.envs": 4,
    "actor.chunk": 16,
    "net.hidden": [8],
    "env.check": False,
}


@pytest.fixture
def fake_cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCluster]:
    """Two hosts, which runs of the test with the engine ray get as their cluster."""
    with FakeCluster(monkeypatch) as made:
        opened = SimpleNamespace(open=lambda *_, **__: made)
        monkeypatch.setattr("rookery.cluster.cluster_group.Cluster", opened)
        yield made


@pytest.fixture
def wired(fake_cluster: FakeCluster) -> Iterator[Callable[..., Parts]]:
    """Wires parts and closes them afterwards."""
    made: list[Parts] = []

    def build(**changes: Any) -> Parts:
        made.append(build_parts(config(**changes)))
        return made[-1]

    yield build
    for parts in made:
        parts.close()


def config(**changes: Any) -> Config:
    return load("corridor", changes=SMALL | changes)


def cluster_actors(parts: Parts) -> ClusterActors:
    assert isinstance(parts.actors, ClusterActors)
    return parts.actors


class TestLimiter:
    def test_its_slack_is_that_of_the_actors_that_all_hosts_have(self, wired):
        parts = wired(**{"cluster.actors_per_node": 3, "actor.num": 1})

        assert parts.config.actor.num == 6
        assert parts.limiter.slack == 2 * 6 * (16 + 4)

    def test_a_host_that_joins_gives_it_the_slack_of_its_actors(self, wired, fake_cluster):
        parts = wired(**{"cluster.actors_per_node": 3})
        before = parts.limiter.room
        fake_cluster.up = [*fake_cluster.up, node(2)]
        fake_cluster.clock.now += NODES_S
        cluster_actors(parts).look()

        assert parts.limiter.slack == 2 * 9 * (16 + 4)
        assert parts.limiter.room - before == 2 * 3 * (16 + 4)


class TestWeights:
    def test_a_host_worker_that_is_started_later_gets_the_weights_of_its_version(
        self, wired, fake_cluster
    ):
        """The learner's weights change with each gradient step, a version does not."""
        parts = wired()
        first = {name: array.copy() for name, array in parts.learner.weights().items()}
        for parameter in parts.learner.algorithm.acting.parameters():
            parameter.data.add_(1.0)
        cluster_actors(parts).look()
        fake_cluster.lose(1)
        cluster_actors(parts).look()
        cluster_actors(parts).look()

        store = fake_cluster.fake_host(1).host_worker.weight_store
        published = store.latest(0)
        assert published.version == parts.weight_store.version == 1
        assert fake_cluster.starts(1) == 2
        for name, array in first.items():
            np.testing.assert_array_equal(published.arrays[name], array)


class TestUnfinished:
    """Where building stops half way, nothing of the cluster is left."""

    @pytest.mark.parametrize(
        "where",
        [
            "rookery.cluster.cluster_group.usable",
            "rookery.cluster.cluster_group.ClusterActors._place",
            "rookery.cluster.remote_replay.RemoteReplay.__init__",
            "rookery.training.build.build_limiter",
            "rookery.training.build.Parts.__post_init__",
        ],
    )
    def test_the_cluster_is_closed_once(self, fake_cluster, monkeypatch, where):
        def stop(*_: Any, **__: Any) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(where, stop)
        with pytest.raises(KeyboardInterrupt):
            build_parts(config(**{"cluster.actors_per_node": 2}))

        assert fake_cluster.closed == 1
        assert all(not host.alive for _, _, host, _ in fake_cluster.started)
