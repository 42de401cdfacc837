"""Worlds on a GPU: step for step the compiled ones, also when a graph plays them."""

import numpy as np
import pytest
import torch

from rookery.pathfinding.settings import Talk
from rookery.pathfinding.world import cases as case
from rookery.pathfinding.world.device_worlds import DeviceWorlds, draw_device_cases
from rookery.pathfinding.world.rules import Outside, WorldRules
from rookery.pathfinding.world.worlds import Worlds
from small_team_actors import WORLDS, cases_of, play, team, team_actor, to_device

STEPS = 64


@pytest.mark.parametrize("outside", Outside)
@pytest.mark.parametrize(("agents", "size", "density"), [(32, 20, 0.3), (6, 5, 0.1), (64, 40, 0.3)])
def test_every_step_equals_that_of_the_compiled_worlds(
    gpu: torch.device, outside: Outside, agents: int, size: int, density: float
) -> None:
    rng, rules = np.random.default_rng(agents), WorldRules(outside=outside)
    cases = case.generate(64, agents=agents, size=size, density=density, rng=rng)
    compiled = Worlds(cases, rules)
    there = DeviceWorlds(to_device(cases, rules, gpu), rules, width=size)

    for _ in range(STEPS):
        action = rng.integers(5, size=(64, agents))
        stepped = there.step(torch.from_numpy(action).to(gpu))
        for mine, theirs in zip(stepped, compiled.step(action), strict=True):
            np.testing.assert_array_equal(mine.cpu().numpy(), theirs)
        np.testing.assert_array_equal(there.place.cpu().numpy(), compiled.place)
        np.testing.assert_array_equal(there.views().cpu().numpy(), compiled.views())


def test_what_is_drawn_there_can_be_played(gpu: torch.device) -> None:
    rules, rng = WorldRules(), torch.Generator(gpu).manual_seed(0)
    sizes = torch.tensor([40, 20, 10, 30] * 16, device=gpu)
    laid = draw_device_cases(sizes, agents=16, width=40, rules=rules, density=None, rng=rng)

    drawn = cases_of(laid, width=40, radius=rules.radius)
    case.check(drawn, reachable=True)
    for mine, theirs in zip(laid[:4], to_device(drawn, rules, gpu)[:4], strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("talk", Talk)
def test_rows_that_a_graph_plays_are_what_the_compiled_worlds_show_and_pay(
    gpu: torch.device, talk: Talk
) -> None:
    algorithm = team(3, talk=talk)
    algorithm.networks.to(gpu)
    played = team_actor(3, algorithm=algorithm, device=gpu)

    story, ended = play(played, torch.linspace(0, 1, WORLDS, device=gpu), rows=34)

    for told in story:
        row = {name: column.cpu() for name, column in told.row.items()}
        steps = row["steps"].numpy()
        np.testing.assert_array_equal(row["view"].numpy(), told.views)
        np.testing.assert_array_equal(row["reward"].numpy()[steps], told.reward[steps])
    assert sum(len(some.world) for some in ended) > WORLDS
