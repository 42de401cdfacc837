"""The collision rule for all states, against the sequence of corrections it is told as."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from plain_pathfinding import arrived, beside, cells, crowds, free_cells
from rookery.pathfinding.world.cases import Cases
from rookery.pathfinding.world.worlds import Worlds


def stepped(cases, action):
    """Returns cells before and after one step."""
    worlds = Worlds(cases)
    worlds.step(action[None])
    return cells(cases.starts[0]), cells(worlds.place[0])


@given(crowds(), st.randoms(use_true_random=False))
def test_a_step_equals_the_corrections_one_by_one_in_any_order(crowd, order):
    cases, action = crowd
    before, after = stepped(cases, action)

    assert after == arrived(free_cells(cases.maps[0]), before, action, order)


@given(crowds())
def test_no_agent_shares_a_cell_or_passes_through_another_or_a_wall(crowd):
    cases, action = crowd
    before, after = stepped(cases, action)
    present = [cell for cell in after if cell is not None]
    ways = {
        (here, there)
        for here, there in zip(before, after, strict=True)
        if here is not None and here != there
    }

    assert len(set(present)) == len(present) == sum(cell is not None for cell in before)
    assert set(present) <= free_cells(cases.maps[0])
    assert not any((there, here) in ways for here, there in ways)


@given(crowds())
def test_every_agent_stays_or_moves_to_its_target_cell(crowd):
    cases, action = crowd

    for i, (here, there) in enumerate(zip(*stepped(cases, action), strict=True)):
        assert there in ((None,) if here is None else (here, beside(here, action[i])))


@given(crowds())
def test_an_empty_cell_goes_to_the_lowest_number_that_wants_it(crowd):
    cases, action = crowd
    before, after = stepped(cases, action)
    empty = free_cells(cases.maps[0]) - set(before)
    wanted = {}
    for i, here in enumerate(before):
        if here is not None:
            wanted.setdefault(beside(here, action[i]), i)

    for cell in empty & set(wanted):
        assert after[wanted[cell]] == cell


@given(crowds())
def test_a_world_leaves_no_trace_in_the_next(crowd):
    """Played alone, and among copies of itself."""
    cases, action = crowd
    alone = stepped(cases, action)[1]
    worlds = Worlds(Cases(*(np.concatenate([part] * 3) for part in cases)))

    worlds.step([action] * 3)

    assert [cells(place) for place in worlds.place] == [alone] * 3
