"""Games by name, by PettingZoo's factories, or from Python: all of them become tables."""

from typing import Any

import numpy as np
import pytest

from pettingzoo_envs import AtOnce, Turns, Unequal, turns
from rookery.config.schema import EnvConfig
from rookery.envs.make import check, make, make_one
from rookery.envs.turn_based.tables import any_allowed
from rookery.errors import ConfigError, EnvError
from rookery.games.plugin import PLUGIN


def played(config: EnvConfig, num: int = 2, steps: int = 30, **how: Any) -> Any:
    envs, rng = make(config, num, **how), np.random.default_rng(0)
    obs = envs.reset(0)
    for _ in range(steps):
        action = any_allowed(envs.codec.action_space, envs.codec.decode(obs), rng)
        obs = envs.step(envs.codec.encode_action(action)).obs
    envs.close()
    return envs


@pytest.mark.parametrize("name", PLUGIN.games)
def test_our_own_games_are_found_by_name(name: str) -> None:
    envs = played(EnvConfig(id=name))

    assert envs.name == envs.tables.games.name == name
    assert envs.num == 2


def test_a_dash_will_do() -> None:
    assert make(EnvConfig(id="connect-four"), 2).name == "connect_four"


@pytest.mark.parametrize(
    "env_id",
    ["pettingzoo.classic.tictactoe.tictactoe:env", "pettingzoo.classic.rps.rps:parallel_env"],
)
def test_pettingzoos_factories_are_found_in_their_modules(env_id: str) -> None:
    envs = played(EnvConfig(id=env_id), 4)

    assert envs.num == 4
    assert envs.tables.games.num == 2


@pytest.mark.parametrize("factory", [Turns, turns, AtOnce])
def test_classes_and_functions_are_taken_as_they_are(factory: Any) -> None:
    envs = played(EnvConfig(), factory=factory)

    assert envs.tables.seats == 3
    assert envs.num == 3


def test_settings_reach_the_factory() -> None:
    envs = make(EnvConfig(kwargs={"agents": 4}), 1, factory=AtOnce)

    assert envs.tables is not None
    assert envs.tables.seats == 4


def test_settings_that_a_game_has_not_are_an_error_that_names_them() -> None:
    with pytest.raises(ConfigError, match=r"colour.*env\.kwargs"):
        make(EnvConfig(id="ludo", kwargs={"colour": 1}), 2)


@pytest.mark.parametrize("given", ["ludo", AtOnce])
@pytest.mark.parametrize(
    "section",
    [{"wrappers": ("ClipReward",)}, {"max_episode_steps": 9}, {"frame_stack": 4}],
    ids=lambda section: next(iter(section)),
)
def test_what_only_gymnasiums_environments_know_is_refused(given: Any, section: Any) -> None:
    with pytest.raises(ConfigError, match=f"env.{next(iter(section))} .*is a game"):
        make(EnvConfig(**section), 2, factory=given)


def test_a_game_is_rehearsed_before_a_run_depends_on_it() -> None:
    assert check(EnvConfig(), Turns) == []
    assert check(EnvConfig(id="tictactoe")) == []
    with pytest.raises(EnvError, match="allows no action"):
        check(EnvConfig(kwargs={"masks": "info", "allowed": (0, 0)}), Turns)
    with pytest.raises(ConfigError, match="pad them"):
        check(EnvConfig(), Unequal)


def test_one_environment_by_itself_is_not_to_be_had() -> None:
    with pytest.raises(ConfigError, match="is a game"):
        make_one(EnvConfig(), AtOnce)


def test_without_pettingzoo_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "pettingzoo", None)
    for module in ("pettingzoo.classic.rps.rps", "pettingzoo.classic.rps", "pettingzoo.classic"):
        monkeypatch.delitem(sys.modules, module, raising=False)

    with pytest.raises(ConfigError, match=r"rookery\[pettingzoo\]"):
        make(EnvConfig(id="pettingzoo.classic.rps.rps:env"), 2)
