"""Path finding as one Gymnasium environment: what all agents see, what all of them do.

rookery train --env rookery.envs.pathfinding.team:Team --set algo.name=team
"""

from collections.abc import Mapping
from typing import Any, TypeAlias

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rookery.envs.pathfinding.cases import Cases, generate, pad, possible
from rookery.envs.pathfinding.curriculum import Curriculum, Lesson, syllabus
from rookery.envs.pathfinding.measures import Measures
from rookery.envs.pathfinding.picture import picture
from rookery.envs.pathfinding.rules import CHANNELS, MOVES, Collision, Outside, Rules
from rookery.envs.pathfinding.settings import ruled
from rookery.envs.pathfinding.worlds import Worlds
from rookery.envs.spaces import Codes
from rookery.errors import CheckpointError, ConfigError
from rookery.types import Array, Floats

Observed: TypeAlias = dict[str, Array]
AGENTS, SIZE = 8, 20  # where neither these nor a curriculum are given


class Team(gym.Env[Observed, Array]):
    """N agents on a square map, each with a goal; all arrive at once, or the steps run out.

    Observes `view` [N, S, S], what each one sees as codes (`rules`), `place` [N, 2], and `reward`
    [N], what each one earned by the last step. An action is one of 0 stay, 1 up, 2 down, 3 left,
    4 right for each. The reward is the mean over the agents. Terminates when all are on their
    goals at once, is truncated after `steps`; the info of the last step has `is_success`,
    `individual_success` (share of the agents that are on their goals), `length`, `sum_of_costs`
    (steps until each was on its goal for good), `agents` and `size`, and with a curriculum how far
    that has come.

    Every episode has a case of its own, drawn as by `cases.generate`. With a `curriculum` (settings
    of `curriculum.Syllabus`; {} for its defaults) its lessons say how many agents play on how large
    a map: then N and the map are those of the largest, smaller maps lie in the upper left corner
    with obstacles around, and a number that nobody has is at -1, sees, earns and does nothing.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 4}  # noqa: RUF012

    def __init__(
        self,
        *,
        agents: int | None = None,
        size: int | None = None,
        density: float | None = None,
        curriculum: Mapping[str, Any] | None = None,
        radius: int = 4,
        steps: int = 256,
        collision: str = Collision.REFERENCE,
        outside: str = Outside.BLOCKED,
        rewards: Mapping[str, float] | None = None,
        render_mode: str | None = None,
    ) -> None:
        self.rules = ruled(
            radius=radius, steps=steps, collision=collision, outside=outside, rewards=rewards
        )
        self.curriculum = _begun(curriculum, density)
        self.largest = _largest(self.curriculum, agents, size)
        self.density = self.curriculum.syllabus.density if self.curriculum else density
        possible(1, *self.largest, self.density)
        self.lesson, self.render_mode = self.largest, render_mode
        self.observation_space: spaces.Space[Any] = observation_space(self.largest, self.rules)
        self.action_space = action_space(self.largest)
        self._worlds: Worlds | None = None
        self._measures = Measures.of_nobody(self.largest.agents)
        self._reward: Floats = np.zeros(self.largest.agents, dtype=np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observed, dict[str, Any]]:
        super().reset(seed=seed)
        lesson = self.curriculum.choose(self.np_random) if self.curriculum else self.largest
        agents, size = lesson
        cases = generate(1, agents=agents, size=size, density=self.density, rng=self.np_random)
        self.lesson = lesson
        self._reward[:] = 0
        return self._observed(self._load(pad(cases, *self.largest))), {}

    def step(self, action: Any) -> tuple[Observed, float, bool, bool, dict[str, Any]]:
        assert self._worlds is not None, "gymnasium's order: reset comes first"
        stepped = self._worlds.step(np.asarray(action)[None])
        self._measures.count(stepped.home[0])
        self._reward[:] = stepped.reward[0]
        reward = float(self._reward.sum(dtype=np.float64)) / self.lesson.agents
        terminated = bool(stepped.finished[0])
        truncated = not terminated and bool(self._worlds.steps[0] >= self.rules.steps)
        info = self._ended() if terminated or truncated else {}
        return self._observed(self._worlds), reward, terminated, truncated, info

    def render(self) -> Any:
        """Returns the world as a picture, if the environment was made with rgb_array."""
        if self.render_mode is None or self._worlds is None:
            return None
        return picture(self._worlds.maps[0], self._worlds.place[0], self._worlds.goals[0])

    def export_state(self) -> dict[str, Any]:
        state: dict[str, Any] = {"lesson": list(self.lesson), "reward": self._reward.tolist()}
        if self.curriculum is not None:
            state["curriculum"] = self.curriculum.state()
        if self._worlds is not None:
            now = Cases(self._worlds.maps, self._worlds.place, self._worlds.goals)
            state["case"] = {name: part.tolist() for name, part in now._asdict().items()}
            state["steps"] = int(self._worlds.steps[0])
            state["settled"] = self._measures.settled.tolist()
        return state

    def restore_state(self, state: dict[str, Any]) -> None:
        self._refuse_other_shapes(state)
        self.lesson, self._reward[:] = Lesson(*state["lesson"]), state["reward"]
        if self.curriculum is not None:
            self.curriculum.restore(state["curriculum"])
        if "case" in state:
            maps, starts, goals = (state["case"][name] for name in Cases._fields)
            places = (np.array(part, dtype=np.int16) for part in (starts, goals))
            worlds = self._load(Cases(np.array(maps, dtype=np.uint8), *places))
            worlds.steps[0] = self._measures.steps = state["steps"]
            self._measures.settled[:] = state["settled"]

    def export_progress(self) -> dict[str, Any] | None:
        return None if self.curriculum is None else self.curriculum.state()

    def restore_progress(self, state: dict[str, Any]) -> None:
        if self.curriculum is not None:
            self.curriculum.restore(state)

    def _refuse_other_shapes(self, state: dict[str, Any]) -> None:
        """Refuses an episode that this environment could not go on from to the next one."""
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
        self._measures = Measures(cases.starts[0], cases.goals[0])
        return self._worlds

    def _observed(self, worlds: Worlds) -> Observed:
        return {
            "view": worlds.views()[0].copy(),
            "place": worlds.place[0].copy(),
            "reward": self._reward.copy(),
        }

    def _ended(self) -> dict[str, Any]:
        """Says how the episode went, and tells the curriculum."""
        ended = self._measures.ended()
        if self.curriculum is not None:
            self.curriculum.record(self.lesson, success=bool(ended["is_success"]))
            self.curriculum.advance()
        return {**ended, **self.lesson._asdict(), **self._progress()}

    def _progress(self) -> dict[str, Any]:
        """Says how far the curriculum has come: the most agents and the largest map that are open.

        Reports have them as curriculum/agents and curriculum/size.
        """
        if self.curriculum is None:
            return {}
        agents, sizes = zip(*self.curriculum.lessons, strict=True)
        return {"curriculum": {"agents": max(agents), "size": max(sizes)}}


def observation_space(lesson: Lesson, rules: Rules) -> spaces.Dict:
    """Returns what a team's members see, where they are, and what they may earn."""
    agents, size = lesson
    view, rewards = (agents, rules.sight, rules.sight), rules.rewards
    earned = [0.0, *(getattr(rewards, name) for name in rewards.__dataclass_fields__)]
    return spaces.Dict(
        {
            "view": Codes(0, 2**CHANNELS - 1, view, np.uint8),
            "place": Codes(-1, size - 1, (agents, 2), np.int16),
            "reward": spaces.Box(min(earned), max(earned), (agents,), np.float32),
        }
    )


def action_space(lesson: Lesson) -> spaces.MultiDiscrete[Any]:
    return spaces.MultiDiscrete([len(MOVES)] * lesson.agents)


def _begun(given: Mapping[str, Any] | None, density: float | None) -> Curriculum | None:
    return None if given is None else Curriculum(syllabus({"density": density, **given}))


def _largest(curriculum: Curriculum | None, agents: int | None, size: int | None) -> Lesson:
    """Returns what an environment must have room for."""
    if curriculum is None:
        return Lesson(AGENTS if agents is None else agents, SIZE if size is None else size)
    if agents is not None or size is not None:
        raise ConfigError(
            f"a curriculum says how many agents play on how large a map, got agents {agents} and "
            f"size {size} as well; leave them out, or leave the curriculum out"
        )
    return Lesson(max(curriculum.syllabus.agents), max(curriculum.syllabus.sizes))
