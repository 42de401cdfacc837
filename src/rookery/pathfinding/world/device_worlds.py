"""Simulates thousands of parallel grid worlds with torch, on the GPU that runs the network too.

    worlds = DeviceWorlds(cases, rules, width=40)       # E worlds of N agents
    view, place = worlds.views(), worlds.place          # observations and positions
    stepped = worlds.step(action)                       # [E, N] each, as in worlds.py
    worlds.renew(stepped.finished, cases)               # new problem instances in finished worlds

Steps give the same results as the CPU simulator `worlds.py`. A step does not synchronize with the
device: it is a fixed list of in-place kernels, independent of the states of the worlds. Cells are
numbered in a map with a margin as wide as the view radius; cell 0, a corner of the margin, is the
position of absent agents.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from rookery.pathfinding.world.cases import Cases
from rookery.pathfinding.world.rules import AGENT, BLOCKED, MOVES, NEARER, STAY, Outside, WorldRules

FAR = 32_000  # longer than any path; FAR + 1 still fits into 16 bits
LOOK_PERIOD = 16  # rounds of relaxation between two checks for changes
TRIANGLE = (0.33, 0.5)  # densities of training maps: mode and maximum


class DeviceStepResult(NamedTuple):
    """Rewards and outcomes of one step of E parallel grid worlds of N agents, as torch tensors."""

    reward: Tensor  # [E, N] float32
    collided: Tensor  # [E, N] bool: the move failed
    home: Tensor  # [E, N] bool: on its goal
    finished: Tensor  # [E] bool: all agents are on their goals


class DeviceCases(NamedTuple):
    """C problem instances (map, starts, goals) of N agents as tensors on one torch device.

    A map has P cells, including a margin as wide as the view radius at each side. The observation
    bits of every cell are precomputed, except that of other agents.
    """

    field: Tensor  # [C, N, P] uint8: bits of obstacles and of moves that shorten the agent's path
    wall: Tensor  # [C, P] bool: blocked
    place: Tensor  # [C, N] int64 cells; 0: an absent agent
    goal: Tensor  # [C, N] int64
    size: Tensor  # [C] int64 rows and columns of the map without margin and padding

    @property
    def cases(self) -> int:
        return len(self.place)

    def pick(self, which: Tensor) -> "DeviceCases":
        return DeviceCases(*(part[which] for part in self))


class DeviceWorlds:
    """Simulator of E parallel grid worlds of N agents, with all its state on one torch device."""

    def __init__(self, layouts: DeviceCases, rules: WorldRules, *, width: int):
        """Starts one episode of each problem instance in `layouts`.

        The tensors of `layouts` become the state of the worlds: `step` and `renew` overwrite them.
        `width` is the number of rows and columns of the maps without margin.
        """
        self.rules, self.layouts = rules, layouts
        self.width = width + 2 * rules.radius
        device = layouts.place.device
        self.steps = torch.zeros(layouts.cases, dtype=torch.int64, device=device)
        self._delta = _numbered(MOVES, self.width, device)
        square = np.argwhere(np.ones((rules.sight, rules.sight))) - rules.radius
        self._around = _numbered(square, self.width, device)  # [S * S]
        self._number = torch.arange(layouts.place.shape[1], device=device)
        self._doublings = max(1, math.ceil(math.log2(layouts.place.shape[1] + 1)))

    @property
    def cell(self) -> Tensor:
        """The current cell numbers of N agents in each of E worlds, [E, N]; 0: an absent agent.

        Cells are numbered row by row in the map with its margin.
        """
        return self.layouts.place

    @property
    def place(self) -> Tensor:
        """The current rows and columns of N agents in each of E worlds, [E, N, 2]; -1: absent."""
        return _places(self.cell, self.rules.radius, self.width)

    def views(self) -> Tensor:
        """Returns the observations of N agents in each of E worlds, uint8 [E, N, S, S].

        An agent sees the S x S cells around it. Each cell is a code of one bit per channel. The
        observations of absent agents are 0.
        """
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

    def step(self, action: Tensor) -> DeviceStepResult:
        """Steps all parallel grid worlds once; returns rewards and outcomes.

        `action` [E, N], for E worlds of N agents, is 0 stay, 1 up, 2 down, 3 left or 4 right.
        """
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
        return DeviceStepResult(reward, wants & ~moves, home, finished)

    def _succeeds(self, cell: Tensor, target: Tensor, wants: Tensor) -> Tensor:
        """Returns which agents' moves succeed by the rule of `collisions`, bool [E, N].

        E is the number of worlds, N of agents. `cell` and `target` are current and target cells of
        the agents; `wants` masks agents that want to move.
        """
        wall, agents = self.layouts.wall, cell.shape[1]
        target = torch.where(wants, target, cell)
        goes = wants & ~wall.gather(1, target)
        holder = torch.full(wall.shape, -1, dtype=torch.int64, device=cell.device)
        holder.scatter_(1, cell, self._number.expand_as(cell))
        holder[:, 0] = -1
        other = holder.gather(1, target)  # [E, N] the agent in the target cell; -1: none
        ahead = other.clamp(min=0)
        swap = (other >= 0) & (target.gather(1, ahead) == cell) & goes.gather(1, ahead)
        goes = goes & ~swap
        claim = torch.full(wall.shape, agents, dtype=torch.int64, device=cell.device)
        mine = torch.where(goes, self._number, agents)
        claim.scatter_reduce_(1, target, mine, "amin")
        goes = goes & (claim.gather(1, target) == self._number)
        return goes & ~self._held_up(goes, other)

    def _held_up(self, goes: Tensor, other: Tensor) -> Tensor:
        """Returns which agents cannot move because an agent ahead of them stays, bool [E, N].

        Agents without True in `goes` stay, and so do all that queue behind them. `other` is the
        agent in an agent's target cell, -1 for none. Pointer doubling follows each queue to its
        head. In a cycle of moving agents none stays, so the cycle rotates.
        """
        ahead = torch.where(goes & (other >= 0), other, self._number)
        stuck = ~goes
        for _ in range(self._doublings):
            stuck = stuck | stuck.gather(1, ahead)
            ahead = ahead.gather(1, ahead)
        return stuck

    def renew(self, which: Tensor, layouts: DeviceCases) -> None:
        """Starts new problem instances in the grid worlds with True in `which` [E] (one per world).

        World i starts instance i of `layouts`, so there are as many instances as worlds.
        """
        for mine, new in zip(self.layouts, layouts, strict=True):
            mask = which.view(-1, *(1,) * (mine.dim() - 1))
            mine.copy_(torch.where(mask, new, mine))
        self.steps.masked_fill_(which, 0)


def to_host(layouts: DeviceCases, rules: WorldRules, *, width: int) -> Cases:
    """Copies problem instances from a device to the host, on maps of `width` rows and columns.

    Smaller maps keep their padding of blocked cells.
    """
    margin, wide = rules.radius, width + 2 * rules.radius
    inside = slice(margin, margin + width)
    maps = layouts.wall.view(-1, wide, wide)[:, inside, inside].to(torch.uint8).cpu().numpy()
    places = _places(torch.stack([layouts.place, layouts.goal]), margin, wide)
    return Cases(maps, *places.to(torch.int16).cpu().numpy())


def _places(cells: Tensor, margin: int, wide: int) -> Tensor:
    """Returns rows and columns [..., 2] of cells of a map with a margin; -1: an absent agent."""
    places = torch.stack([cells // wide - margin, cells % wide - margin], -1)
    return places.masked_fill((cells == 0)[..., None], -1)


def with_fields(
    wall: Tensor, outside: Tensor, start: Tensor, goal: Tensor, size: Tensor, rules: WorldRules
) -> DeviceCases:
    """Builds problem instances on a device: computes the observation bits of all cells.

    `wall` and `outside` [C, rows, columns], for C maps with margins, mask blocked cells and cells
    outside of the map.
    """
    away = distances(wall, goal)  # [C, N, rows, columns]
    shows = wall if rules.outside == Outside.BLOCKED else wall & ~outside
    field = (shows.to(torch.uint8) * BLOCKED)[:, None].expand(away.shape).clone()
    for direction, (down, right) in enumerate(MOVES[1:].tolist()):
        there = away.roll((-down, -right), (2, 3))
        nearer = (there < away) & (away < FAR)
        field |= nearer.to(torch.uint8) * (NEARER << direction)
    return DeviceCases(field.flatten(2), wall.flatten(1), start, goal, size)


def distances(wall: Tensor, goal: Tensor) -> Tensor:
    """Returns shortest path lengths from all cells to each goal, int16 [C, N, rows, columns].

    C is the number of maps, N of agents. The value is FAR where the goal is unreachable. `wall`
    [C, rows, columns] masks blocked cells and needs a margin of them, since `torch.roll` wraps
    around.
    """
    shape, cells = goal.shape, wall.shape[1] * wall.shape[2]
    away = torch.full((*shape, cells), FAR, dtype=torch.int16, device=wall.device)
    away.scatter_(2, goal[..., None], 0)
    away[..., 0] = FAR
    blocked = wall[:, None]

    def relax(away: Tensor) -> Tensor:
        nearest = _best_beside(away, torch.minimum)
        return torch.minimum(away, (nearest + 1).masked_fill(blocked, FAR))

    return _settled(away.view(*shape, *wall.shape[1:]), relax)


def components(wall: Tensor) -> Tensor:
    """Labels each free cell with the number of its connected component; returns int64 [C, P].

    C is the number of maps, P of cells of a map. Blocked cells have the label 0.
    """
    free = ~wall
    rows, columns = wall.shape[1:]

    def relax(label: Tensor) -> Tensor:
        flat = (torch.maximum(label, _best_beside(label, torch.maximum)) * free).flatten(1)
        return flat.gather(1, flat).view_as(label)  # pointer jumping: the labelled cell's label

    own = torch.arange(rows * columns, device=wall.device).view(1, rows, columns) * free
    return _settled(own, relax).flatten(1)


def _best_beside(values: Tensor, best: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Returns the best value of the four cells next to each cell of maps [..., rows, columns]."""
    return best(
        best(values.roll(1, -2), values.roll(-1, -2)),
        best(values.roll(1, -1), values.roll(-1, -1)),
    )


