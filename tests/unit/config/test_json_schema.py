"""The JSON Schema: editors accept what a run accepts, and underline what it refuses."""

import json

import pytest
import yaml
from jsonschema import Draft7Validator

from rookery.cli.main import main
from rookery.config.describe import json_schema
from rookery.config.load import as_dict, load, scenarios
from rookery.config.schema import Config
from rookery.errors import ConfigError

VALIDATOR = Draft7Validator(json_schema())


def mistakes(settings: object) -> list[str]:
    return [error.json_path for error in VALIDATOR.iter_errors(settings)]


def test_the_schema_is_one():
    Draft7Validator.check_schema(json_schema())


@pytest.mark.parametrize("name", sorted(scenarios()))
def test_every_packaged_scenario_is_valid_as_it_stands_and_with_all_its_settings(name):
    assert mistakes(yaml.safe_load(scenarios()[name].read_text())) == []
    assert mistakes(as_dict(load(name))) == []


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"run": None},
        {"algo": "sac"},
        {"algo": {"name": "mypackage.toy:Toy", "slowness": 2}},
        {"net": "mypackage.nets:MyNet"},
        {"eval": {"target": None}},
        {"run": {"env_steps": 1e5}},
        {"selfplay": {"opponents": {"past": 1}}},
    ],
)
def test_what_a_file_may_say_is_valid(settings):
    assert mistakes(settings) == []


@pytest.mark.parametrize(
    ("settings", "where"),
    [
        ({"replay": {"batchsize": 64}}, "$.replay"),
        ({"batch_size": 64}, "$"),
        ({"replay": {"batch_size": 0}}, "$.replay.batch_size"),
        ({"replay": {"batch_size": 1.5}}, "$.replay.batch_size"),
        ({"replay": {"alpha": 1.5}}, "$.replay.alpha"),
        ({"run": {"mode": "turbo"}}, "$.run.mode"),
        ({"run": {"seed": None}}, "$.run.seed"),
        ({"run": {"minutes": 0}}, "$.run.minutes"),
        ({"run": {"callbacks": ["print"]}}, "$.run.callbacks[0]"),
        ({"algo": {"name": "sac", "atoms": 3}}, "$.algo"),
        ({"algo": {"name": "sac", "critics": 0}}, "$.algo.critics"),
        ({"algo": {"clip_range": 0.2}}, "$.algo"),
        ({"net": {"hidden": [0]}}, "$.net.hidden[0]"),
        ({"net": {"custom": "MyNet"}}, "$.net.custom"),
        ({"learner": {"device": "gpu"}}, "$.learner.device"),
        ({"selfplay": {"opponents": {"pats": 1}}}, "$.selfplay.opponents"),
        ({"selfplay": {"eval_opponent": "past"}}, "$.selfplay.eval_opponent"),
        ({"name": "a/b"}, "$.name"),
    ],
)
def test_what_is_refused_is_underlined_in_its_place(settings, where):
    assert mistakes(settings) == [where]
    with pytest.raises(ConfigError):
        load(Config(), changes=settings)


def test_every_setting_has_a_description_and_its_default():
    section = json_schema()["properties"]["replay"]

    assert section["properties"]["batch_size"] == {
        "description": "rows in a learner step",
        "type": "integer",
        "exclusiveMinimum": 0,
        "default": 128,
    }


def test_the_command_prints_the_schema(capsys):
    assert main(["list", "--schema"]) == 0
    shown = capsys.readouterr().out
    assert main(["list", "--schema", "--json"]) == 0
    line = capsys.readouterr().out

    assert json.loads(shown) == json.loads(line) == json_schema()
    assert len(shown.splitlines()) > 100
    assert len(line.splitlines()) == 1


def test_settings_and_schema_are_not_asked_for_together():
    assert main(["list", "--settings", "--schema"]) == 2
