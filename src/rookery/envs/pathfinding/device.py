"""Thousands of worlds at once in torch, so that they can live where the network does.

    worlds = DeviceWorlds(layouts, rules, width=40)     # E worlds of N agents
    view, place = worlds.views(), worlds.place
    stepped = worlds.step(action)                       # [E, N] each, as in worlds.py
    worlds.renew(stepped.finished, layouts)             # new cases for those

Step for step this is what `worlds.py` does. Nothing here waits for the device: a step is a fixed
list of kernels, whatever the worlds are like, and changes them in place. Cells are numbered in a
map with a margin as wide as agents see; cell 0 is a corner of the margin, and nobody's place is
there.
"""

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from rookery.envs.pathfinding.cases import Cases
from rookery.envs.pathfinding.rules import (
    AGENT,
    BLOCKED,
    MOVES,
    NEARER,
    STAY,
    Collision,
    Outside,
    Rules,
)
from rookery.errors import ConfigError

FAR = 32_000  # more steps than any way has, and one more still fits into 16 bits
LOOK_PERIOD = 16  # rounds of relaxation between two looks whether anything changes
TRIANGLE = (0.33, 0.5)  # densities of training maps: the likeliest, and the highest


class DeviceStepped(NamedTuple):
    """What a step did."""

    reward: Tensor  # [E, N] float32
    collided: Tensor  # [E, N] bool
    home: Tensor  # [E, N] bool
    finished: Tensor  # [E] bool


class Layouts(NamedTuple):
    """C cases on a device, with the ways to all goals."""

    field: Tensor  # [C, N, P] uint8: codes of cells as each agent sees them, without agents
    wall: Tensor  # [C, P] bool: nobody can go there
    place: Tensor  # [C, N] int64 cells; 0: nobody
    goal: Tensor  # [C, N] int64
    size: Tensor  # [C] int64 rows and columns of the map inside its frame

    @property
    def cases(self) -> int:
        return len(self.place)

    def pick(self, which: Tensor) -> "Layouts":
        return Layouts(*(part[which] for part in self))


