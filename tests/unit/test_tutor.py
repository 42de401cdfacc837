"""A tutor: pupils do as planned, the others as they like, and only the first are learned from."""

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from arenas import RADIUS, WIDTH, WORLDS, Told, arena, cases_of, play, team
from rookery.algos.team import unroll
from rookery.config.algorithms import Teacher
from rookery.config.load import load
from rookery.config.schema import DeviceConfig
from rookery.envs.pathfinding.advice import Advice, advise
from rookery.envs.pathfinding.planner import plan
from rookery.errors import ConfigError
from rookery.loops.arena import TOLD, Arena, Script
from rookery.loops.tutor import Tutor, await_one, examined

CALM = torch.zeros(WORLDS)
STRIDE = 3


def taught(agents: int = 2, *, lecture: int = 6, **settings: Any) -> Arena:
    algorithm = team(agents, teacher=Teacher.PLANNER, **settings)
    return arena(agents, algorithm=algorithm, steps=12, lecture=lecture)


class Here:
    """Plans in a thread."""

    def __init__(self, threads: ThreadPoolExecutor):
        self.threads = threads

    def submit(self, *given: Any) -> Future[Advice]:
        return self.threads.submit(advise, *given)


def tutor(one: Arena, threads: ThreadPoolExecutor, **config: Any) -> Tutor:
    return Tutor(one, Here(threads), DeviceConfig(**{"lecture": 6, "trial": 3, **config}), seed=0)


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as some:
        yield some


def test_a_script_is_followed_step_by_step_until_it_or_the_episode_ends() -> None:
    script = Script(steps=3, worlds=3, agents=1, device=torch.device("cpu"))
    choice, over = torch.full((3, 1), 4), torch.tensor([False, False, False])
    steps = script.load({0: np.array([[1], [2], [3], [1]]), 2: np.array([[2]])})
    heard = [script.next(choice, over) for _ in range(2)]
    heard.append(script.next(choice, torch.tensor([True, False, False])))
    heard.append(script.next(choice, over))
    assert steps == 4  # no more than a script has of each
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
    for part, expected in zip(one.cases(which), whole, strict=True):
        np.testing.assert_array_equal(part, expected[which])
        assert part.dtype == expected.dtype


def test_pupils_do_as_planned_and_get_home(threads: ThreadPoolExecutor) -> None:
    one = taught()
    guide = tutor(one, threads, pupils=1.0)
    assert guide.begin() == 0  # first they play by themselves
    one.play(STRIDE, CALM)
    before = one.cases(np.arange(WORLDS))
    guide.end(STRIDE)
    await_one([guide])
    promised = guide.begin()
    rows = told_rows(one, 6)

    plans = plan(before, steps=12)
    pupils = examined(WORLDS)
    told = torch.stack([row[TOLD] for row in rows])  # [6, E]
    assert not told[:, pupils:].any()
    for world, expected in enumerate(plans[:pupils]):
        if expected.length and not is_over(rows, world):
            assert told[0, world]
            assert int(told[:, world].sum()) == min(6, expected.length)
    assert promised >= int(told.sum()) * one.agents > 0
    assert (torch.stack([row["reward"] for row in rows])[told] > -0.5).all()  # no move fails


def told_rows(one: Arena, rows: int) -> list[dict[str, torch.Tensor]]:
    story: list[Told] = play(one, CALM, rows)[0]
    return [each.row for each in story]


def is_over(rows: list[dict[str, torch.Tensor]], world: int) -> bool:
    return not rows[0]["steps"][world]


def schooled(threads: ThreadPoolExecutor) -> Arena:
    """Returns an arena that has gone round a few times."""
    one = taught()
    guide = tutor(one, threads)
    for _ in range(6):
        await_one([guide])
        guide.begin()
        one.play(STRIDE, CALM)
        guide.end(STRIDE)
    return one


def test_what_is_learned_are_the_steps_that_were_told(threads: ThreadPoolExecutor) -> None:
    one = schooled(threads)
    batch, picks = one.draw(6, beta=0.5)
    window, told = batch.obs, one.tape.rows(picks)[TOLD][:-1]
    steps = one.tape.rows(picks)["steps"][:-1]
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
    _, picks = one.draw(64, beta=0.5)
    told = one.tape.rows(picks)[TOLD][one.config.burn_in : -1]
    assert told.any(0).float().mean() > 0.95


def test_an_arena_rests_while_plans_are_made() -> None:
    with ThreadPoolExecutor(1) as threads:
        one = taught()
        guide = tutor(one, threads)
        held = threads.submit(time.sleep, 0.2)
        one.play(STRIDE, CALM)
        guide.end(STRIDE)
        assert not guide.ready
        assert await_one([guide]) == [guide]
        assert held.done()


def test_somebody_is_always_examined() -> None:
    assert [examined(worlds) for worlds in (1, 5, 16, 256)] == [0, 4, 14, 224]


def test_a_teacher_off_a_device_is_refused() -> None:
    with pytest.raises(ConfigError, match="use --mode device"):
        load("pathfinding-cpu", overrides=["algo.teacher=planner"])
