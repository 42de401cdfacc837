"""Modes: what each allows, and actors that live in the training process."""

import time
from collections.abc import Iterator
from importlib import import_module
from itertools import islice
from typing import Any

import pytest

from rookery.config.load import load
from rookery.config.schema import Config, Engine
from rookery.envs.toy.basic import Corridor
from rookery.errors import ConfigError, EnvError, StalledError
from rookery.event import Collected, IterationEnded, Learned
from rookery.replay.limiter import build_limiter
from rookery.runtime import watchdog
from rookery.training import LOOPS
from rookery.training.build import Parts, build_parts

SMALL: dict[str, Any] = {
    "run.env_steps": 400,
    "replay.capacity": 300,
    "replay.learning_starts": 40,
    "replay.batch_size": 8,
    "replay.samples_per_insert": 2.0,
    "actor.envs": 2,
    "actor.chunk": 16,
    "net.hidden": [8],
    "env.check": False,
}


def config(**changes: Any) -> Config:
    changes = {key.replace("__", "."): value for key, value in changes.items()}
    return load("corridor", changes=SMALL | changes)


class TestRefusals:
    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            (
                {"actor.num": 2},
                r"run.mode single takes actor.num 1 only, got 2; use --mode sync or --mode async",
            ),
            (
                {"run.engine": "processes"},
                r"single takes run.engine auto or inline only, got processes; use --mode sync",
            ),
            (
                {"run.mode": "async", "actor.chunk_episodes": 4},
                r"async takes actor.chunk_episodes null only, got 4; .*--mode sync",
            ),
            ({"actor.num": 0, "run.mode": "sync"}, r"actor.num must be above 0, got 0"),
            ({"actor.max_restarts": -1}, r"actor.max_restarts must be at least 0, got -1"),
            ({"actor.env_step_timeout_s": 0}, r"actor.env_step_timeout_s must be above 0, got 0"),
            (
                {"actor.devices": ["gpu"]},
                r"actor.devices\[0\] must be auto, cpu or cuda:N, got the text 'gpu'",
            ),
            ({"run.mode": "rapid"}, r"rapid"),
            ({"run.engine": "threads"}, r"threads"),
        ],
    )
    def test_what_a_mode_cannot_do_is_refused_with_what_to_do(
        self, changes: dict[str, Any], message: str
    ) -> None:
        with pytest.raises(ConfigError, match=message):
            load("corridor", changes=changes)

    def test_actors_live_where_their_mode_puts_them_unless_told_otherwise(self) -> None:
        places = {mode: config(run__mode=mode).engine for mode in ("single", "sync", "async")}

        assert places == {
            "single": Engine.INLINE,
            "sync": Engine.PROCESSES,
            "async": Engine.PROCESSES,
        }
        assert config(run__mode="async", run__engine="inline").engine is Engine.INLINE


class TestSlack:
    @pytest.mark.parametrize("num", [1, 2, 14])
    def test_all_actors_may_be_two_chunks_ahead_of_the_learner(self, num: int) -> None:
        many = config(run__mode="async", actor__num=num, actor__chunk=64, actor__envs=8)

        assert build_limiter(many).slack == 2 * num * (64 + 8)

    def test_a_batch_is_always_within_reach(self) -> None:
        few = config(run__mode="async", replay__samples_per_insert=0.01)
        limiter = build_limiter(few)
        limiter.insert(few.replay.learning_starts + limiter.slack)

        assert limiter.ready() or limiter.may_insert()


class Stubborn(Corridor):
    """Raises once in its life: at the step that is its number's."""

    steps, at = 0, 10**9

    def step(self, action: Any) -> Any:
        type(self).steps += 1
        if type(self).steps == type(self).at:
            raise RuntimeError("the motor is on fire")
        return super().step(action)


class Hanging(Corridor):
    """Hangs at its tenth step, whatever it is caught by."""

    steps = 0

    def step(self, action: Any) -> Any:
        type(self).steps += 1
        if type(self).steps == 10:
            time.sleep(60.0)
        return super().step(action)


@pytest.fixture
def wired() -> Iterator[Any]:
    made: list[Parts] = []

    def build(factory: Any = None, **changes: Any) -> Parts:
        made.append(build_parts(config(**changes), factory=factory))
        return made[-1]

    yield build
    for parts in made:
        parts.close()


def finish(parts: Parts) -> None:
    for event in LOOPS[parts.config.run.mode](parts):
        if (
            isinstance(event, IterationEnded)
            and parts.counters.env_steps >= parts.config.run.env_steps
        ):
            return


