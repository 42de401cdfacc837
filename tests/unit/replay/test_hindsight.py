"""Hindsight: later rows as goals, rewards computed again, and environments it cannot work with."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import numpy as np
import pytest

import goal_envs
from rookery.config.load import load
from rookery.config.schema import Draw, EnvConfig
from rookery.envs.goals import Goals
from rookery.errors import ConfigError, EnvError
from rookery.replay import fold
from rookery.replay.buffer import LocalReplay
from rookery.replay.hindsight import Hindsight, future
from rookery.replay.saved_rows import SavedReplay
from rookery.replay.shards import ShardedReplay
from rookery.training.build import build_parts
from rookery.types import ActionSpec, Array, Batch, EnvSpec, Floats, Leaf, LeafKind, Rows
from sample_experience import Move, Step, play
from small_replays import Noise, pool, shut, write

RUN, TERMINATE, TRUNCATE, LOSE = Move.RUN, Move.TERMINATE, Move.TRUNCATE, Move.LOSE
GOALS = EnvSpec(
    "goals",
    tuple(
        Leaf(name, (2,), "float32", LeafKind.VECTOR)
        for name in ("observation", "achieved_goal", "desired_goal")
    ),
    ActionSpec(n=3),
)

TINY: dict[str, Any] = {"env.check": False, "replay.capacity": 2_000, "net.hidden": [8]}


class Sum:
    """A reward from which both goals can be told."""

    closed = False

    def rewards(self, achieved: Array, desired: Array) -> Floats:
        return (100 * achieved[:, 0] + desired[:, 0]).astype(np.float32)

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def made() -> Iterator[list[LocalReplay]]:
    """Pools put here are closed afterwards."""
    pools: list[LocalReplay] = []
    yield pools
    for one in pools:
        shut(one)


def filled(made: list[LocalReplay], *moves: tuple[int, Move], **options: Any) -> LocalReplay:
    """Returns a pool with rows of one actor's environments; its observations tell the row."""
    made.append(pool(GOALS, **options))
    steps: list[Step] = play((0, env, move) for env, move in moves)
    write(made[-1], steps)
    made[-1].insert()
    return made[-1]


def rows_of(*numbers: int) -> Any:
    return np.array(numbers, dtype=np.int64)


def gathered(replay: LocalReplay, rows: Rows) -> Batch:
    weight = np.ones(rows.size, dtype=np.float32)
    return fold.gather(replay.ring, GOALS, rows, weight, fold.Horizon(1, 0.5), oldest=0)


class TestTheFuture:
    def test_every_later_row_of_the_episode_is_as_likely_as_the_others(
        self, made: list[LocalReplay]
    ) -> None:
        """Rows 0, 2, 4, 5 are one episode, 5 its final observation; 1 and 3 are another's."""
        moves = [(0, RUN), (1, RUN), (0, RUN), (1, RUN), (0, RUN), (0, TRUNCATE), (0, RUN)]
        ring = filled(made, *moves).ring
        noise = (np.arange(300) + 0.5) / 300

        found = future(ring, np.zeros(300, dtype=np.int64), noise)

        assert found.tolist() == [2] * 100 + [4] * 100 + [5] * 100

    def test_an_episode_that_still_runs_reaches_to_its_newest_row(
        self, made: list[LocalReplay]
    ) -> None:
        ring = filled(made, *[(0, RUN)] * 4).ring

        assert future(ring, rows_of(0, 0, 2), np.array([0.0, 0.999, 0.999])).tolist() == [1, 3, 3]

    def test_a_number_next_to_1_stays_inside_the_episode(self, made: list[LocalReplay]) -> None:
        ring = filled(made, *[(0, RUN)] * 4, (0, TERMINATE), (0, RUN)).ring

        assert future(ring, rows_of(0, 3), np.array([1.0, 1.0])).tolist() == [4, 4]

    def test_it_is_found_where_the_ring_wraps(self, made: list[LocalReplay]) -> None:
        ring = filled(made, *[(0, RUN)] * 12, capacity=8).ring

        assert future(ring, rows_of(5, 5), np.array([0.4, 0.9])).tolist() == [8, 11]


