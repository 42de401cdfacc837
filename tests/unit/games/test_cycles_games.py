"""Cycles of games: whom train_dqn plays against, at how many tables, and what is left of it."""

import tempfile
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rookery
from pettingzoo_envs import Turns
from rookery.api.dqn_agent import DqnAgent
from rookery.api.train_dqn import Cycle
from rookery.config.schema import SelfplayConfig
from rookery.envs.turn_based.game import MASK, Who
from rookery.errors import ConfigError
from rookery.games.tictactoe import TicTacToe
from rookery.runtime import machine
from rookery.types import End

SMALL: dict[str, Any] = {
    "env": "tictactoe",
    "n_episodes": 12,
    "num_workers": 2,
    "episodes_per_batch": 2,
    "batch_size": 8,
    "buffer_size": 2_000,
    "hidden": (8,),
    "seed": 3,
    "engine": "inline",
    "device": "cpu",
}
SNAPSHOTS = {"selfplay.snapshot_period": 4}
STRANGE = partial(Turns, masks="observation")  # a game without a scripted player


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch) -> Path:
    """Where temporary folders are made."""
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    return place


def train(**changes: Any) -> tuple[DqnAgent, list[Cycle]]:
    seen: list[Cycle] = []
    arguments = SMALL | {"callback": seen.append} | changes
    return rookery.train_dqn(**arguments), seen


def rows(agent: DqnAgent, column: str) -> Any:
    ring = agent._parts.replay.ring  # type: ignore[union-attr]
    return ring.columns[column][: ring.committed]


def first(trajectory: rookery.Trajectory) -> dict[str, Any]:
    return {name: leaf[0] for name, leaf in trajectory.obs.items()}


class TestOpponents:
    def test_a_game_is_played_by_the_usual_schedule(self) -> None:
        assert train()[0].config.selfplay == SelfplayConfig(
            opponents={"random": 0.25, "scripted": 0.25, "past": 0.5},
            snapshot_period=10_000,
            keep=10,
            drop="oldest",
            newest=5,
            slips=0.5,
        )

    def test_without_a_scripted_player_there_are_more_random_ones(self) -> None:
        assert train(env=STRANGE)[0].config.selfplay.opponents == {"random": 0.5, "past": 0.5}

        own = {"selfplay.scripted": "rookery.games.scripted_players:Random"}
        agent, _ = train(env=STRANGE, settings=own)
        assert agent.config.selfplay.opponents["scripted"] == 0.25
        assert Who.SCRIPTED in rows(agent, "opponent")

    def test_every_part_of_the_schedule_can_be_told_otherwise(self) -> None:
        changes = {"opponents": {"scripted": 2}, "snapshot_period": 7, "keep": 3, "slips": 0.0}
        agent, _ = train(settings={f"selfplay.{name}": value for name, value in changes.items()})

        for name, value in changes.items():
            assert getattr(agent.config.selfplay, name) == value
        assert set(rows(agent, "opponent")) == {Who.SCRIPTED}

    def test_an_environment_for_one_has_no_opponents_and_no_folder(self, monkeypatch) -> None:
        monkeypatch.setattr(tempfile, "TemporaryDirectory", None)
        agent, _ = train(env="rookery.envs.toy.basic:Echo")

        assert not agent.config.selfplay.on
        assert agent.win_rates == {}

    @pytest.mark.parametrize(
        ("steps", "period"), [(None, 10_000), ("adaptive", 10_000), (1, 2_500), (8, 20_000), (0, 1)]
    )
    def test_a_snapshot_is_taken_every_ten_thousand_episodes(self, steps, period) -> None:
        agent, _ = train(n_episodes=1, learning_steps_per_batch=steps)

        assert agent.config.selfplay.snapshot_period == period

    def test_all_kinds_of_opponents_are_met_and_snapshots_once_there_are_some(self) -> None:
        agent, _ = train(n_episodes=32, settings=SNAPSHOTS)
        met, version = rows(agent, "opponent"), rows(agent, "version")

        assert {Who.RANDOM, Who.SCRIPTED} <= set(met)
        assert (met > 0).any()
        assert (met <= version).all()
        assert set(agent.win_rates) == {"random", "scripted", "past"}
        assert all(0 <= rate <= 1 for rate in agent.win_rates.values())

    def test_win_rates_say_how_it_went_against_each(self) -> None:
        """With one random game for a beginning: half of it won."""
        agent, _ = train(settings={"selfplay.opponents": {"random": 1}})
        points = [(score > 0) + 0.5 * (score == 0) for score in agent.returns]

        assert agent.win_rates == {"random": pytest.approx((sum(points) + 0.5) / 13)}

    def test_all_seats_may_be_the_agents_own(self) -> None:
        agent, _ = train(settings={"selfplay.opponents": {}, "actor.envs": 2})

        assert set(rows(agent, "env")) == {0, 1}
        assert agent.win_rates == {}

    @pytest.mark.parametrize(
        ("env", "settings", "said"),
        [
            ("tictactoe", {"opponents": {"pats": 1}}, r"must be one of random, .*mean 'past'"),
            ("tictactoe", {"opponents": {"past": 0}}, "has no weight above 0"),
            ("tictactoe", {"opponents": {"past": -1}}, r"selfplay\.opponents\.past"),
            (STRANGE, {"opponents": {"scripted": 1}}, "has no scripted player"),
            ("tictactoe", {"opponents": {}}, "played in all its 2 seats"),
            (
                "rookery.envs.toy.basic:Echo",
                {"opponents": {"random": 1}},
                "needs a game with several",
            ),
        ],
    )
    def test_opponents_that_cannot_be_are_refused(self, env, settings, said, temporary) -> None:
        before = machine.open_files()
        with pytest.raises(ConfigError, match=said):
            train(env=env, settings={f"selfplay.{k}": v for k, v in settings.items()})

        assert machine.open_files() == before
        assert not list(temporary.iterdir())


