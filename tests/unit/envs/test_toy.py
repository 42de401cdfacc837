"""The toys keep to the Gymnasium API and their optimum is what they say."""

from collections import deque

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from rookery.envs.toy import basic

TOYS = [
    basic.Corridor,
    basic.Echo,
    basic.Loop,
    basic.Pictures,
    basic.Reach,
    basic.Dials,
    basic.Mixed,
]


def _catch(frames):
    """Aims at the column where the dot of the last two frames will land."""
    first, last = frames[0][0], frames[-1][0]
    size = len(last)
    row, column = np.argwhere(last == 255)[0]
    paddle = column if row == size - 1 else np.argmax(last[-1])
    drift = column - np.argwhere(first == 255)[0][1]
    for _ in range(size - 1 - row):
        drift = drift if 0 <= column + drift < size else -drift
        column += drift
    return 1 + np.sign(column - paddle)


BEST = {
    basic.Corridor: lambda frames: 1,
    basic.Echo: lambda frames: int(np.argmax(frames[-1])),
    basic.Loop: lambda frames: int(np.argmax(frames[-1])) % 2,
    basic.Pictures: _catch,
    basic.Reach: lambda frames: np.clip(frames[-1][1:] - frames[-1][:1], -2, 2),
    basic.Dials: lambda frames: np.array([np.argmax(frames[-1][:3]), np.argmax(frames[-1][3:])]),
    basic.Mixed: lambda frames: (
        int(frames[-1]["vector"][0] > 0)
        + int(frames[-1]["image"].max() > 0)
        + int(frames[-1]["choice"] == 2)
    ),
}


def _play(env, policy, seed):
    frames = deque([env.reset(seed=seed)[0]], maxlen=2)
    score, best, over = 0.0, env.optimal_return, False
    while not over:
        obs, reward, terminated, truncated, _ = env.step(policy(frames))
        frames.append(obs)
        score, over = score + reward, terminated or truncated
    return score, best, terminated


@pytest.mark.filterwarnings("ignore:.*symmetric and normalized")  # Reach moves by -2 to 2
@pytest.mark.parametrize("kind", TOYS)
def test_a_toy_passes_gymnasiums_checker(kind):
    check_env(kind(), skip_render_check=True)


@pytest.mark.parametrize("kind", TOYS)
def test_the_best_policy_earns_exactly_the_optimum(kind):
    env = kind()
    for seed in range(20):
        score, best, _ = _play(env, BEST[kind], seed)

        assert score == pytest.approx(best, abs=1e-12)


@pytest.mark.parametrize("kind", TOYS)
def test_random_play_stays_below_the_optimum(kind):
    env, rng = kind(), np.random.default_rng(0)
    env.action_space.seed(int(rng.integers(1000)))

    scores = [_play(env, lambda frames: env.action_space.sample(), seed) for seed in range(20)]

    assert np.mean([score for score, _, _ in scores]) < np.mean([b for _, b, _ in scores]) - 0.2


def test_a_corridor_of_eight_is_worth_0_93():
    assert basic.Corridor().optimal_return == 0.93


def test_a_corridor_is_cut_after_a_hundred_steps_and_its_left_end_holds():
    env = basic.Corridor()

    score, _, terminated = _play(env, lambda frames: 0, seed=0)

    assert not terminated
    assert (env.steps, env.position) == (100, 0)
    assert score == pytest.approx(-1.0)


def test_a_loop_never_terminates_and_is_worth_its_geometric_series():
    env = basic.Loop(period=3, limit=5)

    score, _, terminated = _play(env, BEST[basic.Loop], seed=0)

    assert (score, terminated) == (5.0, False)
    assert env.value_of(0.9) == pytest.approx(sum(0.9**k for k in range(2000)))


def test_one_frame_of_pictures_does_not_show_the_drift():
    env = basic.Pictures()
    pictures = {}
    for seed in range(200):
        obs, _ = env.reset(seed=seed)
        pictures.setdefault(obs.tobytes(), set()).add(env.drift)

    assert any(len(drifts) == 3 for drifts in pictures.values())


@pytest.mark.parametrize(("left", "rate"), [(0, 3), (1, 4)])
def test_a_dial_left_alone_is_right_once_in_its_size(left, rate):
    env, hits = basic.Dials(length=12_000), 0.0
    obs, _ = env.reset(seed=left)
    for _ in range(env.length):
        action = BEST[basic.Dials]([obs])
        action[left] = 0
        obs, reward, *_ = env.step(action)
        hits += reward

    assert hits / env.length == pytest.approx(1 / rate, abs=0.02)  # four deviations and more


def test_a_corridor_is_drawn_with_its_walker_and_its_door():
    env = basic.Corridor(4, render_mode="rgb_array")
    env.reset(seed=0)

    frames = [env.render()]
    for _ in range(3):
        env.step(1)
        frames.append(env.render())

    assert {(frame.shape, frame.dtype.name) for frame in frames} == {((32, 128, 3), "uint8")}
    tiles = [frame[16, 16::32, 0].tolist() for frame in frames]
    assert tiles == [[255, 0, 0, 128], [0, 255, 0, 128], [0, 0, 255, 128], [0, 0, 0, 255]]
    assert basic.Corridor().render() is None


def test_pictures_can_be_rendered():
    env = basic.Pictures(render_mode="rgb_array")
    env.reset(seed=0)

    frame = env.render()

    assert frame.shape == (96, 96, 3)
    assert frame.dtype == np.uint8
    assert set(np.unique(frame)) == {0, 128, 255}