class TestInline:
    @pytest.mark.parametrize("mode", ["sync", "async"])
    def test_an_environment_that_raises_is_replaced(self, mode: str, wired: Any) -> None:
        class Once(Stubborn):
            at = 150

        parts = wired(Once, run__mode=mode, run__engine="inline", actor__num=2)
        finish(parts)

        assert sorted(parts.actors.incarnations) == [0, 1]
        (complaint,) = parts.actors.warnings()
        assert "RuntimeError: the motor is on fire" in complaint
        assert parts.limiter.stored == parts.counters.env_steps

    def test_in_single_mode_it_ends_the_run_with_its_own_error(self, wired: Any) -> None:
        class Once(Stubborn):
            at = 50

        parts = wired(Once)

        with pytest.raises(EnvError, match="step raised RuntimeError: the motor is on fire") as own:
            finish(parts)
        assert isinstance(own.value.__cause__, RuntimeError)

    def test_one_that_always_raises_ends_the_run_with_its_traceback(
        self, wired: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class Always(Corridor):
            def step(self, action: Any) -> Any:
                raise RuntimeError("the motor is on fire")

        monkeypatch.setattr("rookery.runtime.supervision.BACK_OFF_S", 0.001)
        parts = wired(Always, run__mode="sync", run__engine="inline", actor__num=2)

        with pytest.raises(EnvError, match="3 actors of this run were lost with this err") as end:
            finish(parts)
        assert "test_modes.py" in end.value.__notes__[0]

    @pytest.mark.parametrize("mode", ["single", "sync", "async"])
    def test_one_that_hangs_ends_the_run_with_its_name(
        self, mode: str, wired: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class Hangs(Hanging):
            pass

        monkeypatch.setattr(watchdog, "LOOK_S", 0.005)
        changes = {"run__engine": "inline", "actor__env_step_timeout_s": 0.05}
        parts = wired(Hangs, run__mode=mode, **changes)

        with pytest.raises(StalledError, match=r"Hangs has not answered for \d+ s.*test_modes.py"):
            finish(parts)

    def test_one_that_hangs_when_it_is_first_reset_is_noticed_too(
        self, wired: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class Hangs(Corridor):
            def reset(self, **options: Any) -> Any:
                time.sleep(60.0)

        monkeypatch.setattr(watchdog, "LOOK_S", 0.005)

        with pytest.raises(StalledError, match="Hangs has not answered"):
            wired(Hangs, actor__env_step_timeout_s=0.05)

    def test_one_that_hangs_when_it_is_closed_is_noticed_too(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class Hangs(Corridor):
            def close(self) -> None:
                time.sleep(60.0)

        monkeypatch.setattr(watchdog, "LOOK_S", 0.005)
        parts = build_parts(config(actor__env_step_timeout_s=0.05), factory=Hangs)

        with pytest.raises(StalledError, match="Hangs has not answered"):
            parts.close()
        assert parts.weight_store.fd == -1

    def test_a_learner_that_takes_long_is_not_a_hung_environment(
        self, wired: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(watchdog, "LOOK_S", 0.005)
        parts = wired(run__mode="sync", run__engine="inline", actor__env_step_timeout_s=0.5)
        slow: set[type] = set()
        for event in islice(LOOPS[parts.config.run.mode](parts), 20):
            if isinstance(event, Collected | Learned) and type(event) not in slow:
                slow.add(type(event))
                time.sleep(0.7)

        assert slow == {Collected, Learned}
        assert parts.counters.learner_steps > 0

    def test_actors_at_home_play_whenever_the_learner_waits(
        self, wired: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Not only when messages are looked for, which here happens once."""
        monkeypatch.setattr(import_module("rookery.training.loops"), "REPORTS_S", 1e9)
        parts = wired(run__mode="async", run__engine="inline", actor__num=2)
        finish(parts)

        assert parts.counters.env_steps >= 400


def test_where_replay_cannot_be_made_no_actor_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []

    class NoRoom:
        def __init__(self, *args: Any, **kwargs: Any):
            raise ConfigError("no room")

    class Known(Corridor):
        def close(self) -> None:
            closed.append("env")

    monkeypatch.setattr("rookery.training.build.LocalReplay", NoRoom)
    with pytest.raises(ConfigError, match="no room"):
        build_parts(config(), factory=Known)

    assert closed == ["env"] * 2
