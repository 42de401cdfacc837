"""The senders of each agent, for all places: equal to the definition, one agent after the other."""

from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st

from plain_team_network import heard
from rookery.pathfinding.team_dqn import comm_mask
from rookery.pathfinding.team_network import neighbours

CELLS = st.lists(st.integers(0, 6), min_size=2, max_size=2)
ABSENT = st.just([-1, -1])


@st.composite
def worlds(draw: Any) -> list[list[list[int]]]:
    """Some worlds with equally many agents; several may share a cell, some are nowhere."""
    agents = draw(st.integers(1, 7))
    world = st.lists(st.one_of(CELLS, CELLS, ABSENT), min_size=agents, max_size=agents)
    return draw(st.lists(world, min_size=1, max_size=3))


@given(worlds(), st.integers(1, 4), st.integers(1, 8))
def test_agents_receive_from_the_nearest_they_see_and_of_two_from_the_lower_number(
    places, radius, most
):
    links = neighbours(torch.tensor(places, dtype=torch.int16), radius=radius, most=most)

    agents, sight = len(places[0]), 2 * radius + 1
    assert links.who.shape == links.heard.shape == links.where.shape
    assert links.who.shape == (len(places) * agents, most + 1)
    for row, (who, there, where) in enumerate(zip(*(part.tolist() for part in links), strict=True)):
        world, i = divmod(row, agents)
        place = places[world]
        meant = heard(place, i, radius=radius, most=most)
        count = len(meant)
        assert there == [True] * count + [False] * (most + 1 - count)
        assert [j - world * agents for j in who] == meant + [i] * (most + 1 - count)
        for j, cell in zip(meant, where, strict=False):
            offset = [place[j][axis] - place[i][axis] + radius for axis in (0, 1)]
            assert divmod(cell, sight) == tuple(offset)


@given(worlds(), st.integers(1, 4), st.integers(1, 8))
def test_the_mask_of_a_world_has_its_communication_edges(places, radius, most):
    links = neighbours(torch.tensor(places), radius=radius, most=most)
    agents = len(places[0])

    mask = comm_mask(links, agents)

    assert mask.dtype == torch.uint8
    for row, found in enumerate(mask.tolist()):
        world, i = divmod(row, agents)
        meant = heard(places[world], i, radius=radius, most=most)
        assert found == [int(j in meant) for j in range(agents)]
