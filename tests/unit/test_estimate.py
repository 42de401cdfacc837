"""The estimate: what a run will take is added up, and refused in time where it is too much."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rookery.config.load import load
from rookery.config.schema import Config
from rookery.errors import ConfigError
from rookery.loops import estimate as module
from rookery.loops.estimate import (
    COPIES,
    PROCESS_BYTES,
    PROCESSES,
    Estimate,
    estimate,
    refuse_what_cannot_fit,
)
from rookery.loops.wiring import Parts, wire
from rookery.manage import machine
from rookery.manage.machine import Space
from rookery.replay.ring import row_bytes, schema_of

NEED = Estimate(replay=6_000, weights=300, processes=100, checkpoints=9_000)


def config(**changes: Any) -> Config:
    small = {"replay.capacity": 500, "env.check": False, "net.hidden": [4]}
    return load("corridor", changes=small | changes)


@pytest.fixture
def parts() -> Iterator[Parts]:
    made = wire(config())
    yield made
    made.close()


class TestAdding:
    def test_replay_is_at_least_its_rows(self, parts: Parts) -> None:
        need = estimate(parts.config, parts.spec, parts.learner)
        rows = 500 * row_bytes(schema_of(parts.spec))

        assert rows <= need.replay <= 1.5 * rows

    def test_weights_are_those_of_every_role(self, parts: Parts) -> None:
        # One network: 8 → 4 → 2 in float32. The learner trains one beside a target of the same
        # size, the running return scale (3 numbers) with them; two moments; an actor's, and
        # five copies elsewhere.
        net = 4 * ((8 * 4 + 4) + (4 * 2 + 2))
        need = estimate(parts.config, parts.spec, parts.learner)

        assert need.weights == (2 * net + 3 * 4) + 2 * net + (COPIES + 1) * net
        assert need.processes == PROCESSES * PROCESS_BYTES

    def test_checkpoints_hold_rows_only_where_they_are_asked_to(self, parts: Parts) -> None:
        with_rows = estimate(parts.config, parts.spec, parts.learner)
        without = estimate(config(**{"checkpoint.replay": False}), parts.spec, parts.learner)

        assert with_rows.checkpoints - without.checkpoints == with_rows.replay

    def test_every_checkpoint_kept_takes_room(self, parts: Parts) -> None:
        two, five = (
            estimate(config(**{"checkpoint.keep": keep}), parts.spec, parts.learner).checkpoints
            for keep in (2, 5)
        )
        net = 4 * ((8 * 4 + 4) + (4 * 2 + 2))

        assert five - two == 3 * (2 * net + 3 * 4 + 3 * net)

    def test_more_rows_need_more(self, parts: Parts) -> None:
        ten = estimate(config(**{"replay.capacity": 5_000}), parts.spec, parts.learner)

        assert ten.replay == 10 * estimate(parts.config, parts.spec, parts.learner).replay


@pytest.mark.parametrize(
    ("count", "said"),
    [
        (0, "0.0 B"),
        (999, "999 B"),
        (1_500, "1.5 kB"),
        (25_000_000, "25 MB"),
        (3_210_000_000, "3.2 GB"),
        (5_000_000_000_000, "5000 GB"),
    ],
)
def test_sizes_are_said_in_the_largest_unit_that_fits(count: int, said: str) -> None:
    assert f"replay {said}," in str(NEED._replace(replay=count))


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Pretends that so many bytes of memory and disk are free."""

    def pretend(memory: int, disk: int) -> None:
        monkeypatch.setattr(machine, "memory", lambda: Space(10**12, memory))
        usage = SimpleNamespace(total=10**12, used=0, free=disk)
        monkeypatch.setattr(module.shutil, "disk_usage", lambda path: usage)

    return pretend


class TestRefusing:
    @pytest.mark.parametrize(
        ("storage", "memory", "disk"),
        [("memory", 6_400, 9_000), ("disk", 400, 15_000)],
    )
    def test_what_just_fits_is_allowed_and_a_byte_less_is_not(
        self, room: Any, tmp_path: Path, storage: str, memory: int, disk: int
    ) -> None:
        asked = config(**{"replay.storage": storage})

        room(memory, disk)
        refuse_what_cannot_fit(NEED, asked, tmp_path)
        room(memory - 1, disk)
        with pytest.raises(ConfigError, match="of memory"):
            refuse_what_cannot_fit(NEED, asked, tmp_path)
        room(memory, disk - 1)
        with pytest.raises(ConfigError, match="of disk"):
            refuse_what_cannot_fit(NEED, asked, tmp_path)

    def test_too_little_memory_says_which_settings_to_change(
        self, room: Any, tmp_path: Path
    ) -> None:
        room(5_000, 10**9)
        with pytest.raises(ConfigError) as caught:
            refuse_what_cannot_fit(NEED, config(), tmp_path)

        said = str(caught.value)
        assert "needs 6.4 kB of memory, 5.0 kB are available" in said
        assert "lower replay.capacity (500), or set replay.storage=disk" in said

    def test_too_little_disk_says_which_settings_to_change(self, room: Any, tmp_path: Path) -> None:
        room(10**9, 5_000)
        with pytest.raises(ConfigError) as caught:
            refuse_what_cannot_fit(NEED, config(), tmp_path)

        said = str(caught.value)
        assert f"needs 9.0 kB of disk, {tmp_path} has 5.0 kB free" in said
        assert "set checkpoint.replay=false" in said


def test_a_run_that_does_not_fit_is_refused_before_replay_takes_its_memory(
    room: Any, tmp_path: Path
) -> None:
    room(10**6, 10**12)
    huge = config(**{"replay.capacity": 10**11})  # terabytes: creating the ring would fail

    def approve(spec: Any, learner: Any) -> None:
        refuse_what_cannot_fit(estimate(huge, spec, learner), huge, tmp_path)

    with pytest.raises(ConfigError, match=r"lower replay\.capacity \(100000000000\)"):
        wire(huge, approve=approve)
