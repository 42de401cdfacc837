"""Cases: drawn, kept in files, and checked."""

import numpy as np
import pytest

from rookery.errors import ConfigError
from rookery.pathfinding.world import cases as case
from rookery.pathfinding.world.cases import FAULTS, Cases
from rookery.pathfinding.world.maps import FINE


def drawn(count=2, agents=3, size=8, density=0.2, seed=0):
    rng = np.random.default_rng(seed)
    return case.generate(count, agents=agents, size=size, density=density, rng=rng)


def one(starts, goals, blocked=()):
    """A case on 3 x 3 cells."""
    maps = np.zeros((1, 3, 3), dtype=np.uint8)
    for cell in blocked:
        maps[0][cell] = 1
    return Cases(maps, np.array([starts], dtype=np.int16), np.array([goals], dtype=np.int16))


def test_cases_come_back_from_a_file_as_they_were(tmp_path):
    cases = drawn()

    case.save(tmp_path / "some.cases", cases)
    back = case.load(tmp_path / "some.cases")

    for ours, theirs in zip(cases, back, strict=True):
        np.testing.assert_array_equal(ours, theirs)
        assert ours.dtype == theirs.dtype


def test_a_file_may_have_wider_numbers(tmp_path):
    cases = drawn()
    np.savez(tmp_path / "wide.npz", **{k: v.astype(np.int64) for k, v in cases._asdict().items()})

    back = case.load(tmp_path / "wide.npz")

    assert [part.dtype for part in back] == [part.dtype for part in cases]
    np.testing.assert_array_equal(back.starts, cases.starts)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        pytest.param({"maps": None}, "has no maps", id="an array is missing"),
        pytest.param({"maps": np.zeros((2, 8, 8))}, "whole numbers", id="floats"),
        pytest.param({"starts": np.full((2, 3, 2), 70000)}, "does not hold", id="too large"),
        pytest.param(
            {"goals": np.array([{}])}, "not a file of problem instances", id="objects are not read"
        ),
        pytest.param({"goals": np.zeros((2, 4, 2), int)}, "reshape", id="other shapes"),
    ],
)
def test_a_file_that_is_wrong_is_refused_with_the_reason(tmp_path, changed, message):
    arrays = {**drawn()._asdict(), **changed}
    np.savez(tmp_path / "bad.npz", **{k: v for k, v in arrays.items() if v is not None})

    with pytest.raises(ConfigError, match=message):
        case.load(tmp_path / "bad.npz")


@pytest.mark.parametrize("content", [None, b"", b"nothing", b"PK\x03\x04 torn"], ids=repr)
def test_what_is_no_file_of_cases_is_refused(tmp_path, content):
    if content is not None:
        (tmp_path / "torn.npz").write_bytes(content)

    with pytest.raises(ConfigError, match="not a file of problem instances"):
        case.load(tmp_path / "torn.npz")


def test_an_array_alone_is_refused(tmp_path):
    np.save(tmp_path / "alone.npy", np.zeros(3))

    with pytest.raises(ConfigError, match="not a file of problem instances"):
        case.load(tmp_path / "alone.npy")


def test_every_fault_has_its_words():
    assert sorted(FAULTS) == list(range(FINE + 1, FINE + 1 + len(FAULTS)))


ABSENT = (-1, -1)


@pytest.mark.parametrize(
    ("cases", "message"),
    [
        pytest.param(one([(0, 3)], [(0, 0)]), "instance 0, agent 0: .*outside", id="outside"),
        pytest.param(one([(-2, 0)], [(0, 0)]), "outside", id="above"),
        pytest.param(one([(0, 0)], [(1, 1)], [(1, 1)]), "blocked cell", id="goal on a wall"),
        pytest.param(one([(1, 1)], [(0, 0)], [(1, 1)]), "blocked cell", id="start on a wall"),
        pytest.param(
            one([(0, 0), (0, 0)], [(1, 1), (2, 2)]), "agent 1: .*of another agent", id="one start"
        ),
        pytest.param(
            one([(0, 0), (0, 1)], [(2, 2), (2, 2)]), "agent 1: .*of another agent", id="one goal"
        ),
        pytest.param(
            one([(0, 0), ABSENT], [(1, 1), (2, 2)]), "not both", id="goal without a start"
        ),
        pytest.param(one([ABSENT], [ABSENT]), "instance 0: it has no agents", id="no agents"),
        pytest.param(
            one([(0, 0)], [(2, 2)])._replace(maps=np.full((1, 3, 3), 2, dtype=np.uint8)),
            "neither 0 nor 1",
            id="strange cells",
        ),
        pytest.param(
            one([(0, 0)], [(2, 2)])._replace(maps=np.zeros((1, 3, 3))), "uint8", id="float map"
        ),
        pytest.param(
            one([(0, 0)], [(2, 2)])._replace(maps=np.zeros((3, 3), dtype=np.uint8)),
            "reshape",
            id="a map without cases",
        ),
    ],
)
def test_instances_that_cannot_be_played_are_refused(cases, message):
    with pytest.raises(ConfigError, match=message):
        case.check(cases)


def test_a_start_may_be_the_goal_of_another():
    case.check(one([(0, 0), (1, 1)], [(1, 1), (0, 0)]), reachable=True)


def test_a_goal_out_of_reach_is_refused_only_where_that_is_asked():
    walled = one([(0, 0)], [(2, 2)], [(2, 1), (1, 2)])

    case.check(walled)
    with pytest.raises(ConfigError, match="cannot be reached"):
        case.check(walled, reachable=True)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        pytest.param({"agents": 0}, "agents from 1", id="no agents"),
        pytest.param({"size": 0}, "size from 1", id="no map"),
        pytest.param({"count": -1}, "count from 0", id="fewer than none"),
        pytest.param({"density": 1.0}, "0 <= density < 1", id="all blocked"),
        pytest.param({"agents": 33}, "room for 32 at most", id="too many agents"),
    ],
)
def test_cases_that_cannot_be_drawn_are_refused(asked, message):
    with pytest.raises(ConfigError, match=message):
        drawn(**{"density": 0.0, **asked})


def test_a_full_map_is_drawn_all_the_same():
    cases = drawn(count=1, agents=32, size=8, density=0.0)

    case.check(cases, reachable=True)


def test_no_cases_are_cases_too():
    assert [len(part) for part in drawn(count=0)] == [0, 0, 0]


def test_a_case_depends_on_its_place_in_the_sequence_and_not_on_how_many_follow():
    many, few = drawn(count=5), drawn(count=2)

    for ours, theirs in zip(few, many, strict=True):
        np.testing.assert_array_equal(ours, theirs[:2])


def test_densities_are_what_was_asked_for():
    """600 maps of 400 cells: the mean of 0.3 has a deviation of 0.001, checked to 5 of them."""
    assert drawn(count=600, agents=1, size=20, density=0.3).maps.mean() == pytest.approx(
        0.3, abs=5e-3
    )


def test_drawn_densities_are_triangular():
    """Mean (0 + 0.33 + 0.5) / 3 and deviation 0.104: that of 1000 maps' mean is 0.0033."""
    shares = drawn(count=1000, agents=1, size=20, density=None).maps.mean((1, 2))

    assert shares.mean() == pytest.approx(0.83 / 3, abs=0.017)
    assert shares.std() == pytest.approx(0.106, abs=0.015)  # a little more: cells are counted
