"""What path finding adds to the core is found by name."""

import pytest

from rookery import plugins
from rookery.cli.main import main
from rookery.config.algorithms import entry_of, known, load_class
from rookery.config.load import load, scenarios
from rookery.errors import ConfigError
from rookery.pathfinding.plugin import PLUGIN


def test_the_core_finds_the_plugin(capsys):
    assert PLUGIN in plugins.plugins()
    assert main(["--help"]) == 0
    assert all(f"  {verb} " in capsys.readouterr().out for verb in PLUGIN.verbs)
    assert {*PLUGIN.algorithms} <= {*known()}
    assert {"pathfinding", "pathfinding-cpu"} <= {*scenarios()}


@pytest.mark.parametrize("name", PLUGIN.algorithms)
def test_every_algorithm_is_where_its_row_says(name):
    entry = entry_of(name)

    assert entry.settings.name == name
    assert load_class(entry.where).__module__.startswith("rookery.pathfinding.")
    assert entry.about


def test_a_run_on_one_device_has_one_learner():
    with pytest.raises(ConfigError, match=r"device takes learner\.replicas 1 only, got 2"):
        load("pathfinding", changes={"learner.replicas": 2})
