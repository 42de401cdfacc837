"""PettingZoo as games: whoever is due acts, everything is earned once, the dead leave."""

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from pettingzoo.classic.connect_four import connect_four
from pettingzoo.classic.rps import rps
from pettingzoo.classic.tictactoe import tictactoe

from pettingzoo_envs import Apart, ApartByTurns, AtOnce, Turns, Unequal
from rookery.envs.turn_based.game import MASK
from rookery.envs.turn_based.pettingzoo import AecGames, ParallelGames, ZooGames, kind_of
from rookery.envs.turn_based.tables import Tables, any_allowed
from rookery.envs.vector import Envs
from rookery.errors import ConfigError, EnvError

NO_ACTION = np.zeros((1, 3), dtype=np.int64)


def begun(games: ZooGames) -> ZooGames:
    games.reset(np.arange(games.num), np.random.default_rng(0))
    return games


def all_of(games: ZooGames, table: int = 0) -> Any:
    seats = np.arange(games.seats)
    return games.look(np.full(games.seats, table), seats)


class TestTurns:
    def test_seats_are_places_in_possible_agents_whatever_their_names(self) -> None:
        games = begun(AecGames(Turns, 2))

        assert games.agents == [("red", 1), 7, "blue"]
        assert games.seats == 3
        assert games.due.tolist() == [[True, False, False]] * 2
        assert games.name == "turns"

    def test_each_reward_counts_once_for_every_seat(self) -> None:
        games = begun(AecGames(lambda: Turns(leaves=False), 1))
        told = []
        for _ in range(5):
            games.play(np.array([0]), NO_ACTION)
            told.append(games.reward[0].tolist())

        assert told == [[-1, 2, 2], [2, -1, 2], [2, 2, -1], [-1, 2, 2], [2, -1, 2]]

    def test_an_agent_that_leaves_early_is_no_longer_due_and_the_game_continues(self) -> None:
        games = begun(AecGames(Turns, 1))
        due = []
        while not games.over[0]:
            due.append(int(np.flatnonzero(games.due[0])[0]))
            games.play(np.array([0]), NO_ACTION)

        assert due == [0, 1, 2, 0, 2]
        assert not games.due.any()
        assert all_of(games).tolist() == [[0, 5], [1, 2], [2, 5]]  # seat 1: what it saw last

    @pytest.mark.parametrize(
        ("ending", "leaves", "truncated"),
        [
            ("terminated", False, [False, False, False]),
            ("truncated", False, [True, True, True]),
            ("truncated", True, [True, False, True]),  # one had died before
        ],
    )
    def test_a_limit_truncates_those_who_are_still_there(
        self, ending: str, leaves: bool, truncated: list[bool]
    ) -> None:
        games = begun(AecGames(lambda: Turns(ending, leaves=leaves), 1))
        while not games.over[0]:
            assert not games.truncated.any()
            games.play(np.array([0]), NO_ACTION)

        assert games.ended.all()
        assert games.truncated.tolist() == [truncated]

    def test_new_games_are_seeded_by_the_generator_they_are_given(self) -> None:
        def seeds() -> list[Any]:
            games = begun(AecGames(Turns, 2))
            games.reset(np.array([1]), np.random.default_rng(5))
            return [env.seeds[-2:] for env in games._envs]

        assert seeds() == seeds()
        assert all(isinstance(seed, int) for seed in seeds()[1])

    def test_only_the_tables_that_are_named_play(self) -> None:
        games = begun(AecGames(Turns, 3))

        games.play(np.array([2, 0]), np.zeros((2, 3), dtype=np.int64))

        assert games.due.argmax(1).tolist() == [1, 0, 1]

    def test_closing_closes_every_environment(self) -> None:
        games = AecGames(Turns, 2)

        games.close()

        assert all(env.closed for env in games._envs)


class TestAtOnce:
    def test_every_agent_is_due_and_earns_by_its_own_action(self) -> None:
        games = begun(ParallelGames(AtOnce, 2))
        assert games.due.all()

        games.play(np.arange(2), np.array([[1, 0, 1], [0, 0, 1]]))

        assert games.reward.tolist() == [[1, 0, 1], [0, 0, 1]]
        assert all_of(games).tolist() == [1, 1, 1]
        games.play(np.array([1]), np.array([[1, 1, 0]]))
        assert games.reward[1].tolist() == [2, 2, 0]
        assert games.over.tolist() == [False, True]

    def test_an_agent_that_leaves_early_is_no_longer_due(self) -> None:
        games = begun(ParallelGames(lambda: AtOnce(leaves=True), 1))
        games.play(np.array([0]), np.ones((1, 3), dtype=np.int64))
        assert games.due.tolist() == [[False, True, True]]

        games.play(np.array([0]), np.ones((1, 3), dtype=np.int64))

        assert games.over.all()
        assert games.reward.tolist() == [[0, 2, 2]]

    def test_a_limit_truncates(self) -> None:
        games = begun(ParallelGames(lambda: AtOnce(rounds=1, ending="truncated"), 1))

        games.play(np.array([0]), NO_ACTION)

        assert games.over.all()
        assert games.ended.all()
        assert games.truncated.all()


