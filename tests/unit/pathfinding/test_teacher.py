"""The teacher: guided worlds follow plans, others the policy; only guided steps are learned."""

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from rookery.config.load import load
from rookery.errors import ConfigError
from rookery.pathfinding.planner.plan import plan
from rookery.pathfinding.planner.planner_pool import PlannedActions, plan_actions
from rookery.pathfinding.settings import Teacher, TeamConfig
from rookery.pathfinding.teacher import PlannerTeacher, first_unguided_world, wait_until_ready
from rookery.pathfinding.team_actor import GUIDED, TeacherActions, TeamActor
from rookery.pathfinding.team_dqn import unroll
from small_team_actors import RADIUS, WIDTH, WORLDS, Told, cases_of, play, team, team_actor

CALM = torch.zeros(WORLDS)
STRIDE = 3


def taught(agents: int = 2, *, guided_steps: int = 6, **settings: Any) -> TeamActor:
    settings |= {"teacher": Teacher.PLANNER, "guided_steps": guided_steps}
    return team_actor(agents, algorithm=team(agents, **settings), steps=12)


class Here:
    """Plans in a thread."""

    def __init__(self, threads: ThreadPoolExecutor):
        self.threads = threads

    def submit(self, *given: Any) -> Future[PlannedActions]:
        return self.threads.submit(plan_actions, *given)


def teacher(one: TeamActor, threads: ThreadPoolExecutor, **config: Any) -> PlannerTeacher:
    return PlannerTeacher(
        one, Here(threads), TeamConfig(**{"guided_steps": 6, "policy_steps": 3, **config}), seed=0
    )


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as some:
        yield some


def test_a_script_is_followed_step_by_step_until_it_or_the_episode_ends() -> None:
    script = TeacherActions(steps=3, worlds=3, agents=1, device=torch.device("cpu"))
    choice, over = torch.full((3, 1), 4), torch.tensor([False, False, False])
    steps = script.load({0: np.array([[1], [2], [3], [1]]), 2: np.array([[2]])})
    heard = [script.next(choice, over) for _ in range(2)]
    heard.append(script.next(choice, torch.tensor([True, False, False])))
    heard.append(script.next(choice, over))
    assert steps == 4  # at most 3 for each world
    assert [action.squeeze(1).tolist() for action, _ in heard] == [
        [1, 4, 2],
        [2, 4, 4],
        [4, 4, 4],
        [4, 4, 4],
    ]
    assert [told.tolist() for _, told in heard] == [
        [True, False, True],
        [True, False, False],
        [False, False, False],
        [False, False, False],
    ]


def test_the_cases_of_an_arena_are_where_its_worlds_have_got_to() -> None:
    one = taught()
    one.play(4, torch.ones(WORLDS))
    which = np.array([3, 1])
    whole = cases_of(one.worlds.layouts, width=WIDTH, radius=RADIUS)
    for part, expected in zip(one.current_cases(which), whole, strict=True):
        np.testing.assert_array_equal(part, expected[which])
        assert part.dtype == expected.dtype


def test_guided_worlds_follow_plans_and_get_home(threads: ThreadPoolExecutor) -> None:
    one = taught()
    guide = teacher(one, threads, student_share=1.0)
    assert guide.load_plans() == 0  # the policy phase comes first
    one.play(STRIDE, CALM)
    before = one.current_cases(np.arange(WORLDS))
    guide.advance(STRIDE)
    wait_until_ready([guide])
    promised = guide.load_plans()
    rows = told_rows(one, 6)

    plans = plan(before, steps=12)
    students = first_unguided_world(WORLDS)
    told = torch.stack([row[GUIDED] for row in rows])  # [6, E]
    assert not told[:, students:].any()
    for world, expected in enumerate(plans[:students]):
        if expected.length and not is_over(rows, world):
            assert told[0, world]
            assert int(told[:, world].sum()) == min(6, expected.length)
    assert promised >= int(told.sum()) * one.agents > 0
    assert (torch.stack([row["reward"] for row in rows])[told] > -0.5).all()  # no move fails


def told_rows(one: TeamActor, rows: int) -> list[dict[str, torch.Tensor]]:
    story: list[Told] = play(one, CALM, rows)[0]
    return [each.row for each in story]


def is_over(rows: list[dict[str, torch.Tensor]], world: int) -> bool:
    return not rows[0]["steps"][world]


def schooled(threads: ThreadPoolExecutor) -> TeamActor:
    """Returns an actor after a few guided and policy phases."""
    one = taught()
    guide = teacher(one, threads)
    for _ in range(6):
        wait_until_ready([guide])
        guide.load_plans()
        one.play(STRIDE, CALM)
        guide.advance(STRIDE)
    return one


def test_what_is_learned_are_the_steps_that_were_told(threads: ThreadPoolExecutor) -> None:
    one = schooled(threads)
    batch, picks = one.sample(6, beta=0.5)
    window, told = batch.obs, one.ring.rows(picks)[GUIDED][:-1]
    steps = one.ring.rows(picks)["steps"][:-1]
    expected = (told & steps)[..., None].expand(-1, -1, 2).flatten(1)
    assert torch.equal(window.mask > 0, expected)
    assert expected[one.config.burn_in :].flatten(0).any()

    (loss,) = one.algorithm.losses(batch, step=1, rng=torch.Generator())
    late = expected.clone()
    late[: one.config.burn_in] = False
    scores = unroll(one.algorithm.online, window, one.config.burn_in)[:-1]
    torch.testing.assert_close(loss.value, F.cross_entropy(scores[late], window.action[late]))
    agreed = (scores.argmax(2) == window.action)[late].float().mean()
    torch.testing.assert_close(loss.metrics["agreement"], agreed)
    assert loss.td_error is not None
    torch.testing.assert_close(loss.td_error > 0, late.any(0))


def test_windows_in_which_nothing_is_told_are_not_drawn(threads: ThreadPoolExecutor) -> None:
    one = schooled(threads)
    _, picks = one.sample(64, beta=0.5)
    told = one.ring.rows(picks)[GUIDED][one.config.burn_in : -1]
    assert told.any(0).float().mean() > 0.95


def test_an_actor_waits_while_plans_are_made() -> None:
    with ThreadPoolExecutor(1) as threads:
        one = taught()
        guide = teacher(one, threads)
        release = threading.Event()
        held = threads.submit(release.wait, 60.0)
        one.play(STRIDE, CALM)
        guide.advance(STRIDE)
        assert guide.pending()
        threading.Timer(0.1, release.set).start()
        assert wait_until_ready([guide]) == [guide]
        assert held.done()


def test_some_world_is_never_guided() -> None:
    assert [first_unguided_world(worlds) for worlds in (1, 5, 16, 256)] == [0, 4, 14, 224]


def test_a_teacher_off_a_device_is_refused() -> None:
    with pytest.raises(ConfigError, match="use --mode device"):
        load("pathfinding-cpu", overrides=["algo.teacher=planner"])
