"""Which settings go with whose algorithms, and what is said where SB3 is not the one to ask."""

import errno
import importlib.util
import inspect
import json
import os
import re
from pathlib import Path

import pytest
import stable_baselines3

from rookery import plugins
from rookery.checkpoints.load_weights import refuse_foreign
from rookery.checkpoints.run_folder import write_result
from rookery.cli import train
from rookery.config.load import RUN_FILE, dump, load, load_run, scenarios
from rookery.config.parse import keys
from rookery.config.refusals import SB3_CALLS, SB3_OURS, SB3_TAKES
from rookery.config.schema import SB3_ALGORITHMS, BackendName, Config
from rookery.errors import CheckpointError, ConfigError
from rookery.sb3.backend import BACKEND, require_sb3
from rookery.sb3.models import save

ARGUMENTS = {  # of SB3's constructors
    name
    for algorithm in SB3_ALGORITHMS
    for name in inspect.signature(getattr(stable_baselines3, algorithm)).parameters
}
OTHERS = {
    "run.mode": "sync",
    "run.engine": "processes",
    "cluster.address": "auto",
    "cluster.learner_resources": {"GPU": 1.0},
    "actor.num": 2,
    "actor.inference": "central",
    "learner.replicas": 2,
    "replay.sampling": "prioritized",
    "replay.storage": "disk",
    "replay.shards": 2,
    "replay.hindsight": 0.5,
    "env.frame_stack": 4,
    "env.reward_scale": 0.1,
    "env.reward_clip": 1.0,
    "env.normalize_obs": True,
    "env.normalize_reward": True,
    "eval.epsilon": 0.1,
}


def test_what_sb3_would_pass_over_in_silence_is_a_setting_and_is_tested():
    assert set(OTHERS) == set(SB3_TAKES)
    assert set(SB3_TAKES) <= set(keys())


@pytest.mark.parametrize("key", OTHERS)
def test_what_sb3_would_pass_over_in_silence_is_refused(key):
    with pytest.raises(ConfigError, match=f"backend sb3 takes {key} .* only, got .*; "):
        load("sb3-sac", changes={key: OTHERS[key]})


def test_sb3_without_an_algorithm_is_refused():
    with pytest.raises(ConfigError, match=r"set sb3\.algorithm to one of SAC, TD3"):
        load(changes={"backend": "sb3"})


def test_an_unknown_algorithm_is_refused_with_the_nearest():
    with pytest.raises(ConfigError, match="did you mean 'SAC'"):
        load("sb3-sac", changes={"sb3.algorithm": "SACK"})


@pytest.mark.parametrize("key", SB3_OURS)
def test_what_follows_from_other_settings_cannot_be_given_twice(key):
    with pytest.raises(ConfigError, match=f"sb3.kwargs takes none of .*, got .*'{key}': 1"):
        load("sb3-sac", changes={"sb3.kwargs": {key: 1}})


def test_policies_are_shaped_by_net_arch_alone():
    with pytest.raises(ConfigError, match=r"net_arch alone, got .*'optimizer_class'"):
        load("sb3-sac", changes={"sb3.kwargs": {"policy_kwargs": {"optimizer_class": "x"}}})


def test_a_seed_that_sb3_cannot_take_is_refused():
    with pytest.raises(ConfigError, match=r"seeds below 2\*\*32"):
        load("sb3-sac", changes={"run.seed": 1 << 32})


@pytest.mark.parametrize("name", ["sac", "td3", "ddpg", "dqn", "ppo"])
def test_the_task_of_a_scenario_of_sb3s_is_there_for_our_own_algorithm(name):
    of_sb3 = load(f"sb3-{name}")
    ours = load(f"sb3-{name}", changes={"backend": "rookery", "algo.name": name})

    assert of_sb3.backend is BackendName.SB3
    assert (ours.algo.name, ours.env, ours.eval) == (name, of_sb3.env, of_sb3.eval)


IGNORED = {  # setting → another value, and what SB3 has for it
    "learner.lr": (0.01, "set sb3.kwargs.learning_rate,"),
    "algo.gamma": (0.9, "set sb3.kwargs.gamma,"),
    "algo.name": ("sac", "set sb3.algorithm,"),
    "net.hidden": ([32], "set sb3.kwargs.policy_kwargs={net_arch: .*},"),
    "replay.batch_size": (32, "set sb3.kwargs.batch_size,"),
    "actor.envs": (4, "set sb3.envs,"),
    "actor.chunk": (100, "leave it out: SB3's own settings go into sb3.kwargs"),
    "selfplay.league": (True, "leave it out"),
}


@pytest.mark.parametrize("key", IGNORED)
def test_a_setting_that_sb3_would_ignore_is_refused_wherever_it_is_given(key, tmp_path):
    value, do = IGNORED[key]
    top, _, name = key.partition(".")
    file = tmp_path / "mine.yaml"
    settings = {"backend": "sb3", "sb3": {"algorithm": "SAC"}, top: {name: value}}
    file.write_text(json.dumps(settings))

    for given in (
        {"source": file},
        {"source": "sb3-sac", "overrides": [f"{key}={json.dumps(value)}"]},
        {"source": "sb3-sac", "overrides": [f"{top}={json.dumps({name: value})}"]},
        {"source": "sb3-sac", "changes": {key: value}},
    ):
        with pytest.raises(ConfigError, match=f"backend sb3 would ignore {key}; {do}"):
            load(**given)