class TestEndsApart:
    def told(self, games: ZooGames) -> list[Any]:
        """Plays a game; returns who has ended, who of them by a limit, what all earned and see."""
        told = []
        while not games.over[0]:
            games.play(np.array([0]), NO_ACTION)
            flags = games.ended[0].astype(int).tolist(), games.truncated[0].astype(int).tolist()
            told.append((*flags, games.reward[0].tolist(), all_of(games).tolist()))
        return told

    @pytest.mark.parametrize("lingers", [False, True])
    def test_each_seat_ends_by_its_own_flag_with_what_it_saw_then(self, lingers: bool) -> None:
        games = begun(ParallelGames(lambda: Apart(lingers=lingers), 1))

        assert self.told(games) == [
            ([1, 0, 0], [0, 0, 0], [3, 2, 1], [[0, 1], [1, 1], [2, 1]]),
            ([1, 1, 0], [0, 1, 0], [0, 2, 1], [[0, 1], [1, 2], [2, 2]]),
            ([1, 1, 1], [0, 1, 0], [0, 0, 1], [[0, 1], [1, 2], [2, 3]]),
        ]

    def test_by_turns_a_seat_ends_when_it_is_flagged_and_not_when_it_would_be_due(self) -> None:
        games = begun(AecGames(ApartByTurns, 1))

        assert self.told(games) == [
            ([0, 0, 0], [0, 0, 0], [3, 2, 1], [[0, 1], [1, 1], [2, 1]]),
            ([1, 0, 0], [0, 0, 0], [3, 2, 1], [[0, 2], [1, 2], [2, 2]]),
            ([1, 0, 0], [0, 0, 0], [0, 2, 1], [[0, 2], [1, 3], [2, 3]]),
            ([1, 1, 0], [0, 1, 0], [0, 2, 1], [[0, 2], [1, 4], [2, 4]]),
            ([1, 1, 1], [0, 1, 0], [0, 0, 1], [[0, 2], [1, 4], [2, 5]]),
        ]

    @pytest.mark.parametrize("games", [ParallelGames(Apart, 2), AecGames(ApartByTurns, 2)])
    def test_a_new_game_has_all_agents_again(self, games: ZooGames) -> None:
        begun(games)
        while not games.over.all():
            games.play(np.arange(2), np.zeros((2, 3), dtype=np.int64))

        games.reset(np.array([1]), np.random.default_rng(0))

        assert games.over.tolist() == [True, False]
        assert games.ended.tolist() == [[True] * 3, [False] * 3]
        assert games.truncated.tolist() == [[False, True, False], [False] * 3]
        assert all_of(games, 1).tolist() == [[0, 0], [1, 0], [2, 0]]

    def test_what_was_allowed_when_a_seat_ended_is_kept_too(self) -> None:
        class Told(Apart):
            def step(self, actions: Any) -> Any:
                *answer, infos = super().step(actions)
                return (*answer, {a: {MASK: np.array([0, 1], dtype=np.int8)} for a in infos})

            def reset(self, seed: int | None = None, options: Any = None) -> Any:
                seen, infos = super().reset(seed, options)
                return seen, {a: {MASK: np.array([1, 0], dtype=np.int8)} for a in infos}

        games = begun(ParallelGames(Told, 1))
        games.play(np.array([0]), NO_ACTION)
        games.play(np.array([0]), NO_ACTION + 1)

        assert all_of(games)[MASK].tolist() == [[0, 1]] * 3

    def test_an_agent_that_left_without_a_flag_ends_with_the_game_as_if_by_a_limit(self) -> None:
        class Silent(Apart):
            def step(self, actions: Any) -> Any:
                seen, rewards, ended, cut, infos = super().step(actions)
                return seen, rewards, ended | {0: False}, cut, infos

        games = begun(ParallelGames(Silent, 1))

        told = self.told(games)

        assert [flags for flags, *_ in told] == [[0, 0, 0], [0, 1, 0], [1, 1, 1]]
        assert games.truncated.tolist() == [[True, True, False]]


