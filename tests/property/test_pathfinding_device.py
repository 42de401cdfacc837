"""Worlds in torch: step for step the compiled ones; drawn cases can be played."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from plain_pathfinding import cells, free_cells, steps_to
from rookery.pathfinding.world import cases as case
from rookery.pathfinding.world import distance_fields
from rookery.pathfinding.world.cases import Cases
from rookery.pathfinding.world.device_worlds import (
    FAR,
    DeviceWorlds,
    _triangular,
    components,
    distances,
    draw_device_cases,
)
from rookery.pathfinding.world.rules import NEARER, Outside, WorldRules
from rookery.pathfinding.world.worlds import BEYOND, Worlds
from small_team_actors import cases_of, to_device

CPU = torch.device("cpu")
SEEDS = st.integers(0, 2**32 - 1)


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Small tensors wait for each other's threads longer than they are computed."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def scattered(rng, *, count, shape, agents, density):
    """Returns cases of up to so many agents, some of whom have no way to their goals."""
    maps = (rng.random((count, *shape)) < density).astype(np.uint8)
    maps[:, rng.integers(shape[0]), rng.integers(shape[1])] = 0
    places = np.full((2, count, agents, 2), -1, dtype=np.int16)
    for k in range(count):
        free = np.argwhere(maps[k] == 0)
        present = rng.integers(1, min(agents, len(free)) + 1)
        slots = rng.permutation(agents)[:present]
        for ends in places:
            ends[k, slots] = rng.permutation(free)[:present]
    return Cases(maps, *places)


@st.composite
def worlds_of(draw):
    """Returns the number of worlds, their shape, agents and density: mostly crowded."""
    shape = draw(st.integers(1, 9)), draw(st.integers(1, 9))
    return {
        "count": draw(st.integers(1, 4)),
        "shape": shape,
        "agents": draw(st.integers(1, 12)),
        "density": draw(st.sampled_from((0.0, 0.1, 0.3, 0.5))),
    }


def greedy(codes, rng, share):
    """Returns a move that shortens the way, where there is one, for such a share of agents."""
    middle = codes[..., codes.shape[-1] // 2, codes.shape[-1] // 2]
    bits = (middle[..., None] >> np.arange(4)) // NEARER & 1
    nearer = np.where(bits.any(-1), bits.argmax(-1) + 1, 0)
    any_ = rng.integers(5, size=middle.shape)
    return np.where(rng.random(middle.shape) < share, nearer, any_)


def assert_alike(device, compiled):
    np.testing.assert_array_equal(device.place.numpy(), compiled.place)
    np.testing.assert_array_equal(device.steps.numpy(), compiled.steps)
    np.testing.assert_array_equal(device.views().numpy(), compiled.views())


@pytest.mark.parametrize("outside", Outside)
@settings(max_examples=50)
@given(asked=worlds_of(), radius=st.integers(1, 4), share=st.sampled_from((0, 0.8, 1)), seed=SEEDS)
def test_every_step_equals_that_of_the_compiled_worlds(outside, asked, radius, share, seed):
    rng = np.random.default_rng(seed)
    cases, rules = scattered(rng, **asked), WorldRules(radius=radius, outside=outside)
    compiled = Worlds(cases, rules)
    device = DeviceWorlds(to_device(cases, rules, CPU), rules, width=asked["shape"][1])

    for _ in range(24):
        assert_alike(device, compiled)
        action = greedy(compiled.views(), rng, share)
        for mine, theirs in zip(
            device.step(torch.from_numpy(action)), compiled.step(action), strict=True
        ):
            np.testing.assert_array_equal(mine.numpy(), theirs)
            assert mine.numpy().dtype == theirs.dtype
    assert_alike(device, compiled)


def test_greedy_agents_arrive_as_they_do_in_the_compiled_worlds():
    """The test above says little if no world ever finishes: here most do, and on the same step."""
    rng, rules = np.random.default_rng(0), WorldRules()
    cases = case.generate(32, agents=2, size=10, density=0.2, rng=rng)
    compiled = Worlds(cases, rules)
    device = DeviceWorlds(to_device(cases, rules, CPU), rules, width=10)
    over = np.zeros(32, dtype=bool)

    for _ in range(40):
        action = greedy(compiled.views(), rng, 0.9)
        finished = device.step(torch.from_numpy(action)).finished
        np.testing.assert_array_equal(finished.numpy(), compiled.step(action).finished)
        over |= finished.numpy()

    assert over.sum() > 16


@given(asked=worlds_of(), seed=SEEDS)
def test_renewed_worlds_are_those_that_are_loaded(asked, seed):
    rng = np.random.default_rng(seed)
    (first, second), rules = (scattered(rng, **asked) for _ in range(2)), WorldRules(radius=2)
    compiled = Worlds(first, rules)
    device = DeviceWorlds(to_device(first, rules, CPU), rules, width=asked["shape"][1])

    for renewed in (False, True):
        if renewed:
            which = rng.random(asked["count"]) < 0.5
            compiled.load(np.flatnonzero(which), Cases(*(part[which] for part in second)))
            device.renew(torch.from_numpy(which), to_device(second, rules, CPU))
        for _ in range(6):
            assert_alike(device, compiled)
            action = greedy(compiled.views(), rng, 0.7)
            mine, theirs = device.step(torch.from_numpy(action)), compiled.step(action)
            np.testing.assert_array_equal(mine.reward.numpy(), theirs.reward)


@pytest.mark.parametrize("outside", Outside)
@given(asked=worlds_of(), radius=st.integers(1, 4), seed=SEEDS)
def test_fields_are_the_code_planes_of_all_present_agents(outside, asked, radius, seed):
    cases = scattered(np.random.default_rng(seed), **asked)
    rules = WorldRules(radius=radius, outside=outside)
    laid = to_device(cases, rules, CPU)
    around = [length + 2 * radius for length in asked["shape"]]
    planes = np.empty((asked["count"], asked["agents"], *around), dtype=np.uint8)
    beyond = np.uint8(BEYOND[outside])
    distance_fields.draw(np.arange(asked["count"]), cases.maps, cases.goals, radius, beyond, planes)

    there = cases.starts[..., 0] >= 0
    np.testing.assert_array_equal(laid.field.view(planes.shape).numpy()[there], planes[there])


@given(asked=worlds_of(), seed=SEEDS)
def test_distances_equal_rings_around_the_goal(asked, seed):
    cases = scattered(np.random.default_rng(seed), **asked)
    away, inside = framed_distances(cases)

    assert (away[cases.starts[..., 0] < 0] == FAR).all()
    for k, i in np.argwhere(cases.starts[..., 0] >= 0):
        expected = np.full(asked["shape"], FAR)
        rings = steps_to(free_cells(cases.maps[k]), cells(cases.goals[k])[i])
        for cell, steps in rings.items():
            expected[cell] = steps
        np.testing.assert_array_equal(away[k, i][inside], expected)


def framed(maps):
    return torch.from_numpy(np.pad(maps != 0, ((0, 0), (1, 1), (1, 1)), constant_values=True))


def framed_distances(cases):
    """Returns the distances with a frame of one cell around, and where the map is in them."""
    wall = framed(cases.maps)
    row, column = (cases.goals[..., axis].astype(np.int64) + 1 for axis in (0, 1))
    goal = np.where(cases.goals[..., 0] < 0, 0, row * wall.shape[2] + column)
    inside = (slice(1, -1), slice(1, -1))
    return distances(wall, torch.from_numpy(goal)).numpy(), inside


def test_the_longest_ways_are_found():
    """A corridor that goes to and fro: many more steps than are taken between two looks."""
    maps = np.zeros((1, 41, 41), dtype=np.uint8)
    maps[0, 1::4, :-1] = maps[0, 3::4, 1:] = 1
    ends = np.array([[[0, 0]]], dtype=np.int16), np.array([[[40, 40]]], dtype=np.int16)
    away, inside = framed_distances(Cases(maps, *ends))

    assert away[0, 0][inside][0, 0] == 21 * 41 + 20 - 1
    assert len(components(framed(maps)).unique()) == 2  # walls, and one component


@given(asked=worlds_of(), seed=SEEDS)
def test_cells_have_one_component_if_a_way_joins_them(asked, seed):
    cases = scattered(np.random.default_rng(seed), **asked)
    wall = framed(cases.maps)
    label = components(wall).view(wall.shape)[:, 1:-1, 1:-1].numpy()

    for blocked, found in zip(cases.maps, label, strict=True):
        free = free_cells(blocked)
        assert (found[blocked == 1] == 0).all()
        for cell in free:
            same = {(int(r), int(c)) for r, c in np.argwhere(found == found[cell])}
            assert same == set(steps_to(free, cell))


DRAWN = st.tuples(
    st.integers(1, 6),  # agents
    st.one_of(st.none(), st.floats(0, 0.6)),
    st.integers(1, 4),  # radius
    SEEDS,
)


def drawn(sizes, agents, density, radius, seed, width=9, outside=Outside.BLOCKED):
    """Returns layouts, and the same as cases on maps of the full width."""
    rules, rng = WorldRules(radius=radius, outside=outside), torch.Generator().manual_seed(seed)
    laid = draw_device_cases(
        torch.tensor(sizes), agents=agents, width=width, rules=rules, density=density, rng=rng
    )
    return laid, cases_of(laid, width=width, radius=radius), rules


@settings(max_examples=50)
@given(DRAWN)
def test_drawn_goals_are_within_reach_and_no_cell_is_used_twice(asked):
    _, cases, _ = drawn([9, 5, 7, 2, 3, 9], *asked)

    case.check(cases, reachable=True)
    used = np.concatenate([cases.starts, cases.goals], axis=1)
    for ends in used:
        assert len(set(cells(ends))) == len(ends)


@settings(max_examples=50)
@given(DRAWN)
def test_drawn_layouts_are_those_of_their_cases(asked):
    laid, cases, rules = drawn([9, 5, 7, 2, 3, 9], *asked)

    for mine, theirs in zip(laid[:4], to_device(cases, rules, CPU)[:4], strict=True):
        assert torch.equal(mine, theirs)


@settings(max_examples=50)
@given(DRAWN)
def test_maps_are_as_large_as_asked_for_with_walls_around(asked):
    laid, cases, _ = drawn([9, 5, 7, 2, 3, 9], *asked)

    for size, blocked in zip(laid.size.tolist(), cases.maps, strict=True):
        assert blocked[size:].all()
        assert blocked[:, size:].all()
        assert not blocked[:size, :size].all()


@settings(max_examples=50)
@given(DRAWN)
def test_one_seed_draws_one_set_of_layouts(asked):
    first, second = (drawn([9, 4, 7], *asked)[0] for _ in range(2))

    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


def test_cases_without_room_are_left_out_and_all_others_kept():
    """Two cells for each: k x k cells have room for k * k // 2 agents."""
    for agents, kept in ((2, [3, 2, 4]), (3, [3, 4]), (5, [4]), (9, [])):
        laid, cases, _ = drawn([3, 2, 4, 1], agents, 0.0, 2, seed=0)
        assert laid.size.tolist() == kept
        assert len(laid.place) == len(cases.starts) == len(kept)