def test_a_default_that_sb3_would_ignore_is_refused_where_it_is_given_for_this_run():
    with pytest.raises(ConfigError, match=r"ignore learner\.lr"):
        load("sb3-sac", overrides=[f"learner.lr={Config().learner.lr}"])


def test_the_settings_that_a_run_writes_load_as_a_scenario_and_those_of_an_older_run_as_a_run(
    tmp_path,
):
    config = load("sb3-sac")
    (tmp_path / RUN_FILE).write_text(dump(config))
    assert load(tmp_path / RUN_FILE) == config

    older = dump(config).replace("lr: 0.00063", "lr: 0.002")
    (tmp_path / RUN_FILE).write_text(older)
    assert load_run(tmp_path).learner.lr == 0.002
    with pytest.raises(ConfigError, match=r"ignore learner\.lr"):
        load(tmp_path / RUN_FILE)


def test_what_is_said_of_ignored_settings_is_said_of_settings_that_there_are():
    used = plugins.backends()["sb3"].settings
    sections = {key.partition(".")[0] for key in keys()}

    assert set(SB3_CALLS) <= set(keys())
    assert set(used) <= set(keys()) | sections
    assert not (set(SB3_CALLS) | set(SB3_TAKES)) & set(used)
    for name in SB3_CALLS.values():
        argument = re.fullmatch(r"sb3\.(kwargs\.)?(\w+)(=.*)?", name)
        assert argument is not None
        assert argument[2] in (ARGUMENTS if argument[1] else ("algorithm", "envs")), name


def test_settings_of_sb3s_algorithm_do_not_become_another_one_of_ours():
    with pytest.raises(ConfigError, match=r"SB3's SAC, got algo\.name dqn; set algo\.name=sac"):
        load("sb3-sac", changes={"backend": "rookery", "algo.name": "dqn"})


def test_each_scenario_of_sb3_names_its_algorithm():
    of_sb3 = {n: load(n) for n in scenarios() if load(n).backend is BackendName.SB3}

    assert set(of_sb3) == {"sb3-sac", "sb3-td3", "sb3-ddpg", "sb3-dqn", "sb3-ppo"}
    for name, config in of_sb3.items():
        assert config.sb3.algorithm == name.removeprefix("sb3-").upper()
        assert config.sb3.algorithm in SB3_ALGORITHMS


def test_a_run_too_short_for_the_warm_up_of_ours_is_none_of_sb3s_business():
    assert load("sb3-sac", changes={"run.env_steps": 10}).replay.learning_starts > 10


def test_without_sb3_a_run_is_refused_with_the_command_that_helps(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)

    with pytest.raises(ConfigError, match=r"pip install 'rookery\[sb3\]'"):
        require_sb3()


def test_a_model_of_sb3s_is_not_opened_but_it_is_said_who_can(tmp_path):
    (tmp_path / "model.zip").touch()
    with pytest.raises(ConfigError) as refused:
        refuse_foreign(load("sb3-sac"), tmp_path)

    *_, first, second = str(refused.value).splitlines()
    assert first.strip() == "from stable_baselines3 import SAC"
    assert second.strip() == f'model = SAC.load("{tmp_path}/model.zip")'
    refuse_foreign(Config(), Path("runs/a"))  # ours


def test_the_summary_of_a_run_of_sb3s_says_how_to_load_it():
    answer = {"run_dir": "runs/a", "best_score": -160.0, "env_steps": 5_000, "train_s": 20.0}

    lines = train.summary({**answer, "reason": "interrupted"}, load("sb3-sac"))

    assert lines[1:] == [
        '  stable_baselines3.SAC.load("runs/a/model.zip")',
        "  rookery evaluate runs/a",
        "  rookery train --resume runs/a",
    ]


def test_a_run_that_stopped_before_its_model_was_saved_names_no_file(tmp_path):
    config = load("sb3-dqn")
    advice = BACKEND.how_to_open(config, tmp_path)
    assert str(tmp_path / "model.zip") not in advice
    assert "no model.zip" in advice
    assert f"rookery train --resume {tmp_path}" in advice

    (tmp_path / "model.zip").touch()
    assert f'DQN.load("{tmp_path / "model.zip"}")' in BACKEND.how_to_open(config, tmp_path)


class Unsaved:
    """A model that cannot be saved."""

    def __init__(self, error):
        self.error = error

    def save(self, file, exclude):
        raise self.error


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.ENOSPC, "free some space"),
        (errno.EDQUOT, "free some space"),
        (errno.EACCES, "make .* writable"),
        (errno.EROFS, "make .* writable"),
    ],
)
def test_a_model_that_cannot_be_written_is_told_with_what_helps(number, advice, tmp_path):
    model = Unsaved(OSError(number, os.strerror(number)))
    with pytest.raises(CheckpointError, match=rf"model.zip could not be written: .*; {advice}"):
        save(model, tmp_path / "model.zip")
    assert list(tmp_path.iterdir()) == []


def test_the_result_of_a_run_that_cannot_be_resumed_is_not_promised_to_a_resumed_one(tmp_path):
    folder = tmp_path / "missing"
    with pytest.raises(CheckpointError, match=r"result.json could not be written: .*; make") as e:
        write_result(folder, {})
    assert "--resume" not in str(e.value)