class TestTables:
    def test_a_worker_plays_one_game_at_a_time_unless_told_otherwise(self) -> None:
        agent, seen = train()

        assert [cycle.episodes for cycle in seen] == [4, 8, 12]
        assert set(rows(agent, "env")) == {0}

    def test_at_many_tables_a_cycle_counts_the_games_that_ended(self) -> None:
        agent, seen = train(n_episodes=60, settings={"actor.envs": 8})
        ends, counts = rows(agent, "end") != End.RUNNING, [cycle.episodes for cycle in seen]

        assert set(rows(agent, "env")) == set(range(8))
        assert all(later - earlier >= 4 for earlier, later in pairwise([0, *counts]))
        assert counts[-1] == ends.sum() == len(agent.returns) >= 60

    def test_learning_and_epsilon_follow_the_games_that_ended(self) -> None:
        _, seen = train(n_episodes=60, settings={"actor.envs": 8})

        assert any(cycle.episodes > 4 * cycle.cycle for cycle in seen)  # more than were asked for
        assert [cycle.learner_steps for cycle in seen] == [cycle.episodes for cycle in seen]
        for before, now in pairwise(seen):
            assert now.epsilon == pytest.approx(0.999**before.episodes)

    @pytest.mark.parametrize("tables", [1, 8])
    def test_one_seed_plays_one_way_and_another_another(self, tables) -> None:
        settings = SNAPSHOTS | {"actor.envs": tables}
        one, again, other = (train(n_episodes=16, seed=s, settings=settings)[0] for s in (1, 1, 2))

        assert one.weights_sha256 == again.weights_sha256 != other.weights_sha256
        assert one.returns == again.returns
        assert one.win_rates == again.win_rates

    def test_environments_for_one_may_be_several_too(self) -> None:
        agent, seen = train(env="rookery.envs.toy.basic:Echo", settings={"actor.envs": 3})

        assert set(rows(agent, "env")) == {0, 1, 2}
        assert [cycle.episodes for cycle in seen] == [6, 12]  # they all end at the same step


