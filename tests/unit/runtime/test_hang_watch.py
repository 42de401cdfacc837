"""One call of an environment may take as long as the limit says, and no longer."""

import time
from typing import Any

import pytest

from misbehaving_envs import Wander
from rookery.config.load import load
from rookery.config.schema import Config, EnvConfig
from rookery.envs.make import check, make
from rookery.errors import StalledError
from rookery.runtime import watchdog
from rookery.runtime.watchdog import watched_calls
from rookery.training.build import build_parts
from rookery.training.launch import check_environment

LIMIT_S = 0.2
FOREVER_S = 60.0


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "LOOK_S", 0.005)


class Sleeper(Wander):
    """Sleeps in one of its methods."""

    def __init__(self, where: str, seconds: float = FOREVER_S) -> None:
        super().__init__()
        self._where, self._seconds = where, seconds
        self._sleep("the constructor")

    def reset(self, **given: Any) -> tuple[Any, dict[str, Any]]:
        self._sleep("reset")
        return super().reset(**given)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._sleep("step")
        return super().step(action)

    def close(self) -> None:
        self._sleep("close")

    def _sleep(self, where: str) -> None:
        if where == self._where:
            time.sleep(self._seconds)


def config(**kwargs: Any) -> EnvConfig:
    return EnvConfig(id="my:Sleeper", kwargs=kwargs)


@pytest.mark.parametrize("where", ["the constructor", "reset", "step"])
def test_a_hang_in_the_environment_check_is_an_error_with_the_name_and_the_call(where):
    said = rf"my:Sleeper has not answered for \d+ s in {where} \(actor.env_step_timeout_s is 0.2\)"

    with pytest.raises(StalledError, match=said), watched_calls("my:Sleeper", LIMIT_S) as calls:
        check(config(where=where), Sleeper, calls)


def run(where: str, seconds: float = FOREVER_S) -> Config:
    changes = {"env.kwargs": {"where": where, "seconds": seconds}, "env.id": "my:Sleeper"}
    return load("corridor", changes=changes | {"actor.env_step_timeout_s": LIMIT_S})


@pytest.mark.parametrize("where", ["the constructor", "reset", "step"])
def test_a_run_does_not_wait_for_an_environment_that_hangs_in_its_check(where):
    said = rf"my:Sleeper has not answered for \d+ s in {where} \(actor.env_step_timeout_s is 0.2\)"

    with pytest.raises(StalledError, match=said) as raised:
        check_environment(run(where), Sleeper)
    assert raised.value.exit_code == 3


def test_the_check_of_a_run_may_take_longer_than_one_call_of_its_environment():
    check_environment(run("reset", LIMIT_S / 4), Sleeper)  # which is reset more than four times


def test_a_run_does_not_wait_for_a_constructor_that_hangs():
    said = r":Sleeper has not answered for \d+ s in the constructor"

    with pytest.raises(StalledError, match=said):
        build_parts(run("the constructor"), factory=Sleeper)


def test_a_hang_in_close_is_an_error_and_the_environments_are_not_closed_again():
    envs = make(config(where="close"), 2, factory=Sleeper)

    with (
        pytest.raises(StalledError, match=r"my:Sleeper has not answered for \d+ s in close"),
        watched_calls("my:Sleeper", LIMIT_S, envs.calls),
    ):
        envs.close()
    envs.close()  # returns at once


@pytest.mark.parametrize("where", ["the constructor", "reset"])
def test_the_limit_is_for_one_environment_and_not_for_a_vector_of_them(where):
    """Eight environments take twice the limit together."""
    with watched_calls("my:Sleeper", LIMIT_S) as calls:
        envs = make(config(where=where, seconds=LIMIT_S / 4), 8, factory=Sleeper, calls=calls)
        envs.reset(0)
    envs.close()
