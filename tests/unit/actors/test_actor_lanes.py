"""The actor at tables: each seat's rows are what it saw, did and earned until its next turn."""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from pettingzoo_envs import Apart, ApartByTurns
from rookery.actors.actor import Actor
from rookery.algorithms import Acted
from rookery.algorithms.r2d2 import R2d2
from rookery.config.algorithms import R2d2Config
from rookery.config.schema import ActorConfig, EnvConfig, NetConfig
from rookery.envs.frame_stack import PolicyInputs
from rookery.envs.turn_based.game import Who
from rookery.envs.turn_based.pettingzoo import AecGames, ParallelGames
from rookery.envs.turn_based.tables import Tables
from rookery.envs.vector import Envs
from rookery.errors import ConfigError
from rookery.evaluation.evaluator import Evaluator
from rookery.learner.weight_store import WeightStore
from rookery.networks.named_arrays import arrays_of
from rookery.types import AHEAD, Extra
from scripted_roles import RUNNING, TERMINATED, TRUNCATED, Told, written
from table_games import Bids, Count, Named


class Adds(Told):
    """Adds 2 where that is allowed, with values that tell where it did."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[int] = []  # observations in each question

    def act(self, obs: Any, rng: np.random.Generator, **how: Any) -> Acted:
        seen = obs["observation"]
        self.asked.append(len(seen))
        action = (obs["action_mask"][:, 1] > 0).astype(np.int64)
        value = seen[:, 1].astype(np.float32)  # the total
        return Acted(action, value, value + 1) if how.get("values") else Acted(action)


@pytest.fixture
def open_actors() -> Iterator[list[Actor]]:
    actors: list[Actor] = []
    yield actors
    for one in actors:
        one.close()


def seat(
    open_actors: list[Actor],
    tables: Tables | None = None,
    algorithm: Any = None,
    values: bool = False,
    **config: Any,
) -> Actor:
    envs = Envs(tables or Tables(Count, 2), "count")
    algorithm = algorithm or Adds()
    made = Actor(envs, algorithm, ActorConfig(**config), EnvConfig(), seed=1, values=values)
    open_actors.append(made)
    return made


def told(rows: list[dict[str, Any]], env: int) -> list[Any]:
    return [
        (row["obs.observation"], row["action"], row["reward"], row["end"], row["episode"], row["t"])
        for row in rows
        if row["env"] == env
    ]


class TestRows:
    def test_each_seat_has_its_own_rows_with_what_it_earned_until_its_next_turn(
        self, open_actors: list[Actor]
    ) -> None:
        player = seat(open_actors)  # 0 adds 2, 1 adds 2, 0 adds 1 and wins

        played = player.collect(5, 0.0)

        rows = written(player.ring)
        first = [
            ([0, 0, 0], 1, 0.0, RUNNING, 0, 0),  # + 0.25, and - 0.25 by the other's move
            ([0, 4, 0], 0, 1.0, RUNNING, 0, 1),
            ([0, 5, 0], 0, 0.0, TERMINATED, 0, 2),
        ]
        second = [
            ([1, 2, 0], 1, -0.75, RUNNING, 0, 0),
            ([1, 5, 0], 0, 0.0, TERMINATED, 0, 1),
        ]
        assert told(rows, 0)[:3] == first
        assert told(rows, 1)[:2] == second
        assert played.env_steps == sum(row["end"] == RUNNING for row in rows)
        assert [(e.score, e.length) for e in played.ended[:2]] == [(1.0, 2), (-0.75, 1)]
        assert [e.info["is_success"] for e in played.ended[:2]] == [1.0, 0.0]
        assert [e.info["seat"] for e in played.ended[:2]] == [0.0, 1.0]

    def test_episodes_of_a_lane_go_on_from_game_to_game(self, open_actors: list[Actor]) -> None:
        player = seat(open_actors)
        player.collect(9, 0.0)  # three games

        rows = written(player.ring)

        assert [row[0][2] for row in told(rows, 1)] == [0, 0, 1, 1, 2, 2]
        assert [row[4] for row in told(rows, 1)] == [0, 0, 1, 1, 2, 2]

    def test_only_lanes_that_are_due_are_asked_about(self, open_actors: list[Actor]) -> None:
        player = seat(open_actors, Tables(Count, 6))

        player.collect(9, 0.0)

        assert set(player.algorithm.asked) == {3}

    def test_values_are_those_of_when_the_lane_acted(self, open_actors: list[Actor]) -> None:
        player = seat(open_actors, values=True)
        player.collect(3, 0.0)

        own = [row for row in written(player.ring) if row["env"] == 0]

        assert [(row["taken"], row["best"]) for row in own] == [(0, 1), (4, 5), (None, 0)]

    def test_the_version_is_that_which_acted_and_an_own_opponent_is_the_one_that_plays(
        self, open_actors: list[Actor]
    ) -> None:
        player = seat(open_actors)
        weight_store = WeightStore(arrays_of(player.algorithm.acting))
        weight_store.publish(arrays_of(player.algorithm.acting))
        player.pull(weight_store)
        player._step(0.0, [])
        weight_store.publish(arrays_of(player.algorithm.acting))
        player.pull(weight_store)
        for _ in range(2):
            player._step(0.0, [])
        weight_store.close()

        rows = written(player.ring)

        assert [(r["env"], r["version"]) for r in rows if r["end"] == RUNNING] == [
            (0, 1),
            (0, 2),
            (1, 2),
        ]
        assert [row["opponent"] for row in rows] == [2] * 5

    def test_rows_against_others_say_who_they_were(self, open_actors: list[Actor]) -> None:
        tables = Tables(Count, 2)
        tables.invite(Named(4, int(Who.RANDOM), 1 << 41))
        player = seat(open_actors, tables)

        played = player.collect(30, 0.0)

        rows = written(player.ring)
        by_game = {(r["env"], r["episode"]): r["opponent"] for r in rows}
        assert set(by_game.values()) == {4, -1, 1 << 41}
        assert all(by_game[r["env"], r["episode"]] == r["opponent"] for r in rows)  # final rows too
        assert {e.info["opponent"] for e in played.ended} == {4.0, -1.0, float(1 << 41)}

    def test_without_resting_lanes_every_step_is_a_row_of_every_lane(
        self, open_actors: list[Actor]
    ) -> None:
        def last(obs: Any) -> Any:
            return obs[:, 0].astype(np.int64)

        player = seat(open_actors, Tables(Bids, 6), Told(last))

        played = player.collect(24, 0.0)

        rows = written(player.ring)
        assert played.env_steps == 24
        assert {r["env"] for r in rows} == set(range(6))
        assert all(r["reward"] == (r["env"] % 3 == 2) for r in rows if r["end"] == RUNNING)

    def test_more_lanes_than_actor_envs_are_refused_with_the_number_to_use(
        self, open_actors: list[Actor]
    ) -> None:
        with pytest.raises(ConfigError, match=r"actor\.envs=4"):
            seat(open_actors, Tables(Count, 3), envs=3)


def apart(num: int = 3) -> Tables:
    return Tables(lambda tables: ParallelGames(Apart, tables), num)


def apart_by_turns(num: int = 3) -> Tables:
    return Tables(lambda tables: AecGames(ApartByTurns, tables), num)


def passes() -> Told:
    return Told(lambda obs: np.zeros(len(obs), dtype=np.int64))


class TestEndsApart:
    def rows(self, player: Actor, env: int) -> list[Any]:
        names = ("obs", "reward", "end", "episode", "t")
        rows = [row for row in written(player.ring) if row["env"] == env]
        return [tuple(row[name] for name in names) for row in rows]

    def test_each_seat_has_the_rows_of_its_own_part(self, open_actors: list[Actor]) -> None:
        player = seat(open_actors, apart(), passes())

        played = player.collect(12, 0.0)  # two games

        assert played.env_steps == 12
        assert [(e.score, e.length) for e in played.ended] == [(3, 1), (4, 2), (3, 3)] * 2
        assert [e.info["points"] for e in played.ended] == [1, 1, 0] * 2
        assert self.rows(player, 0) == [
            ([0, 0], 3, RUNNING, 0, 0),
            ([0, 1], 0, TERMINATED, 0, 1),
            ([0, 0], 3, RUNNING, 1, 0),
            ([0, 1], 0, TERMINATED, 1, 1),
        ]
        assert self.rows(player, 1)[:3] == [
            ([1, 0], 2, RUNNING, 0, 0),
            ([1, 1], 2, RUNNING, 0, 1),
            ([1, 2], 0, TRUNCATED, 0, 2),
        ]
        assert self.rows(player, 2)[:5] == [
            ([2, 0], 1, RUNNING, 0, 0),
            ([2, 1], 1, RUNNING, 0, 1),
            ([2, 2], 1, RUNNING, 0, 2),
            ([2, 3], 0, TERMINATED, 0, 3),
            ([2, 0], 1, RUNNING, 1, 0),
        ]

    def test_by_turns_as_well(self, open_actors: list[Actor]) -> None:
        player = seat(open_actors, apart_by_turns(), passes())

        played = player.collect(5, 0.0)

        assert [(e.score, e.length) for e in played.ended] == [(6, 1), (6, 2), (3, 2)]
        assert self.rows(player, 0) == [
            ([0, 0], 6, RUNNING, 0, 0),
            ([0, 2], 0, TERMINATED, 0, 1),
        ]
        assert self.rows(player, 1) == [
            ([1, 1], 4, RUNNING, 0, 0),
            ([1, 3], 2, RUNNING, 0, 1),
            ([1, 4], 0, TRUNCATED, 0, 2),
        ]
        assert self.rows(player, 2) == [
            ([2, 2], 2, RUNNING, 0, 0),
            ([2, 4], 1, RUNNING, 0, 1),
            ([2, 5], 0, TERMINATED, 0, 2),
        ]

    def test_only_a_limit_leaves_something_to_expect(self, open_actors: list[Actor]) -> None:
        class Expects(Told):
            def act(self, obs: Any, rng: np.random.Generator, **how: Any) -> Acted:
                return Acted(np.zeros(len(obs), dtype=np.int64), obs[:, 1], obs[:, 1] + 10)

        player = seat(open_actors, apart(), Expects(), values=True)
        player.collect(6, 0.0)

        finals = [row for row in written(player.ring) if row["end"] != RUNNING]

        assert [(row["env"], row["best"]) for row in finals] == [(0, 0), (1, 12), (2, 0)]

    def test_a_lane_that_has_ended_has_nothing_to_be_cut(self, open_actors: list[Actor]) -> None:
        player = seat(open_actors, apart(), passes())
        player._step(0.0, [])
        player.cut()

        assert self.rows(player, 0)[1:] == [([0, 1], 0, TERMINATED, 0, 1)]
        assert self.rows(player, 1)[1:] == [([1, 1], 0, TRUNCATED, 0, 1)]
        assert player.episode.tolist() == [1, 1, 1]

    def test_there_is_room_for_all_rows(self, open_actors: list[Actor]) -> None:
        player = seat(open_actors, apart(9), passes(), envs=9)
        before = player.ring.free

        player.collect(64, 0.0)

        assert before - player.ring.free <= player.room(64)


class TestRoom:
    def test_there_is_room_for_all_rows_of_the_shortest_games(
        self, open_actors: list[Actor]
    ) -> None:
        tables = Tables(lambda num: Count(num, limit=1), 8)
        player = seat(open_actors, tables)
        before = player.ring.free

        player.collect(64, 0.0)

        assert before - player.ring.free <= player.room(64)


class TestCut:
    def test_a_lane_that_waits_is_cut_at_what_it_acted_on(self, open_actors: list[Actor]) -> None:
        player = seat(open_actors, Tables(Adder, 2))
        for _ in range(4):  # 1, 2, 3, another turn: 4; seat 0 has acted, seat 1 is due
            player._step(0.0, [])
        count = len(written(player.ring))
        player.cut()

        cut = written(player.ring)[count:]

        assert told(cut, 0) == [([0, 3, 0], 0, 0.0, TRUNCATED, 0, 2)]
        assert told(cut, 1) == [([1, 4, 0], 0, 0.0, TRUNCATED, 0, 1)]

    def test_a_lane_without_a_row_has_nothing_to_be_cut(self, open_actors: list[Actor]) -> None:
        player = seat(open_actors)
        player._step(0.0, [])

        player.cut()

        assert written(player.ring) == []
        assert player.collect(3, 0.0).env_steps == 3


class Adder(Count):
    """Allows only adding 1."""

    def look(self, which: Any, seats: Any) -> Any:
        seen = super().look(which, seats)
        seen["action_mask"][:, 1] = 0
        return seen


class TestState:
    @pytest.mark.parametrize("invited", [False, True])
    def test_a_restored_actor_writes_what_it_would_have_written(
        self, open_actors: list[Actor], invited: bool
    ) -> None:
        def made() -> Actor:
            tables = Tables(Count, 4)
            if invited:
                tables.invite(both_seats=True)
            return seat(open_actors, tables, values=True)

        one, two = made(), made()
        for _ in range(7):
            one._step(0.0, [])
        numbers, arrays = one.state()
        two.restore(json.loads(json.dumps(numbers)), arrays)
        count = len(written(one.ring))

        played = [player.collect(20, 0.0) for player in (one, two)]

        assert played[0] == played[1]
        assert written(one.ring)[count:] == written(two.ring)


class TestMemory:
    def recurrent(self, envs: Envs) -> R2d2:
        return R2d2(R2d2Config(), NetConfig(hidden=(8,)), EnvConfig(), envs.spec)

    def test_what_a_lane_remembers_outlives_its_rest_and_ends_with_its_game(
        self, open_actors: list[Actor]
    ) -> None:
        envs = Envs(Tables(Count, 2), "count")
        player = Actor(envs, self.recurrent(envs), ActorConfig(), EnvConfig(), seed=1)
        open_actors.append(player)
        memories = [player.view.memory.copy()]  # type: ignore[union-attr]
        dues, ends = [envs.due.copy()], []
        for _ in range(30):
            ended: list[Any] = []
            player._step(0.0, ended)
            memories.append(player.view.memory.copy())  # type: ignore[union-attr]
            dues.append(envs.due.copy())
            ends.append(bool(ended))

        for step, over in enumerate(ends):
            before, after, due = memories[step], memories[step + 1], dues[step]
            if over:
                assert not after.any()
                continue
            assert (before[~due] == after[~due]).all()
            assert (before[due] != after[due]).any()

    def test_a_lane_that_has_ended_remembers_nothing_until_it_acts_again(
        self, open_actors: list[Actor]
    ) -> None:
        envs = Envs(apart(), "apart")
        player = Actor(envs, self.recurrent(envs), ActorConfig(), EnvConfig(), seed=1)
        open_actors.append(player)
        told = []
        for _ in range(6):
            player._step(0.0, [])
            told.append(player.view.memory.any(1).tolist())  # type: ignore[union-attr]

        assert told == [[False, True, True], [False, False, True], [False] * 3] * 2
        running = [row for row in written(player.ring) if row["end"] == RUNNING]
        assert all(row["fresh"] == (row["t"] == 0) for row in running)

    def test_rows_hold_what_was_remembered_before_the_lane_acted(
        self, open_actors: list[Actor]
    ) -> None:
        envs = Envs(Tables(Count, 2), "count")
        player = Actor(envs, self.recurrent(envs), ActorConfig(), EnvConfig(), seed=1)
        open_actors.append(player)
        player.collect(40, 0.5)

        running = [row for row in written(player.ring) if row["end"] == RUNNING]

        assert all(row["fresh"] == (row["t"] == 0) for row in running)
        assert {row["fresh"] for row in running} == {0.0, 1.0}

    def test_acting_for_all_lanes_does_not_change_the_memory_of_a_resting_lane(self) -> None:
        envs = Envs(Tables(Count, 2), "count")
        view = PolicyInputs(envs.spec, envs.reset(0), 1)
        seen = []
        for step in range(1, 4):  # 2, 4, and the end
            action = np.ones(2, dtype=int) if step < 3 else np.zeros(2, dtype=int)
            view.push(envs.step(action), np.full((2, 1), float(step), dtype=np.float32))
            seen.append(view.memory[:, 0].tolist())  # type: ignore[index]

        assert seen == [[1, 0], [1, 2], [0, 0]]

    def test_an_autoreset_still_forgets_where_no_lanes_are(self) -> None:
        from gymnasium.vector import AutoresetMode

        from scripted_roles import Life, Script, vector

        envs = vector([Script(0, [Life((1.0,), TERMINATED)])], AutoresetMode.NEXT_STEP)
        view = PolicyInputs(envs.spec, envs.reset(0), 2)
        for _ in range(2):  # the end, then the reset
            view.push(envs.step(np.zeros(1, dtype=int)), np.ones((1, 2), dtype=np.float32))
            assert not view.memory.any()  # type: ignore[union-attr]


class TestRollouts:
    def test_a_lane_that_rests_where_a_rollout_ends_has_said_what_it_expects(
        self, open_actors: list[Actor]
    ) -> None:
        class Values(Adds):
            extras = (Extra(AHEAD),)

        player = seat(open_actors, Tables(Adder, 8), Values(), values=True)
        player.collect(12, 0.0)  # 1, 2, 3, 4: seat 0 has acted again, and rests

        last = [[row for row in written(player.ring) if row["env"] == env][-1] for env in range(2)]

        assert not player.envs.due[0]
        assert [(row["end"], row["t"], row[AHEAD]) for row in last] == [(0, 1, 4.0), (0, 0, 5.0)]


class TestEvaluator:
    def test_it_counts_the_games_of_each_lane_and_who_won_them(self) -> None:
        evaluator = Evaluator(lambda num: Envs(Tables(Count, num), "count"), Adds(), episodes=6)

        evaluation = evaluator.run(seed=0)

        evaluator.close()
        assert evaluation.returns == (1.0, -0.75) * 3
        assert evaluation.lengths == (2, 1) * 3
        assert evaluation.success_rate == 0.5

    @pytest.mark.parametrize(
        ("tables", "returns", "lengths"),
        [(apart, (3, 3, 4, 4, 3, 3), (1, 2, 3)), (apart_by_turns, (6, 6, 6, 6, 3, 3), (1, 2, 2))],
    )
    def test_it_counts_the_parts_that_end_before_their_games(
        self, tables: Any, returns: tuple[float, ...], lengths: tuple[int, ...]
    ) -> None:
        evaluator = Evaluator(lambda num: Envs(tables(min(num, 3)), "apart"), passes(), episodes=6)

        evaluation = evaluator.run(seed=0)

        evaluator.close()
        assert evaluation.returns == returns
        assert evaluation.lengths == tuple(np.repeat(lengths, 2))

    def test_it_plays_against_the_invited_opponents(self) -> None:
        def envs(num: int) -> Envs:
            tables = Tables(Count, num)
            tables.invite(Named(5))
            return Envs(tables, "count")

        evaluator = Evaluator(envs, Adds(), episodes=4)

        evaluation = evaluator.run(seed=0)

        evaluator.close()
        assert evaluation.returns == (1.0, -0.75, 1.0, -0.75)  # who comes first wins
        assert evaluation.success_rate == 0.5
