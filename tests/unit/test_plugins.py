"""Plugins: what other packages add is found where they are installed, and only there."""

import re
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

import heap_games as heaps
from rookery import plugins
from rookery.config.schema import Config, Mode, RunConfig
from rookery.errors import ConfigError


@pytest.fixture
def fresh():
    """Reads plugins anew, before and after a test."""
    plugins.plugins.cache_clear()
    yield
    plugins.plugins.cache_clear()


@pytest.mark.parametrize("absent", ["rookery.absent", "absent.package"])
def test_a_package_that_is_not_there_is_left_out(absent, monkeypatch, fresh):
    monkeypatch.setattr(plugins, "PACKAGES", ("rookery.sharing", absent))

    assert len(plugins.plugins()) == 1
    assert plugins.algorithms() == {}
    assert plugins.each("scenarios") == []


def test_without_an_algorithm_for_it_there_is_no_run_on_a_device(monkeypatch):
    monkeypatch.setattr(plugins, "plugins", tuple)

    with pytest.raises(ConfigError, match=r"takes algo\.name none only, got dqn; .*another"):
        Config(run=RunConfig(mode=Mode.DEVICE))


def test_another_distribution_adds_its_plugin_by_entry_point(monkeypatch, fresh):
    point = EntryPoint("heaps", "heap_games:PLUGIN", plugins.GROUP)
    monkeypatch.setattr("importlib.metadata.entry_points", lambda *, group: [point])

    assert plugins.plugins()[-1] is heaps.PLUGIN
    assert plugins.load(plugins.names("games")["heaps"]) is heaps.Heaps


def test_modules_are_imported_by_name_in_two_places_only():
    root = Path(plugins.__file__).parent
    by_name = re.compile(r"\b(import_module|__import__)\b")
    found = {path for path in root.rglob("*.py") if by_name.search(path.read_text())}

    assert {path.relative_to(root).as_posix() for path in found} == {"plugins.py", "__init__.py"}