class TestMasks:
    def test_a_mask_in_the_info_comes_beside_the_observation(self) -> None:
        games = begun(AecGames(lambda: Turns(masks="info", allowed=(1, 0)), 1))

        assert isinstance(games.observation_space, spaces.Dict)
        assert set(games.observation_space.spaces) == {"observation", MASK}
        seen = all_of(games)
        assert seen["observation"].tolist() == [[0, 0], [1, 0], [2, 0]]
        assert seen[MASK].tolist() == [[1, 0]] * 3

    @pytest.mark.parametrize("masks", ["info", "observation"])
    def test_a_forbidden_action_is_an_error_that_says_what_is_allowed(self, masks: str) -> None:
        games = begun(AecGames(lambda: Turns(masks=masks, allowed=(1, 0)), 2))

        with pytest.raises(EnvError, match=r"environment 1.*'red'.*action 1.*\[0\]"):
            games.play(np.array([1]), np.ones((1, 3), dtype=np.int64))

    @pytest.mark.parametrize("masks", ["info", "observation"])
    def test_nothing_allowed_is_an_error_that_names_environment_and_agent(self, masks: str) -> None:
        games = begun(AecGames(lambda: Turns(masks=masks, allowed=(0, 0)), 2))

        with pytest.raises(EnvError, match=r"environment 1: \('red', 1\).*no action.*passes"):
            games.look(np.array([1]), np.array([0]))

    def test_a_seat_that_is_not_due_may_have_an_empty_one(self) -> None:
        games = begun(AecGames(lambda: Turns(masks="observation", allowed=(0, 0)), 1))

        assert games.look(np.array([0]), np.array([1]))[MASK].tolist() == [[0, 0]]


class TestRefusals:
    def test_agents_with_different_spaces_are_told_apart(self) -> None:
        with pytest.raises(ConfigError, match=r"action space of 0 is Discrete\(2\).*of 2 is.*pad"):
            ParallelGames(Unequal, 1)

    def test_an_environment_that_raises_is_named(self) -> None:
        class Broken(Turns):
            def step(self, action: Any) -> None:
                raise ValueError("no luck")

        games = begun(AecGames(Broken, 2))

        with pytest.raises(EnvError, match="environment 1: step raised ValueError: no luck"):
            games.play(np.array([1]), NO_ACTION)

    def test_what_is_not_of_pettingzoo_has_no_kind(self) -> None:
        assert kind_of(object()) is None
        assert kind_of(Turns()) is AecGames
        assert kind_of(AtOnce()) is ParallelGames


class TestClassics:
    @pytest.mark.parametrize("make", [tictactoe.env, connect_four.env, rps.env, rps.raw_env])
    def test_random_games_at_tables_earn_what_pettingzoo_says(self, make: Any) -> None:
        """Rewards of a game add up to the cumulative ones, which are zero-sum here."""
        how = {"max_cycles": 3} if make in (rps.env, rps.raw_env) else {}
        envs = Envs(Tables(lambda num: AecGames(lambda: make(**how), num), 4), "classic")
        obs, rng = envs.reset(0), np.random.default_rng(0)
        score, returns = np.zeros(4), []
        space = envs.codec.action_space
        while len(returns) < 6:
            action = any_allowed(space, envs.codec.decode(obs), rng)
            steps = envs.step(envs.codec.encode_action(action))
            score += steps.reward
            ended = steps.terminated | steps.truncated
            for table in (0, 1):
                lanes = slice(2 * table, 2 * table + 2)
                if ended[lanes].all():
                    returns.append(score[lanes].copy())
                    score[lanes] = 0.0
            obs = steps.obs
        envs.close()

        assert all(pair.sum() == 0 for pair in returns)
        assert any(pair.any() for pair in returns)
        assert (np.abs(returns) <= 3).all()

    def test_the_parallel_form_gives_the_same_rewards(self) -> None:
        action, rng = np.array([[0, 1], [2, 1], [2, 0]]), np.random.default_rng(0)
        games = ParallelGames(lambda: rps.parallel_env(max_cycles=5), 3)
        games.reset(np.arange(3), rng)

        games.play(np.arange(3), action)

        assert games.reward.tolist() == [[-1, 1], [1, -1], [-1, 1]]
        assert games.look(np.arange(3), np.zeros(3, dtype=int)).tolist() == [1, 1, 0]