class TestRelabelling:
    def relabelled(
        self, replay: LocalReplay, noise: list[float], share: float
    ) -> tuple[Batch, Batch]:
        """Returns rows from 0 on as they are, and as they are with hindsight."""
        rows = np.arange(len(noise))
        plain, changed = gathered(replay, rows), gathered(replay, rows)
        Hindsight(share, Sum()).relabel(replay.ring, changed, Noise(noise))  # type: ignore[arg-type]
        return plain, changed

    def test_goals_of_both_observations_become_what_a_later_row_achieved(
        self, made: list[LocalReplay]
    ) -> None:
        replay = filled(made, *[(0, RUN)] * 5)

        _, changed = self.relabelled(replay, [0.0, 0.3, 0.49], share=0.5)

        assert changed.obs["desired_goal"][:, 0].tolist() == [1, 3, 4]
        assert changed.next_obs["desired_goal"].tolist() == changed.obs["desired_goal"].tolist()

    def test_rewards_are_those_of_the_new_goal_after_the_step(
        self, made: list[LocalReplay]
    ) -> None:
        replay = filled(made, *[(0, RUN)] * 5)

        _, changed = self.relabelled(replay, [0.0, 0.3, 0.49], share=0.5)

        assert changed.reward.tolist() == [101, 203, 304]

    def test_rows_above_the_share_and_everything_else_stay_as_they_were(
        self, made: list[LocalReplay]
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

    def test_the_ring_keeps_the_goals_that_were_played_for(self, made: list[LocalReplay]) -> None:
        replay = filled(made, *[(0, RUN)] * 5)
        before = {name: column.copy() for name, column in replay.ring.columns.items()}

        self.relabelled(replay, [0.0, 0.3, 0.49], share=1.0)

        for name, column in replay.ring.columns.items():
            np.testing.assert_array_equal(column, before[name])

    def test_about_the_share_of_the_rows_is_changed(self, made: list[LocalReplay]) -> None:
        replay = filled(made, *[(0, RUN)] * 20)
        batch = gathered(replay, np.zeros(4_000, dtype=np.int64))

        Hindsight(0.8, Sum()).relabel(replay.ring, batch, np.random.default_rng(0))

        changed = (batch.obs["desired_goal"][:, 0] > 0).mean()
        assert changed == pytest.approx(0.8, abs=0.02)


class TestInAPool:
    def made_equal(self, made: list[LocalReplay], share: float = 0.5) -> LocalReplay:
        """Returns a pool of three episodes, with hindsight; two of them draw the same."""
        episode = [(0, RUN)] * 9 + [(0, TRUNCATE)]
        replay = filled(made, *episode * 3, draw=Draw.PRIORITIZED)
        replay.hindsight = Hindsight(share, Sum())
        return replay

    def test_a_drawn_batch_has_goals_of_later_rows(self, made: list[LocalReplay]) -> None:
        batch = self.made_equal(made, share=1.0).sample(64)

        goal, at = batch.obs["desired_goal"][:, 0], batch.rows
        assert (goal > at).all()
        assert (goal // 10 == at // 10).all()
        assert batch.reward.tolist() == (100 * (at + 1) + goal).tolist()

    def test_a_restored_pool_draws_what_the_saved_one_would_have(
        self, made: list[LocalReplay]
    ) -> None:
        replay = self.made_equal(made)
        replay.sample(16)
        kept = replay.save([0])
        made.append(other := pool(GOALS, draw=Draw.PRIORITIZED))
        other.hindsight = replay.hindsight
        other.resume(SavedReplay(kept.numbers, kept.arrays, [kept.unsaved]))

        for _ in range(3):
            one, two = replay.sample(16), other.sample(16)
            assert one.obs["desired_goal"].tolist() == two.obs["desired_goal"].tolist()
            assert one.reward.tolist() == two.reward.tolist()

    def test_goals_of_a_shard_follow_from_the_places_it_is_asked_for(
        self, made: list[LocalReplay]
    ) -> None:
        """So nothing of a shard's own is random, and it may be anywhere."""
        one, two = self.made_equal(made), self.made_equal(made)
        two.rng = np.random.default_rng(7)
        places = np.linspace(0.0, one.sampler.spread * 0.99, 20)

        first, again = (each.look_up(places, one.sampler.spread) for each in (one, two))
        other = one.look_up(places * 0.999, one.sampler.spread)

        goals = first.batch.obs["desired_goal"]
        assert goals.tolist() == again.batch.obs["desired_goal"].tolist()
        assert goals.tolist() != other.batch.obs["desired_goal"].tolist()

    def test_closing_replay_closes_its_reward_function(self) -> None:
        replay = self.made_equal([])
        replay.hindsight = Hindsight(1.0, reward_function := Sum())

        replay.close()

        assert reward_function.closed
        assert replay.ring.fd < 0
        for transport in replay.transports:
            transport.close()


class TestSettings:
    def test_without_hindsight_a_run_has_none(self) -> None:
        parts = build_parts(load("bitflip", changes={**TINY, "replay.hindsight": 0.0}))

        assert isinstance(parts.replay, LocalReplay)
        assert parts.replay.hindsight is None
        parts.close()

    def test_a_run_asks_the_environment_that_was_given_from_python(self) -> None:
        config = load("bitflip", changes={**TINY, "env.kwargs": {}})
        parts = build_parts(config, factory=goal_envs.Line)

        assert isinstance(parts.replay, ShardedReplay)
        hindsight = parts.replay.shards[0].hindsight
        assert hindsight is not None
        assert hindsight.share == 0.8
        assert isinstance(hindsight.goals, Goals)
        assert isinstance(hindsight.goals.env, goal_envs.Line)
        parts.close()

    def test_a_run_without_goals_is_refused(self) -> None:
        changes = {**TINY, "env.id": "CartPole-v1", "env.kwargs": {}}

        with pytest.raises(ConfigError, match="needs goals"):
            build_parts(load("bitflip", changes=changes))

    @pytest.mark.parametrize(
        ("setting", "value", "said"),
        [
            ("algo.n_step", 3, "replay.hindsight takes algo.n_step 1 only, got 3"),
            ("env.frame_stack", 2, "replay.hindsight takes env.frame_stack 1 only, got 2"),
            ("replay.hindsight", 1.5, "replay.hindsight must be between 0.0 and 1.0, got 1.5"),
        ],
    )
    def test_what_goals_cannot_be_exchanged_in_is_refused(
        self, setting: str, value: Any, said: str
    ) -> None:
        with pytest.raises(ConfigError, match=said):
            load("bitflip", changes={setting: value})


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
            ("rookery.envs.toy.basic:Mixed", "a goal environment observes a Dict"),
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
