"""A team actor: its rows equal those of the compiled worlds, its sequences are its rows."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from rookery.errors import ConfigError, EmptyReplayError
from rookery.pathfinding.settings import Talk
from rookery.pathfinding.team_actor import EndedTeamEpisodes, TeamActor
from rookery.pathfinding.team_dqn import Window, comm_mask, unroll
from rookery.pathfinding.team_network import neighbours
from rookery.replay.device_replay import SampledWindows
from small_team_actors import ALPHA, GAMMA, RADIUS, SIGHT, WORLDS, Told, play, team, team_actor

ROWS = 34  # more than the tape holds
EPSILON = torch.linspace(0, 1, WORLDS)  # the first world's agents do their best, always


class Story(NamedTuple):
    team_actor: TeamActor
    told: list[Told]
    ended: list[EndedTeamEpisodes]  # of each row

    @property
    def agents(self) -> int:
        return self.team_actor.agents

    def first(self, mark: int) -> int:
        """Returns the number of the row that the window at a mark begins with."""
        ring = self.team_actor.ring
        whole = range(0, len(self.told) - ring.span + 1, ring.stride)
        return max(row for row in whole if row // ring.stride % ring.count == mark)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Tiny networks wait for each other's threads longer than they compute."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module", params=[(1, Talk.NEAR), (3, Talk.NEAR), (3, Talk.NONE)])
def story(request: pytest.FixtureRequest, one_thread: None) -> Story:
    agents, talk = request.param
    played = team_actor(agents, algorithm=team(agents, talk=talk))
    return Story(played, *play(played, EPSILON, ROWS))


@pytest.fixture(scope="module")
def batch(story: Story) -> tuple[Window, SampledWindows, Any]:
    drawn, picks = story.team_actor.sample(8, beta=0.5)
    return drawn.obs, picks, drawn


# Rows.


def test_rows_are_what_the_compiled_worlds_show_and_pay(story: Story) -> None:
    for told in story.told:
        np.testing.assert_array_equal(told.row["view"].numpy(), told.views)
        steps = told.row["steps"].numpy()
        np.testing.assert_array_equal(told.row["reward"].numpy()[steps], told.reward[steps])


def test_an_end_is_a_row_of_its_own_and_a_fresh_one_follows(story: Story) -> None:
    over = fresh = torch.zeros(WORLDS, dtype=torch.bool)
    fresh = ~fresh
    for told in story.told:
        assert torch.equal(told.row["fresh"], fresh)
        assert torch.equal(told.row["steps"], ~over)
        ended = torch.from_numpy(told.finished | (told.length >= story.team_actor.rules.steps))
        fresh, over = over, ended & ~over


def test_an_ends_row_shows_where_the_last_step_led(story: Story) -> None:
    """The compiled worlds went on from the row before, and begin anew only after this one."""
    ends = [told for told in story.told if not told.row["steps"].all()]

    assert ends
    for told in ends:
        over = ~told.row["steps"].numpy()
        assert (told.length[over] > 1).all()
        assert not told.row["fresh"][torch.from_numpy(over)].any()
        np.testing.assert_array_equal(told.row["view"].numpy()[over], told.views[over])


def test_the_discount_is_0_after_a_success_and_only_then(story: Story) -> None:
    found = set()
    for told in story.told:
        steps = told.row["steps"].numpy()
        expected = np.where(told.finished, 0.0, np.float32(GAMMA))
        np.testing.assert_array_equal(told.row["discount"].numpy()[steps], expected[steps])
        late = told.length >= story.team_actor.rules.steps
        found |= set(zip(told.finished[steps], late[steps], strict=True))

    assert (False, True) in found  # a limit was reached, and bootstraps
    assert (True, False) in found or story.agents > 1


def test_what_ended_is_reported_once_as_it_was(story: Story) -> None:
    score, seen = np.zeros(WORLDS), 0
    for told, ended in zip(story.told, story.ended, strict=True):
        steps = told.row["steps"].numpy()
        score[told.row["fresh"].numpy()] = 0.0
        score += told.reward.mean(1) * steps
        over = steps & (told.finished | (told.length >= story.team_actor.rules.steps))
        assert ended.world.tolist() == np.flatnonzero(over).tolist()
        assert ended.size.tolist() == told.size[torch.from_numpy(over)].tolist()
        assert ended.success.tolist() == told.finished[over].tolist()
        assert ended.length.tolist() == told.length[over].tolist()
        np.testing.assert_allclose(ended.home, told.home[over].mean(1), rtol=1e-6)
        np.testing.assert_allclose(ended.score, score[over], rtol=1e-5)
        seen += len(ended.world)
    assert seen > WORLDS


def test_a_longer_stretch_reports_what_its_rows_tell() -> None:
    played = team_actor(1, steps=2)

    stretch = played.play(12, EPSILON)

    steps = played.ring.columns["steps"][:12]
    after = torch.cat([steps[1:], ~played.over[None]])
    assert stretch.world.tolist() == (~after).nonzero()[:, 1].tolist()  # row by row
    assert len(stretch.world) > 3 * WORLDS
    assert set(stretch.length[~stretch.success].tolist()) == {2}


def test_the_best_action_is_taken_but_by_explorers_in_worlds_that_explore(story: Story) -> None:
    """In world e every second agent explores: those with i + e even."""
    number = torch.arange(story.agents) + torch.arange(WORLDS)[:, None]
    explores = number % min(2, story.agents) == 0
    explores[0] = False
    strayed = torch.zeros(WORLDS, story.agents, dtype=torch.bool)
    for told in story.told:
        strayed |= told.row["action"] != told.row["q"].argmax(2)

    assert not strayed[~explores].any()
    assert strayed[-1][explores[-1]].all()


def test_the_memory_at_a_mark_is_the_one_before_its_row(story: Story) -> None:
    ring = story.team_actor.ring
    for mark in ring.priority[:, 0].nonzero()[:, 0].tolist():
        kept = ring.marks["memory"][mark]
        assert torch.equal(kept, story.told[story.first(mark)].memory)
        assert kept.any()


# Windows.


def test_a_drawn_window_is_the_rows_of_its_world_agent_by_agent(
    story: Story, batch: tuple[Window, SampledWindows, Any]
) -> None:
    window, picks, _ = batch
    n, span = story.agents, story.team_actor.ring.span
    for b, (mark, world) in enumerate(zip(*(part.tolist() for part in picks[:2]), strict=True)):
        first, mine = story.first(mark), slice(b * n, (b + 1) * n)
        rows = [told.row for told in story.told[first : first + span]]
        column = {name: torch.stack([row[name][world] for row in rows]) for name in rows[0]}

        assert torch.equal(window.view[:, mine], column["view"])
        assert torch.equal(window.action[:, mine], column["action"][:-1].long())
        assert torch.equal(window.reward[:, mine], column["reward"][:-1])
        for leaf, name in ((window.discount, "discount"), (window.mask, "steps")):
            assert torch.equal(leaf[:, mine], column[name][:-1, None].expand(-1, n).float())
        assert window.fresh is not None
        assert torch.equal(window.fresh[:, mine], column["fresh"][:, None].expand(-1, n))
        assert torch.equal(window.memory[mine], story.told[first].memory[world])
        assert (window.weight[mine] == picks.weight[b]).all()


def test_a_windows_links_are_those_that_were_listened_to(
    story: Story, batch: tuple[Window, SampledWindows, Any]
) -> None:
    window, picks, _ = batch
    n, algorithm = story.agents, story.team_actor.algorithm
    for b, (mark, world) in enumerate(zip(*(part.tolist() for part in picks[:2]), strict=True)):
        first, mine = story.first(mark), slice(b * n, (b + 1) * n)
        for t in range(story.team_actor.ring.span):
            told = story.told[first + t]
            place = told.place[world][None]
            used = algorithm.listen(place)
            links = type(used)(*(part[t, mine] for part in window.links))
            assert torch.equal(links.heard, used.heard)
            assert torch.equal((links.who - b * n)[used.heard], used.who[used.heard])
            assert torch.equal(links.where[used.heard], used.where[used.heard])
            own = torch.arange(n)[:, None].expand_as(links.who)
            assert torch.equal((links.who - b * n)[~used.heard], own[~used.heard])
            assert (links.where[~used.heard] == SIGHT**2 // 2).all()
            near = neighbours(place, radius=RADIUS, most=algorithm.config.neighbours)
            heard = comm_mask(links._replace(who=links.who - b * n), n)
            assert (heard <= comm_mask(near, n)).all()
            if algorithm.config.talk is Talk.NEAR:
                assert torch.equal(heard, comm_mask(near, n))


def test_unrolling_a_window_gives_the_values_that_were_acted_on(
    story: Story, batch: tuple[Window, SampledWindows, Any]
) -> None:
    """Through ends and beginnings: nothing is missing in a window, nothing is from elsewhere."""
    window, picks, drawn = batch
    with torch.no_grad():
        values = unroll(story.team_actor.algorithm.online, window, 0)
    acted = story.team_actor.ring.rows(picks)["q"].flatten(1, 2)

    torch.testing.assert_close(values, acted, rtol=1e-4, atol=1e-5)
    taken = values[:-1].gather(2, window.action[..., None]).squeeze(2)
    torch.testing.assert_close(drawn.extras, taken, rtol=1e-4, atol=1e-5)
    assert window.fresh is not None
    assert window.fresh[1:].any()
    assert not window.mask.all()


def test_windows_are_learned_from(story: Story, batch: tuple[Window, SampledWindows, Any]) -> None:
    (loss,) = story.team_actor.algorithm.losses(batch[2], step=1, rng=torch.Generator())

    assert loss.value.isfinite()
    assert loss.td_error.shape == (8 * story.agents,)
    assert loss.metrics["q_drift"] < 1e-5  # these are the weights that played


# Priorities.


def error(rows: list[dict[str, Tensor]], t: int, world: int, i: int, n_step: int) -> float:
    """An n-step error by the values acted on, up to the episode's or the window's end."""
    total, factor, k = 0.0, 1.0, t
    while k < min(t + n_step, len(rows) - 1) and rows[k]["steps"][world]:
        total += factor * float(rows[k]["reward"][world, i])
        factor *= float(rows[k]["discount"][world])
        k += 1
    ahead = total + factor * float(rows[k]["q"][world, i].max())
    return abs(ahead - float(rows[t]["q"][world, i, int(rows[t]["action"][world, i])]))


def mixed(values: list[float], eta: float) -> float:
    return eta * max(values) + (1 - eta) * sum(values) / len(values) if values else 0.0


def priority(story: Story, first: int, world: int) -> float:
    """A window's first priority in plain Python: of every agent's errors, then of all agents."""
    config = story.team_actor.config
    rows = [told.row for told in story.told[first : first + story.team_actor.ring.span]]
    steps = [t for t in range(config.burn_in, config.sequence) if rows[t]["steps"][world]]
    agents = [
        mixed([error(rows, t, world, i, config.n_step) for t in steps], config.eta)
        for i in range(story.agents)
    ]
    return mixed(agents, config.eta)


def test_first_priorities_are_n_step_errors_by_the_values_acted_on(story: Story) -> None:
    ring = story.team_actor.ring
    marks = ring.priority[:, 0].nonzero()[:, 0].tolist()

    assert len(marks) == ring.complete > 2
    for mark in marks:
        for world in range(WORLDS):
            expected = max(priority(story, story.first(mark), world), 1e-6) ** ALPHA
            assert float(ring.priority[mark, world]) == pytest.approx(expected, rel=1e-4)


def test_new_priorities_of_agents_become_those_of_their_worlds() -> None:
    played = team_actor(2)
    played.play(12, EPSILON)
    before = played.ring.priority.clone()
    picks = SampledWindows(torch.tensor([1, 0]), torch.tensor([2, 4]), torch.ones(2))

    played.update_priorities(picks, torch.tensor([16.0, 8.0, 1.0, 3.0]))

    eta = played.config.eta
    before[1, 2] = (eta * 16 + (1 - eta) * 12) ** ALPHA
    before[0, 4] = (eta * 3 + (1 - eta) * 2) ** ALPHA
    torch.testing.assert_close(played.ring.priority, before)


# New worlds.


def test_every_episode_has_a_case_of_its_own() -> None:
    """Episodes of one step on 6 x 6 cells: of 10 x 5 none is played twice."""
    played = team_actor(2, steps=1, width=6, sizes=(6,), density=0.4)
    cases: list[Tensor] = []
    for _ in range(10):
        parts = (
            played.worlds.layouts.wall,
            played.worlds.layouts.place,
            played.worlds.layouts.goal,
        )
        cases += torch.cat([part.long() for part in parts], 1)
        played.play(2, EPSILON)

    assert len({tuple(case.tolist()) for case in cases}) == 10 * WORLDS


def test_cases_are_replaced_in_the_order_in_which_they_are_taken() -> None:
    """Worlds that begin one after another: each gets an instance that was not used before."""
    played = team_actor(1, steps=WORLDS + 1, width=6, sizes=(6,), density=0.4)
    played.worlds.steps.copy_(torch.arange(WORLDS))
    cases: list[Tensor] = []
    for _ in range(40):
        now = played.worlds.layouts.pick(played.fresh)
        cases += torch.cat([part.long() for part in (now.wall, now.place, now.goal)], 1)
        played.play(1, EPSILON)

    assert len({tuple(case.tolist()) for case in cases}) == len(cases) > 4 * WORLDS


def test_sizes_that_open_later_are_those_of_later_cases() -> None:
    played = team_actor(1, steps=1, sizes=(3,))
    assert set(played.worlds.layouts.size.tolist()) == {3}

    played.sizes = [2, 4]
    for _ in range(6):
        played.play(2, EPSILON)

    assert set(played.worlds.layouts.size.tolist()) <= {2, 4}


def test_maps_without_room_are_drawn_anew() -> None:
    """Three agents need six cells: of these sizes only 4 x 4 ever has them, and not always."""
    played = team_actor(3, sizes=(1, 2, 4), density=0.4)

    assert set(played.worlds.layouts.size.tolist()) == {4}


# What is refused.


def test_it_says_so_where_no_map_has_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rookery.pathfinding.team_actor.TRIES", 20)

    with pytest.raises(ConfigError, match=r"3 agents .* maps of \[2\] .* no room .* take fewer"):
        team_actor(3, sizes=(2,))


@pytest.mark.parametrize(
    ("agents", "settings", "message"),
    [
        (1, {"density": 1.0}, r"density < 1, got 1.0; give one"),
        (1, {"rows": 8}, r"replay of 8 steps holds no sequence of 6 .* keep at least 9"),
    ],
)
def test_what_it_cannot_hold_is_refused(agents: int, settings: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        team_actor(agents, algorithm=team(1), **settings)


def test_nothing_is_drawn_before_a_window_is_complete() -> None:
    played = team_actor(1)
    played.play(5, EPSILON)

    with pytest.raises(EmptyReplayError, match="play more"):
        played.sample(4, beta=0.5)
