"""Normalised observations: a policy is trained with the statistics with which it has acted."""

from contextlib import closing
from typing import Any

import numpy as np
import pytest

from rookery.algorithms.actor_critic import LOG_PROB, ActorCritic
from rookery.config.load import load
from rookery.config.schema import Config
from rookery.networks.encoders import Normalize
from rookery.training.build import Parts, build_parts
from rookery.training.steps import collect, learn
from rookery.types import Array, LearnResult, SampledBatch

ALGORITHMS = ["ppo", "a2c", "impala"]


def config(name: str, **changes: Any) -> Config:
    small = {
        "net.hidden": [8],
        "learner.device": "cpu",
        "env.check": False,
        "env.normalize_obs": True,
        "actor.envs": 2,
        "actor.chunk": 128,
    }
    replayed = {"replay.learning_starts": 64, "replay.batch_size": 4, "replay.capacity": 400}
    return load(
        f"{name}-cartpole", changes=small | (replayed if name == "impala" else {}) | changes
    )


def log_ratios(parts: Parts, batch: SampledBatch) -> Array:
    """Returns log(pi / mu) of a batch: the learner's policy, and the one that acted."""
    algorithm: Any = parts.learner.algorithm
    assert isinstance(algorithm, ActorCritic)
    given = parts.learner._to_device(batch)
    if batch.mask is None:
        evaluated, _ = algorithm.evaluate_actions(given.obs, given.action)
        return (evaluated.log_prob - given.extras[LOG_PROB]).detach().numpy()
    evaluated, _ = algorithm._evaluate(given)
    return ((evaluated.log_prob - given.extras[LOG_PROB]) * given.mask).detach().numpy()


def normalizer(parts: Parts) -> Normalize:
    return next(m for m in parts.learner.algorithm.acting.modules() if isinstance(m, Normalize))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_rollout_is_learned_with_the_statistics_its_actions_were_chosen_with(name: str) -> None:
    with closing(build_parts(config(name))) as parts:
        collect(parts)
        batch = parts.replay.sample(parts.config.replay.batch_size)

        np.testing.assert_allclose(log_ratios(parts, batch), 0.0, atol=1e-5)


@pytest.mark.parametrize("name", ["ppo", "a2c"])
def test_every_rollout_begins_with_the_policy_that_played_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(build_parts(config(name))) as parts:
        ratios: list[Array] = []

        def noted(batch: SampledBatch, take: Any = parts.learner.learn) -> LearnResult:
            ratios.append(log_ratios(parts, batch))
            return take(batch)  # type: ignore[no-any-return]

        monkeypatch.setattr(parts.learner, "learn", noted)
        for _ in range(4):
            ratios.clear()
            counted = float(normalizer(parts).count)
            collect(parts)
            while parts.limiter.ready():
                assert float(normalizer(parts).count) == counted
                learn(parts)

            np.testing.assert_allclose(ratios[0], 0.0, atol=1e-5)
            assert float(normalizer(parts).count) >= counted + 128


def test_statistics_that_are_not_in_use_yet_are_saved_and_restored() -> None:
    with closing(build_parts(config("ppo"))) as parts:
        collect(parts)
        saved = parts.learner.state()
        while parts.limiter.ready():
            learn(parts)
        expected = normalizer(parts).mean.clone()

        parts.learner.restore(*saved)
        assert float(normalizer(parts).count) == 0
        parts.learner.adopt_statistics()
        assert normalizer(parts).mean.tolist() == expected.tolist()


def test_a_checkpoint_without_them_goes_on_with_the_statistics_in_use() -> None:
    with closing(build_parts(config("ppo"))) as parts:
        collect(parts)
        while parts.limiter.ready():
            learn(parts)
        numbers, arrays = parts.learner.state()
        older = {name: array for name, array in arrays.items() if "newest_statistics" not in name}
        expected = normalizer(parts).mean.clone()
        collect(parts)

        assert len(older) < len(arrays)
        parts.learner.restore(numbers, older)
        parts.learner.adopt_statistics()
        assert normalizer(parts).mean.tolist() == expected.tolist()


def test_replay_of_other_algorithms_is_learned_with_the_newest_statistics() -> None:
    asked = {"env.normalize_obs": True, "env.check": False, "net.hidden": [8]}
    with closing(build_parts(load("cartpole", changes=asked))) as parts:
        steps = collect(parts).counters.env_steps

        assert float(normalizer(parts).count) == steps
