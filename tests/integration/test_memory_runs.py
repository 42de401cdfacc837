"""Whole runs of an algorithm with a memory: resumed in mid-episode, sharded, shared, loaded."""

import itertools
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rookery
from inline_runs import begin, finish, inline, resume, stop_at
from rookery.actors.policy import InferencePolicy
from rookery.config.load import load
from rookery.envs.toy.recall import Recall
from rookery.event import Learned
from rookery.sharing.pool_member import PoolMember
from rookery.training import LOOPS
from rookery.training.build import Parts, build_parts

__all__ = ["inline"]  # a fixture

pytestmark = pytest.mark.timeout(60)
SMALL: dict[str, Any] = {
    "env.id": "rookery.envs.toy.recall:Recall",
    "env.kwargs": {"delay": 5},
    "algo.name": "r2d2",
    "algo.length": 3,
    "algo.burn_in": 2,
    "algo.overlap": 1,
    "net.hidden": [8],
    "net.memory": 4,
    "replay.sampling": "prioritized",
    "replay.capacity": 500,
    "replay.learning_starts": 100,
    "replay.batch_size": 8,
    "replay.samples_per_insert": 4.0,
    "actor.envs": 3,
    "actor.chunk": 17,
    "learner.device": "cpu",
}


def learned(parts: Parts) -> Iterator[Learned]:
    return (e for e in LOOPS[parts.config.run.mode](parts) if isinstance(e, Learned))


@pytest.mark.usefixtures("inline")
def test_a_run_that_is_stopped_in_mid_episode_remembers_when_it_goes_on(tmp_path: Path) -> None:
    changes = SMALL | {
        "run.env_steps": 500,
        "env.frame_stack": 2,
        "env.normalize_obs": True,
        "net.recurrent": "gru",
    }
    with begin(tmp_path / "whole", changes) as training_run:
        whole = finish(training_run)
    assert whole["learner_steps"] > 20

    for event in (9, 24, 40):
        run_dir = tmp_path / f"stopped after {event}"
        with begin(run_dir, changes) as training_run:
            finish(training_run, stop_at(event))
        with resume(run_dir, exact=True) as training_run:
            halves = finish(training_run)

        assert halves["learner_steps"] == whole["learner_steps"], event
        assert halves["weights_sha256"] == whole["weights_sha256"], event


@pytest.mark.parametrize("draw", ["uniform", "prioritized"])
def test_one_shard_and_two_of_a_replay_of_sequences_both_teach(draw: str) -> None:
    local_actors = {
        "run.mode": "sync",
        "run.engine": "inline",
        "actor.num": 2,
        "replay.sampling": draw,
    }
    for shards in (1, 2):
        config = load(changes=SMALL | local_actors | {"replay.shards": shards})
        with closing(build_parts(config)) as parts:
            for event in itertools.islice(learned(parts), 5):
                assert event.result.td_error.shape == (8,)
                assert (event.result.td_error > 0).all()


def test_runs_learn_from_each_others_sequences(tmp_path: Path) -> None:
    sharing = {"sharing.pool": str(tmp_path / "pool"), "sharing.cross_sample_ratio": 0.5}
    with ExitStack() as stack:
        runs = [
            stack.enter_context(
                closing(build_parts(load(changes=SMALL | sharing | {"run.seed": seed})))
            )
            for seed in range(2)
        ]
        events = [learned(parts) for parts in runs]
        for own in events:
            next(own)  # all runs have rows by now, which are seen at the next look around
        for parts in runs:
            assert isinstance(parts.peers, PoolMember)
            parts.peers.borrower.refresh()

        for parts, own in zip(runs, events, strict=True):
            lent = [event.result.td_error for event in itertools.islice(own, 20)]
            assert all((td_error > 0).all() for td_error in lent)
            assert parts.peers is not None
            assert parts.peers.stats()["sharing/foreign_rows"] > 0.3 * 8 * len(lent)


@pytest.mark.usefixtures("inline")
def test_a_loaded_policy_remembers_by_the_state_it_is_handed(tmp_path: Path) -> None:
    with begin(tmp_path / "run", SMALL) as training_run:
        finish(training_run)
    policy = rookery.load(tmp_path / "run", checkpoint="last")
    weights = policy.algorithm.acting.state_dict()
    other = InferencePolicy.of(
        {name: tensor.numpy() for name, tensor in weights.items()},
        SMALL["env.id"],
        settings={"env.kwargs": SMALL["env.kwargs"]},
    )
    env = Recall(5)

    for seed in range(4):
        obs, _ = env.reset(seed=seed)
        state, over = None, False
        other.reset()
        while not over:
            action, state = policy.act(obs, state)
            assert action == other.act(obs)
            _, memory = state
            assert memory.shape == (1, 8)
            assert np.any(memory)
            obs, _, over, _, _ = env.step(action)