def _settled(values: Tensor, relax: Callable[[Tensor], Tensor]) -> Tensor:
    """Repeats `relax` until the values do not change any more."""
    while True:
        before = values
        for _ in range(LOOK_PERIOD):
            values = relax(values)
        if torch.equal(before, values):  # a sync point
            return values


def draw_device_cases(
    sizes: Tensor,
    *,
    agents: int,
    width: int,
    rules: WorldRules,
    density: float | None,
    rng: torch.Generator,
) -> DeviceCases:
    """Draws a random problem instance (map, starts, goals) per map size in `sizes`, on the device.

    Maps without enough free cells for all agents are left out, so the result may have fewer
    instances. Maps smaller than `width` are in the upper left corner, padded with blocked cells.
    `density` is the share of blocked cells; with None each map draws its own from the triangular
    distribution of PRIMAL (Sartoretti et al. 2019).
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
    return with_fields(wall[kept], outside[kept], start[kept], goal[kept], sizes[kept], rules)


def _triangular(chance: Tensor) -> Tensor:
    mode, most = TRIANGLE
    low = (chance * most * mode).sqrt()
    high = most - ((1 - chance) * most * (most - mode)).sqrt()
    return torch.where(chance < mode / most, low, high)


def _pairs(label: Tensor, agents: int, rng: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Draws starts and goals of N agents on C maps; returns both [C, N], and which maps have room.

    The third result, bool [C], is False for maps without enough free cells for all agents. `label`
    [C, P] holds the connected component of each of P cells. Start and goal of an agent are in one
    component, and no cell is used twice.
    """
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
    """Returns the index of a random True entry in each row of a mask, [C, 1]."""
    luck = torch.rand(able.shape, device=able.device, generator=rng)
    return torch.where(able, luck, -1.0).argmax(1, keepdim=True)


def _numbered(moves: np.ndarray, wide: int, device: torch.device) -> Tensor:
    return torch.from_numpy(moves[:, 0] * wide + moves[:, 1]).to(device)
