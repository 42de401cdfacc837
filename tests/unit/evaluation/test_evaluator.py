"""The evaluator: every environment plays its share, and episodes are told in a fixed order."""

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from rookery.algorithms.dqn import Dqn
from rookery.config.algorithms import DqnConfig
from rookery.config.schema import EnvConfig, NetConfig
from rookery.envs.make import make
from rookery.envs.toy import basic
from rookery.errors import StalledError
from rookery.evaluation.evaluator import MOST_ENVS, EvaluationResult, Evaluator
from scripted_roles import AUTORESETS, TERMINATED, TRUNCATED, Life, Script, Told, vector


def evaluate(
    episodes: int, lives: Sequence[Life], mode: AutoresetMode = AUTORESETS[0], **run: Any
) -> tuple[EvaluationResult, list[Script]]:
    """Plays scripts: environment i begins with life i, so that no two play alike."""
    made: list[Script] = []

    def envs(num: int) -> Any:
        made.extend(Script(i, [*lives[i % len(lives) :], *lives]) for i in range(num))
        return vector(made, mode)

    evaluator = Evaluator(envs, Told(), episodes=episodes)
    evaluation = evaluator.run(seed=3, **run)
    evaluator.close()
    return evaluation, made


@pytest.mark.parametrize("mode", AUTORESETS, ids=[m.name for m in AUTORESETS])
class TestShares:
    def test_short_episodes_do_not_take_the_place_of_long_ones(self, mode: AutoresetMode) -> None:
        lives = [Life((1.0,), TERMINATED), Life((0.5,) * 40, TRUNCATED)]
        evaluation, _ = evaluate(2, lives, mode)

        assert evaluation.returns == (
            1.0,
            20.0,
        )  # though 40 short ones would fit beside the long one
        assert evaluation.lengths == (1, 40)

    def test_episodes_are_told_by_environment_not_by_when_they_ended(
        self, mode: AutoresetMode
    ) -> None:
        lives = [Life((float(n),) * n, TERMINATED) for n in (5, 1, 3)]
        evaluation, made = evaluate(3, lives, mode)

        assert len(made) == 3
        assert evaluation.returns == (25.0, 1.0, 9.0)

    def test_shares_differ_by_at_most_one_and_add_up(self, mode: AutoresetMode) -> None:
        episodes = 2 * MOST_ENVS + 3
        evaluation, made = evaluate(episodes, [Life((1.0, 1.0), TERMINATED)], mode)

        assert len(made) == MOST_ENVS
        assert (len(evaluation.returns), set(evaluation.returns), set(evaluation.lengths)) == (
            episodes,
            {2.0},
            {2},
        )

    def test_an_environment_that_is_done_counts_no_more(self, mode: AutoresetMode) -> None:
        lives = [Life((1.0,), TERMINATED), Life((0.5,) * 9, TERMINATED)]
        evaluation, made = evaluate(2, lives, mode)

        assert made[0].episode >= 1  # it went on playing
        assert evaluation.returns == (1.0, 4.5)


class Noted(Told):
    """Notes whether noise was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.noise: set[bool] = set()

    def act(self, obs: Any, rng: np.random.Generator, **asked: Any) -> Any:
        self.noise.add(asked["noise"])
        return super().act(obs, rng)


@pytest.mark.parametrize("given", [None, False, True])
@pytest.mark.parametrize("draws", [False, True])
def test_only_a_stochastic_policy_is_evaluated_with_noise_unless_told(
    draws: bool, given: bool | None
) -> None:
    algorithm = Noted()
    algorithm.evaluate_stochastic = draws
    scripts = [Script(0, [Life((1.0, 1.0), TERMINATED)] * 2)]
    evaluator = Evaluator(lambda num: vector(scripts, AUTORESETS[0]), algorithm, episodes=1)

    evaluator.run(seed=0, noise=given)

    assert algorithm.noise == {draws if given is None else given}


class TestSuccess:
    def test_the_rate_is_of_episodes_that_say_so(self) -> None:
        lives = [
            Life((1.0,), TERMINATED, {"is_success": True}),
            Life((1.0,), TERMINATED, {"is_success": False}),
            Life((1.0,), TERMINATED, {"is_success": True}),
            Life((1.0,), TERMINATED),
        ]
        assert evaluate(4, lives)[0].success_rate == pytest.approx(2 / 3)

    def test_there_is_none_where_the_environment_reports_none(self) -> None:
        assert evaluate(2, [Life((1.0,), TERMINATED)])[0].success_rate is None


class TestRepeating:
    @staticmethod
    def evaluator(**env: Any) -> Evaluator:
        spec_of = make(EnvConfig(**env), 1, factory=basic.Pictures)
        spec_of.close()
        return Evaluator(
            lambda num: make(EnvConfig(**env), num, factory=basic.Pictures),
            Dqn(DqnConfig(), NetConfig(hidden=(8,)), EnvConfig(), spec_of.spec),
            episodes=9,
        )

    @pytest.mark.parametrize("epsilon", [0.0, 0.5])
    def test_the_same_seed_gives_the_same_result_whatever_was_played_before(
        self, epsilon: float
    ) -> None:
        evaluator = self.evaluator(frame_stack=2)
        first = evaluator.run(seed=1, epsilon=epsilon)
        evaluator.run(seed=2, epsilon=epsilon)

        assert evaluator.run(seed=1, epsilon=epsilon) == first
        evaluator.close()

    def test_another_seed_plays_other_episodes(self) -> None:
        evaluator = self.evaluator()
        told = evaluator.algorithm = Told(lambda obs: np.ones(len(obs), np.int64))

        firsts = []
        for seed in (1, 2):
            told.seen.clear()
            evaluator.run(seed=seed)
            firsts.append(told.seen[0])
        evaluator.close()

        assert not np.array_equal(*firsts)

    def test_judging_changes_no_weight(self) -> None:
        evaluator = self.evaluator()
        before = [p.clone() for p in evaluator.algorithm.acting.parameters()]
        evaluator.run(seed=1, epsilon=0.5)

        after = evaluator.algorithm.acting.parameters()
        assert all((a == b).all() for a, b in zip(before, after, strict=True))
        evaluator.close()


def test_an_evaluation_that_never_ends_stalls_with_what_to_do() -> None:
    lives = [Life((0.0,), TERMINATED), Life((0.0,) * 10**6, TERMINATED)]
    with pytest.raises(StalledError) as caught:
        evaluate(2, lives, timeout_s=0.0)  # already over after the first step

    assert "script: 1 of 2 episodes after 0 s" in str(caught.value)
    assert "raise eval.timeout_s, or set env.max_episode_steps" in str(caught.value)


class Rendering(Script):
    """Renders the step it is at."""

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"]}  # noqa: RUF012
    render_mode = "rgb_array"

    def render(self) -> Any:
        return np.full((2, 2, 3), self.t, dtype=np.uint8)


def test_frames_are_of_the_first_environments_first_episode() -> None:
    def envs(num: int) -> Any:
        made: list[gym.Env[Any, Any]] = [
            Rendering(i, [Life((0.0,) * (3 + i), TERMINATED)]) for i in range(num)
        ]
        return vector(made, AUTORESETS[0])

    evaluator = Evaluator(envs, Told(), episodes=2)
    evaluation = evaluator.run(seed=0, record=True)
    assert [int(frame[0, 0, 0]) for frame in evaluation.frames] == [0, 1, 2]
    assert evaluator.run(seed=0).frames == []
    evaluator.close()
