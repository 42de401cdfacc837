"""Which settings a resumed run may change, for checkpoints that hold more or less."""

from typing import Any

import pytest

from rookery.config.fixed_settings import SavedPart, fixed_changes
from rookery.config.load import load

ALL = frozenset(SavedPart)
WITHOUT_REPLAY = ALL - {SavedPart.REPLAY}
WITHOUT_EPISODES = ALL - {SavedPart.EPISODES}  # of an async run


def refused(
    changes: dict[str, Any],
    *,
    base: dict[str, Any] | None = None,
    saved: frozenset[SavedPart] = ALL,
    scenario: str = "corridor",
) -> list[str]:
    before = load(scenario, changes=base or {})
    return [each.change.key for each in fixed_changes(before, load(before, changes=changes), saved)]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("run.seed", 9),
        ("run.run_dir", "elsewhere"),
        ("report.tag", "other"),
        ("env.id", "CartPole-v1"),
        ("env.kwargs", {"length": 9}),
        ("env.wrappers", ["FlattenObservation"]),
        ("env.frame_stack", 2),
        ("env.normalize_obs", True),
        ("env.max_episode_steps", 20),
        ("net.hidden", [16]),
        ("net.activation", "tanh"),
        ("algo.n_step", 2),
        ("algo.dueling", True),
        ("algo.noisy", True),
        ("replay.sampling", "prioritized"),
        ("replay.capacity", 20_000),
        ("actor.envs", 4),
        ("learner.optimizer", "rmsprop"),
    ],
)
def test_a_setting_that_the_checkpoint_depends_on_is_refused(key, value):
    assert key in refused({key: value})


def test_another_algorithm_is_named_and_the_settings_that_follow_from_it_are_not():
    base = {"replay.learning_starts": 1_000}

    assert refused({"algo.name": "r2d2"}, base=base) == ["algo.name"]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("run.env_steps", 20_000),
        ("learner.lr", 0.1),
        ("learner.optimizer", "adamw"),
        ("learner.optimizer", "sgd"),
        ("learner.optimizer_kwargs", {"weight_decay": 0.1}),
        ("replay.batch_size", 16),
        ("replay.alpha", 0.3),
        ("replay.storage", "disk"),
        ("algo.gamma", 0.5),
        ("algo.double", False),
        ("actor.chunk", 32),
        ("env.reward_scale", 2.0),
        ("checkpoint.keep", 5),
        ("checkpoint.replay", False),
    ],
)
def test_any_other_setting_may_change(key, value):
    assert refused({key: value}) == []


@pytest.mark.parametrize(
    ("key", "value"),
    [("replay.capacity", 20_000), ("replay.sampling", "prioritized"), ("algo.n_step", 1)],
)
def test_a_checkpoint_without_replay_leaves_the_settings_of_replay_free(key, value):
    assert refused({key: value}, saved=WITHOUT_REPLAY) == []


def test_a_checkpoint_without_episodes_leaves_the_number_of_actors_free():
    base = {"run.mode": "async", "actor.num": 2}

    assert refused({"actor.num": 3}, base=base) == ["actor.num"]
    assert refused({"actor.num": 3}, base=base, saved=WITHOUT_EPISODES) == []
    assert refused({"env.max_episode_steps": 9}, base=base, saved=WITHOUT_EPISODES) == []


def test_priorities_may_be_forgotten_but_not_invented():
    assert refused({"replay.sampling": "uniform"}, base={"replay.sampling": "prioritized"}) == []


def test_a_time_limit_may_become_another_one_but_not_be_added():
    assert refused({"env.max_episode_steps": 30}, base={"env.max_episode_steps": 20}) == []


def test_rollouts_fix_the_settings_that_decide_their_size_and_not_the_capacity_of_replay():
    base = {"algo.name": "ppo"}

    assert refused({"actor.chunk": 128}, base=base) == ["actor.chunk"]
    assert refused({"replay.capacity": 20_000}, base=base) == []


def test_sequences_fix_what_decides_their_length_and_not_the_steps_summed_within_them():
    base = {"algo.name": "r2d2", "replay.learning_starts": 1_000}

    assert refused({"algo.length": 30}, base=base) == ["algo.length"]
    assert refused({"algo.overlap": 10}, base=base) == ["algo.overlap"]
    assert refused({"algo.n_step": 3}, base=base) == []


@pytest.mark.parametrize(
    ("before", "after", "fixed"),
    [
        ({"optimizer": "sgd"}, {"optimizer": "adam"}, []),  # nothing saved: adam begins anew
        ({"optimizer": "rmsprop"}, {"optimizer": "adam"}, ["learner.optimizer"]),
        (
            {"optimizer": "rmsprop"},
            {"optimizer": "rmsprop", "optimizer_kwargs": {"momentum": 0.9}},
            ["learner.optimizer_kwargs"],
        ),
        (
            {"optimizer": "adam"},
            {"optimizer": "adam", "optimizer_kwargs": {"amsgrad": True}},
            ["learner.optimizer_kwargs"],
        ),
    ],
)
def test_an_optimizer_needs_its_moments(before, after, fixed):
    base = {f"learner.{key}": value for key, value in before.items()}

    assert refused({f"learner.{k}": v for k, v in after.items()}, base=base) == fixed


def test_the_outputs_of_a_distribution_keep_their_meaning():
    base = {"algo.values": "categorical"}

    assert refused({"algo.value_max": 5.0}, base=base) == ["algo.value_max"]
    assert refused({"algo.value_max": 5.0}) == []  # no atoms
    assert refused({"algo.quantiles": 8}, base={"algo.values": "implicit"}) == []