class TestFolder:
    def test_snapshots_are_in_a_folder_that_goes_with_the_training(self, temporary) -> None:
        found: list[int] = []

        def look(done: Cycle) -> None:
            found.append(len(list(temporary.glob("*/opponents/*.safetensors"))))

        train(n_episodes=16, settings=SNAPSHOTS, callback=look)

        assert max(found) > 2
        assert not list(temporary.iterdir())

    @pytest.mark.parametrize("error", [LookupError, KeyboardInterrupt])
    def test_whatever_ends_it_nothing_is_left_behind(self, error, temporary) -> None:
        def fail(done: Cycle) -> None:
            assert list(temporary.iterdir())
            raise error

        before = machine.open_files()
        with pytest.raises(error):
            train(settings=SNAPSHOTS, callback=fail)

        assert machine.open_files() == before
        assert not list(temporary.iterdir())


class TestAgent:
    def test_it_keeps_to_what_is_allowed(self) -> None:
        agent, _ = train()
        games, rng = TicTacToe(1), np.random.default_rng(0)
        for _ in range(5):
            games.reset(np.arange(1), rng)
            while not games.over[0]:
                seat = int(games.due[0].argmax())
                obs = {name: leaf[0] for name, leaf in games.look([0], [seat]).items()}
                action = agent.act(obs, epsilon=0.5)

                assert obs[MASK][action] == 1
                games.play(np.arange(1), np.full((1, 2), action))

    def test_it_learns_on_by_hand_beyond_where_snapshots_were_taken(self) -> None:
        agent, _ = train(settings=SNAPSHOTS)
        for trajectory in rookery.rollout_worker(agent.policy(), episodes=3, epsilon=0.5):
            agent.add_trajectory_to_buffer(trajectory)
        agent.learn(9)

        assert agent.learner_steps == 12 + 9
        assert len(agent.returns) == 12 + 3
        assert np.isfinite(rows(agent, "reward")).all()

    def test_it_comes_back_from_its_file(self, tmp_path) -> None:
        agent, _ = train(settings=SNAPSHOTS | {"actor.envs": 4})
        again = DqnAgent.open(agent.save(tmp_path / "agent"))
        (one,) = rookery.rollout_worker(agent.policy(), seed=5)
        again.add_trajectory_to_buffer(one)

        assert again.weights_sha256 == agent.weights_sha256
        assert again.act(first(one)) == agent.act(first(one))
        assert set(rows(again, "opponent")) == {Who.RANDOM}

    def test_it_can_be_made_new_for_a_game(self) -> None:
        agent = DqnAgent.new("tictactoe", settings={"net.hidden": [8]})
        played = rookery.rollout_worker(agent.policy(), episodes=4, epsilon=1.0)
        for one in played:
            agent.add_trajectory_to_buffer(one)

        assert agent.returns == [one.score for one in played]
        assert agent.act(first(played[0])) in range(9)


class TestRollout:
    def test_games_are_played_against_strangers_from_each_seat_in_turn(self) -> None:
        policy = DqnAgent.new("tictactoe", settings={"net.hidden": [8]}).policy()
        played = rookery.rollout_worker(policy, episodes=40, epsilon=1.0, seed=2)
        stones = [first(one)["observation"].sum() for one in played]  # on the board at first

        assert stones == [0, 1] * 20
        assert {one.score for one in played} == {-1.0, 0.0, 1.0}
        for one in played:
            assert (np.take_along_axis(one.obs[MASK], one.action[:, None], 1) == 1).all()

    def test_weights_alone_will_do(self) -> None:
        agent = DqnAgent.new("tictactoe", settings={"net.hidden": [8], "algo.dueling": True})
        one, other = (
            rookery.rollout_worker(given, env, 2, 0.3, seed=4)
            for given, env in ((agent.get_weights(), "tictactoe"), (agent.policy(), None))
        )

        assert [t.action.tolist() for t in one] == [t.action.tolist() for t in other]
