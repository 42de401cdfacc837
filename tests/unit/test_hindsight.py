"""Hindsight: later rows as goals, rewards computed again, and environments it cannot work with."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import numpy as np
import pytest

import goal_envs
from experience import Move, Step, play
from replaying import Noise, pool, shut, write
from rookery.config.schema import EnvConfig
from rookery.envs.goals import Goals
from rookery.errors import ConfigError, EnvError
from rookery.replay.hindsight import Hindsight, future
from rookery.replay.pool import Pool
from rookery.types import ActionSpec, Array, Batch, EnvSpec, Floats, Kind, Leaf

RUN, TERMINATE, TRUNCATE, LOSE = Move.RUN, Move.TERMINATE, Move.TRUNCATE, Move.LOSE
GOALS = EnvSpec(
    "goals",
    tuple(
        Leaf(name, (2,), "float32", Kind.VECTOR)
        for name in ("observation", "achieved_goal", "desired_goal")
    ),
    ActionSpec(n=3),
)


class Sum:
    """A reward from which both goals can be told."""

    def rewards(self, achieved: Array, desired: Array) -> Floats:
        return (100 * achieved[:, 0] + desired[:, 0]).astype(np.float32)

    def close(self) -> None: ...


@pytest.fixture
def made() -> Iterator[list[Pool]]:
    """Pools put here are closed afterwards."""
    pools: list[Pool] = []
    yield pools
    for one in pools:
        shut(one)


def filled(made: list[Pool], *moves: tuple[int, Move], **options: Any) -> Pool:
    """Returns a pool with rows of one actor's environments; its observations tell the row."""
    made.append(pool(GOALS, **options))
    steps: list[Step] = play((0, env, move) for env, move in moves)
    write(made[-1], steps)
    made[-1].drain()
    return made[-1]


def rows_of(*numbers: int) -> Any:
    return np.array(numbers, dtype=np.int64)


class TestTheFuture:
    def test_every_later_row_of_the_episode_is_as_likely_as_the_others(
        self, made: list[Pool]
    ) -> None:
        """Rows 0, 2, 4, 5 are one episode, 5 its final observation; 1 and 3 are another's."""
        moves = [(0, RUN), (1, RUN), (0, RUN), (1, RUN), (0, RUN), (0, TRUNCATE), (0, RUN)]
        ring = filled(made, *moves).ring
        noise = (np.arange(300) + 0.5) / 300

        found = future(ring, np.zeros(300, dtype=np.int64), noise)

        assert found.tolist() == [2] * 100 + [4] * 100 + [5] * 100

    def test_an_episode_that_still_runs_reaches_to_its_newest_row(self, made: list[Pool]) -> None:
        ring = filled(made, *[(0, RUN)] * 4).ring

        assert future(ring, rows_of(0, 0, 2), np.array([0.0, 0.999, 0.999])).tolist() == [1, 3, 3]

    def test_a_number_next_to_1_stays_inside_the_episode(self, made: list[Pool]) -> None:
        ring = filled(made, *[(0, RUN)] * 4, (0, TERMINATE), (0, RUN)).ring

        assert future(ring, rows_of(0, 3), np.array([1.0, 1.0])).tolist() == [4, 4]

    def test_it_is_found_where_the_ring_wraps(self, made: list[Pool]) -> None:
        ring = filled(made, *[(0, RUN)] * 12, capacity=8).ring

        assert future(ring, rows_of(5, 5), np.array([0.4, 0.9])).tolist() == [8, 11]


