"""The algorithm team: communication, exploration, and weights independent of the team size."""

import numpy as np
import pytest
import torch
from torch import Tensor

from plain_team_network import MEM, RADIUS, SIGHT, N, codes, crowd, heard, made, spec
from rookery.algorithms.exploration import explore_agents
from rookery.config.schema import EnvConfig, NetConfig
from rookery.errors import ConfigError
from rookery.pathfinding.settings import Talk, TeamConfig
from rookery.pathfinding.team_dqn import COMM, FRESH, MEMORY, PLACE, VALUES, VIEW, TeamDQN
from rookery.pathfinding.team_network import TeamQ
from rookery.types import ActionSpec, EnvSpec, Leaf, LeafKind

# Who is heard.


def values(algorithm: TeamDQN, view: Tensor, place: Tensor, memory: Tensor) -> Tensor:
    """Returns [E, N, A] for [E, N, ...] views and places and [E, N, M] memories."""
    obs = {VIEW: view, PLACE: place}
    with torch.no_grad():
        q = algorithm.scores(obs, memory.flatten(1))[0]
    return q.view(*view.shape[:2], -1)


# Agent 0 sees agent 1, and agent 1 agent 2, which agent 0 does not see; agent 3 is alone.
LINE = torch.tensor([[[0, 0], [0, 1], [0, 2], [8, 8]]], dtype=torch.int16)


@pytest.mark.parametrize(
    ("rounds", "changed", "reached"),
    [
        (1, 2, [False, True, True, False]),
        (2, 2, [True, True, True, False]),  # by way of agent 1
        (2, 3, [False, False, False, True]),
        (1, 1, [True, True, True, False]),
    ],
)
def test_a_message_reaches_its_receivers_and_with_every_round_theirs(
    rounds: int, changed: int, reached: list[bool]
) -> None:
    algorithm = made(agents=4, rounds=rounds)
    torch.manual_seed(5)
    view, memory = codes(1, 4), torch.randn(1, 4, MEM)
    other = memory.clone()
    other[0, changed] += 1.0

    before, now = (values(algorithm, view, LINE, given) for given in (memory, other))

    assert (before != now).any(2)[0].tolist() == reached


def test_without_communication_no_message_arrives_and_no_weights_exist_for_it() -> None:
    algorithm = made(agents=4, talk=Talk.NONE)
    torch.manual_seed(5)
    view, memory = codes(1, 4), torch.randn(1, 4, MEM)
    other = memory.clone()
    other[0, 1] += 1.0

    before, now = (values(algorithm, view, LINE, given) for given in (memory, other))

    assert (before != now).any(2)[0].tolist() == [False, True, False, False]
    assert algorithm.online.talk is None
    assert not [name for name, _ in algorithm.online.named_parameters() if "talk" in name]
    silent = TeamQ(sight=SIGHT, actions=5, features=MEM, memory=MEM, rounds=0)
    assert silent.state_dict().keys() == algorithm.online.state_dict().keys()


def test_links_name_the_senders() -> None:
    obs = {VIEW: codes(1, 4).numpy(), PLACE: LINE.numpy()}

    found = made(agents=4).links(obs)

    assert found.tolist() == [[[0, 1, -1], [1, 0, 2], [2, 1, -1], [3, -1, -1]]]


def test_a_team_without_communication_has_no_links() -> None:
    algorithm = made(agents=4, talk=Talk.NONE)
    obs = {VIEW: codes(1, 4).numpy(), PLACE: LINE.numpy()}

    comm = algorithm.act(obs, np.random.default_rng(0)).extras[COMM]

    assert algorithm.links(obs).tolist() == [[[i] for i in range(4)]]
    assert (comm[0] == np.eye(4)).all()


# Weights do not know how many there are, nor who is who.


def apart(agents: int) -> Tensor:
    """Returns places of which no two are equally far from a third."""
    places = [[0, 0], [0, 1], [2, 0], [2, 3], [5, 1], [5, 5], [8, 3]]
    return torch.tensor([places[:agents]], dtype=torch.int16)


def wide(agents: int) -> TeamDQN:
    torch.manual_seed(3)
    config = TeamConfig(heads=2, width=3, neighbours=2)
    return TeamDQN(config, NetConfig(memory=MEM), EnvConfig(), spec(agents, radius=2))


def wide_codes(agents: int) -> Tensor:
    torch.manual_seed(8)
    return torch.randint(64, (1, agents, 5, 5), dtype=torch.uint8)


def test_the_same_weights_serve_teams_of_any_number() -> None:
    four, seven = wide(4), wide(7)
    seven.online.load_state_dict(four.online.state_dict())
    memory, place = torch.randn(1, 7, MEM), apart(7)
    place[0, 4:] = -1  # three that are not there
    view = wide_codes(7)

    few = values(four, view[:, :4], place[:, :4], memory[:, :4])
    many = values(seven, view, place, memory)

    torch.testing.assert_close(many[:, :4], few)


