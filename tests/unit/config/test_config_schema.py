"""What the settings promise about themselves."""

import inspect
import re
from dataclasses import FrozenInstanceError, fields, is_dataclass

import pytest

from rookery.config import schema
from rookery.config.algorithms import DqnConfig, known
from rookery.config.describe import settings
from rookery.config.load import load
from rookery.config.parse import keys
from rookery.config.schema import (
    Config,
    Draw,
    EnvConfig,
    EvalConfig,
    FirstPriority,
    LearnerConfig,
    ReplayConfig,
    ReportConfig,
    RunConfig,
)
from rookery.config.section import Section
from rookery.errors import ConfigError

SECTIONS = [
    cls
    for _, cls in inspect.getmembers(schema, inspect.isclass)
    if is_dataclass(cls) and issubclass(cls, Section)
]


@pytest.mark.parametrize("cls", SECTIONS)
def test_settings_are_frozen_keyword_only_and_have_defaults(cls):
    made = cls()

    assert all(field.kw_only for field in fields(cls))
    with pytest.raises(FrozenInstanceError):
        setattr(made, fields(cls)[0].name, 1)


def test_every_setting_is_described_once_with_a_comment():
    found = settings()

    common = [s.key for s in found if not re.match(r"algo\.(?!name|gamma|n_step)", s.key)]
    of_algorithms = [(s.key, s.comment.partition(":")[0]) for s in found if s.key not in common]

    assert {setting.key for setting in found} == set(keys())
    assert common == [key for key in keys() if key in common]
    assert len(set(of_algorithms)) == len(of_algorithms)
    assert {name for _, name in of_algorithms} == {*known()}
    assert [s.key for s in found if not s.comment or s.comment.endswith(": ")] == []


@pytest.mark.parametrize(
    ("key", "type", "default"),
    [
        ("run.seed", "int", 0),
        ("eval.target", "float or null", None),
        ("replay.sampling", "uniform|prioritized", "uniform"),
        ("net.hidden", "list of int", [256, 256]),
        ("env.wrappers", "list", []),
        ("env.kwargs", "mapping", {}),
    ],
)
def test_a_description_has_type_and_default_as_yaml_has_them(key, type, default):
    found = {setting.key: setting for setting in settings()}[key]

    assert (found.type, found.default) == (type, default)


def test_a_comment_is_the_one_beside_the_field():
    found = {setting.key: setting.comment for setting in settings()}

    assert found["replay.batch_size"] == "rows in a learner step"
    assert found["run.mode"] == "training mode: how rows arrive at the learner"


def test_the_default_algorithm_is_listed():
    assert DqnConfig().name in known()


@pytest.mark.parametrize(
    "make",
    [
        lambda nan: LearnerConfig(lr=nan),
        lambda nan: RunConfig(minutes=nan),
        lambda nan: EvalConfig(timeout_s=nan),
        lambda nan: DqnConfig(gamma=nan),
        lambda nan: ReportConfig(plain_period_s=nan),
    ],
)
def test_nan_is_within_no_limits(make):
    with pytest.raises(ConfigError):
        make(float("nan"))


def test_a_policy_is_judged_in_its_environment_with_kwargs_of_its_own():
    config = Config(
        env=EnvConfig(id="Acrobot-v1", kwargs={"a": 1, "b": 2}),
        eval=EvalConfig(kwargs={"b": None, "c": 3}),
    )

    assert config.eval_env == EnvConfig(id="Acrobot-v1", kwargs={"a": 1, "b": None, "c": 3})
    assert Config().eval_env == EnvConfig()


def test_a_learning_rate_of_0_is_allowed():
    assert Config(learner=LearnerConfig(lr=0.0)).learner.lr == 0.0


class TestFirstPriority:
    def test_an_actors_priority_is_refused_where_nothing_is_drawn_by_priority(self):
        with pytest.raises(
            ConfigError,
            match=r"replay.sampling prioritized only, got uniform; set replay.sampling=prioritized",
        ):
            Config(replay=ReplayConfig(initial_priority=FirstPriority.ACTOR))

    def test_an_actors_priority_is_refused_where_rewards_are_divided_later(self):
        replay = ReplayConfig(initial_priority=FirstPriority.ACTOR, sampling=Draw.PRIORITIZED)

        assert Config(replay=replay).replay.initial_priority is FirstPriority.ACTOR
        with pytest.raises(
            ConfigError,
            match=r"env.normalize_reward false only, got true; .* use env.reward_scale",
        ):
            Config(replay=replay, env=EnvConfig(normalize_reward=True))


@pytest.mark.parametrize("given", ["../../etc", "a/b", "/etc", "a\0b"])
@pytest.mark.parametrize("key", ["report.tag", "name"])
def test_a_word_of_a_folders_name_is_not_a_path(key, given):
    with pytest.raises(ConfigError, match=rf"{key} is part of the run folder's name"):
        load("corridor", changes={key: given})


@pytest.mark.parametrize("tag", ["", "a_b", "v1.2", "two words", "Ümläut-鳥"])
def test_any_word_may_be_a_tag(tag):
    assert load("corridor", changes={"report.tag": tag}).report.tag == tag


@pytest.mark.parametrize("given", ["", " ", "a\0b"])
def test_a_run_folder_has_a_name(given):
    with pytest.raises(ConfigError, match=r"run\.run_dir must name a folder"):
        load("corridor", changes={"run.run_dir": given})
