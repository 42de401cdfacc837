"""Actor that steps the grid worlds of one team size on a GPU, with their replay ring buffer.

    actor.play(16, epsilon)                      # 16 steps of all worlds
    batch, picks = actor.sample(64, beta=0.4)      # for `TeamDQN.losses`
    actor.update_priorities(picks, priority)

A world is one of E parallel environments; a row is one stored step of all of them. After the last
step of an episode a world stores one extra row without a step, which holds the final views, and
then starts a new problem instance (map, starts, goals). So the next observation of a step is always
in the next row.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from rookery.config.schema import DeviceConfig, ReplayConfig
from rookery.errors import ConfigError
from rookery.networks.cuda_graph import CapturedFunction
from rookery.pathfinding.settings import TeamConfig
from rookery.pathfinding.team_dqn import TeamDQN, Window, WindowLoss, n_step_targets, shaped_rewards
from rookery.pathfinding.world.cases import Cases, check_possible
from rookery.pathfinding.world.device_worlds import (
    DeviceCases,
    DeviceWorlds,
    draw_device_cases,
    to_host,
)
from rookery.pathfinding.world.rules import WorldRules
from rookery.replay.device_replay import DeviceColumn, DeviceRing, SampledWindows
from rookery.types import Array, Batch, DeviceBatch

NO_ROWS = np.empty(0, dtype=np.int64)  # `SampledWindows` identify sequences, not row numbers
GUIDED = "guided"  # column: whether the step follows the planner
MAX_FIELDS = 16_384  # agents whose distance fields are computed in one batch
TRIES = 1000  # maps generated without finding a problem instance before an error


class EndedTeamEpisodes(NamedTuple):
    """Results of the K team episodes that ended during one call of `TeamActor.play`."""

    world: np.ndarray  # [K] index of the world
    size: np.ndarray  # [K] rows and columns of the map
    success: np.ndarray  # [K] bool
    home: np.ndarray  # [K] share of agents on their goals at the end
    length: np.ndarray  # [K]
    score: np.ndarray  # [K] sum of the team's mean rewards


class TeacherActions:
    """Planned actions for imitation learning, which some of an actor's E grid worlds follow.

    A world follows its plan for up to `steps` steps.
    """

    def __init__(self, steps: int, worlds: int, agents: int, device: torch.device):
        self.steps = steps
        self._action = torch.zeros(steps, worlds, agents, dtype=torch.int64, device=device)
        self._left = torch.zeros(worlds, dtype=torch.int64, device=device)
        self._at = torch.zeros(1, dtype=torch.int64, device=device)

    def load(self, planned: Mapping[int, Array]) -> int:
        """Stores planned actions by index of the grid world, [T, N] each: T steps of N agents.

        Drops all actions that were stored before, and actions beyond `self.steps` steps. Returns
        the number of stored steps, summed over worlds.
        """
        action = np.zeros(self._action.shape, dtype=np.int64)
        left = np.zeros(self._left.shape, dtype=np.int64)
        for world, steps in planned.items():
            left[world] = min(len(steps), self.steps)
            action[: left[world], world] = steps[: self.steps]
        self._action.copy_(torch.from_numpy(action))
        self._left.copy_(torch.from_numpy(left))
        self._at.zero_()
        return int(left.sum())

    def next(self, choice: Tensor, over: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the next actions [E, N] of N agents in E parallel worlds, and which follow plans.

        Worlds without a plan take the policy's actions `choice` [E, N]. Where `over` [E] says that
        an episode has ended, the remaining planned actions are dropped.
        """
        guided = (self._left > 0) & ~over
        planned = self._action.index_select(0, self._at).squeeze(0)
        self._left.copy_(torch.where(over, 0, self._left - guided.long()))
        self._at.copy_((self._at + 1).clamp(max=self.steps - 1))
        return torch.where(guided[:, None], planned, choice), guided


