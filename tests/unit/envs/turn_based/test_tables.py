"""Tables: lanes act when they are due, and get what they earned until they are due again."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from pettingzoo_envs import Apart, ApartByTurns
from pool_members import member, pool
from rookery.envs.turn_based.game import MASK, Who
from rookery.envs.turn_based.pettingzoo import AecGames, ParallelGames
from rookery.envs.turn_based.tables import PLAYED, RandomOpponents, Tables, any_allowed
from rookery.envs.vector import Envs
from rookery.errors import ConfigError, EnvError, ProtocolError
from rookery.sharing.mixed_batches import BORROWED
from sample_experience import VECTOR
from table_games import Bids, Count, Named


def seated(num: int = 1, opponent_seats: Any = None, **how: Any) -> Tables:
    tables = Tables(Count, num)
    if opponent_seats is not None:
        tables.invite(opponent_seats, **how)
    return tables


def seen(obs: Any) -> list[list[float]]:
    return obs["observation"].tolist()  # type: ignore[no-any-return]


class TestAllSeatsOurs:
    def test_there_is_a_lane_for_each_seat_of_as_many_tables_as_it_takes(self) -> None:
        assert [seated(num).num_envs for num in (1, 2, 3, 8)] == [2, 2, 4, 8]
        assert [seated(num).games.num for num in (1, 2, 3, 8)] == [1, 1, 2, 4]

    def test_only_the_seat_whose_turn_it_is_is_due(self) -> None:
        tables = seated(4)

        tables.reset(seed=0)

        assert tables.due.tolist() == [True, False, True, False]

    def test_a_transition_is_closed_when_its_seat_is_due_again_with_all_it_earned(self) -> None:
        tables = seated()
        obs, _ = tables.reset(seed=0)
        assert seen(obs)[0] == [0, 0, 0]
        told = []
        for lane, action in ((0, 1), (1, 0), (1, 0), (0, 0)):
            actions = np.full(2, 7)  # of a lane that rests: nobody looks at it
            actions[lane] = action
            obs, reward, terminated, truncated, info = tables.step(actions)
            told.append((info["real"].tolist(), reward.tolist(), terminated.tolist()))
            assert not truncated.any()

        assert told == [
            ([False, False], [0, 0], [False, False]),
            ([False, True], [0, 0], [False, False]),  # it has another turn at once
            ([True, False], [0.25, 0], [False, False]),
            ([True, True], [1, -1], [True, True]),  # what seat 1 lost before it acted is nobody's
        ]
        assert seen(info["final_obs"]) == [[0, 5, 0], [1, 5, 0]]
        assert info["is_success"].tolist() == [1.0, 0.0]
        assert info["seat"].tolist() == [0, 1]
        assert info["opponent"].tolist() == [Who.LATEST] * 2

    def test_a_new_game_begins_at_once(self) -> None:
        tables = seated()
        tables.reset(seed=0)
        for _ in range(3):  # 2, 4, 5
            obs, _, terminated, _, info = tables.step(np.array([1, 1]) * (tables.games.total < 4))

        assert terminated.all()
        assert info["due"].tolist() == [True, False]
        assert seen(obs)[0] == [0, 0, 1]

    def test_a_lane_that_rests_shows_what_it_acted_on_last(self) -> None:
        tables = seated()
        tables.reset(seed=0)

        obs, *_ = tables.step(np.array([1, 0]))
        assert seen(obs) == [[0, 0, 0], [1, 2, 0]]
        obs, *_ = tables.step(np.array([0, 1]))
        assert seen(obs) == [[0, 4, 0], [1, 2, 0]]

    def test_no_lane_ever_shows_a_mask_that_allows_nothing(self) -> None:
        tables, rng = seated(6), np.random.default_rng(0)
        obs, _ = tables.reset(seed=0)
        for _ in range(60):
            assert obs[MASK].any(1).all()
            action = any_allowed(tables.single_action_space, obs, rng)
            obs, *_, info = tables.step(action)
            if "final_obs" in info:
                assert info["final_obs"][MASK].any(1).all()

    def test_where_all_seats_move_at_once_all_are_due_and_real(self) -> None:
        tables = Tables(Bids, 3)
        tables.reset(seed=0)
        assert tables.due.all()

        _, reward, terminated, _, info = tables.step(np.array([0, 2, 2]))
        assert info["real"].all()
        assert not terminated.any()
        assert reward.tolist() == [0, 1, 1]
        _, reward, terminated, _, info = tables.step(np.array([1, 0, 0]))
        assert terminated.all()
        assert reward.tolist() == [1, 0, 0]
        assert info["is_success"].tolist() == [1, 1, 1]  # a point each

    def test_a_seat_that_never_acted_has_no_episode(self) -> None:
        tables = Tables(lambda num: Count(num, limit=1), 1)
        tables.reset(seed=0)

        _, _, terminated, truncated, info = tables.step(np.array([0, 0]))

        assert info["real"].tolist() == [True, False]
        assert truncated.tolist() == [True, False]
        assert not terminated.any()


class TestOpponents:
    def test_every_lane_is_due_and_real_at_every_step(self) -> None:
        tables, rng = seated(5, RandomOpponents(spaces.Discrete(2))), np.random.default_rng(0)
        obs, _ = tables.reset(seed=0)
        assert tables.num_envs == tables.games.num == 5
        for _ in range(40):
            assert tables.due.all()
            obs, *_, info = tables.step(any_allowed(tables.single_action_space, obs, rng))
            assert info["real"].all()
            assert not info["rested"].any()

    def test_lanes_begin_in_different_seats_and_change_after_each_game(self) -> None:
        tables = seated(3, Named(4))
        obs, _ = tables.reset(seed=0)
        assert [row[0] for row in seen(obs)] == [0, 1, 0]
        assert [row[1] for row in seen(obs)] == [0, 1, 0]  # 4 has added 1 where it came first

        seats: list[list[int]] = [[] for _ in range(3)]
        for _ in range(30):
            before = tables.seat.copy()
            obs, _, terminated, _, info = tables.step(np.zeros(3, dtype=int))
            assert info["seat"].tolist() == before.tolist()
            for lane in np.flatnonzero(terminated):
                seats[lane].append(int(info["seat"][lane]))

        for lane, own in enumerate(seats):
            assert len(own) > 2
            assert own == [(lane + game) % 2 for game in range(len(own))]

    def test_rewards_of_the_opponents_moves_are_added_to_ours(self) -> None:
        tables = seated(1, Named(5))  # adds 2
        tables.reset(seed=0)

        obs, reward, terminated, *_ = tables.step(np.array([1]))  # 2, 4
        assert seen(obs) == [[0, 4, 0]]
        assert reward.tolist() == [0.25 - 0.25]
        _, reward, terminated, _, info = tables.step(np.array([0]))
        assert reward.tolist() == [1.0]
        assert terminated.tolist() == [True]
        assert info["is_success"].tolist() == [1.0]
        assert info["opponent"].tolist() == [5]

    def test_each_opponent_is_asked_once_for_all_its_tables(self) -> None:
        opponent_seats = Named(4, 4, 9)
        tables = seated(6, opponent_seats)
        tables.reset(seed=0)  # odd lanes sit second: 9 plays at table 5, 4 at tables 1 and 3
        assert opponent_seats.asked == [(4, 2), (9, 1)]
        assert tables.opponent.tolist() == [4, 4, 9, 4, 4, 9]

        opponent_seats.asked.clear()
        tables.step(np.zeros(6, dtype=int))

        assert opponent_seats.asked[:2] == [(4, 4), (9, 1)]  # we have another turn at table 5

    def test_an_episode_says_who_its_game_was_played_by_and_not_the_next(self) -> None:
        tables = seated(1, Named(4, 9))
        tables.reset(seed=0)
        opponents = []
        for _ in range(20):
            *_, terminated, _, info = tables.step(np.array([0]))
            opponents += info["opponent"][terminated].tolist()

        assert opponents[:4] == [4, 9, 4, 9]

    def test_where_all_move_at_once_opponents_choose_before_any_seat_plays(self) -> None:
        tables = Tables(Bids, 2)
        tables.invite(Named(1))
        tables.reset(seed=0)

        _, reward, *_ = tables.step(np.array([2, 0]))

        assert reward.tolist() == [1.0, 0.0]

    def test_no_opponent_is_invited_once_games_have_begun(self) -> None:
        tables = seated()
        tables.reset(seed=0)

        with pytest.raises(ProtocolError, match="set before the first reset; call invite first"):
            tables.invite()

    def test_strangers_come_where_no_company_is_named(self) -> None:
        tables = Tables(Count, 2)
        tables.invite()
        tables.reset(seed=0)

        assert tables.opponent.tolist() == [Who.RANDOM] * 2


class TestReady:
    """Where others may still be due when `step` returns."""

    def played(self, num: int, ready: float, steps: int = 60) -> dict[str, list[Any]]:
        """Plays with a company that always adds 1, and says of each lane what it lived through."""
        tables = seated(num, Named(4), ready=ready)
        obs, _ = tables.reset(seed=0)
        told: dict[str, list[Any]] = {"due": [], "rows": [[] for _ in range(num)]}
        for _ in range(steps):
            told["due"].append(int(tables.due.sum()))
            acted = [tuple(row) for row in seen(obs)]
            obs, reward, terminated, _, info = tables.step(np.zeros(num, dtype=int))
            for lane in np.flatnonzero(info["real"]).tolist():
                row = (acted[lane], float(reward[lane]), bool(terminated[lane]))
                told["rows"][lane].append(row)
        return told

    def test_a_lane_lives_through_the_same_whether_others_wait_or_not(self) -> None:
        together, apart = self.played(6, 1.0), self.played(6, 0.25)

        for one, other in zip(together["rows"], apart["rows"], strict=True):
            shared = min(len(one), len(other))
            assert shared > 20
            assert one[:shared] == other[:shared]

    def test_a_share_of_the_tables_is_due_at_every_step_and_not_always_all(self) -> None:
        due = self.played(8, 0.25)["due"]

        assert min(due) >= 2
        assert min(due) < 8

    @pytest.mark.parametrize("num", [1, 2, 3])
    def test_a_seat_is_always_due_at_few_tables(self, num: int) -> None:
        assert min(self.played(num, 0.25)["due"]) >= 1

    def test_no_lane_ever_shows_a_mask_that_allows_nothing(self) -> None:
        tables, rng = seated(6, Named(4), ready=0.25), np.random.default_rng(0)
        obs, _ = tables.reset(seed=0)
        for _ in range(60):
            assert obs[MASK].any(1).all()
            obs, *_ = tables.step(any_allowed(tables.single_action_space, obs, rng))

    def test_games_that_are_always_over_before_we_are_due_are_an_error(self) -> None:
        tables = Tables(lambda num: Count(num, limit=3), 4)
        tables.invite(Named(4), opening=3, ready=0.25)

        with pytest.raises(EnvError, match="lower the opening"):
            tables.reset(seed=0)


class TestBothSeats:
    def test_against_the_latest_all_seats_are_ours_and_otherwise_others_rest(self) -> None:
        tables = seated(4, Named(int(Who.LATEST), 4), both_seats=True)
        tables.reset(seed=0)  # table 0 against the latest, table 1 against 4, from seat 1

        assert tables.num_envs == 4
        assert tables.due.tolist() == [True, False, False, True]
        _, _, _, _, info = tables.step(np.zeros(4, dtype=int))
        assert tables.due.tolist() == [False, True, False, True]
        assert info["real"].tolist() == [False, False, False, True]
        *_, info = tables.step(np.zeros(4, dtype=int))
        assert info["real"].tolist() == [True, False, False, True]
        assert info["opponent"].tolist() == [0, 0, 4, 4]
        assert "final_obs" in info  # at table 1, of seat 1 alone


class TestEndsApart:
    """Seat 0 dies first, then a limit ends seat 1, and seat 2 dies last."""

    def parallel(self, num: int = 3) -> Tables:
        return Tables(lambda tables: ParallelGames(Apart, tables), num)

    def turns(self, num: int = 3) -> Tables:
        return Tables(lambda tables: AecGames(ApartByTurns, tables), num)

    def told(self, tables: Tables, steps: int) -> list[Any]:
        """Returns of each step which lanes are real, terminated, truncated, and due; rewards."""
        told = []
        for _ in range(steps):
            _, reward, *ends, info = tables.step(np.zeros(tables.num_envs, dtype=np.int64))
            flags = [one.astype(int).tolist() for one in (info["real"], *ends, info["due"])]
            told.append((*flags, reward.tolist()))
        return told

    def test_a_lane_is_closed_when_its_seat_ends_and_rests_until_the_next_game(self) -> None:
        tables = self.parallel()
        tables.reset(seed=0)

        game = [
            ([1, 1, 1], [1, 0, 0], [0, 0, 0], [0, 1, 1], [3, 2, 1]),
            ([0, 1, 1], [0, 0, 0], [0, 1, 0], [0, 0, 1], [0, 2, 1]),
            ([0, 0, 1], [0, 0, 1], [0, 0, 0], [1, 1, 1], [0, 0, 1]),
        ]
        assert self.told(tables, 6) == game * 2

    def test_by_turns_it_is_closed_by_the_move_that_ended_it(self) -> None:
        tables = self.turns()
        tables.reset(seed=0)

        game = [
            ([0, 0, 0], [0, 0, 0], [0, 0, 0], [0, 1, 0], [0, 0, 0]),
            ([1, 0, 0], [1, 0, 0], [0, 0, 0], [0, 0, 1], [6, 0, 0]),
            ([0, 1, 0], [0, 0, 0], [0, 0, 0], [0, 1, 0], [0, 4, 0]),
            ([0, 1, 1], [0, 0, 0], [0, 1, 0], [0, 0, 1], [0, 2, 2]),
            ([0, 0, 1], [0, 0, 1], [0, 0, 0], [1, 0, 0], [0, 0, 1]),
        ]
        assert self.told(tables, 10) == game * 2

    def test_a_limit_after_a_death_is_no_death(self) -> None:
        ends = {0: (1, "terminated"), 1: (2, "truncated"), 2: (2, "truncated")}
        tables = Tables(lambda num: ParallelGames(lambda: Apart(ends), num), 3)
        tables.reset(seed=0)

        first, second = self.told(tables, 2)

        assert first[1:3] == ([1, 0, 0], [0, 0, 0])
        assert second[1:3] == ([0, 0, 0], [0, 1, 1])

    def test_final_observations_are_those_of_each_end(self) -> None:
        tables, finals = self.parallel(), []
        tables.reset(seed=0)
        for lane in range(3):
            *_, info = tables.step(np.zeros(3, dtype=np.int64))
            finals.append(info["final_obs"][lane].tolist())

        assert finals == [[0, 1], [1, 2], [2, 3]]

    def test_points_compare_the_returns_of_all_seats_when_a_lane_ends(self) -> None:
        tables, told = self.parallel(), []
        tables.reset(seed=0)
        for _ in range(3):  # 3, 2, 1; 3, 4, 2; 3, 4, 3
            *_, info = tables.step(np.zeros(3, dtype=np.int64))
            told.append((info["points"].tolist(), info["is_success"].tolist()))

        assert told == [([1, 0, 0], [1, 0, 0]), ([0, 1, 0], [0, 1, 0]), ([0, 0, 0], [0, 0, 0])]

    def test_with_opponents_a_game_is_left_when_our_seat_ends(self) -> None:
        tables = self.parallel()
        tables.invite(Named(4))
        obs, _ = tables.reset(seed=0)
        assert obs.tolist() == [[0, 0], [1, 0], [2, 0]]
        told = []
        for _ in range(3):
            obs, reward, terminated, truncated, info = tables.step(np.zeros(3, dtype=np.int64))
            ends = terminated.astype(int) - truncated
            told.append((reward.tolist(), ends.tolist(), obs.tolist()))
            assert info["real"].all()
            assert info["due"].all()

        assert told == [
            ([3, 2, 1], [1, 0, 0], [[1, 0], [1, 1], [2, 1]]),
            ([2, 2, 1], [0, -1, 0], [[1, 1], [2, 0], [2, 2]]),
            ([2, 1, 1], [-1, 0, 1], [[2, 0], [2, 1], [0, 0]]),
        ]

    def test_by_turns_no_seat_acts_in_the_rest_of_a_game_that_was_left(self) -> None:
        opponent_seats = Named(4)
        tables = self.turns(1)
        tables.invite(opponent_seats)
        tables.reset(seed=0)
        assert opponent_seats.asked == []

        obs, reward, terminated, _, info = tables.step(np.array([0]))

        assert opponent_seats.asked == [(4, 1)] * 2  # seat 1's move, and seat 0's of the next game
        assert (reward.tolist(), terminated.tolist()) == ([6], [True])
        assert info["final_obs"].tolist() == [[0, 2]]
        assert obs.tolist() == [[1, 1]]

    def test_a_seat_that_the_opening_ends_has_no_episode(self) -> None:
        tables = self.parallel()
        tables.invite(Named(int(Who.LATEST)), both_seats=True, opening=1)
        tables.reset(seed=0)

        assert tables.due.tolist() == [False, True, True]
        assert [real for real, *_ in self.told(tables, 2)] == [[0, 1, 1], [0, 0, 1]]


class TestOpenings:
    def test_games_begin_with_random_plies_that_are_nobodys(self) -> None:
        tables = seated(40, Named(4), opening=2)
        obs, _ = tables.reset(seed=0)

        totals = {row[1] for row in seen(obs)}
        assert totals <= {2, 3, 4}
        assert len(totals) == 3
        _, reward, *_ = tables.step(np.zeros(40, dtype=int))
        assert set(np.abs(reward).tolist()) <= {0.0, 1.0}

    def test_a_game_that_its_opening_ends_is_started_anew(self) -> None:
        tables = seated(20, Named(4), opening=3)
        obs, _ = tables.reset(seed=0)

        assert {row[1] for row in seen(obs)} == {3, 4}
        assert max(row[2] for row in seen(obs)) > 0

    def test_an_opening_that_ends_every_game_is_an_error_that_says_so(self) -> None:
        tables = Tables(lambda num: Count(num, limit=3), 2)
        tables.invite(Named(4), opening=3)

        with pytest.raises(EnvError, match="lower the opening"):
            tables.reset(seed=0)


class TestChance:
    def test_equal_seeds_give_equal_games_and_others_others(self) -> None:
        def played(seed: int) -> list[Any]:
            tables = seated(4, RandomOpponents(spaces.Discrete(2)), opening=1)
            obs, _ = tables.reset(seed=seed)
            told = [seen(obs)]
            for _ in range(20):
                obs, *_ = tables.step(np.zeros(4, dtype=int))
                told.append(seen(obs))
            return told

        assert played(3) == played(3)
        assert played(3) != played(4)

    @pytest.mark.parametrize(
        "space",
        [
            spaces.Discrete(4, start=-1),
            spaces.MultiDiscrete([2, 3], start=[1, 0]),
            spaces.MultiBinary(3),
            spaces.Box(-2.0, np.float32(1.0), (2,), np.float32),
        ],
        ids=lambda space: type(space).__name__,
    )
    def test_anything_allowed_is_in_its_space(self, space: Any) -> None:
        rng, obs = np.random.default_rng(0), np.zeros((50, 3))

        actions = any_allowed(space, obs, rng)

        assert all(action in space for action in actions)
        assert len(np.unique(actions, axis=0)) > 3

    def test_what_a_mask_forbids_is_never_drawn_and_the_rest_equally_often(self) -> None:
        rng, mask = np.random.default_rng(0), np.tile(np.array([0, 1, 1], dtype=np.int8), (4000, 1))

        actions = any_allowed(spaces.Discrete(3), {"x": np.zeros(4000), MASK: mask}, rng)

        counts = np.bincount(actions, minlength=3)
        assert counts[0] == 0
        assert abs(counts[1] - 2000) < 160  # 5 deviations


class TestState:
    @pytest.mark.parametrize(
        "how", [None, {"both_seats": False}, {"both_seats": True}, {"ready": 0.25}]
    )
    def test_games_go_on_as_if_they_had_not_been_saved(self, how: dict[str, Any] | None) -> None:
        def make() -> Envs:
            opponent_seats = None if how is None else RandomOpponents(spaces.Discrete(2))
            return Envs(seated(4, opponent_seats, **(how or {})), "count")

        envs, other, rng = make(), make(), np.random.default_rng(1)
        obs = envs.reset(3)
        for _ in range(7):
            obs = envs.step(any_allowed(spaces.Discrete(2), obs, rng)).obs
        saved = json.loads(json.dumps(envs.export_state()))
        again = other.restore_state(saved)

        for _ in range(25):
            np.testing.assert_array_equal(obs["observation"], again["observation"])
            action = any_allowed(spaces.Discrete(2), obs, rng)
            one, two = envs.step(action), other.step(action)
            for name in ("reward", "terminated", "truncated", "real", "due", "rested", "opponent"):
                np.testing.assert_array_equal(getattr(one, name), getattr(two, name))
            obs, again = one.obs, two.obs

    def test_games_that_cannot_be_saved_say_so(self) -> None:
        envs = Envs(Tables(Bids, 3), "bids")
        envs.reset(0)

        assert envs.export_state() is None


class TestTheDoor:
    def test_lanes_come_through_it_as_steps(self) -> None:
        envs = Envs(seated(), "count")
        envs.reset(0)

        first, second, third = (envs.step(np.array([1, 1])), envs.step(np.array([0, 1])), None)
        third = envs.step(np.array([0, 0]))

        assert first.real.tolist() == [False, False]
        assert first.due.tolist() == [False, True]
        assert first.rested.tolist() == [False, True]
        assert second.real.tolist() == [True, False]
        assert third.real.tolist() == [True, True]
        assert third.terminated.tolist() == [True, True]
        assert third.final_obs["observation"].tolist() == [[0, 5, 0], [1, 5, 0]]
        assert envs.finished_info(third, 0, ()) == {
            "is_success": 1.0,
            "points": 1.0,
            "opponent": 0.0,
            "seat": 0.0,
        }

    def test_an_invitation_changes_how_many_lanes_there_are(self) -> None:
        envs = Envs(Tables(Count, 3), "count")
        assert envs.num == 4

        envs.tables.invite(Named(4))

        assert envs.num == 3
        envs.reset(0)
        assert envs.step(np.zeros(3, dtype=int)).reward.shape == (3,)

    def test_rows_of_games_have_a_column_for_the_opponent(self) -> None:
        assert [extra.name for extra in Envs(seated(), "count").spec.extras] == ["opponent"]

    def test_frames_of_games_are_not_stacked(self) -> None:
        with pytest.raises(ConfigError, match="frame_stack"):
            Envs(seated(), "count", frame_stack=2)

    def test_closing_closes_the_games(self) -> None:
        tables = seated()
        envs = Envs(tables, "count")

        envs.close()

        assert tables.games.closed


def test_runs_of_a_game_share_rows_and_find_no_opponents_in_those_of_others(tmp_path: Path) -> None:
    spec = replace(VECTOR, extras=(PLAYED,))
    own, other = member(tmp_path, "own", spec), member(tmp_path, "other", spec)
    replay, lent = pool(own), pool(other)
    for each in (replay, lent):
        each.ring.columns[PLAYED.name][:] = 7

    batch = own.sample(replay, 64, 1.0)

    foreign = batch.rows == BORROWED
    assert foreign.sum() == 16
    assert set(batch.extras[PLAYED.name][~foreign]) == {7}
    assert set(batch.extras[PLAYED.name][foreign]) == {0}
