"""A team, one agent after the other, in plain Python: whom it hears, and what it makes of that."""

from typing import Any

import torch
from torch import Tensor

from rookery.config.schema import EnvConfig, NetConfig
from rookery.envs.spaces import spec_of
from rookery.pathfinding.settings import TeamConfig
from rookery.pathfinding.team_dqn import TeamDQN
from rookery.pathfinding.team_network import TeamQ
from rookery.pathfinding.world.curriculum import CurriculumTask
from rookery.pathfinding.world.rules import WorldRules
from rookery.pathfinding.world.team_env import action_space, observation_space
from rookery.types import EnvSpec

N, RADIUS, MEM, GAMMA = 3, 1, 6, 0.9
SIGHT = 2 * RADIUS + 1
Places = list[list[int]]  # row and column of each agent of one world; -1: absent


def heard(place: Places, i: int, *, radius: int, most: int) -> list[int]:
    """Returns whom agent `i` hears: itself, then those in its view from the nearest on."""
    if place[i][0] < 0:
        return [i]
    near = []
    for j, (row, column) in enumerate(place):
        down, right = row - place[i][0], column - place[i][1]
        if j != i and row >= 0 and max(abs(down), abs(right)) <= radius:
            near.append((down**2 + right**2, j))
    return [i, *(j for _, j in sorted(near)[:most])]


def after(
    net: TeamQ, view: Tensor, place: Places, memory: Tensor, hears: list[list[int]]
) -> Tensor:
    """Returns the memories, [N, M], of the agents of one world after a step."""
    h = [net.remember(net.see(view[i][None]), memory[i][None])[0] for i in range(len(place))]
    for _ in range(net.rounds):
        h = [told(net.talk, h, place, i, hears[i]) for i in range(len(place))]
    return torch.stack(h)


def told(talk: Any, h: list[Tensor], place: Places, i: int, who: list[int]) -> Tensor:
    """Returns what agent `i` thinks after it has listened to those that it hears."""
    if len(who) == 1:
        return h[i]
    inner, width = talk.inner, talk.width
    message = []
    for head in range(talk.heads):
        part = slice(head * width, (head + 1) * width)
        question = talk.speak(h[i])[:inner][part]
        keys, values = [], []
        for j in who:
            said = talk.speak(h[j])[inner:] + talk.stand(_where(place, i, j, talk.sight))
            keys.append(said[:inner][part])
            values.append(said[inner:][part])
        scores = torch.stack([question @ key / width**0.5 for key in keys])
        message.append((scores.softmax(0)[:, None] * torch.stack(values)).sum(0))
    answer: Tensor = talk.update(torch.cat(message)[None], h[i][None])[0]
    return answer


def _where(place: Places, i: int, j: int, sight: int) -> Tensor:
    """Says where `i` sees `j`: a one for the row, a one for the column."""
    shown = torch.zeros(2 * sight)
    for axis in (0, 1):
        shown[axis * sight + place[j][axis] - place[i][axis] + sight // 2] = 1.0
    return shown


def spec(agents: int = N, radius: int = RADIUS) -> EnvSpec:
    task, rules = CurriculumTask(agents, 9), WorldRules(radius=radius)
    return spec_of("here", observation_space(task, rules), action_space(task))


def made(agents: int = N, **settings: Any) -> TeamDQN:
    """Returns an algorithm whose target differs from its trained network."""
    torch.manual_seed(3)
    small = {"heads": 2, "width": 3, "neighbours": 2, **settings}
    algorithm = TeamDQN(
        TeamConfig(gamma=GAMMA, **small), NetConfig(memory=MEM), EnvConfig(), spec(agents)
    )
    for parameter in algorithm.online.parameters():
        parameter.data *= 2.0  # or all that is said is nearly the same
    for parameter in algorithm.target.network.parameters():
        parameter.data += 0.3 * torch.randn_like(parameter)
    return algorithm


def codes(*shape: int) -> Tensor:
    return torch.randint(64, (*shape, SIGHT, SIGHT), dtype=torch.uint8)


def crowd(*shape: int) -> Tensor:
    """Returns places so close that some are seen and some are not."""
    return torch.randint(4, (*shape, 2), dtype=torch.int16)
