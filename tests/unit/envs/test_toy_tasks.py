"""The tasks that have a file of their own: their optimum, and what cannot be earned."""

import json
from itertools import product

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from rookery.config.schema import EnvConfig
from rookery.envs.make import make
from rookery.envs.toy.bit_flip import BitFlip
from rookery.envs.toy.orchard import FALL, FOUR, GAP, SIZE, Orchard
from rookery.envs.toy.recall import Recall

TASKS = [Recall, Orchard, BitFlip]


@pytest.mark.parametrize("kind", TASKS)
def test_a_task_passes_gymnasiums_checker(kind):
    check_env(kind(), skip_render_check=True)


@pytest.mark.parametrize("kind", TASKS)
@pytest.mark.parametrize("before", [0, 4, 23])
def test_a_restored_task_goes_on_bit_for_bit(kind, before):
    original, copy = (make(EnvConfig(), 3, factory=kind) for _ in range(2))
    actions = np.random.default_rng(1).integers(original.spec.action.n, size=(before + 60, 3))
    original.reset(7)
    for action in actions[:before]:
        original.step(action)

    copy.restore_state(json.loads(json.dumps(original.export_state())))

    for action in actions[before:]:
        assert _bytes(original, action) == _bytes(copy, action)


def _bytes(envs, action):
    steps = envs.step(action)
    leaves = envs.spec.unpack(steps.obs).values()
    flags = (steps.reward, steps.terminated, steps.truncated)
    return [part.tobytes() for part in (*leaves, *flags)]


def _returns(env: gym.Env, policy) -> float:
    """Plays one episode; `policy` maps all observations so far to an action."""
    seen, score, over = [env.reset()[0]], 0.0, False
    while not over:
        obs, reward, terminated, truncated, _ = env.step(policy(seen))
        seen.append(obs)
        score, over = score + float(reward), terminated or truncated
    return score


@pytest.mark.parametrize("delay", [0, 1, 8])
def test_a_policy_that_remembers_the_cue_earns_the_optimum(delay):
    env = Recall(delay)
    env.reset(seed=0)

    scores = {_returns(env, lambda seen: int(np.argmax(seen[0]))) for _ in range(20)}

    assert scores == {env.optimal_return} == {1.0}


@pytest.mark.parametrize("stack", [1, 2, 3])
def test_no_function_of_the_last_frames_earns_more_than_nothing(stack):
    """Every deterministic policy of `stack` frames is tried, against both cues."""
    env = Recall(delay=stack - 1)
    sights = [_sights(env, cue, stack) for cue in (0, 1)]
    names = sorted({sight for seen in sights for sight in seen})

    earned = set()
    for actions in product((0, 1), repeat=len(names)):
        policy = dict(zip(names, actions, strict=True))
        earned.add(sum(_earned(env, cue, sights[cue], policy) for cue in (0, 1)) / 2)

    assert earned == {0.0}


def test_a_stack_that_reaches_back_to_the_cue_shows_it():
    seen = [_sights(Recall(delay=2), cue, stack=4)[-1] for cue in (0, 1)]

    assert seen[0] != seen[1]


def _begin(env: Recall, cue: int) -> np.ndarray:
    obs, _ = env.reset()
    while env.cue != cue:
        obs, _ = env.reset()
    return obs


def _sights(env: Recall, cue: int, stack: int) -> list[bytes]:
    """Returns what a policy of the last `stack` frames sees at each step, whatever it does."""
    frames, sights, over = [_begin(env, cue)] * stack, [], False
    while not over:
        sights.append(np.concatenate(frames[-stack:]).tobytes())
        obs, _, over, _, _ = env.step(0)
        frames.append(obs)
    return sights


def _earned(env: Recall, cue: int, sights: list[bytes], policy: dict[bytes, int]) -> float:
    _begin(env, cue)
    return sum(float(env.step(policy[sight])[1]) for sight in sights)


def test_both_cues_are_shown_about_equally_often():
    env = Recall()
    cues = [int(np.argmax(env.reset(seed=seed)[0])) for seed in range(400)]

    assert 150 < sum(cues) < 250  # a fair coin leaves this range less than once in a million


