"""Wiring and the single loop: roles that begin equal, and turns in their order."""

import os
import random
from collections.abc import Iterator
from itertools import groupby, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rookery.algorithms import build_algorithm
from rookery.config.load import load
from rookery.config.schema import Config
from rookery.envs.toy import basic
from rookery.errors import CheckpointError
from rookery.event import Collected, Counters, Event, IterationEnded, Learned
from rookery.networks.named_arrays import arrays_of, fingerprint
from rookery.schedule import Decay
from rookery.training.build import Parts, build_parts
from rookery.training.loops import sync
from rookery.training.steps import beta_now, progress

SMALL: dict[str, Any] = {
    "run.env_steps": 400,
    "replay.capacity": 300,
    "replay.learning_starts": 40,
    "replay.batch_size": 8,
    "replay.samples_per_insert": 2.0,
    "actor.envs": 4,
    "actor.chunk": 16,
    "actor.pull_period": 32,
    "learner.publish_period": 2,
    "net.hidden": [8],
    "env.check": False,
}


def config(**changes: Any) -> Config:
    return load("corridor", changes=SMALL | changes)


@pytest.fixture
def wired() -> Iterator[Any]:
    """Wires parts and closes them afterwards."""
    made: list[Parts] = []

    def build(changes: dict[str, Any] | None = None, **options: Any) -> Parts:
        made.append(build_parts(config(**changes or {}), **options))
        return made[-1]

    yield build
    for parts in made:
        parts.close()


def acting(parts: Parts) -> str:
    return fingerprint(arrays_of(parts.actors.actor.algorithm.acting))


class TestBeginning:
    def test_actor_weight_store_and_learner_begin_with_the_same_weights(self, wired: Any) -> None:
        parts = wired()
        published = parts.weight_store.latest(0)

        assert parts.actors.actor.version == published.version == 1
        assert fingerprint(published.arrays) == parts.learner.weights_sha256() == acting(parts)

    def test_the_actor_has_networks_of_its_own(self, wired: Any) -> None:
        parts = wired()
        for parameter in parts.learner.algorithm.acting.parameters():
            parameter.data.add_(1.0)

        assert acting(parts) != parts.learner.weights_sha256()

    def test_first_weights_are_a_function_of_the_seed_alone(self, wired: Any) -> None:
        torch.manual_seed(5)
        one = wired({"run.seed": 3}).learner.weights_sha256()
        torch.manual_seed(6)
        again = wired({"run.seed": 3, "actor.envs": 2}).learner.weights_sha256()
        other = wired({"run.seed": 4}).learner.weights_sha256()

        assert one == again != other

    def test_no_global_generator_is_touched(self, wired: Any) -> None:
        def states() -> list[Any]:
            legacy = np.random.get_state()  # noqa: NPY002 - exactly that one is looked at
            return [torch.get_rng_state().tolist(), legacy[1].tolist(), random.getstate()]

        before = states()
        list(islice(sync(wired()), 60))

        assert states() == before

    def test_given_weights_are_loaded_into_every_role(self, wired: Any) -> None:
        other = wired({"run.seed": 9})
        given = {k: v.copy() for k, v in other.learner.weights().items()}
        parts = wired(weights=given)
        target = parts.learner.algorithm.networks["target"]

        assert parts.learner.weights_sha256() == acting(parts) == fingerprint(given)
        assert fingerprint(arrays_of(target)) == fingerprint(given)

    def test_weights_of_another_network_are_refused(self, wired: Any) -> None:
        other = wired({"net.hidden": [9]}).learner.weights()

        with pytest.raises(CheckpointError, match="of another network"):
            wired(weights=other)

    def test_a_factory_takes_the_place_of_the_id(self, wired: Any) -> None:
        assert wired({"env.kwargs": {"classes": 5}}, factory=basic.Echo).spec.action.n == 5

    def test_approval_is_asked_once_with_the_spec_and_the_shapes_of_all_weights(
        self, wired: Any
    ) -> None:
        asked: list[Any] = []
        parts = wired(approve=lambda spec, algorithm: asked.append((spec, algorithm)))

        [(spec, algorithm)] = asked
        assert spec == parts.spec
        shapes = {name: weight.shape for name, weight in algorithm.acting.state_dict().items()}
        assert shapes == {name: array.shape for name, array in parts.learner.weights().items()}
        devices = {weight.device.type for weight in algorithm.acting.state_dict().values()}
        assert devices == {"meta"}  # asked before the weights take memory

    @pytest.mark.parametrize("storage", ["memory", "disk"])
    def test_replay_lives_where_it_was_asked_to(
        self, wired: Any, tmp_path: Path, storage: str
    ) -> None:
        parts = wired({"replay.storage": storage}, run_dir=tmp_path)
        place = os.readlink(f"/proc/self/fd/{parts.replay.ring.fd}")

        assert place.startswith(str(tmp_path)) is (storage == "disk")

    def test_an_algorithm_is_built_the_same_way_every_time(self, wired: Any) -> None:
        parts = wired()
        again = build_algorithm(parts.config, parts.spec)

        assert fingerprint(arrays_of(again.acting)) == parts.learner.weights_sha256()


def events(parts: Parts, env_steps: int = 400) -> list[Event]:
    """Returns a run's events until it has played so many steps."""
    seen: list[Event] = []
    for event in sync(parts):
        seen.append(event)
        if isinstance(event, IterationEnded) and event.counters.env_steps >= env_steps:
            break
    return seen


