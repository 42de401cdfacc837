"""Measures of an episode against their definition, told from all that happened in it."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rookery.pathfinding.world.episode_measures import EpisodeMeasures

AGENTS = st.integers(1, 4)


@given(data=st.data(), agents=AGENTS, absent=st.integers(0, 2), steps=st.integers(1, 8))
def test_measures_are_what_the_whole_story_says(data, agents, absent, steps):
    """The story has who is home before the first step, and after each one."""
    home = st.lists(st.booleans(), min_size=agents, max_size=agents)
    story = data.draw(st.lists(home, min_size=steps + 1, max_size=steps + 1))
    goals = np.array([[0, i] for i in range(agents)] + [[-1, -1]] * absent, dtype=np.int16)
    starts = goals.copy()
    starts[:agents, 0] += ~np.array(story[0])

    measures = EpisodeMeasures(starts[None], goals[None])
    for now in story[1:]:
        measures.count(np.array([now + [True] * absent]))

    assert measures.ended() == {
        "is_success": int(all(story[-1])),
        "individual_success": sum(story[-1]) / agents,
        "length": steps,
        "sum_of_costs": sum(cost([now[i] for now in story]) for i in range(agents)),
    }


def cost(home):
    """Returns the steps until it was on its goal for good; all of them, where it never was."""
    lasting = [at for at in range(len(home)) if all(home[at:])]
    return min([*lasting, len(home) - 1])
