"""An arena: worlds of one team size on a device, the policy that plays them, and their replay.

    arena.play(16, epsilon)                      # 16 steps of all worlds
    batch, picks = arena.draw(64, beta=0.4)      # for `Team.losses`
    arena.rerank(picks, priority)

An episode's end is a row of its own: a world that is over shows its last views once more, as a row
without a step, and begins anew after it. So what a step led to is always the next row.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from rookery.algos.team import Learnt, Team, Window, backed_up, cared
from rookery.config.algorithms import TeamConfig
from rookery.config.schema import DeviceConfig, ReplayConfig
from rookery.envs.pathfinding.cases import Cases, possible
from rookery.envs.pathfinding.device import DeviceWorlds, Layouts, draw_layouts, lifted
from rookery.envs.pathfinding.rules import Rules
from rookery.errors import ConfigError
from rookery.nets.capture import Capture
from rookery.nets.team import Links
from rookery.replay.tape import Column, Picks, Tape
from rookery.types import Array, Batch

NO_ROWS = np.empty(0, dtype=np.int64)  # windows have no numbers: `Picks` say which they are
NOBODY = 255  # in the column of those who are heard
TOLD = "told"  # the column of steps that a script says
MOST_FIELDS = 16_384  # agents whose ways are found at a time
TRIES = 1000  # maps drawn without a single case, before there is said to be none


class Ended(NamedTuple):
    """Episodes that ended while a chunk was played: K of them."""

    world: np.ndarray  # [K]
    size: np.ndarray  # [K] of the map
    success: np.ndarray  # [K] bool
    home: np.ndarray  # [K] share of agents on their goals at the end
    length: np.ndarray  # [K]
    score: np.ndarray  # [K] sum of the team's mean rewards


class Script:
    """What some of E worlds do next, whatever they would: up to L steps each."""

    def __init__(self, steps: int, worlds: int, agents: int, device: torch.device):
        self.steps = steps
        self._action = torch.zeros(steps, worlds, agents, dtype=torch.int64, device=device)
        self._left = torch.zeros(worlds, dtype=torch.int64, device=device)
        self._at = torch.zeros(1, dtype=torch.int64, device=device)

    def load(self, said: Mapping[int, Array]) -> int:
        """Takes the actions [T, N] of some worlds, by their numbers; returns how many steps."""
        action = np.zeros(self._action.shape, dtype=np.int64)
        left = np.zeros(self._left.shape, dtype=np.int64)
        for world, steps in said.items():
            left[world] = min(len(steps), self.steps)
            action[: left[world], world] = steps[: self.steps]
        self._action.copy_(torch.from_numpy(action))
        self._left.copy_(torch.from_numpy(left))
        self._at.zero_()
        return int(left.sum())

    def next(self, choice: Tensor, over: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the actions of all, [E, N], and which worlds were told, [E].

        Whatever else was said to a world that is `over` is forgotten.
        """
        told = (self._left > 0) & ~over
        said = self._action.index_select(0, self._at).squeeze(0)
        self._left.copy_(torch.where(over, 0, self._left - told.long()))
        self._at.copy_((self._at + 1).clamp(max=self.steps - 1))
        return torch.where(told[:, None], said, choice), told


