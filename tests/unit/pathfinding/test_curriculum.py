"""A curriculum: what opens, when, and what is left of it in a report and in a checkpoint."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from rookery.errors import ConfigError
from rookery.pathfinding.world.curriculum import (
    Curriculum,
    CurriculumSpec,
    CurriculumTask,
    curriculum_spec,
)

PLAN = CurriculumSpec(agents=(1, 2, 4), sizes=(5, 10, 20), threshold=0.75, history=4)
FIRST = CurriculumTask(1, 5)


def practised(curriculum: Curriculum, task: CurriculumTask, results: str) -> list[CurriculumTask]:
    """Records successes (+) and failures (-), and returns what opened."""
    for result in results:
        curriculum.record(task, success=result == "+")
    return curriculum.advance()


def test_it_begins_with_the_fewest_agents_on_the_smallest_map() -> None:
    assert Curriculum(PLAN).tasks == [FIRST]
    assert Curriculum().tasks == [CurriculumTask(1, 10)]


def test_a_mastered_task_opens_the_next_map_and_the_next_team() -> None:
    curriculum = Curriculum(PLAN)

    opened = practised(curriculum, FIRST, "++++")

    assert opened == [CurriculumTask(1, 10), CurriculumTask(2, 5)]
    assert curriculum.tasks == [FIRST, CurriculumTask(1, 10), CurriculumTask(2, 5)]


@pytest.mark.parametrize(
    ("results", "masters"),
    [
        ("+++", False),  # too few, however good
        ("-+++", True),  # 0.75 is enough
        ("--++", False),
        ("----++", False),
        ("----+++", True),  # only the last four count
        ("++++--", False),  # and they are looked at when asked
    ],
)
def test_the_last_episodes_decide_once_there_are_enough(results: str, masters: bool) -> None:
    assert bool(practised(Curriculum(PLAN), FIRST, results)) == masters


def test_success_is_the_share_of_the_last_episodes_and_0_before_the_first() -> None:
    curriculum = Curriculum(PLAN)
    assert curriculum.success(FIRST) == 0.0

    practised(curriculum, FIRST, "+--+-")

    assert curriculum.success(FIRST) == 0.25


def test_what_is_mastered_stays_so_and_opens_nothing_twice() -> None:
    curriculum = Curriculum(PLAN)
    practised(curriculum, FIRST, "++++")

    assert practised(curriculum, FIRST, "----") == []
    assert practised(curriculum, FIRST, "++++") == []
    assert practised(curriculum, CurriculumTask(1, 10), "++++") == [
        CurriculumTask(1, 20),
        CurriculumTask(2, 10),
    ]
    assert practised(curriculum, CurriculumTask(2, 5), "++++") == [
        CurriculumTask(4, 5)
    ]  # (2, 10) is open


def test_teams_too_large_for_a_map_wait_for_a_larger_one() -> None:
    plan = CurriculumSpec(
        agents=(1, 4, 5), sizes=(5, 10), crowd=0.16, history=1
    )  # 4 agents on 25 cells
    curriculum = Curriculum(plan)

    assert practised(curriculum, FIRST, "+") == [CurriculumTask(1, 10), CurriculumTask(4, 5)]
    assert practised(curriculum, CurriculumTask(4, 5), "+") == [CurriculumTask(4, 10)]
    assert practised(curriculum, CurriculumTask(4, 10), "+") == [CurriculumTask(5, 10)]


def test_every_task_that_fits_opens_in_the_end() -> None:
    plan = CurriculumSpec(agents=(1, 2, 4, 16, 64), sizes=(3, 5, 10, 20), history=1)
    curriculum = Curriculum(plan)

    while any(practised(curriculum, task, "+") for task in curriculum.tasks):
        pass

    every = [CurriculumTask(agents, size) for agents in plan.agents for size in plan.sizes]
    assert curriculum.tasks == [each for each in every if each.agents <= 0.18 * each.size**2]
    assert CurriculumTask(64, 20) in curriculum.tasks
    assert CurriculumTask(16, 5) not in curriculum.tasks


def test_open_tasks_are_chosen_uniformly_and_no_others() -> None:
    """300 draws of three: 5 standard deviations are 41. One seed in a million would be red."""
    curriculum, rng = Curriculum(PLAN), np.random.default_rng(0)
    practised(curriculum, FIRST, "++++")

    chosen = [curriculum.choose(rng) for _ in range(300)]

    assert set(chosen) == set(curriculum.tasks)
    assert all(abs(chosen.count(task) - 100) < 41 for task in curriculum.tasks)


def test_sizes_are_those_that_are_open_to_so_many_agents() -> None:
    curriculum = Curriculum(PLAN)
    practised(curriculum, FIRST, "++++")

    assert [curriculum.sizes(agents) for agents in (1, 2, 4)] == [[5, 10], [5], []]


def test_a_restored_curriculum_goes_on_as_the_saved_one() -> None:
    """Through JSON, half way to mastering a task."""
    curriculum, other = Curriculum(PLAN), Curriculum(PLAN)
    practised(curriculum, FIRST, "++++")
    practised(curriculum, CurriculumTask(2, 5), "-++")

    other.restore(json.loads(json.dumps(curriculum.state())))

    assert (other.results, other.mastered) == (curriculum.results, curriculum.mastered)
    assert other.state() == curriculum.state()
    for each in (curriculum, other):
        assert practised(each, CurriculumTask(2, 5), "+") == [
            CurriculumTask(2, 10),
            CurriculumTask(4, 5),
        ]
        assert practised(each, FIRST, "+") == []
        assert each.choose(np.random.default_rng(1)) == curriculum.choose(np.random.default_rng(1))


def test_a_restored_history_is_as_long_as_the_syllabus_says_now() -> None:
    curriculum, other = Curriculum(PLAN), Curriculum(CurriculumSpec(sizes=(5,), history=2))
    practised(curriculum, FIRST, "--+")

    other.restore(curriculum.state())
    practised(other, FIRST, "+")

    assert other.success(FIRST) == 1.0


def practised_far() -> Curriculum:
    """One agent has mastered maps of 5 and 10, and begun with 20."""
    curriculum = Curriculum(PLAN)
    practised(curriculum, FIRST, "++++")
    practised(curriculum, CurriculumTask(1, 10), "++++")
    practised(curriculum, CurriculumTask(1, 20), "+")
    return curriculum


def test_tasks_that_the_settings_do_not_have_any_more_are_dropped() -> None:
    other = Curriculum(CurriculumSpec(agents=(1, 2), sizes=(5, 10), history=4))

    lost = other.restore(practised_far().state())

    assert lost == [CurriculumTask(1, 20)]
    assert other.tasks == [
        FIRST,
        CurriculumTask(1, 10),
        CurriculumTask(2, 5),
        CurriculumTask(2, 10),
    ]
    assert other.mastered == {FIRST, CurriculumTask(1, 10)}
    other.record(CurriculumTask(1, 20), success=True)  # of an episode that was under way
    assert other.tasks == [
        FIRST,
        CurriculumTask(1, 10),
        CurriculumTask(2, 5),
        CurriculumTask(2, 10),
    ]


def test_a_task_that_is_left_out_does_not_keep_later_ones_closed() -> None:
    skipping = Curriculum(CurriculumSpec(agents=(1, 2), sizes=(5, 20), history=4))
    finer = Curriculum(CurriculumSpec(agents=(1, 2), sizes=(5, 7, 10, 20), history=4))

    skipping.restore({"results": [[1, 5, [1] * 4], [1, 10, []]], "mastered": [[1, 5]]})
    finer.restore(practised_far().state())

    assert CurriculumTask(1, 20) in skipping.tasks
    assert CurriculumTask(1, 7) in finer.tasks


def test_where_no_task_is_left_it_begins_with_the_first() -> None:
    other = Curriculum(CurriculumSpec(agents=(4,), sizes=(10, 20)))

    other.restore({"results": [[1, 5, []]], "mastered": []})

    assert other.tasks == [CurriculumTask(4, 10)]


def test_metrics_have_the_largest_task_and_the_success_rate_of_every_tried_one() -> None:
    curriculum = Curriculum(PLAN)
    practised(curriculum, FIRST, "++++")
    practised(curriculum, CurriculumTask(2, 5), "+-")

    assert curriculum.metrics() == {
        "curriculum/agents": 2.0,
        "curriculum/size": 10.0,
        "curriculum/open": 3.0,
        "curriculum/1x5": 1.0,
        "curriculum/2x5": 0.5,
    }


def test_settings_come_as_lists() -> None:
    given = {"agents": [1, 2], "sizes": [4, 6], "history": 2, "density": 0.1}

    assert curriculum_spec(given) == CurriculumSpec(
        agents=(1, 2), sizes=(4, 6), history=2, density=0.1
    )
    assert curriculum_spec({}) == CurriculumSpec()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"agents": []}, r"agents in ascending order, each at least 1, got \[\]; sort them"),
        (
            {"agents": [2, 1]},
            r"agents in ascending order, each at least 1, got \[2, 1\]; sort them",
        ),
        ({"sizes": [5, 5]}, r"sizes in ascending order, each at least 1, got \[5, 5\]; sort them"),
        ({"sizes": [0, 5]}, r"sizes in ascending order, each at least 1, got \[0, 5\]; sort them"),
        ({"threshold": 0.0}, r"above 0 and up to 1 .* got 0.0 and 200; choose within"),
        ({"threshold": 1.1}, r"above 0 and up to 1 .* got 1.1 and 200; choose within"),
        ({"history": 0}, r"a history of at least 1, got 0.9 and 0; choose within"),
        ({"agents": [19]}, r"19 agents are too many for 10 .*crowd is 0.18.*; begin with fewer"),
        ({"crowd": 0.0}, r"1 agents are too many for 10 .*crowd is 0.0.*; begin with fewer"),
        ({"agent": [1]}, r"takes agents, sizes, .* got .*'agent'.*; correct"),
        ({"agents": 4}, r"takes agents, sizes, .* got .*4.*; correct"),
        ({"threshold": "high"}, r"takes agents, sizes, .* got .*high.*; correct"),
    ],
)
def test_what_makes_no_curriculum_is_refused(given: Mapping[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        curriculum_spec(given)
