"""An environment that calls `sys.exit` has failed like one that raises, wherever it does so."""

import signal
import sys
from typing import Any

import numpy as np
import pytest

from misbehaving_envs import Wander
from rookery.config.schema import EnvConfig
from rookery.envs.make import check, make, make_one
from rookery.errors import ConfigError, EnvError, RookeryError


class Leaver(Wander):
    """Calls `sys.exit(0)` in one of its methods."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012 - as gymnasium declares it

    def __init__(self, where: str, render_mode: str | None = None) -> None:
        super().__init__()
        self._where, self.render_mode = where, render_mode
        self._leave("constructor")

    def reset(self, **given: Any) -> tuple[Any, dict[str, Any]]:
        self._leave("reset")
        return super().reset(**given)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._leave("step")
        return super().step(action)

    def render(self) -> Any:
        self._leave("render")
        return np.zeros((2, 2, 3), np.uint8)

    def export_progress(self) -> dict[str, Any]:
        self._leave("export_progress")
        return {}

    def restore_progress(self, state: dict[str, Any]) -> None:
        self._leave("restore_progress")

    def close(self) -> None:
        self._leave("close")

    def _leave(self, where: str) -> None:
        if where == self._where:
            sys.exit(0)


def config(where: str) -> EnvConfig:
    return EnvConfig(id=f"{__name__}:Leaver", kwargs={"where": where})


def use(where: str) -> None:
    envs = make(config(where), 2, factory=Leaver, render=True)
    envs.reset(0)
    envs.step(np.zeros(2, int))
    envs.render()
    envs.export_progress()
    envs.restore_progress([{}])
    envs.close()


@pytest.mark.parametrize(
    "where",
    ["constructor", "reset", "step", "render", "export_progress", "restore_progress", "close"],
)
def test_sys_exit_in_an_environment_is_an_error_that_names_it(where):
    with pytest.raises(RookeryError, match=r"Leaver.*SystemExit: 0") as raised:
        use(where)

    assert isinstance(raised.value, EnvError)
    assert raised.value.exit_code == 3


@pytest.mark.parametrize("where", ["constructor", "reset", "step", "close"])
def test_sys_exit_in_the_environment_check_is_an_error_that_names_the_environment(where):
    with pytest.raises(EnvError, match=r"Leaver.*SystemExit: 0"):
        check(config(where), Leaver)


def test_sys_exit_in_a_step_is_named_with_environment_and_step():
    envs = make(config("step"), 2, factory=Leaver)
    envs.reset(0)

    with pytest.raises(EnvError, match=r"Leaver, environment 0, step 1: step raised SystemExit: 0"):
        envs.step(np.zeros(2, int))


class Interrupter(Wander):
    """Raises KeyboardInterrupt in its first step."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        raise KeyboardInterrupt


@pytest.fixture
def on_sigint():
    """Sets what SIGINT does, which tests that run in the background inherit as ignored."""
    before = signal.getsignal(signal.SIGINT)
    yield lambda handler: signal.signal(signal.SIGINT, handler)
    signal.signal(signal.SIGINT, before)


def test_a_keyboard_interrupt_in_a_worker_is_the_environments_and_named_with_its_step(on_sigint):
    on_sigint(signal.SIG_IGN)
    envs = make(EnvConfig(id=f"{__name__}:Interrupter"), 2, factory=Interrupter)
    envs.reset(0)

    with pytest.raises(EnvError, match=r"Interrupter, step 1: step raised KeyboardInterrupt"):
        envs.step(np.zeros(2, int))


def test_a_keyboard_interrupt_where_ctrl_c_is_answered_is_not_taken_for_the_environments(on_sigint):
    on_sigint(signal.default_int_handler)
    envs = make(EnvConfig(id=f"{__name__}:Interrupter"), 2, factory=Interrupter)
    envs.reset(0)

    with pytest.raises(KeyboardInterrupt):
        envs.step(np.zeros(2, int))


def test_sys_exit_at_the_import_of_a_module_is_refused(tmp_path, monkeypatch):
    (tmp_path / "leaving_module.py").write_text("import sys\nsys.exit(0)\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    with pytest.raises(ConfigError, match="'leaving_module', which cannot be imported"):
        make_one(EnvConfig(id="leaving_module:Env"))


class Raiser(Wander):
    def close(self) -> None:
        raise RuntimeError("the port is gone")


def test_an_error_in_close_after_the_environment_check_names_the_environment():
    with pytest.raises(EnvError, match="Raiser: close raised RuntimeError: the port is gone"):
        check(EnvConfig(), Raiser)