def test_who_has_which_number_does_not_matter() -> None:
    algorithm, order = wide(7), torch.tensor([3, 0, 6, 5, 1, 4, 2])
    view, place, memory = wide_codes(7), apart(7), torch.randn(1, 7, MEM)

    q = values(algorithm, view, place, memory)
    shuffled = values(algorithm, view[:, order], place[:, order], memory[:, order])

    torch.testing.assert_close(shuffled, q[:, order])


def test_the_mean_of_the_values_is_that_of_the_state() -> None:
    algorithm = made()
    h = torch.randn(4, MEM)

    q = algorithm.online.values(h)

    torch.testing.assert_close(q.mean(1), algorithm.online.head(h)[:, 0])


# Acting.


def test_explorers_alone_take_random_actions_and_every_number_is_one_somewhere() -> None:
    best = np.full((400, 6), 9)

    action = explore_agents(best.copy(), 5, 0.5, 3, np.random.default_rng(0))

    numbers = np.arange(6) + np.arange(400)[:, None]
    random = action != best
    assert not random[numbers % 3 != 0].any()
    assert random[numbers % 3 == 0].mean() == pytest.approx(0.5, abs=0.1)  # 5.6 deviations
    assert random.any(0).all()
    assert set(action[random].tolist()) == set(range(5))


def test_in_a_small_team_an_agent_explores_in_every_world() -> None:
    action = explore_agents(np.full((50, 2), 9), 5, 1.0, 4, np.random.default_rng(0))

    assert ((action != 9).sum(1) == 1).all()


def test_without_epsilon_the_generator_is_left_alone() -> None:
    rng, best = np.random.default_rng(0), np.zeros((2, 2), np.int64)

    assert explore_agents(best, 5, 0.0, 1, rng) is best
    assert rng.random() == np.random.default_rng(0).random()


def test_with_a_temperature_actions_are_drawn_from_a_softmax_and_without_noise_they_are_best() -> (
    None
):
    algorithm = made(temperature=0.7)
    view, place, worlds = codes(1, N), crowd(1, N), 20_000
    many = {
        VIEW: view.expand(worlds, -1, -1, -1).numpy(),
        PLACE: place.expand(worlds, -1, -1).numpy(),
    }
    rng = np.random.default_rng(0)

    with torch.no_grad():
        q = values(algorithm, view, place, torch.zeros(1, N, MEM))[0]
    action = algorithm.act(many, rng).action
    best = algorithm.act(many, rng, noise=False).action

    assert algorithm.evaluate_stochastic
    wanted = (q / 0.7).softmax(1).numpy()
    for agent in range(N):
        found = np.bincount(action[:, agent], minlength=5) / worlds
        np.testing.assert_allclose(found, wanted[agent], atol=0.02)  # 5.6 deviations
    assert (best == q.argmax(1).numpy()).all()


def test_an_actor_does_its_best_and_writes_down_what_it_knew() -> None:
    algorithm = made()
    torch.manual_seed(7)
    view, place = codes(4, N), crowd(4, N)
    obs = {VIEW: view.numpy(), PLACE: place.numpy()}
    memory = np.random.default_rng(1).normal(size=(4, N * MEM)).astype(np.float32)
    memory[0] = 0.0

    acted = algorithm.act(obs, np.random.default_rng(0), values=True, memory=memory)

    with torch.no_grad():
        scores, later = algorithm.scores({VIEW: view, PLACE: place}, torch.from_numpy(memory))
    q = scores.view(4, N, 5).numpy()
    np.testing.assert_array_equal(acted.action, q.argmax(2))
    np.testing.assert_allclose(acted.extras[VALUES], q, rtol=1e-5)
    np.testing.assert_allclose(acted.best, q.max(2).mean(1), rtol=1e-5)
    np.testing.assert_array_equal(acted.taken, acted.best)
    np.testing.assert_allclose(acted.memory, later, rtol=1e-5)
    assert acted.extras[MEMORY] is memory
    assert acted.extras[FRESH].tolist() == [True, False, False, False]
    near = [
        [int(j in heard(place[e].tolist(), i, radius=RADIUS, most=2)) for j in range(N)]
        for e in range(4)
        for i in range(N)
    ]
    assert acted.extras[COMM].reshape(-1, N).tolist() == near


@pytest.mark.parametrize(
    "leaf",
    [Leaf("", (4,), "float32", LeafKind.VECTOR), Leaf(VIEW, (2, 3, 3), "float32", LeafKind.VECTOR)],
)
def test_what_is_no_team_is_refused(leaf: Leaf) -> None:
    given = EnvSpec("alone", (leaf,), ActionSpec(n=3))

    with pytest.raises(ConfigError, match=r"team needs a team .*pathfinding\.world\.team_env:Team"):
        TeamDQN(TeamConfig(), NetConfig(), EnvConfig(), given)