class TeamActor:
    """Actor that steps E parallel grid worlds of N agents with the learner's network.

    Stores the steps in a replay ring buffer on the same device.
    """

    def __init__(
        self,
        algorithm: TeamDQN,
        agents: int,
        *,
        worlds: int,
        width: int,
        rules: WorldRules,
        density: float | None,
        rows: int,
        replay: ReplayConfig,
        sizes: Sequence[int],
        rng: torch.Generator,
    ):
        """Draws problem instances for all grid worlds; allocates the replay."""
        check_possible(worlds, agents, width, density)
        self.algorithm, self.agents, self.count = algorithm, agents, worlds
        self.rules, self.width, self.density, self.rng = rules, width, density, rng
        self.config: TeamConfig = algorithm.config
        self.device = device = rng.device
        self.sizes = list(sizes)
        self._stock = self._new_cases(worlds)
        self._taken = torch.zeros((), dtype=torch.int64, device=device)  # instances of the stock
        self._refilled = 0  # taken instances that have been replaced
        self.worlds = DeviceWorlds(self._new_cases(worlds), rules, width=width)
        self.teacher_actions: TeacherActions | None = None
        if self.config.taught:
            steps = self.config.guided_steps
            self.teacher_actions = TeacherActions(steps, worlds, agents, device)
        self.ring = self._build_ring(rows, replay)
        self.memory = torch.zeros(worlds, agents, algorithm.online.memory, device=device)
        self.fresh = torch.ones(worlds, dtype=torch.bool, device=device)
        self.over = torch.zeros(worlds, dtype=torch.bool, device=device)
        self.score = torch.zeros(worlds, device=device)
        number = torch.arange(agents, device=device) + torch.arange(worlds, device=device)[:, None]
        # as in the other run modes
        self._explores = number % min(self.config.explorers, agents) == 0
        self._captured_step = CapturedFunction(self._step, device, [rng])

    def _build_ring(self, rows: int, replay: ReplayConfig) -> DeviceRing:
        columns, marks = replay_columns(self.algorithm, self.agents, self.device)
        return DeviceRing(
            columns,
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
    def play(self, rows: int, epsilon: Tensor) -> EndedTeamEpisodes:
        """Steps all grid worlds `rows` times and stores the steps; returns the episodes that ended.

        `epsilon` [E] is the probability of a random action in each of the E worlds.
        """
        facts = [self._play_row(epsilon) for _ in range(rows)]
        played = torch.stack(facts).cpu().numpy()  # the chunk's one sync point
        self._refill_stock()
        return _find_ended(played)

    def _play_row(self, epsilon: Tensor) -> Tensor:
        """Steps all E grid worlds once and stores the step in the replay ring buffer.

        Returns the episode results of `_facts`, [6, E].
        """
        if self.ring.at_mark:
            self.ring.mark({"memory": self.memory})
        row, facts = self._captured_step(epsilon)  # [6, E] facts
        mark = self.ring.write(row)
        if mark is not None:
            self.ring.admit(mark, self._initial_priorities(self.ring.window(mark)))
        kept: Tensor = facts.clone()  # the next step writes to the same memory
        return kept

    def _step(self, epsilon: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """Steps all E grid worlds once; returns the columns to store in replay and episode results.

        The results are those of `_facts`, [6, E]. Worlds whose episode ended in the step before
        start a new problem instance.
        """
        worlds, steps, fresh = self.worlds, ~self.over, self.fresh.clone()
        h = self.memory.masked_fill(fresh[:, None, None], 0.0).flatten(0, 1)
        view, place = worlds.views(), worlds.place
        links = self.algorithm.listen(place)
        q, after = self.algorithm.online(view.flatten(0, 1), h, links)
        q = q.view(self.count, self.agents, -1)
        action, guided = self._choose_actions(q, epsilon), {}
        if self.teacher_actions is not None:
            action, guided[GUIDED] = self.teacher_actions.next(action, self.over)
        stepped = worlds.step(action)
        ended = steps & (stepped.finished | (worlds.steps >= self.rules.steps))
        self.score.copy_((self.score * ~fresh) + stepped.reward.mean(1) * steps)
        facts = self._facts(ended, stepped.finished, stepped.home)
        row = {
            "view": view,
            "place": place,
            "action": action,
            "reward": stepped.reward,
            "q": q,
            "steps": steps,
            "discount": self.config.gamma * ~stepped.finished,
            "fresh": fresh,
            **guided,
        }
        self._renew_worlds(self.over)
        self.memory.copy_(after.view(self.memory.shape))
        self.fresh.copy_(self.over)
        self.over.copy_(ended)
        return row, facts

    def _choose_actions(self, q: Tensor, epsilon: Tensor) -> Tensor:
        luck = torch.rand(q.shape[:2], device=self.device, generator=self.rng)
        any_ = torch.randint(q.shape[2], q.shape[:2], device=self.device, generator=self.rng)
        return torch.where(self._explores & (luck < epsilon[:, None]), any_, q.argmax(2))

    def _facts(self, ended: Tensor, finished: Tensor, home: Tensor) -> Tensor:
        """Returns the episode results of all E grid worlds after a step, float [6, E].

        The 6 results are: whether the episode has ended, success, share of agents on their goals,
        length, map size, and score (sum of the team's mean rewards).
        """
        facts = (ended, finished, home.float().mean(1), self.worlds.steps, self.worlds.layouts.size)
        return torch.stack([*(fact.float() for fact in facts), self.score])

    def _initial_priorities(self, rows: dict[str, Tensor]) -> Tensor:
        """Returns initial replay priorities [E] of new sequences, one in each of E grid worlds.

        They are computed from the n-step TD errors of the actor's own Q values. With a planner to
        imitate the priority is 1 if the sequence has planned actions after its burn-in, else 0.
        """
        if self.teacher_actions is not None:
            learnable = self._learnable(rows)[self.config.burn_in :]
            return learnable.any(0).float()
        q, config = rows["q"].float(), self.config
        taken = q[:-1].gather(3, rows["action"][:-1].long()[..., None]).squeeze(3)  # [T, E, N]
        steps, discount = rows["steps"][:-1, :, None], rows["discount"][:-1, :, None]
        reward = rows["reward"][:-1]
        if config.care:
            links = self.algorithm.links_over_time(rows["place"])
            reward = shaped_rewards(reward.flatten(1), links, config.care).view(taken.shape)
        target = n_step_targets(q.amax(3), reward, discount, steps, config.n_step)
        burn_in = config.burn_in
        td_error = ((target - taken).abs() * steps)[burn_in:].flatten(1)
        mask = steps[burn_in:].expand(-1, -1, self.agents).flatten(1).float()
        none = td_error.new_zeros(())
        priority = self.algorithm.agent_priorities(WindowLoss(none, td_error, mask, none))
        return self.algorithm.world_priorities(priority, self.agents)

    def current_cases(self, which: Array) -> Cases:
        """Returns the current states of some grid worlds as problem instances, in NumPy arrays.

        `which` are the indices of the worlds. An agent's start is its current position.
        """
        picked = torch.from_numpy(which).to(self.device)
        return to_host(self.worlds.layouts.pick(picked), self.rules, width=self.width)

    # Generating problem instances.

    def _renew_worlds(self, which: Tensor) -> None:
        """Starts new problem instances (map, starts, goals) in some of E parallel grid worlds.

        `which` [E] is True for these worlds. The instances come from a stock of precomputed ones.
        """
        number = self._taken + which.cumsum(0) - 1
        self.worlds.renew(which, self._stock.pick(number.clamp(min=0) % self._stock.cases))
        self._taken += which.sum()

    def _refill_stock(self) -> None:
        """Draws new problem instances in place of those taken from the precomputed stock.

        Does nothing if none was taken since the last call.
        """
        taken = int(self._taken)  # a sync point, once a chunk
        if taken == self._refilled:
            return
        fresh = self._new_cases(min(taken - self._refilled, self._stock.cases))
        slots = torch.arange(taken - fresh.cases, taken, device=self.device) % self._stock.cases
        for mine, new in zip(self._stock, fresh, strict=True):
            mine[slots] = new
        self._refilled = taken

    def _new_cases(self, count: int) -> DeviceCases:
        """Draws `count` problem instances with map sizes that the curriculum has unlocked.

        Raises ConfigError if none of the first `TRIES` random maps has room for all agents.
        """
        assert max(self.sizes) <= self.width, "the width is that of the largest map"
        found: list[DeviceCases] = []
        several = min(count, max(1, MAX_FIELDS // self.agents))
        sizes = torch.tensor(self.sizes, device=self.device)
        while sum(some.cases for some in found) < count:
            drawn = torch.randint(
                len(self.sizes), (several,), device=self.device, generator=self.rng
            )
            found.append(
                draw_device_cases(
                    sizes[drawn],
                    agents=self.agents,
                    width=self.width,
                    rules=self.rules,
                    density=self.density,
                    rng=self.rng,
                )
            )
            if len(found) * several >= TRIES and not any(some.cases for some in found):
                raise ConfigError(
                    f"{self.agents} agents were to have starts and goals on maps of {self.sizes} "
                    f"rows and columns, density {self.density}, but in {TRIES} such maps there was "
                    "no room for them; take fewer agents, larger maps or a lower density"
                )
        return concatenate(found, count)

    # Learning.

    def sample(self, batch: int, *, beta: float) -> tuple[DeviceBatch, SampledWindows]:
        """Samples `batch` stored sequences by priority; returns a batch for `TeamDQN.losses`.

        A stored sequence holds the steps of one grid world; the returned batch has one sequence per
        agent. Also returns which sequences were sampled, for `update_priorities`.
        """
        picks = self.ring.sample(batch, beta=beta, rng=self.rng)
        rows, kept = self.ring.rows(picks), self.ring.remembered(picks)

        def each(leaf: Tensor) -> Tensor:  # [T, B] → [T, B * N]
            return leaf[..., None].expand(-1, -1, self.agents).flatten(1)

        window = Window(
            view=rows["view"].flatten(1, 2),
            links=self.algorithm.links_over_time(rows["place"]),
            action=rows["action"][:-1].flatten(1).long(),
            reward=rows["reward"][:-1].flatten(1),
            discount=each(rows["discount"][:-1]),
            mask=each(self._learnable(rows)).float(),
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

    def _learnable(self, rows: dict[str, Tensor]) -> Tensor:
        """Returns a mask [T, B] of the steps to learn from, in B stored sequences of T steps.

        It excludes the extra row that replay holds after an episode's last step and, with a planner
        to imitate, steps that did not follow the planner.
        """
        steps = rows["steps"][:-1]
        return steps if self.teacher_actions is None else steps & rows[GUIDED][:-1]

    def update_priorities(self, picks: SampledWindows, td_error: Tensor) -> None:
        """Updates the replay priorities of B sampled sequences.

        `td_error` [B * N] holds the priorities of their N agents each, computed from TD errors.
        """
        self.ring.update_priorities(picks, self.algorithm.world_priorities(td_error, self.agents))


def choose_precision() -> None:
    """Allows TF32 in float32 matrix products and cuDNN autotuning, for the whole process."""
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.benchmark = True


def replay_columns(
    algorithm: TeamDQN, agents: int, device: torch.device
) -> tuple[dict[str, DeviceColumn], dict[str, DeviceColumn]]:
    """Returns shapes and dtypes of the replay columns: of each step, and of each sequence start.

    Only the recurrent state is stored at starts of sequences, every `algo.length` steps.
    """
    sight = 2 * algorithm.radius + 1
    low = torch.bfloat16 if device.type == "cuda" else torch.float32
    byte = torch.uint8
    rows = {
        "view": DeviceColumn((agents, sight, sight), byte),
        "place": DeviceColumn((agents, 2), torch.int16),
        "action": DeviceColumn((agents,), byte),
        "reward": DeviceColumn((agents,), torch.float32),
        "q": DeviceColumn((agents, algorithm.choices), low),
        "steps": DeviceColumn((), torch.bool),  # False: an episode's end
        "discount": DeviceColumn((), torch.float32),
        "fresh": DeviceColumn((), torch.bool),
    }
    if algorithm.config.taught:
        rows[GUIDED] = DeviceColumn((), torch.bool)
    return rows, {"memory": DeviceColumn((agents, algorithm.online.memory), low)}


def device_replay_bytes(algorithm: TeamDQN, config: DeviceConfig, device: torch.device) -> int:
    """Returns an upper bound of the bytes of replay of one `TeamActor`, for any team size.

    It is the memory of `device.agents` grid worlds with one agent each. Larger teams need less,
    since some columns are stored once per world.
    """
    rows, marks = (
        sum(math.prod(column.shape) * column.dtype.itemsize for column in some.values())
        for some in replay_columns(algorithm, 1, device)
    )
    return config.agents * config.rows * (rows + -(-marks // algorithm.config.stride))


def concatenate(cases: Sequence[DeviceCases], count: int) -> DeviceCases:
    """Concatenates problem instances and keeps the first `count`."""
    return DeviceCases(*(torch.cat(parts)[:count] for parts in zip(*cases, strict=True)))


def _find_ended(played: np.ndarray) -> EndedTeamEpisodes:
    """Returns the results of the episodes that ended in some steps of E grid worlds.

    `played` [steps, 6, E] are the results of `TeamActor._facts` after each step.
    """
    row, world = np.nonzero(played[:, 0])
    facts = played[row, :, world]  # [K, 6]
    _, success, home, length, size, score = facts.T
    return EndedTeamEpisodes(world, size.astype(int), success > 0, home, length.astype(int), score)