class TestTurns:
    def test_a_turn_learns_then_turns_then_plays(self, wired: Any) -> None:
        kinds = "".join(
            {Learned: "l", IterationEnded: "T", Collected: "c"}[type(e)] for e in events(wired())
        )

        assert all(set(turn) <= {"l"} for turn in kinds.removesuffix("T").split("Tc"))

    def test_nothing_is_learned_before_the_warm_up_is_over(self, wired: Any) -> None:
        seen = events(wired())
        first = next(i for i, event in enumerate(seen) if isinstance(event, Learned))

        assert seen[first - 1].counters.env_steps >= 40  # type: ignore[union-attr]

    def test_rows_are_learned_from_as_often_as_asked(self, wired: Any) -> None:
        parts = wired()
        for event in sync(parts):
            drawn = 8 * parts.counters.learner_steps
            inserted = max(0, parts.counters.env_steps - 40)
            assert drawn <= 2.0 * inserted
            if isinstance(event, IterationEnded):
                assert drawn + 8 > 2.0 * inserted  # as much as may be
                if event.counters.env_steps >= 400:
                    break

    def test_a_run_ends_at_its_env_steps_to_the_step(self, wired: Any) -> None:
        parts = wired({"run.env_steps": 100, "actor.envs": 4, "actor.chunk": 16})
        last = events(parts, 100)[-1]

        assert last.counters.env_steps == 100  # 6 chunks of 16, and 4 of the 7th

    def test_counters_count_what_happened(self, wired: Any) -> None:
        parts = wired()
        seen = events(parts)
        played = [event for event in seen if isinstance(event, Collected)]

        assert parts.counters == Counters(
            env_steps=parts.replay.ring.committed - sum(len(e.ended) for e in played),
            learner_steps=sum(isinstance(event, Learned) for event in seen),
            episodes=sum(len(event.ended) for event in played),
        )

    def test_versions_only_grow_and_are_pulled_when_due(self, wired: Any) -> None:
        parts = wired()
        versions = [e.version for e in events(parts) if isinstance(e, Collected)]

        assert versions == sorted(versions)
        assert versions[0] == 1
        assert len(set(versions)) > 3
        lasted = [len(list(chunks)) for _, chunks in groupby(versions)]
        assert min(lasted[:-1]) >= 2  # 32 steps
        assert parts.weight_store.version == 1 + parts.counters.learner_steps // 2

    def test_epsilon_falls_as_its_schedule_says(self, wired: Any) -> None:
        settings = {"actor.epsilon_steps": 160, "actor.epsilon_end": 0.2}
        seen = [e for e in events(wired(settings)) if isinstance(e, Collected)]

        assert [e.epsilon for e in seen[:11]] == pytest.approx(
            [1.0 - 0.08 * turn for turn in range(11)]
        )
        assert {e.epsilon for e in seen[11:]} == {0.2}

    def test_the_learning_rate_falls_with_the_run(self, wired: Any) -> None:
        parts = wired({"learner.lr": 0.01, "learner.lr_decay": Decay.LINEAR.value})
        events(parts, 200)

        rate = parts.learner.optimizers["q"].param_groups[0]["lr"]
        assert rate == pytest.approx(0.01 * (1 - progress(parts)))

    def test_beta_rises_with_the_run(self, wired: Any) -> None:
        parts = wired({"replay.beta": 0.4, "replay.beta_end": 1.0})
        assert beta_now(parts) == 0.4
        parts.counters = Counters(env_steps=200)
        assert beta_now(parts) == pytest.approx(0.7)
        parts.counters = Counters(env_steps=10_000)
        assert (progress(parts), beta_now(parts)) == (1.0, 1.0)

    def test_a_run_is_as_far_as_the_nearer_of_its_limits_says(self, wired: Any) -> None:
        parts = wired({"run.episodes": 20})  # and 400 env steps
        parts.counters = Counters(env_steps=100, episodes=15)
        assert progress(parts) == 0.75
        parts.counters = Counters(env_steps=360, episodes=15)
        assert progress(parts) == 0.9

    @pytest.mark.parametrize(("mode", "share"), [("single", 0.25), ("async", 0.5)])
    def test_minutes_count_only_where_a_run_is_not_repeated_bit_for_bit(
        self, wired: Any, mode: str, share: float
    ) -> None:
        parts = wired({"run.mode": mode, "run.minutes": 10.0})
        parts.counters, parts.minutes = Counters(env_steps=100), 5.0
        assert progress(parts) == share

    def test_a_skipped_step_updates_no_priorities_and_publishes_nothing(self, wired: Any) -> None:
        parts = wired()
        parts.learner.learn = lambda batch: type("Facts", (), {"td_error": None, "metrics": {}})()
        parts.replay.update_priorities = None
        learned = [e for e in islice(sync(parts), 40) if isinstance(e, Learned)]

        assert learned
        assert parts.weight_store.version == 1

    def test_one_seed_runs_one_way(self, wired: Any) -> None:
        runs = [wired({"replay.sampling": "prioritized", "algo.n_step": 3}) for _ in range(2)]
        for parts in runs:
            events(parts)

        assert runs[0].learner.weights_sha256() == runs[1].learner.weights_sha256()
        assert runs[0].counters == runs[1].counters


def test_a_run_that_is_refused_leaves_no_environment_open(wired: Any) -> None:
    closed: list[basic.Corridor] = []

    class Noted(basic.Corridor):
        def close(self) -> None:
            closed.append(self)

    def refuse(spec: Any, algorithm: Any) -> None:
        raise CheckpointError("no")

    with pytest.raises(CheckpointError):
        wired(factory=Noted, approve=refuse)
    assert len(closed) >= SMALL["actor.envs"]
