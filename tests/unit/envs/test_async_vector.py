"""Environments in processes of their own: the same steps, faults, states, and nothing left over."""

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import psutil
import pytest
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv

from rookery.config.schema import EnvConfig
from rookery.envs.async_vector import AsyncVector
from rookery.envs.make import make
from rookery.envs.toy import basic
from rookery.envs.vector import Envs
from rookery.errors import CheckpointError, ConfigError, EnvError

WAIT_S = 20.0
Maker = Callable[..., Envs]


@pytest.fixture
def made() -> Iterator[Maker]:
    """Makes environments in processes, and closes them."""
    found: list[Envs] = []

    def made(factory: Any = None, num: int = 3, vector: str = "async", **settings: Any) -> Envs:
        config = EnvConfig(vector=vector, **settings)  # type: ignore[arg-type]  # as from YAML
        found.append(make(config, num, factory=factory))
        return found[-1]

    yield made
    for envs in found:
        envs.close()


def played(envs: Envs, steps: int, seed: int = 5) -> list[list[bytes]]:
    """Returns everything that a run could notice."""
    rng, seen = np.random.default_rng(seed), []
    for _ in range(steps):
        stepped = envs.step(rng.integers(envs.spec.action.n, size=envs.num))
        ended = stepped.terminated | stepped.truncated
        leaves = [*envs.spec.unpack(stepped.obs).values()]
        leaves += [leaf[ended] for leaf in envs.spec.unpack(stepped.final_obs).values()]
        rest = (stepped.reward, stepped.terminated, stepped.truncated, stepped.real)
        seen.append([part.tobytes() for part in (*leaves, *rest)])
        found = [envs.finished_info(stepped, k, ("points",)) for k in np.flatnonzero(ended)]
        seen[-1].append(json.dumps(found).encode())
    return seen


@pytest.mark.parametrize(
    "settings",
    [
        {"id": "Acrobot-v1", "max_episode_steps": 7},
        {"factory": basic.Mixed},
        {"factory": lambda: basic.Corridor(4)},
        {"id": "Blackjack-v1"},
    ],
    ids=["gymnasium", "dict", "success in info", "tuple"],
)
def test_steps_are_those_of_environments_one_after_another(
    made: Maker, settings: dict[str, Any]
) -> None:
    together, alone = made(**settings), made(vector="sequential", **settings)

    assert isinstance(together._vector, AsyncVector)
    assert isinstance(alone._vector, SyncVectorEnv)
    first, other = together.spec.unpack(together.reset(3)), alone.spec.unpack(alone.reset(3))
    assert [leaf.tobytes() for leaf in first.values()] == [
        leaf.tobytes() for leaf in other.values()
    ]
    assert played(together, 60) == played(alone, 60)


class Slow(basic.Echo):
    """Sleeps in every step, as a simulator that is waited for."""

    def step(self, action: Any) -> Any:
        time.sleep(0.05)
        return super().step(action)


def test_environments_that_are_waited_for_are_waited_for_at_the_same_time(made: Maker) -> None:
    """Ten steps of eight environments: 4 s one after another, 0.5 s at the same time."""
    envs = made(Slow, num=8)
    envs.reset(0)
    played(envs, 1)

    began = time.monotonic()
    played(envs, 10)

    assert time.monotonic() - began < 3.0


@pytest.mark.parametrize(("first", "second"), [("async", "sequential"), ("sequential", "async")])
def test_a_saved_state_goes_on_bit_for_bit_either_way(made: Maker, first: str, second: str) -> None:
    original, copy = (made(basic.Echo, vector=v, max_episode_steps=6) for v in (first, second))
    original.reset(3)
    played(original, 8)

    state = json.loads(json.dumps(original.export_state()))
    copy.restore_state(state)

    assert played(original, 20, seed=1) == played(copy, 20, seed=1)


def test_a_state_of_other_environments_is_refused(made: Maker) -> None:
    saved, other = made(basic.Echo), made(basic.Loop)
    saved.reset(0)

    with pytest.raises(
        CheckpointError,
        match=r"the saved environments are 7 layers .*Echo.* these are 7 layers .*Loop",
    ):
        other.restore_state(saved.export_state() or {})


def test_what_cannot_be_saved_says_so(made: Maker) -> None:
    envs = made(id="Blackjack-v1")
    envs.reset(0)

    assert envs.export_state() is None


class Levels(basic.Echo):
    """Has a level that is kept across episodes."""

    level = 0

    def step(self, action: Any) -> Any:
        self.level += 1
        return super().step(action)

    def export_progress(self) -> int:
        return self.level

    def restore_progress(self, state: int) -> None:
        self.level = state