class TestRelabelling:
    def relabelled(self, replay: Pool, noise: list[float], share: float) -> tuple[Batch, Batch]:
        """Returns rows from 0 on as they are, and as they are with hindsight."""
        rows, weight = np.arange(len(noise)), np.ones(len(noise), dtype=np.float32)
        plain, changed = replay._gather(rows, weight), replay._gather(rows, weight)
        Hindsight(share, Sum()).relabel(replay.ring, changed, Noise(noise))  # type: ignore[arg-type]
        return plain, changed

    def test_goals_of_both_observations_become_what_a_later_row_achieved(
        self, made: list[Pool]
    ) -> None:
        replay = filled(made, *[(0, RUN)] * 5)

        _, changed = self.relabelled(replay, [0.0, 0.3, 0.49], share=0.5)

        assert changed.obs["desired_goal"][:, 0].tolist() == [1, 3, 4]
        assert changed.next_obs["desired_goal"].tolist() == changed.obs["desired_goal"].tolist()

    def test_rewards_are_those_of_the_new_goal_after_the_step(self, made: list[Pool]) -> None:
        replay = filled(made, *[(0, RUN)] * 5)

        _, changed = self.relabelled(replay, [0.0, 0.3, 0.49], share=0.5)

        assert changed.reward.tolist() == [101, 203, 304]

    def test_rows_above_the_share_and_everything_else_stay_as_they_were(
        self, made: list[Pool]
    ) -> None:
        replay = filled(made, *[(0, RUN)] * 4, (0, TERMINATE))

        plain, changed = self.relabelled(replay, [0.1, 0.5, 0.9, 0.1], share=0.5)

        kept = [1, 2]
        assert changed.reward[kept].tolist() == plain.reward[kept].tolist()
        for side in ("obs", "next_obs"):
            was, now = getattr(plain, side), getattr(changed, side)
            assert now["desired_goal"][kept].tolist() == was["desired_goal"][kept].tolist()
            for leaf in ("observation", "achieved_goal"):
                assert now[leaf].tolist() == was[leaf].tolist()
        for field in ("action", "discount", "weight", "rows"):
            assert getattr(changed, field).tolist() == getattr(plain, field).tolist()
        assert changed.discount[3] == 0.0

    def test_the_ring_keeps_the_goals_that_were_played_for(self, made: list[Pool]) -> None:
        replay = filled(made, *[(0, RUN)] * 5)
        before = {name: column.copy() for name, column in replay.ring.columns.items()}

        self.relabelled(replay, [0.0, 0.3, 0.49], share=1.0)

        for name, column in replay.ring.columns.items():
            np.testing.assert_array_equal(column, before[name])

    def test_about_the_share_of_the_rows_is_changed(self, made: list[Pool]) -> None:
        replay = filled(made, *[(0, RUN)] * 20)
        batch = replay._gather(np.zeros(4_000, dtype=np.int64), np.ones(4_000, dtype=np.float32))

        Hindsight(0.8, Sum()).relabel(replay.ring, batch, np.random.default_rng(0))

        changed = (batch.obs["desired_goal"][:, 0] > 0).mean()
        assert changed == pytest.approx(0.8, abs=0.02)


class TestGoals:
    def test_rewards_are_computed_from_stored_goals_scaled_and_clipped(self) -> None:
        config = EnvConfig(id="goal_envs:Line", reward_scale=3.0, reward_clip=2.0)
        stored = np.array([[1.0], [2.0]], dtype=np.float32)

        with closing(Goals(config)) as goals:
            rewards = goals.rewards(stored, np.ones((2, 1), dtype=np.float32))

        assert rewards.dtype == np.float32
        assert rewards.tolist() == [0.0, -2.0]

    def test_an_environment_given_from_python_is_asked(self) -> None:
        with closing(Goals(EnvConfig(), goal_envs.Line)) as goals:
            assert goals.rewards(np.ones((1, 1)), np.zeros((1, 1))).tolist() == [-1.0]

    @pytest.mark.parametrize(
        ("env", "said"),
        [
            ("CartPole-v1", "a goal environment observes a Dict with observation, achieved_goal"),
            ("rookery.envs.toy:Mixed", "a goal environment observes a Dict"),
            ("goal_envs:Silent", "has no compute_reward"),
            ("goal_envs:Unequal", "give both the same space"),
            ("goal_envs:Moody", "rewards must be a function of achieved and desired goal alone"),
            ("goal_envs:Chatty", "raised KeyError: 'bonus'"),
            ("goal_envs:OneByOne", r"gave shape \(1,\) for 32 goals"),
            ("goal_envs:Broken", "a random step raised RuntimeError: out of order"),
        ],
    )
    def test_what_hindsight_cannot_work_with_is_refused(self, env: str, said: str) -> None:
        with pytest.raises(ConfigError, match=said):
            Goals(EnvConfig(id=env))

    def test_a_wrapper_that_changes_rewards_is_refused(self) -> None:
        config = EnvConfig(id="goal_envs:Line", wrappers=({"ClipReward": {"max_reward": -2.0}},))

        with pytest.raises(ConfigError, match="drop wrappers that change rewards"):
            Goals(config)

    def test_a_reward_that_is_not_finite_is_an_error_of_the_environment(self) -> None:
        with closing(Goals(EnvConfig(id="goal_envs:Line"))) as goals:
            goals._compute = lambda achieved, desired, info: np.full(len(achieved), np.nan)

            with pytest.raises(EnvError, match="not finite"):
                goals.rewards(np.ones((1, 1)), np.ones((1, 1)))
