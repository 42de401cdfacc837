"""Team actors with tiny worlds, and the steps they played, recomputed by the compiled worlds."""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rookery.config.schema import EnvConfig, NetConfig, ReplayConfig
from rookery.pathfinding.settings import TeamConfig
from rookery.pathfinding.team_actor import TeamActor
from rookery.pathfinding.team_dqn import TeamDQN
from rookery.pathfinding.world.cases import Cases
from rookery.pathfinding.world.device_worlds import DeviceCases, with_fields
from rookery.pathfinding.world.rules import WorldRules
from rookery.pathfinding.world.worlds import Worlds
from rookery.types import ActionSpec, EnvSpec, Leaf, LeafKind

CPU = torch.device("cpu")
RADIUS, SIGHT = 2, 5
WIDTH, WORLDS, ALPHA, GAMMA = 4, 5, 0.6, 0.9


def cases_of(layouts: DeviceCases, *, width: int, radius: int) -> Cases:
    """Returns layouts as cases on maps of the full width."""
    wide = width + 2 * radius
    inside = slice(radius, radius + width)
    maps = layouts.wall.view(-1, wide, wide).cpu().numpy()[:, inside, inside]
    places = (
        np.stack([part // wide - radius, part % wide - radius], -1).astype(np.int16)
        for part in (layouts.place.cpu().numpy(), layouts.goal.cpu().numpy())
    )
    return Cases(maps.astype(np.uint8), *places)


def to_device(cases: Cases, rules: WorldRules, device: torch.device) -> DeviceCases:
    """Copies cases to a device, the inverse of `device_worlds.to_host`."""
    margin = rules.radius
    count, height, width = cases.maps.shape
    around = [(0, 0), (margin, margin), (margin, margin)]
    masks = (cases.maps != 0, np.zeros(cases.maps.shape, dtype=np.bool_))  # blocked, and outside
    wall, outside = (
        torch.from_numpy(np.pad(mask, around, constant_values=True)).to(device) for mask in masks
    )

    def numbered(places: np.ndarray) -> Tensor:
        row, column = torch.from_numpy(places.astype(np.int64) + margin).unbind(-1)
        return (row * (width + 2 * margin) + column).masked_fill(row < margin, 0).to(device)

    starts, goals = numbered(cases.starts), numbered(cases.goals)
    size = torch.full((count,), max(height, width), device=device)
    return with_fields(wall, outside, starts, goals, size, rules)


def team(agents: int, **settings: Any) -> TeamDQN:
    """Returns an untrained team that remembers little and looks at short windows."""
    torch.manual_seed(0)
    defaults = {"n_step": 2, "length": 3, "burn_in": 2, "neighbours": 2, "explorers": 2}
    config = TeamConfig(gamma=GAMMA, rounds=1, heads=1, width=4, **{**defaults, **settings})
    leaves = (
        Leaf("view", (agents, SIGHT, SIGHT), "uint8", LeafKind.CODES),
        Leaf("place", (agents, 2), "int16", LeafKind.VECTOR),
        Leaf("reward", (agents,), "float32", LeafKind.VECTOR),
    )
    spec = EnvSpec("tiny", leaves, ActionSpec(shape=(agents,), sizes=(5,) * agents))
    return TeamDQN(config, NetConfig(memory=8), EnvConfig(), spec)


def team_actor(
    agents: int,
    *,
    algorithm: TeamDQN | None = None,
    steps: int = 5,
    device: torch.device = CPU,
    **settings: Any,
) -> TeamActor:
    defaults: dict[str, Any] = {
        "worlds": WORLDS,
        "width": WIDTH,
        "rules": WorldRules(radius=RADIUS, steps=steps),
        "density": 0.1,
        "rows": 20,
        "replay": ReplayConfig(alpha=ALPHA),
        "sizes": (2, 3, 4),
    }
    return TeamActor(
        algorithm or team(agents),
        agents,
        **{**defaults, **settings},
        rng=torch.Generator(device).manual_seed(1),
    )


class Told(NamedTuple):
    """A row, and what the compiled worlds say of it."""

    row: dict[str, Tensor]  # [E, ...] as it lies on the tape
    memory: Tensor  # [E, N, M] before it
    place: Tensor  # [E, N, 2]
    size: Tensor  # [E]
    views: np.ndarray  # [E, N, S, S] and all below by compiled worlds, with the row's actions
    reward: np.ndarray  # [E, N]
    home: np.ndarray  # [E, N]
    finished: np.ndarray  # [E]
    length: np.ndarray  # [E] steps of the episode


def play(played: TeamActor, epsilon: Tensor, rows: int) -> tuple[list[Told], list[Any]]:
    """Plays row by row; returns them, and what was reported to have ended with each."""
    worlds, story, ended = _worlds(played), [], []
    for _ in range(rows):
        fresh = played.fresh.cpu().numpy()
        now = cases_of(played.worlds.layouts, width=played.width, radius=RADIUS)
        worlds.load(np.flatnonzero(fresh), Cases(*(part[fresh] for part in now)))
        memory, place = played.memory.clone(), played.worlds.place.clone()
        size = played.worlds.layouts.size.clone()
        slot = played.ring.written % played.ring.capacity
        ended.append(played.play(1, epsilon))
        row = {name: column[slot].clone() for name, column in played.ring.columns.items()}
        views = worlds.views().copy()
        stepped = worlds.step(row["action"].long().cpu().numpy())
        facts = (part.copy() for part in (stepped.reward, stepped.home, stepped.finished))
        story.append(Told(row, memory, place, size, views, *facts, worlds.steps.copy()))
    return story, ended


def _worlds(played: TeamActor) -> Worlds:
    cases = cases_of(played.worlds.layouts, width=played.width, radius=RADIUS)
    return Worlds(cases, played.rules)