def test_progress_is_exported_and_restored(made: Maker) -> None:
    envs, more, none = made(Levels, num=2), made(Levels, num=3), made(basic.Echo, num=2)
    for one in (envs, more, none):
        one.reset(0)
    played(envs, 4)

    more.restore_progress(envs.export_progress() or [])
    played(more, 1)

    assert envs.export_progress() == [4, 4]
    assert more.export_progress() == [5, 5, 5]
    assert none.export_progress() is None


class Faulty(gym.Env[Any, Any]):
    """Does in its third step what it is made for, if the action is 1."""

    def __init__(self, fault: str) -> None:
        self.fault, self.steps = fault, 0
        self.observation_space: spaces.Space[Any] = spaces.Box(-1, 1, (2,), np.float32)
        self.action_space: spaces.Space[Any] = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if self.fault == "reset":
            raise RuntimeError("no map")
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        obs: Any = np.zeros(2, np.float32)
        if self.steps == 3 and action == 1:
            if self.fault == "raises":
                raise ValueError("stuck")
            if self.fault == "exits":
                raise SystemExit(4)
            if self.fault == "interrupts":
                raise KeyboardInterrupt
            if self.fault == "dies":
                os.kill(os.getpid(), signal.SIGKILL)
            obs = {"shape": np.zeros(3, np.float32), "nan": np.full(2, np.nan, np.float32)}[
                self.fault
            ]
        return obs, 0.0, False, False, {}

    def close(self) -> None:
        if self.fault == "close":
            raise OSError("port is taken")


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("raises", "step raised ValueError: stuck; look at .*test_async_vector.py, line"),
        ("exits", "step raised SystemExit: 4"),
        ("interrupts", "step raised KeyboardInterrupt"),
        ("dies", r"its process has ended \(exit code \[-9\]\); see what it wrote"),
        ("shape", r"observation has shape \(3,\); its space says \(2,\)"),
        ("nan", r"observation\[0\] is nan; allowed there: finite 32-bit floats"),
    ],
)
def test_a_fault_names_the_environment_and_its_step(made: Maker, fault: str, said: str) -> None:
    envs = made(Faulty, kwargs={"fault": fault})
    envs.reset(0)

    for _ in range(2):
        envs.step(np.array([0, 0, 1]))

    with pytest.raises(EnvError, match=f"Faulty, environment 2, step 3: .*{said}"):
        envs.step(np.array([0, 0, 1]))


def test_a_fault_of_a_reset_is_one_too(made: Maker) -> None:
    with pytest.raises(EnvError, match="environment 0, step 0: reset raised RuntimeError: no map"):
        made(Faulty, kwargs={"fault": "reset"}).reset(0)


def test_an_error_while_closing_is_reported(capfd: pytest.CaptureFixture[str]) -> None:
    """The environment of this process, which only shows its spaces, is closed in silence."""
    here = os.getpid()

    class Closing(Faulty):
        def close(self) -> None:
            if os.getpid() != here:
                super().close()

    config = EnvConfig(kwargs={"fault": "close"}, vector="async")  # type: ignore[arg-type]
    envs = make(config, 2, factory=Closing)
    envs.reset(0)

    with pytest.raises(EnvError, match="environment 0, step 0: close failed; its process wrote"):
        envs.close()
    assert "OSError: port is taken" in capfd.readouterr().err


def children() -> set[int]:
    return {child.pid for child in psutil.Process().children()}


def test_closing_ends_the_processes_even_in_the_middle_of_a_call() -> None:
    before = children()
    config = EnvConfig(vector="async")  # type: ignore[arg-type]
    quiet, broken = (make(config, 2, factory=Slow) for _ in range(2))
    for envs in (quiet, broken):
        envs.reset(0)
    assert len(children() - before) == 4
    broken._vector.step_async(np.zeros(2, dtype=np.int64))  # as if `Hung` had been raised in step

    quiet.close()
    broken.close()

    assert children() == before


def test_one_environment_and_pictures_need_no_process(made: Maker) -> None:
    config = EnvConfig(vector="async")  # type: ignore[arg-type]

    assert isinstance(made(basic.Echo, num=1)._vector, SyncVectorEnv)
    envs = make(config, 2, factory=basic.Corridor, render=True)
    assert isinstance(envs._vector, SyncVectorEnv)


def test_a_native_vector_is_still_used(made: Maker) -> None:
    assert not isinstance(made(id="CartPole-v1")._vector, AsyncVector)


def test_a_game_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"a game, whose seats wait .* env.vector=sequential"):
        make(EnvConfig(id="connect-four", vector="async"), 2)  # type: ignore[arg-type]
