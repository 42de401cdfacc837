"""Runs with rollouts: the same weights wherever actors live, and a cluster that loses a host."""

from collections.abc import Iterator
from contextlib import closing
from itertools import takewhile
from typing import Any

import numpy as np
import pytest

from loopback_cluster import loopback_cluster
from ray_nodes import Nodes, two_nodes
from rookery.cluster.cluster_group import ClusterActors
from rookery.config.load import load
from rookery.config.schema import Config
from rookery.event import Collected, Event, IterationEnded, Learned
from rookery.training import LOOPS
from rookery.training.build import Parts, build_parts

__all__ = ["loopback_cluster"]  # a fixture
pytestmark = pytest.mark.timeout(120)
SMALL: dict[str, Any] = {
    "run.mode": "sync",
    "run.env_steps": 960,
    "net.hidden": [16],
    "replay.batch_size": 24,
    "actor.num": 2,
    "actor.envs": 4,
    "actor.chunk": 60,
    "learner.device": "cpu",
    "env.check": False,
}
TASKS: dict[str, dict[str, Any]] = {
    "choices": {"env.id": "rookery.envs.toy.basic:Corridor", "env.frame_stack": 3},
    "several": {"env.id": "rookery.envs.toy.basic:Dials", "algo.shared_net": True},
    "a motion": {"env.id": "rookery.envs.toy.basic:Reach", "env.normalize_reward": True},
    "pictures": {"env.id": "rookery.envs.toy.basic:Pictures", "env.kwargs": {"size": 4}},
    "a native vector": {"env.normalize_obs": True},
}


def config(name: str = "ppo", **changes: Any) -> Config:
    few = {"algo.epochs": 3} if name == "ppo" else {}
    return load(f"{name}-cartpole", changes=SMALL | few | changes)


def events(parts: Parts) -> Iterator[Event]:
    """Yields what happens until everything was played and learned from."""
    over = parts.config.run.env_steps

    def goes_on(event: Event) -> bool:
        return not (isinstance(event, IterationEnded) and event.counters.env_steps >= over)

    return takewhile(goes_on, LOOPS[parts.config.run.mode](parts))


def trained(config: Config) -> tuple[str, int]:
    """Returns the weights that a run comes to, and its learner steps."""
    with closing(build_parts(config)) as parts:
        for event in events(parts):
            if isinstance(event, Learned):
                assert event.result.metrics, "a step was skipped"
        return parts.learner.weights_sha256(), parts.learner.learner_steps


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("name", ["ppo", "a2c"])
def test_actors_in_processes_give_the_weights_of_inline_bit_for_bit(name, task):
    inline = trained(config(name, **TASKS[task], **{"run.engine": "inline"}))

    assert trained(config(name, **TASKS[task], **{"run.engine": "processes"})) == inline
    assert inline[1] >= 8


def test_sync_with_one_actor_is_the_single_loop():
    one = {"actor.num": 1}

    single = trained(config(**one, **{"run.mode": "single"}))

    assert trained(config(**one)) == single


def test_a_rollout_is_learned_from_as_often_as_epochs_say_with_the_newest_weights():
    with closing(build_parts(config(**{"run.mode": "single", "actor.num": 1}))) as parts:
        versions, learned = [], 0
        for event in events(parts):
            if isinstance(event, Collected):
                versions.append((event.version, parts.weight_store.version, learned))
                learned = 0
            learned += isinstance(event, Learned)
            assert parts.replay.fill <= 1.0
        ratio = parts.limiter.ratio

    assert all(played == newest for played, newest, _ in versions)
    assert [newest for _, newest, _ in versions] == list(range(1, len(versions) + 1))
    assert {count for _, _, count in versions[1:]} == {3 * 3}  # epochs of 60 rows: 24, 24, 12
    assert ratio == pytest.approx(3.0, rel=0.1)  # epochs; the last rollout is still new


def test_rewards_are_divided_by_their_deviation_in_rollouts():
    settings = {"env.id": "rookery.envs.toy.basic:Reach", "env.normalize_reward": True}
    with closing(build_parts(config(**settings, **{"run.engine": "inline"}))) as parts:
        for event in events(parts):
            if isinstance(event, Collected) and event.counters.env_steps > 700:
                break
        made, scale = parts.replay._estimated(), float(parts.learner.deviation())
        columns, slots = parts.replay.ring.columns, made.rows % parts.replay.ring.capacity
        last = ~np.isnan(columns["ahead"][slots]) & (columns["next"][slots] == 0)
        row = np.flatnonzero(last)[0]
        at = slots[row]
        expected = columns["reward"][at] / scale + 0.98 * columns["ahead"][at]
        expected -= columns["best"][at]

    assert scale > 2.0
    assert made.advantage[row] == pytest.approx(expected, rel=1e-4)


# On a cluster.


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    pytest.importorskip("ray")
    with two_nodes() as cluster:
        yield cluster


def afar(nodes: Nodes) -> dict[str, Any]:
    return {
        "run.engine": "ray",
        "cluster.address": nodes.address,
        "cluster.token_path": str(nodes.token),
    }


@pytest.mark.cluster
def test_rollouts_of_two_hosts_give_the_weights_of_inline_bit_for_bit(nodes):
    settings = TASKS["choices"] | {"actor.num": 3}
    inline = trained(config(**settings, **{"run.engine": "inline"}))

    assert trained(config(**settings, **afar(nodes))) == inline


@pytest.mark.usefixtures("loopback_cluster")
def test_a_run_with_rollouts_continues_when_a_host_is_lost():
    """What the host worker had brought was learned from; its successor misses nothing."""
    settings = TASKS["choices"] | {"run.env_steps": 2_400}
    with closing(build_parts(config(**settings, **{"run.engine": "ray"}))) as parts:
        assert isinstance(parts.actors, ClusterActors)
        rows = []
        for event in events(parts):
            if isinstance(event, Collected):
                rows.append(parts.replay._estimated().rows.size)
                if len(rows) in (1, 4):  # its successor's shard is as long as its own was
                    host = parts.actors.handles[0].host
                    assert host is not None
                    host.stop(0.0)
        complaints = list(parts.actors.warnings())
        steps, restarts = parts.counters.env_steps, parts.actors.restarts

    assert restarts == 2, complaints
    assert steps >= 2_400
    assert set(rows) == {120}
