"""The opponents of a run come from a plugin; a run that asks for them without one is refused."""

from pathlib import Path
from typing import Any

import pytest

from rookery import plugins
from rookery.config.load import load
from rookery.config.schema import Config
from rookery.envs.make import make
from rookery.envs.turn_based.opponents import opponents_builder, tables_of
from rookery.errors import ConfigError
from rookery.evaluation.backend import RunRequest
from rookery.selfplay.run_opponents import BUILDER
from rookery.training.build import build_parts
from rookery.training.launch import session

REFUSED = (
    r"selfplay\.opponents is \{'past': 1\.0\}, and no installed plugin provides "
    r"opponents; leave it out"
)


def game(folder: Path) -> Config:
    changes: dict[str, Any] = {
        "env.id": "pettingzoo_envs:Turns",
        "env.check": False,
        "net.hidden": [4],
        "learner.device": "cpu",
        "run.run_dir": str(folder / "run"),
        "selfplay.opponents": {"past": 1.0},
    }
    return load(changes=changes)


@pytest.fixture
def none_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    offered = plugins.each
    monkeypatch.setattr(
        plugins, "each", lambda field: [] if field == "opponents" else offered(field)
    )


def test_self_play_offers_what_builds_opponents(tmp_path: Path) -> None:
    assert opponents_builder(game(tmp_path)) is BUILDER


def test_a_run_without_opponents_asks_no_plugin(none_offered: None) -> None:
    assert opponents_builder(load("corridor")) is None


def test_a_run_with_opponents_that_no_plugin_offers_is_refused_before_it_has_a_folder(
    none_offered: None, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=REFUSED), session(game(tmp_path), RunRequest()):
        pass
    assert not [*tmp_path.iterdir()]


def test_roles_with_opponents_that_no_plugin_offers_are_not_built(
    none_offered: None, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=REFUSED):
        build_parts(game(tmp_path), run_dir=tmp_path)


@pytest.mark.parametrize(
    ("games", "named"),
    [
        ({"ludo": "", "connect_four": ""}, "(ludo, connect-four, or a PettingZoo environment"),
        ({}, "(a PettingZoo environment"),
    ],
)
def test_an_environment_for_one_is_refused_with_the_games_there_are(
    games: dict[str, str], named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    envs = make(load("corridor").env, 1)
    monkeypatch.setattr(plugins, "names", lambda table: games)

    with pytest.raises(ConfigError) as refused:
        tables_of(envs)
    assert named in str(refused.value)
    envs.close()
