"""Memory of evaluation: what is refused, and how many worlds are played at once."""

import numpy as np
import pytest

from rookery.errors import ConfigError
from rookery.pathfinding.evaluation.case_sets import check_case_memory
from rookery.pathfinding.evaluation.play_cases import MAX_WORLD_BYTES, worlds_at_once
from rookery.pathfinding.world.cases import Cases, generate
from rookery.pathfinding.world.rules import WorldRules
from rookery.pathfinding.world.worlds import Worlds, world_bytes
from rookery.runtime import machine
from rookery.runtime.machine import Space


@pytest.fixture(autouse=True)
def plenty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "memory", lambda: Space(1 << 40, 1 << 40))


@pytest.fixture
def gigabyte(plenty: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "memory", lambda: Space(2 << 30, 1 << 30))


def cases_of(count: int, agents: int, size: int) -> Cases:
    """Returns instances without agents, which take no memory before they are written."""
    places = np.zeros((count, agents, 2), dtype=np.int16)
    return Cases(np.zeros((count, size, size), dtype=np.uint8), places, places)


def test_a_world_takes_what_was_estimated() -> None:
    cases = generate(4, agents=32, size=64, density=0.1, rng=np.random.default_rng(0))
    worlds = Worlds(cases)

    held = sum(part.nbytes for part in vars(worlds).values() if isinstance(part, np.ndarray))
    estimated = 4 * world_bytes(32, 64, 64, worlds.rules)

    assert held < estimated < 1.5 * held


@pytest.mark.parametrize(("agents", "size"), [(8, 20), (64, 40), (512, 64)])
def test_usual_worlds_are_played_as_many_at_once_as_ever(agents: int, size: int) -> None:
    assert worlds_at_once(cases_of(200, agents, size), WorldRules(), 32) == 32


def test_large_worlds_are_played_a_few_at_once() -> None:
    cases, rules = cases_of(25, 256, 1024), WorldRules()

    count = worlds_at_once(cases, rules, 32)

    each = world_bytes(256, 1024, 1024, rules)
    assert 1 < count < 25
    assert count * each <= MAX_WORLD_BYTES < (count + 1) * each


@pytest.mark.usefixtures("gigabyte")
def test_a_world_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"1024 agents on 2048 x 2048 .* take fewer agents"):
        worlds_at_once(cases_of(1, 1024, 2048), WorldRules(), 32)


@pytest.mark.usefixtures("gigabyte")
def test_more_cases_than_fit_are_refused() -> None:
    check_case_memory(200, agents=64, size=40)

    with pytest.raises(
        ConfigError, match=r"200 instances .* 42 GB of memory, 1.1 GB .* lower --cases"
    ):
        check_case_memory(200, agents=8, size=9999)