def test_with_a_free_outside_a_smaller_map_is_open_around_to_those_who_look():
    laid, _, rules = drawn([3], 1, 0.0, 2, seed=0, width=6, outside=Outside.FREE)

    assert not (laid.field.numpy() & 2).any()
    assert laid.wall.sum() == (6 + 2 * rules.radius) ** 2 - 9


def test_a_density_is_the_share_of_blocked_cells():
    """5 standard deviations: a correct one fails for one seed in a million."""
    _, cases, _ = drawn([12] * 200, 1, 0.3, 1, seed=0, width=12)

    count = cases.maps.size
    assert len(cases.maps) == 200
    assert abs(cases.maps.mean() - 0.3) < 5 * (0.3 * 0.7 / count) ** 0.5


def test_without_a_density_each_map_has_its_own_from_the_triangle():
    """The largest gap between two distribution functions; by Massart's bound (1990) a correct one
    exceeds 0.12 for one seed in a million. A map's cells blur its density by 0.02 more."""
    _, cases, _ = drawn([20] * 500, 1, None, 1, seed=0, width=20)
    share = np.sort(cases.maps.mean((1, 2)))
    expected = np.where(
        share < 0.33,
        share**2 / (0.5 * 0.33),
        1 - np.clip(0.5 - share, 0, None) ** 2 / (0.5 * (0.5 - 0.33)),
    )

    assert len(share) == 500
    assert np.abs(expected - (np.arange(500) + 0.5) / 500).max() < 0.12 + 0.02


def test_densities_are_the_inverse_of_the_triangles_distribution():
    chance = torch.linspace(0, 1, 101, dtype=torch.float64)
    density = _triangular(chance)

    rising, falling = density**2 / (0.5 * 0.33), 1 - (0.5 - density) ** 2 / (0.5 * 0.17)
    torch.testing.assert_close(torch.where(density < 0.33, rising, falling), chance)


@settings(max_examples=20)
@given(SEEDS)
def test_all_pairs_of_free_cells_are_drawn_about_equally_often(seed):
    """12 kinds of start and goal on an empty 2 x 2 map: 1200 draws give each 100 on average, and
    40 to 160 but for one in 10^7 (a binomial count, 6 standard deviations away)."""
    laid, _, _ = drawn([2] * 1200, 1, 0.0, 1, seed=seed, width=2)

    kinds, counts = np.unique(torch.cat([laid.place, laid.goal], 1), axis=0, return_counts=True)
    assert len(kinds) == 12
    assert 40 < counts.min() <= counts.max() < 160
