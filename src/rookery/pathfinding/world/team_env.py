"""Path finding as one Gymnasium environment for a whole team: joint observations and actions.

rookery train --env rookery.pathfinding.world.team_env:Team --set algo.name=team
"""

from collections.abc import Mapping
from dataclasses import astuple
from typing import Any, TypeAlias, Unpack

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rookery.envs.spaces import Codes
from rookery.errors import CheckpointError, ConfigError
from rookery.pathfinding.world.cases import Cases, Maps, check_possible, generate, pad
from rookery.pathfinding.world.curriculum import Curriculum, CurriculumTask, curriculum_spec
from rookery.pathfinding.world.episode_measures import EpisodeMeasures
from rookery.pathfinding.world.rules import CHANNELS, MOVES, RuleOptions, WorldRules, make_rules
from rookery.pathfinding.world.world_image import picture
from rookery.pathfinding.world.worlds import StepResult, Worlds
from rookery.types import Array, Floats

Observed: TypeAlias = dict[str, Array]
AGENTS, SIZE = 8, 20  # defaults without a curriculum


class Team(gym.Env[Observed, Array]):
    """Gymnasium environment for path finding: N agents on a square map, each with its own goal.

    Observations: `view` uint8 [N, S, S], the S x S cells around each agent with one bit per channel
    (see `rules`); `place` [N, 2], each agent's row and column; `reward` [N], each agent's reward of
    the last step. An action is one of 0 stay, 1 up, 2 down, 3 left, 4 right for each agent. The
    reward is the mean over the agents. An episode terminates when all are on their goals at once
    and is truncated after `steps`. The info of the last step has `is_success`, `individual_success`
    (share of the agents on their goals), `length`, `sum_of_costs` (steps until each agent stayed on
    its goal, summed), `agents` and `size` (of the map), and with a curriculum its progress.

    Every episode has a new random problem instance (map, starts, goals), drawn as by
    `cases.generate`. To play a given one, pass options={"cases": cases} to `reset`: a `Cases` of
    one instance with as many agents. With a `curriculum` (settings of
    `curriculum.CurriculumSpec`; {} for its defaults) each episode has a random unlocked team size
    and map size. N and the map size are then the largest ones of the curriculum: smaller maps are
    in the upper left corner, padded with obstacles; absent agents have position -1, an empty view
    and reward 0.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 4}  # noqa: RUF012

    def __init__(
        self,
        *,
        agents: int | None = None,
        size: int | None = None,
        density: float | None = None,
        curriculum: Mapping[str, Any] | None = None,
        rewards: Mapping[str, float] | None = None,
        render_mode: str | None = None,
        **rules: Unpack[RuleOptions],
    ) -> None:
        self.rules = make_rules(rewards, **rules)
        self.curriculum = _curriculum(curriculum, density)
        self.largest = _largest(self.curriculum, agents, size)
        self.density = self.curriculum.spec.density if self.curriculum else density
        check_possible(1, *self.largest, self.density)
        self.task, self.render_mode = self.largest, render_mode
        self.observation_space: spaces.Space[Any] = observation_space(self.largest, self.rules)
        self.action_space = action_space(self.largest)
        self.stepped: StepResult | None = None  # of the last step
        self._worlds: Worlds | None = None
        self._measures: EpisodeMeasures  # of the present episode
        self._reward: Floats = np.zeros(self.largest.agents, dtype=np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observed, dict[str, Any]]:
        super().reset(seed=seed)
        cases = (options or {}).get("cases")
        if cases is None:
            task = self.curriculum.choose(self.np_random) if self.curriculum else self.largest
            agents, size = task
            cases = generate(1, agents=agents, size=size, density=self.density, rng=self.np_random)
            cases, self.task = pad(cases, *self.largest), task
        else:
            self._refuse_other_teams(cases)
            self._worlds = None  # its maps may be of another size
        self._reward[:] = 0
        return self._observed(self._load(cases)), {}

    def step(self, action: Any) -> tuple[Observed, float, bool, bool, dict[str, Any]]:
        assert self._worlds is not None, "gymnasium's order: reset comes first"
        self.stepped = stepped = self._worlds.step(np.asarray(action)[None])
        self._measures.count(stepped.home)
        self._reward[:] = stepped.reward[0]
        reward = float(self._reward.sum(dtype=np.float64)) / self.task.agents
        terminated = bool(stepped.finished[0])
        truncated = not terminated and bool(self._worlds.steps[0] >= self.rules.steps)
        info = self._ended() if terminated or truncated else {}
        return self._observed(self._worlds), reward, terminated, truncated, info

    def render(self) -> Maps | None:
        """Returns an RGB image of the map, agents and goals.

        Returns None without `render_mode="rgb_array"` and before the first `reset`.
        """
        if self.render_mode is None or self._worlds is None:
            return None
        return picture(self._worlds.maps[0], self._worlds.place[0], self._worlds.goals[0])

    def export_state(self) -> dict[str, Any] | None:
        state: dict[str, Any] = {"lesson": list(self.task), "reward": self._reward.tolist()}
        if self.curriculum is not None:
            state["curriculum"] = self.curriculum.state()
        if self._worlds is not None:
            now = Cases(self._worlds.maps, self._worlds.place, self._worlds.goals)
            state["case"] = {name: part.tolist() for name, part in now._asdict().items()}
            state["steps"] = int(self._worlds.steps[0])
            state["settled"] = self._measures.settled[0].tolist()
        return state

    def restore_state(self, state: dict[str, Any]) -> None:
        self._refuse_other_shapes(state)
        self.task, self._reward[:] = CurriculumTask(*state["lesson"]), state["reward"]
        if self.curriculum is not None:
            self.curriculum.restore(state["curriculum"])
        if "case" in state:
            maps, starts, goals = (state["case"][name] for name in Cases._fields)
            places = (np.array(part, dtype=np.int16) for part in (starts, goals))
            worlds = self._load(Cases(np.array(maps, dtype=np.uint8), *places))
            worlds.steps[0] = self._measures.steps[0] = state["steps"]
            self._measures.settled[0] = state["settled"]

    def export_progress(self) -> dict[str, Any] | None:
        return None if self.curriculum is None else self.curriculum.state()

    def restore_progress(self, state: dict[str, Any]) -> None:
        if self.curriculum is not None:
            self.curriculum.restore(state)

    def _refuse_other_teams(self, cases: Cases) -> None:
        """Raises ConfigError unless `cases` is one instance with all agents of this environment."""
        given, needed = cases.starts.shape[:2], self.largest.agents
        if given != (1, needed) or cases.starts.min() < 0:
            raise ConfigError(
                f"an episode takes one problem instance of {needed} present agents, got "
                f"{given[0]} of {given[1]}; select one, or make the environment for other agents"
            )

    def _refuse_other_shapes(self, state: dict[str, Any]) -> None:
        """Raises CheckpointError for a saved episode with another number of agents or map size."""
        agents, size = len(state["reward"]), self.largest.size
        if "case" in state:
            size = len(state["case"]["maps"][0])
        if (agents, size) != self.largest:
            raise CheckpointError(
                f"the saved episode has room for {agents} agents on {size} x {size} cells, this "
                f"environment for {self.largest.agents} on {self.largest.size} x "
                f"{self.largest.size}; resume with the same env.kwargs, or start a new run from "
                "its weights: --init-from"
            )

    def _load(self, cases: Cases) -> Worlds:
        if self._worlds is None:
            self._worlds = Worlds(cases, self.rules)
        else:
            self._worlds.load([0], cases)
        self._measures = EpisodeMeasures(cases.starts, cases.goals)
        return self._worlds

    def _observed(self, worlds: Worlds) -> Observed:
        return {
            "view": worlds.views()[0].copy(),
            "place": worlds.place[0].copy(),
            "reward": self._reward.copy(),
        }

    def _ended(self) -> dict[str, Any]:
        """Returns the info dict of an ended episode, and records its success in the curriculum."""
        ended = self._measures.ended() | self.task._asdict()
        if self.curriculum is not None:
            self.curriculum.record(self.task, success=bool(ended["is_success"]))
            self.curriculum.advance()
            agents, sizes = zip(*self.curriculum.tasks, strict=True)
            ended["curriculum"] = {"agents": max(agents), "size": max(sizes)}
        return ended


def observation_space(task: CurriculumTask, rules: WorldRules) -> spaces.Dict:
    """Returns the observation space of a team: views, positions and rewards of all agents."""
    agents, size = task
    view, earned = (agents, rules.sight, rules.sight), [0.0, *astuple(rules.rewards)]
    return spaces.Dict(
        {
            "view": Codes(0, 2**CHANNELS - 1, view, np.uint8),
            "place": Codes(-1, size - 1, (agents, 2), np.int16),
            "reward": spaces.Box(min(earned), max(earned), (agents,), np.float32),
        }
    )


def action_space(task: CurriculumTask) -> spaces.MultiDiscrete[Any]:
    return spaces.MultiDiscrete([len(MOVES)] * task.agents)


def _curriculum(given: Mapping[str, Any] | None, density: float | None) -> Curriculum | None:
    return None if given is None else Curriculum(curriculum_spec({"density": density, **given}))


def _largest(curriculum: Curriculum | None, agents: int | None, size: int | None) -> CurriculumTask:
    """Returns the largest number of agents and map size that an episode can have.

    Without a curriculum these are `agents` and `size`, or their defaults for None. With a
    curriculum its settings decide, and ConfigError is raised if `agents` or `size` is given too.
    """
    if curriculum is None:
        return CurriculumTask(AGENTS if agents is None else agents, SIZE if size is None else size)
    if agents is not None or size is not None:
        raise ConfigError(
            f"a curriculum sets the numbers of agents and map sizes, got agents {agents} and size "
            f"{size} as well; leave them out, or leave the curriculum out"
        )
    return CurriculumTask(max(curriculum.spec.agents), max(curriculum.spec.sizes))