class Arena:
    """E worlds of N agents."""

    def __init__(
        self,
        algorithm: Team,
        agents: int,
        *,
        worlds: int,
        width: int,
        rules: Rules,
        density: float | None,
        rows: int,
        replay: ReplayConfig,
        sizes: Sequence[int],
        rng: torch.Generator,
        lecture: int | None = None,
    ):
        """With a `lecture` worlds can be told what to do, so many steps at a time at most."""
        possible(worlds, agents, width, density)
        _refuse_more_than_bytes(agents, rules)
        self.algorithm, self.agents, self.count = algorithm, agents, worlds
        self.rules, self.width, self.density, self.rng = rules, width, density, rng
        self.config: TeamConfig = algorithm.config
        self.device = device = rng.device
        self.sizes = list(sizes)
        self._stock = self._cases(worlds)
        self._taken = torch.zeros((), dtype=torch.int64, device=device)  # cases, of the stock
        self._filled = 0
        self.worlds = DeviceWorlds(self._cases(worlds), rules, width=width)
        self.script = None if lecture is None else Script(lecture, worlds, agents, device)
        self.tape = self._tape(rows, replay)
        self.memory = torch.zeros(worlds, agents, algorithm.online.memory, device=device)
        self.fresh = torch.ones(worlds, dtype=torch.bool, device=device)
        self.over = torch.zeros(worlds, dtype=torch.bool, device=device)
        self.score = torch.zeros(worlds, device=device)
        number = torch.arange(agents, device=device) + torch.arange(worlds, device=device)[:, None]
        self._explores = number % min(self.config.explorers, agents) == 0  # as on other engines
        self._move = Capture(self._moved, device, [rng])

    def _tape(self, rows: int, replay: ReplayConfig) -> Tape:
        kept, marks = columns(self.algorithm, self.agents, self.device)
        return Tape(
            kept if self.script is None else kept | {TOLD: Column((), torch.bool)},
            marks,
            worlds=self.count,
            rows=rows,
            stride=self.config.stride,
            span=self.config.sequence + 1,
            alpha=replay.alpha,
            device=self.device,
        )

    # Playing.

    @torch.no_grad()
    def play(self, rows: int, epsilon: Tensor) -> Ended:
        """Plays so many rows of all worlds, with shares [E] of random actions."""
        facts = [self._row(epsilon) for _ in range(rows)]
        played = torch.stack(facts).cpu().numpy()  # the chunk's one sync point
        self._restock()
        return _ended(played)

    def _row(self, epsilon: Tensor) -> Tensor:
        """Plays a row and writes it; returns what the report wants of it, [6, E]."""
        if self.tape.at_mark:
            self.tape.mark({"memory": self.memory})
        row, facts = self._move(epsilon)  # [6, E] facts
        mark = self.tape.write(row)
        if mark is not None:
            self.tape.admit(mark, self._surprise(self.tape.window(mark)))
        kept: Tensor = facts.clone()  # the next row is played in the same memory
        return kept

    def _moved(self, epsilon: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """Has everybody think and move; those who are over begin anew."""
        worlds, steps, fresh = self.worlds, ~self.over, self.fresh.clone()
        h = self.memory.masked_fill(fresh[:, None, None], 0.0).flatten(0, 1)
        view = worlds.views()
        links = self.algorithm.listen(view, worlds.place, h)
        q, after = self.algorithm.online(view.flatten(0, 1), h, links)
        q = q.view(self.count, self.agents, -1)
        action, told = self._chosen(q, epsilon), {}
        if self.script is not None:
            action, told[TOLD] = self.script.next(action, self.over)
        stepped = worlds.step(action)
        ended = steps & (stepped.finished | (worlds.steps >= self.rules.steps))
        self.score.copy_((self.score * ~fresh) + stepped.reward.mean(1) * steps)
        facts = self._noted(ended, stepped.finished, stepped.home)
        row = {
            "view": view,
            **self._heard(links),
            "action": action,
            "reward": stepped.reward,
            "q": q,
            "steps": steps,
            "discount": self.config.gamma * ~stepped.finished,
            "fresh": fresh,
            **told,
        }
        self._renew(self.over)
        self.memory.copy_(after.view(self.memory.shape))
        self.fresh.copy_(self.over)
        self.over.copy_(ended)
        return row, facts

    def _chosen(self, q: Tensor, epsilon: Tensor) -> Tensor:
        luck = torch.rand(q.shape[:2], device=self.device, generator=self.rng)
        any_ = torch.randint(q.shape[2], q.shape[:2], device=self.device, generator=self.rng)
        return torch.where(self._explores & (luck < epsilon[:, None]), any_, q.argmax(2))

    def _noted(self, ended: Tensor, finished: Tensor, home: Tensor) -> Tensor:
        """Returns what the report wants of a row, [6, E]."""
        facts = (ended, finished, home.float().mean(1), self.worlds.steps, self.worlds.layouts.size)
        return torch.stack([*(fact.float() for fact in facts), self.score])

    def _heard(self, links: Links) -> dict[str, Tensor]:
        """Returns who is heard, but for the listener itself, in bytes."""
        shape = (self.count, self.agents, -1)
        who = (links.who % self.agents).masked_fill(~links.heard, NOBODY)
        return {"who": who[:, 1:].reshape(shape), "where": links.where[:, 1:].reshape(shape)}

    def _surprise(self, rows: dict[str, Tensor]) -> Tensor:
        """Returns the first priorities of windows [E], by what the acting policy thought."""
        if self.script is not None:
            told = self._taught(rows)[self.config.burn_in :]
            return told.any(0).float()
        q, config = rows["q"].float(), self.config
        taken = q[:-1].gather(3, rows["action"][:-1].long()[..., None]).squeeze(3)  # [T, E, N]
        steps, discount = rows["steps"][:-1, :, None], rows["discount"][:-1, :, None]
        links = self._links(rows["who"], rows["where"])
        reward = cared(rows["reward"][:-1].flatten(1), links, config.care).view(taken.shape)
        wanted = backed_up(q.amax(3), reward, discount, steps, config.n_step)
        burn_in = config.burn_in
        error = ((wanted - taken).abs() * steps)[burn_in:].flatten(1)
        taught = steps[burn_in:].expand(-1, -1, self.agents).flatten(1).float()
        none = error.new_zeros(())
        surprise = self.algorithm.surprise(Learnt(none, error, taught, none))
        return self.algorithm.joint(surprise, self.agents)

    def cases(self, which: Array) -> Cases:
        """Returns how some worlds, by number, stand now: as cases of their own on the host."""
        picked = torch.from_numpy(which).to(self.device)
        return lifted(self.worlds.layouts.pick(picked), self.rules, width=self.width)

    # New worlds.

    def _renew(self, which: Tensor) -> None:
        """Gives worlds [E] that are over the next cases of the stock."""
        number = self._taken + which.cumsum(0) - 1
        self.worlds.renew(which, self._stock.pick(number.clamp(min=0) % self._stock.cases))
        self._taken += which.sum()

    def _restock(self) -> None:
        """Draws as many cases as were taken since, in place of those."""
        taken = int(self._taken)  # a sync point, once a chunk
        if taken == self._filled:
            return
        fresh = self._cases(min(taken - self._filled, self._stock.cases))
        slots = torch.arange(taken - fresh.cases, taken, device=self.device) % self._stock.cases
        for mine, new in zip(self._stock, fresh, strict=True):
            mine[slots] = new
        self._filled = taken

    def _cases(self, count: int) -> Layouts:
        """Draws cases of the sizes that are open."""
        found: list[Layouts] = []
        several = min(count, max(1, MOST_FIELDS // self.agents))
        while sum(some.cases for some in found) < count:
            found.append(self._drawn(several))
            if len(found) * several >= TRIES and not any(some.cases for some in found):
                raise ConfigError(
                    f"{self.agents} agents were to have starts and goals on maps of {self.sizes} "
                    f"rows and columns, density {self.density}, but in {TRIES} such maps there was "
                    "no room for them; take fewer agents, larger maps or a lower density"
                )
        return joined(found, count)

    def _drawn(self, maps: int) -> Layouts:
        """Returns the cases that there are on so many new maps."""
        assert max(self.sizes) <= self.width, "the width is that of the largest map"
        which = torch.randint(len(self.sizes), (maps,), device=self.device, generator=self.rng)
        return draw_layouts(
            torch.tensor(self.sizes, device=self.device)[which],
            agents=self.agents,
            width=self.width,
            rules=self.rules,
            density=self.density,
            rng=self.rng,
        )

    # Learning.

    def draw(self, batch: int, *, beta: float) -> tuple[Batch, Picks]:
        """Draws `batch` windows of worlds, as those of their agents, for `Team.losses`."""
        picks = self.tape.draw(batch, beta=beta, rng=self.rng)
        rows, kept = self.tape.rows(picks), self.tape.remembered(picks)

        def each(leaf: Tensor) -> Tensor:  # [T, B] → [T, B * N]
            return leaf[..., None].expand(-1, -1, self.agents).flatten(1)

        window = Window(
            view=rows["view"].flatten(1, 2),
            links=self._links(rows["who"], rows["where"]),
            action=rows["action"][:-1].flatten(1).long(),
            reward=rows["reward"][:-1].flatten(1),
            discount=each(rows["discount"][:-1]),
            mask=each(self._taught(rows)).float(),
            memory=kept["memory"].flatten(0, 1).float(),
            weight=picks.weight[:, None].expand(-1, self.agents).flatten(),
            fresh=each(rows["fresh"]),
        )
        taken = rows["q"][:-1].gather(3, rows["action"][:-1].long()[..., None]).squeeze(3)
        return Batch(
            obs=window,
            action=None,
            reward=None,
            discount=None,
            next_obs=None,
            weight=None,
            rows=NO_ROWS,
            extras=taken.flatten(1).float(),
        ), picks

    def _taught(self, rows: dict[str, Tensor]) -> Tensor:
        """Says where there is a step to learn from, [T, B]."""
        steps = rows["steps"][:-1]
        return steps if self.script is None else steps & rows[TOLD][:-1]

    def _links(self, who: Tensor, where: Tensor) -> Links:
        """Turns numbers within a world, [T + 1, B, N, K - 1], into links among B * N agents."""
        batch = who.shape[1]
        number = torch.arange(batch * self.agents, device=self.device).view(1, batch, -1, 1)
        base = number // self.agents * self.agents
        heard = who != NOBODY
        own = number.expand(len(who), -1, -1, 1)
        full = torch.cat([own, torch.where(heard, who.long() + base, number)], 3)
        middle = torch.full_like(own, self.rules.sight**2 // 2)
        place = torch.cat([middle, torch.where(heard, where.long(), middle)], 3)
        all_heard = torch.cat([torch.ones_like(own, dtype=torch.bool), heard], 3)
        return Links(full.flatten(1, 2), all_heard.flatten(1, 2), place.flatten(1, 2))

    def rerank(self, picks: Picks, surprise: Tensor) -> None:
        """Gives windows new priorities, by those of their agents, [B * N]."""
        self.tape.rerank(picks, self.algorithm.joint(surprise, self.agents))


def choose_precision() -> None:
    """Has GPUs multiply in TF32 whatever is not in bfloat16 already; for the whole process."""
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.benchmark = True


def _refuse_more_than_bytes(agents: int, rules: Rules) -> None:
    """Refuses what the tape's columns of bytes cannot tell apart."""
    if agents > NOBODY or rules.sight**2 > NOBODY + 1:
        raise ConfigError(
            f"on a device a team has at most {NOBODY} agents, who see at most 16 rows, got "
            f"{agents} and {rules.sight}; use smaller teams or a smaller radius"
        )


def columns(
    algorithm: Team, agents: int, device: torch.device
) -> tuple[dict[str, Column], dict[str, Column]]:
    """Returns what a tape keeps of each step of a world, and where a window begins."""
    others, sight = algorithm.config.neighbours, 2 * algorithm.radius + 1
    low = torch.bfloat16 if device.type == "cuda" else torch.float32
    byte = torch.uint8
    rows = {
        "view": Column((agents, sight, sight), byte),
        "who": Column((agents, others), byte),
        "where": Column((agents, others), byte),
        "action": Column((agents,), byte),
        "reward": Column((agents,), torch.float32),
        "q": Column((agents, algorithm.choices), low),
        "steps": Column((), torch.bool),  # False: an episode's end
        "discount": Column((), torch.float32),
        "fresh": Column((), torch.bool),
    }
    return rows, {"memory": Column((agents, algorithm.online.memory), low)}


def tape_bytes(algorithm: Team, config: DeviceConfig, device: torch.device) -> int:
    """Returns what the replay of one arena takes: the most, where each agent has its own world."""
    rows, marks = (
        sum(math.prod(column.shape) * column.dtype.itemsize for column in some.values())
        for some in columns(algorithm, 1, device)
    )
    return config.agents * config.rows * (rows + -(-marks // algorithm.config.stride))


def joined(layouts: Sequence[Layouts], count: int) -> Layouts:
    """Puts layouts one after another, and keeps the first `count`."""
    return Layouts(*(torch.cat(parts)[:count] for parts in zip(*layouts, strict=True)))


def _ended(played: np.ndarray) -> Ended:
    """Finds the episodes that ended, in [rows, 6, E] facts."""
    row, world = np.nonzero(played[:, 0])
    facts = played[row, :, world]  # [K, 6]
    _, success, home, length, size, score = facts.T
    return Ended(world, size.astype(int), success > 0, home, length.astype(int), score)
