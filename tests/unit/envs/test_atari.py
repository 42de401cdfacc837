"""Wrappers for Atari games, on a game that counts and draws nothing but its frames."""

from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from rookery.config.schema import EnvConfig
from rookery.envs.atari import NAMES
from rookery.envs.make import check, make
from rookery.errors import ConfigError

MEANINGS = ("NOOP", "FIRE", "RIGHT", "LEFT")
LIFE = 20  # frames until a life is lost


class FakeGame(gym.Env[Any, Any]):
    """A game of three lives: each frame earns 1, and a frame is grey as its number in the game."""

    def __init__(
        self,
        meanings: tuple[str, ...] = MEANINGS,
        frameskip: int = 1,
        lives: int = 3,
        life: int = LIFE,
    ) -> None:
        self.observation_space = spaces.Box(0, 255, (210, 160, 3), np.uint8)
        self.action_space = spaces.Discrete(len(meanings))
        self.meanings, self._frameskip, self.begun = meanings, frameskip, lives
        self.ale = SimpleNamespace(lives=lambda: self.left)
        self.frame, self.left, self.pressed = 0, lives, []  # type: tuple[int, int, list[int]]
        self.games, self.life = 0, life

    def get_action_meanings(self) -> list[str]:
        return list(self.meanings)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.frame, self.left, self.pressed = 0, self.begun, []
        self.games += 1
        return self._picture(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.frame += 1
        self.pressed.append(int(action))
        self.left = self.begun - self.frame // self.life
        return self._picture(), 1.0, self.left == 0, False, {}

    def _picture(self) -> Any:
        return np.full((210, 160, 3), self.frame, np.uint8)


def wrapped(*wrappers: Any, **settings: Any) -> Any:
    """Returns one wrapped game, as `env.wrappers` makes it."""
    config = EnvConfig(kwargs=settings, wrappers=wrappers, check=False)
    envs = make(config, 1, factory=FakeGame)
    return envs._vector.envs[0].env  # type: ignore[attr-defined]  # within the guard


def test_an_episode_begins_with_a_random_number_of_no_ops() -> None:
    """60 draws of five numbers: one would be missing by chance once in 100,000 times."""
    env = wrapped({"noop_reset": {"most": 5}})
    counts = []
    for seed in range(60):
        obs, _ = env.reset(seed=seed)
        assert set(env.unwrapped.pressed) == {0}
        assert obs.max() == len(env.unwrapped.pressed)
        counts.append(len(env.unwrapped.pressed))

    assert set(counts) == {1, 2, 3, 4, 5}
    env.reset(seed=7)
    assert len(env.unwrapped.pressed) == counts[7]


def test_no_ops_that_end_a_game_begin_another() -> None:
    env = wrapped({"noop_reset": {"most": 30}}, lives=1)

    frames = [int(env.reset(seed=seed)[0].max()) for seed in range(30)]

    assert max(frames) < LIFE  # never the frame at which the game is over


def test_fire_starts_a_game_that_waits_for_it() -> None:
    env, other = wrapped("fire_reset"), wrapped("fire_reset", meanings=("NOOP", "UP", "DOWN"))
    env.reset(seed=0)
    other.reset(seed=0)

    assert env.unwrapped.pressed == [1, 2]
    assert other.unwrapped.pressed == []


def test_a_life_is_an_episode_and_the_game_goes_on() -> None:
    env = wrapped("episodic_life")
    lengths, games = [], []
    for _ in range(4):
        env.reset()
        games.append(env.unwrapped.games)
        steps, over = 0, False
        while not over:
            _, _, over, truncated, _ = env.step(3)
            steps += 1
            assert not truncated
        lengths.append(steps)

    # one no-op at the start of each life that is not the first
    assert (lengths, games) == ([LIFE, LIFE - 1, LIFE - 1, LIFE], [1, 1, 1, 2])


def test_a_seed_begins_a_new_game_whatever_lives_are_left() -> None:
    env = wrapped("episodic_life")
    env.reset(seed=0)
    env.step(0)

    obs, _ = env.reset(seed=0)

    assert (env.unwrapped.games, obs.max()) == (2, 0)


def test_a_skipped_step_sums_rewards_and_keeps_the_brighter_of_two_frames() -> None:
    env = wrapped({"max_and_skip": {"skip": 4}}, lives=1)
    env.reset(seed=0)

    steps = [env.step(3) for _ in range(5)]

    assert [step[1] for step in steps] == [4.0] * 5
    assert [int(step[0].max()) for step in steps] == [4, 8, 12, 16, 20]
    assert [step[2] for step in steps] == [False] * 4 + [True]


def test_a_game_that_ends_within_a_step_shows_its_last_frames() -> None:
    env = wrapped({"max_and_skip": {"skip": 7}}, lives=1)
    env.reset(seed=0)

    *_, (obs, reward, terminated, _, _) = [env.step(3) for _ in range(3)]

    assert (int(obs.max()), reward, terminated) == (20, 6.0, True)


def test_the_preset_is_all_of_them_in_their_order() -> None:
    env = wrapped("atari", life=200)
    obs, _ = env.reset(seed=1)
    pressed = env.unwrapped.pressed

    noops = pressed.index(1)
    assert 1 <= noops <= 30
    assert pressed[noops:] == [1] * 4 + [2] * 4  # each repeated
    assert (obs.shape, obs.dtype, len(np.unique(obs))) == ((84, 84), np.uint8, 1)
    plain = wrapped({"atari": {"noop_max": 0, "life": False, "size": 42, "skip": 2}})
    assert plain.reset(seed=1)[0].shape == (42, 42)
    assert plain.unwrapped.pressed == [1] * 2 + [2] * 2
    overs = [plain.step(3)[2] for _ in range(28)]
    assert overs == [False] * 27 + [True]  # only at the end of the game


def test_the_preset_is_played_and_checked() -> None:
    config = EnvConfig(wrappers=("atari",), frame_stack=4)

    assert check(config, FakeGame) == []
    envs = make(config, 2, factory=FakeGame)
    obs = envs.reset(0)

    assert (obs.shape, envs.spec.obs[0].shape) == ((2, 1, 84, 84), (1, 84, 84))


@pytest.mark.parametrize("name", sorted({*NAMES} - {"max_and_skip"}))
def test_what_is_no_game_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"is no Atari game: .* leave the wrappers"):
        make(EnvConfig(id="Acrobot-v1", wrappers=(name,)), 1)


@pytest.mark.parametrize(
    ("wrapper", "settings", "said"),
    [
        ("max_and_skip", {"frameskip": 4}, r"got frameskip 4 and skip 4; set env.kwargs"),
        ({"max_and_skip": {"skip": 0}}, {}, "at least 1, got frameskip 1 and skip 0"),
        ("noop_reset", {"meanings": ("FIRE", "NOOP")}, "a game whose action 0 is NOOP"),
        ({"noop_reset": {"most": 0}}, {}, "at least 1 no-op"),
        ("noop_rest", {}, "did you mean 'noop_reset'"),
    ],
)
def test_a_wrapper_that_does_not_fit_is_refused(
    wrapper: Any, settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        wrapped(wrapper, **settings)