def _best_return(env: Orchard) -> float:
    """Returns the most that any way of the basket earns, by dynamic programming backwards."""
    worth = np.zeros(SIZE)
    for step in range(FALL + GAP * (env.drops - 1), 0, -1):
        landed, between = divmod(step - FALL, GAP)
        if landed >= 0 and between == 0:
            worth = worth.copy()
            worth[env.columns[landed]] += -1.0 if env.rotten[landed] else 1.0
        padded = np.pad(worth, 1, mode="edge")
        worth = np.maximum.reduce([padded[:-2], padded[1:-1], padded[2:]])
    return float(worth[SIZE // 2])


def test_every_orchard_can_be_harvested_to_the_optimum():
    env = Orchard()
    for seed in range(100):
        env.reset(seed=seed)

        assert _best_return(env) == env.optimal_return == 12.0


def test_an_orchard_pays_what_its_picture_shows_on_the_bottom_row():
    env = Orchard()
    env.action_space.seed(0)
    env.reset(seed=3)
    landed, over = 0, False

    while not over:
        obs, reward, over, _, _ = env.step(env.action_space.sample())
        under = np.argmax(obs[0, FALL])
        landed += int((obs[1:, FALL] > 0).sum())
        assert reward == int(obs[1, FALL, under] > 0) - int(obs[2, FALL, under] > 0)

    assert landed == env.drops == 16


def test_one_apple_in_four_is_rotten_and_several_fall_at_once():
    env = Orchard()
    env.reset(seed=0)
    for _ in range(FALL):
        obs = env.step(1)[0]

    assert np.reshape(env.rotten, (-1, FOUR)).sum(1).tolist() == [1] * 4
    assert (obs[1:] > 0).sum() == 4


def test_an_apple_falls_one_row_a_step_and_no_observation_is_changed_later():
    env = Orchard()
    first, _ = env.reset(seed=0)
    later = env.step(1)[0]

    np.testing.assert_array_equal(first[1:, 0], later[1:, 1])
    assert first[1:, 0].sum() == 255


def test_an_orchard_can_be_rendered():
    env = Orchard(render_mode="rgb_array")
    env.reset(seed=0)

    frame = env.render()

    assert (frame.shape, frame.dtype) == ((80, 80, 3), np.uint8)
    assert len(np.unique(frame.reshape(-1, 3), axis=0)) == 3  # nothing, the basket, an apple


@pytest.mark.parametrize("bits", [1, 2, 3, 6])
def test_flipping_what_differs_earns_the_optimum(bits):
    env = BitFlip(bits)
    for seed in range(20):
        obs, _ = env.reset(seed=seed)
        best, score, over = env.optimal_return, 0.0, False
        while not over:
            action = int(np.argmax(obs["observation"] != obs["desired_goal"]))
            obs, reward, over, truncated, info = env.step(action)
            score += reward

            assert not truncated

        assert score == best
        assert info == {"is_success": True}


def test_no_way_to_a_goal_is_shorter_than_the_optimum():
    """Every sequence of three actions, from a start of three bits."""
    env = BitFlip(3)
    env.reset(seed=4)
    start, best = env.export_state(), env.optimal_return

    scores = []
    for actions in product(range(3), repeat=3):
        env.restore_state(start)
        score, over, steps = 0.0, False, iter(actions)
        while not over:
            _, reward, terminated, truncated, _ = env.step(next(steps))
            score, over = score + reward, terminated or truncated
        scores.append(score)

    assert max(scores) == best


def test_bits_that_miss_their_goal_are_truncated_after_as_many_steps():
    env = BitFlip(2)
    env.reset(seed=0)
    env.restore_state({"state": [0, 0], "goal": [1, 1], "steps": 0})
    env.step(0)

    _, reward, terminated, truncated, info = env.step(0)

    assert (reward, terminated, truncated, info) == (-1.0, False, True, {"is_success": False})


def test_an_episode_of_bits_never_begins_at_its_goal():
    env = BitFlip(1)

    assert all(env.reset(seed=seed)[0] and env.optimal_return == 0.0 for seed in range(20))


def test_rewards_of_goals_are_computed_for_any_leading_axes():
    env, rng = BitFlip(3), np.random.default_rng(0)
    achieved, desired = rng.integers(2, size=(2, 4, 5, 3), dtype=np.int8)

    rewards = env.compute_reward(achieved, desired, {})

    assert rewards.shape == (4, 5)
    for at in np.ndindex(4, 5):
        equal = achieved[at].tolist() == desired[at].tolist()
        assert rewards[at] == (0.0 if equal else -1.0)
        assert rewards[at] == env.compute_reward(achieved[at], desired[at], {})
        assert env.compute_terminated(achieved[at], desired[at], {}) == equal


def test_a_step_is_rewarded_as_compute_reward_says():
    env = BitFlip(4)
    env.action_space.seed(0)
    env.reset(seed=1)
    over = False

    while not over:
        obs, reward, terminated, truncated, info = env.step(env.action_space.sample())
        goals = obs["achieved_goal"], obs["desired_goal"]
        over = terminated or truncated

        assert reward == env.compute_reward(*goals, info)
        assert terminated == env.compute_terminated(*goals, info)