class DeviceWorlds:
    """E worlds of N agents on one device."""

    def __init__(self, layouts: Layouts, rules: Rules, *, width: int):
        """`width` is that of the maps, without margins; the layouts are changed from now on."""
        if rules.collision is not Collision.REFERENCE:
            raise ConfigError(
                f"worlds on a device know collision {Collision.REFERENCE} only, got "
                f"{rules.collision}; use the compiled worlds for it"
            )
        self.rules, self.layouts = rules, layouts
        self.width = width + 2 * rules.radius
        device = layouts.place.device
        self.steps = torch.zeros(layouts.cases, dtype=torch.int64, device=device)
        self._delta = _numbered(MOVES, self.width, device)
        reach = np.arange(-rules.radius, rules.radius + 1)
        square = np.stack(np.meshgrid(reach, reach, indexing="ij"), -1).reshape(-1, 2)
        self._around = _numbered(square, self.width, device)  # [S * S]
        self._number = torch.arange(layouts.place.shape[1], device=device)
        self._doublings = max(1, math.ceil(math.log2(layouts.place.shape[1] + 1)))

    @property
    def cell(self) -> Tensor:
        """Where everybody is, [E, N]."""
        return self.layouts.place

    @property
    def place(self) -> Tensor:
        """Rows and columns of everybody, [E, N, 2]; -1: nobody."""
        cell, margin = self.cell, self.rules.radius
        place = torch.stack([cell // self.width - margin, cell % self.width - margin], -1)
        return place.masked_fill((cell == 0)[..., None], -1)

    def views(self) -> Tensor:
        """Returns what everybody sees: codes, uint8 [E, N, S, S]."""
        cell, field = self.cell, self.layouts.field
        worlds, agents = cell.shape
        there = cell > 0
        seen = cell[..., None] + self._around  # [E, N, S * S]
        seen = seen.masked_fill(~there[..., None], 0)
        taken = torch.zeros_like(self.layouts.wall, dtype=torch.uint8)
        taken.scatter_(1, cell, AGENT)
        taken[:, 0] = 0
        others = taken.gather(1, seen.flatten(1)).view_as(seen)
        others[..., self._around.numel() // 2] = 0
        codes = (field.gather(2, seen) | others) * there[..., None]
        return codes.view(worlds, agents, self.rules.sight, self.rules.sight)

    def step(self, action: Tensor) -> DeviceStepped:
        """Moves everybody who can, [E, N] actions at once."""
        cell, goal, rewards = self.cell, self.layouts.goal, self.rules.rewards
        wants = (action != STAY) & (cell > 0)
        moves = wants & self._succeeds(cell, cell + self._delta[action], wants)
        there = cell > 0
        cell.copy_(torch.where(moves, cell + self._delta[action], cell))
        self.steps += 1
        home = cell == goal
        finished = home.all(1)
        stays = torch.where(home, rewards.home, rewards.wait)
        reward = torch.where(moves, rewards.move, torch.where(wants, rewards.collision, stays))
        reward = torch.where(finished[:, None], rewards.finish, reward) * there
        return DeviceStepped(reward, wants & ~moves, home, finished)

    def _succeeds(self, cell: Tensor, target: Tensor, wants: Tensor) -> Tensor:
        """Says whose wish comes true, [E, N], of those who want to move."""
        wall, agents = self.layouts.wall, cell.shape[1]
        target = torch.where(wants, target, cell)
        goes = wants & ~wall.gather(1, target)
        holder = torch.full(wall.shape, -1, dtype=torch.int64, device=cell.device)
        holder.scatter_(1, cell, self._number.expand_as(cell))
        holder[:, 0] = -1
        other = holder.gather(1, target)  # [E, N] who is where I want to go; -1: nobody
        ahead = other.clamp(min=0)
        swap = (other >= 0) & (target.gather(1, ahead) == cell) & goes.gather(1, ahead)
        goes = goes & ~swap
        claim = torch.full(wall.shape, agents, dtype=torch.int64, device=cell.device)
        mine = torch.where(goes, self._number, agents)
        claim.scatter_reduce_(1, target, mine, "amin")
        goes = goes & (claim.gather(1, target) == self._number)
        return goes & ~self._held_up(goes, other)

    def _held_up(self, goes: Tensor, other: Tensor) -> Tensor:
        """Says who waits, through however many others, for somebody who does not move.

        Everybody points to who must leave first. Pointing twice as far each time finds the end of
        every queue; a circle has none, and moves.
        """
        ahead = torch.where(goes & (other >= 0), other, self._number)
        stuck = ~goes
        for _ in range(self._doublings):
            stuck = stuck | stuck.gather(1, ahead)
            ahead = ahead.gather(1, ahead)
        return stuck

    def renew(self, which: Tensor, layouts: Layouts) -> None:
        """Gives the worlds [E] bool their place in `layouts`, which has E."""
        for mine, new in zip(self.layouts, layouts, strict=True):
            mask = which.view(-1, *(1,) * (mine.dim() - 1))
            mine.copy_(torch.where(mask, new, mine))
        self.steps.masked_fill_(which, 0)


def lay_out(cases: Cases, rules: Rules, device: torch.device) -> Layouts:
    """Puts cases on a device."""
    margin = rules.radius
    count, height, width = cases.maps.shape
    wall = torch.ones(count, height + 2 * margin, width + 2 * margin, dtype=torch.bool)
    wall[:, margin : margin + height, margin : margin + width] = torch.from_numpy(cases.maps != 0)
    wide = width + 2 * margin
    starts, goals = (_cells(places, margin, wide) for places in (cases.starts, cases.goals))
    outside = torch.ones_like(wall)
    outside[:, margin : margin + height, margin : margin + width] = False
    size = torch.full((count,), max(height, width))
    return _with_ways(
        wall.to(device),
        outside.to(device),
        starts.to(device),
        goals.to(device),
        size.to(device),
        rules,
    )


def lifted(layouts: Layouts, rules: Rules, *, width: int) -> Cases:
    """Returns layouts as cases on maps of the full width, on the host: `lay_out` backwards."""
    margin, wide = rules.radius, width + 2 * rules.radius
    inside = slice(margin, margin + width)
    maps = layouts.wall.view(-1, wide, wide)[:, inside, inside].to(torch.uint8).cpu().numpy()
    cells = torch.stack([layouts.place, layouts.goal])
    places = torch.stack([cells // wide - margin, cells % wide - margin], -1)
    places = places.masked_fill((cells == 0)[..., None], -1).to(torch.int16)
    return Cases(maps, *places.cpu().numpy())


def _cells(places: np.ndarray, margin: int, wide: int) -> Tensor:
    place = torch.from_numpy(places.astype(np.int64))
    cells = (place[..., 0] + margin) * wide + place[..., 1] + margin
    return cells.masked_fill(place[..., 0] < 0, 0)


def _with_ways(
    wall: Tensor, outside: Tensor, start: Tensor, goal: Tensor, size: Tensor, rules: Rules
) -> Layouts:
    """Finds everybody's ways: `wall` and `outside` are [C, rows, columns]."""
    away = distances(wall, goal)  # [C, N, rows, columns]
    shows = wall if rules.outside is Outside.BLOCKED else wall & ~outside
    field = (shows.to(torch.uint8) * BLOCKED)[:, None].expand(away.shape).clone()
    for direction, (down, right) in enumerate(MOVES[1:].tolist()):
        there = away.roll((-down, -right), (2, 3))
        nearer = (there < away) & (away < FAR)
        field |= nearer.to(torch.uint8) * (NEARER << direction)
    return Layouts(field.flatten(2), wall.flatten(1), start, goal, size)


def distances(wall: Tensor, goal: Tensor) -> Tensor:
    """Returns the steps to each goal from everywhere, int16 [C, N, rows, columns]; FAR: no way.

    `wall` is [C, rows, columns] with a margin of walls, so nothing comes around the edges.
    """
    shape, cells = goal.shape, wall.shape[1] * wall.shape[2]
    away = torch.full((*shape, cells), FAR, dtype=torch.int16, device=wall.device)
    away.scatter_(2, goal[..., None], 0)
    away[..., 0] = FAR
    away = away.view(*shape, *wall.shape[1:])
    blocked = wall[:, None]
    while True:
        before = away
        for _ in range(LOOK_PERIOD):
            nearest = torch.minimum(
                torch.minimum(away.roll(1, 2), away.roll(-1, 2)),
                torch.minimum(away.roll(1, 3), away.roll(-1, 3)),
            )
            away = torch.minimum(away, (nearest + 1).masked_fill(blocked, FAR))
        if torch.equal(before, away):  # a sync point
            return away


def components(wall: Tensor) -> Tensor:
    """Returns for each free cell the number of its component, int64 [C, P]; 0: a wall."""
    free = ~wall
    rows, columns = wall.shape[1:]
    label = torch.arange(rows * columns, device=wall.device).view(1, rows, columns) * free
    while True:
        before = label
        for _ in range(LOOK_PERIOD):
            most = torch.maximum(
                torch.maximum(label.roll(1, 1), label.roll(-1, 1)),
                torch.maximum(label.roll(1, 2), label.roll(-1, 2)),
            )
            label = torch.maximum(label, most) * free
            flat = label.flatten(1)
            label = flat.gather(1, flat).view_as(label)  # as far as whoever it names has got
        if torch.equal(before, label):  # a sync point
            return label.flatten(1)


def draw_layouts(
    sizes: Tensor,
    *,
    agents: int,
    width: int,
    rules: Rules,
    density: float | None,
    rng: torch.Generator,
) -> Layouts:
    """Draws a case for each of `sizes` [C]; those in which agents find no place are left out.

    Maps smaller than `width` lie in the upper left corner, with walls around. Without a density
    each has its own.
    """
    device, count, margin = sizes.device, len(sizes), rules.radius
    wide = width + 2 * margin
    index = torch.arange(wide, device=device) - margin
    inside = (index >= 0) & (index < sizes[:, None])  # [C, wide]
    outside = ~(inside[:, :, None] & inside[:, None])
    chance = torch.rand(count, device=device, generator=rng)
    share = _triangular(chance) if density is None else torch.full_like(chance, density)
    luck = torch.rand(count, wide, wide, device=device, generator=rng)
    wall = outside | (luck < share[:, None, None])
    start, goal, fits = _pairs(components(wall), agents, rng)
    kept = fits.nonzero().squeeze(1)  # a sync point
    return _with_ways(wall[kept], outside[kept], start[kept], goal[kept], sizes[kept], rules)


def _triangular(chance: Tensor) -> Tensor:
    mode, most = TRIANGLE
    low = (chance * most * mode).sqrt()
    high = most - ((1 - chance) * most * (most - mode)).sqrt()
    return torch.where(chance < mode / most, low, high)


def _pairs(label: Tensor, agents: int, rng: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Picks starts and goals [C, N] in turn: both in one component, no cell twice."""
    count = len(label)
    open_ = label > 0
    starts, goals = [], []
    fits = torch.ones(count, dtype=torch.bool, device=label.device)
    for _ in range(agents):
        rest = torch.zeros_like(label).scatter_add_(1, label, open_.long())
        able = open_ & (rest.gather(1, label) >= 2)
        fits = fits & able.any(1)
        start = _any_of(able, rng)
        open_ = open_.scatter(1, start, False)
        goal = _any_of(open_ & (label == label.gather(1, start)), rng)
        open_ = open_.scatter(1, goal, False)
        starts.append(start)
        goals.append(goal)
    return torch.cat(starts, 1), torch.cat(goals, 1), fits


def _any_of(able: Tensor, rng: torch.Generator) -> Tensor:
    """Picks one of those that are able in each row, [C, 1]."""
    luck = torch.rand(able.shape, device=able.device, generator=rng)
    return torch.where(able, luck, -1.0).argmax(1, keepdim=True)


def _numbered(moves: np.ndarray, wide: int, device: torch.device) -> Tensor:
    return torch.from_numpy(moves[:, 0] * wide + moves[:, 1]).to(device)
