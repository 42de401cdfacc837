"""Cycles: what train_dqn does in which order, how much of it, and when it ends."""

from itertools import islice
from typing import Any

import numpy as np
import pytest

import rookery
from rookery.actors.policy import recipe
from rookery.api import train_dqn as module
from rookery.api.dqn_agent import DqnAgent
from rookery.api.train_dqn import ARGUMENTS, FIXED, Cycle, CyclePlan, cycles
from rookery.errors import CheckpointError, ConfigError
from rookery.runtime import machine
from rookery.training.build import build_parts
from rookery.training.steps import beta_now
from rookery.types import End

CORRIDOR = "rookery.envs.toy.basic:Corridor"
SMALL: dict[str, Any] = {
    "env": "rookery.envs.toy.basic:Echo",
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


def train(**changes: Any) -> tuple[DqnAgent, list[Cycle]]:
    seen: list[Cycle] = []
    arguments = SMALL | {"callback": seen.append, "settings": {}} | changes
    arguments["settings"] = {"env.check": False, **arguments["settings"]}
    return rookery.train_dqn(**arguments), seen


def rows(agent: DqnAgent) -> dict[str, Any]:
    ring = agent._parts.replay.ring
    return {name: column[: ring.committed] for name, column in ring.columns.items()}


class TestCycle:
    def test_a_cycle_is_publish_collect_learn_in_this_order(self, monkeypatch) -> None:
        made_from = recipe(
            CORRIDOR,
            {
                **FIXED,
                "run.engine": "inline",
                "actor.chunk_episodes": 1,
                "replay.learning_starts": 64,
                "net.hidden": [4],
            },
        )
        parts, order = build_parts(made_from.config), []
        for name in ("publish", "collect", "learn"):
            hop = getattr(module, name)
            monkeypatch.setattr(
                module, name, lambda p, name=name, hop=hop: order.append(name) or hop(p)
            )

        seen = list(islice(cycles(parts, CyclePlan(2, 0.5, None, None, None), []), 3))
        parts.close()

        early = sum(cycle.learner_steps == 0 for cycle in seen)  # the warm-up
        assert order == ["publish", "collect"] * early + [
            "publish",
            "collect",
            "learn",
            "learn",
        ] * (3 - early)
        assert [cycle.cycle for cycle in seen] == [1, 2, 3]

    def test_every_worker_plays_its_episodes_in_every_cycle(self) -> None:
        agent, seen = train(n_episodes=18, num_workers=3)
        found = rows(agent)
        last = found["end"] != End.RUNNING

        assert [cycle.episodes for cycle in seen] == [6, 12, 18]
        assert found["actor"][last].tolist() == [0, 0, 1, 1, 2, 2] * 3
        assert len(agent.returns) == 18

    def test_workers_play_with_the_weights_of_their_cycle(self) -> None:
        agent, seen = train()
        found = rows(agent)

        # a version for each cycle, and the first weights were published before: they are the same
        assert found["version"].tolist() == [1] * 44 + [3] * 44 + [4] * 44
        assert [cycle.env_steps for cycle in seen] == [40, 80, 120]

    def test_returns_are_in_the_order_of_the_episodes(self) -> None:
        agent, seen = train()
        found = rows(agent)
        ends = np.flatnonzero(found["end"] != End.RUNNING)
        scores = [part.sum() for part in np.split(found["reward"], ends + 1)[:-1]]

        assert agent.returns == scores
        assert seen[-1].mean_return == np.mean(scores)

    def test_epsilon_falls_once_in_a_cycle_and_not_below_its_end(self) -> None:
        _, seen = train(n_episodes=24, epsilon=0.8, epsilon_decay=0.5, epsilon_end=0.15)

        assert [cycle.epsilon for cycle in seen] == [0.8, 0.4, 0.2, 0.15, 0.15, 0.15]

    def test_epsilon_falls_by_episodes_unless_told_otherwise(self) -> None:
        few = train(n_episodes=24, num_workers=1, episodes_per_batch=2)[1]
        many = train(n_episodes=24, num_workers=3, episodes_per_batch=4)[1]

        by_episodes = {cycle.episodes: cycle.epsilon for cycle in few}
        assert many[1].epsilon == pytest.approx(by_episodes[12] * 0.999**2)  # in the next cycle

    def test_epsilon_is_what_is_played_with(self) -> None:
        agent, _ = train(n_episodes=60, epsilon=1.0, epsilon_decay=1.0, learning_steps_per_batch=0)

        assert np.bincount(rows(agent)["action"]).min() > 60  # of 660, four actions
        greedy, _ = train(n_episodes=4, epsilon=0.0, epsilon_end=0.0, learning_steps_per_batch=0)
        found = rows(greedy)
        for obs, action, end in zip(found["obs"], found["action"], found["end"], strict=True):
            assert end != End.RUNNING or greedy.act(obs) == action


class TestLearning:
    def test_learner_steps_are_one_for_each_episode_unless_told_otherwise(self) -> None:
        assert [cycle.learner_steps for cycle in train()[1]] == [4, 8, 12]
        assert [c.learner_steps for c in train(learning_steps_per_batch=3)[1]] == [3, 6, 9]
        assert [c.learner_steps for c in train(learning_steps_per_batch=0)[1]] == [0, 0, 0]

    def test_nothing_is_learned_before_the_replay_is_warm(self) -> None:
        _, seen = train(warmup=50)

        assert [cycle.learner_steps for cycle in seen] == [0, 4, 8]
        assert np.isnan(seen[0].loss)
        assert seen[1].loss > 0

    def test_adaptive_learning_follows_what_arrives(self) -> None:
        settings = {"replay.samples_per_insert": 2.0}
        _, seen = train(learning_steps_per_batch="adaptive", settings=settings)

        # 40 rows in a cycle, the first 8 of them the warm-up; 8 rows in a learner step
        assert [cycle.learner_steps for cycle in seen] == [8, 18, 28]

    def test_one_seed_trains_one_way_and_another_another(self) -> None:
        one, again, other = (train(seed=seed)[0] for seed in (1, 1, 2))

        assert one.weights_sha256 == again.weights_sha256 != other.weights_sha256
        assert one.returns == again.returns

    def test_without_a_seed_every_training_is_another_and_can_be_repeated(self) -> None:
        one, other = train(seed=None)[0], train(seed=None)[0]
        again = train(seed=one.config.run.seed)[0]

        assert one.weights_sha256 == again.weights_sha256 != other.weights_sha256

    def test_training_may_begin_with_given_weights(self) -> None:
        first, _ = train(seed=1)
        second, _ = train(seed=2, weights=first.get_weights(), learning_steps_per_batch=0)

        assert second.weights_sha256 == first.weights_sha256
        with pytest.raises(CheckpointError, match="another network"):
            train(weights=first.get_weights(), hidden=(9,))

    def test_the_agent_learns_on_from_what_was_played(self) -> None:
        agent, _ = train()
        agent.learn(5)

        assert agent.learner_steps == 12 + 5

    def test_importance_is_corrected_fully_by_the_last_episode(self) -> None:
        agent, _ = train()

        assert beta_now(agent._parts) == 1.0


class TestEnd:
    def test_it_ends_with_the_cycle_that_reaches_the_episodes(self) -> None:
        assert [cycle.episodes for cycle in train(n_episodes=5)[1]] == [4, 8]

    def test_a_target_is_looked_at_once_there_are_a_hundred_episodes(self) -> None:
        _, seen = train(n_episodes=400, target=-1.0, episodes_per_batch=15)

        assert [cycle.episodes for cycle in seen] == [30, 60, 90, 120]

    def test_the_clock_may_end_it(self) -> None:
        assert len(train(max_seconds=0.0)[1]) == 1

    def test_a_callback_may_end_it(self) -> None:
        agent, _ = train(callback=lambda done: rookery.Ask.STOP if done.cycle == 2 else None)

        assert len(agent.returns) == 8

    def test_what_a_callback_raises_comes_out_and_nothing_stays_open(self) -> None:
        def fail(done: Cycle) -> None:
            raise LookupError("nothing of ours")

        before = machine.open_files()
        with pytest.raises(LookupError, match="nothing of ours"):
            train(callback=fail)

        assert machine.open_files() == before


class TestArguments:
    def test_workers_leave_two_processors_to_others(self, monkeypatch) -> None:
        for cores, workers in ((1, 1), (2, 1), (3, 1), (5, 3)):
            monkeypatch.setattr(machine, "cores", lambda cores=cores: cores)
            agent, seen = train(num_workers=None, n_episodes=1)

            assert agent.config.actor.num == workers
            assert seen[0].learner_steps == workers * 2

    def test_more_workers_than_processors_are_warned_about(self, monkeypatch) -> None:
        monkeypatch.setattr(machine, "cores", lambda: 4)
        started = lambda *args, **kwargs: (_ for _ in ()).throw(InterruptedError)  # noqa: E731
        monkeypatch.setattr(module, "build_parts", started)

        with (
            pytest.warns(RuntimeWarning, match=r"5 actors share 4 CPUs .* lower num_workers to 4"),
            pytest.raises(InterruptedError),
        ):
            train(num_workers=5, engine="processes")
        with pytest.raises(InterruptedError):  # and no warning, which would be an error here
            train(num_workers=4, engine="processes")

    def test_every_setting_but_its_own_can_be_given(self) -> None:
        agent, _ = train(settings={"actor.exploration": "ladder", "env.kwargs": {"length": 3}})

        assert agent.config.actor.exploration == "ladder"
        assert len(rows(agent)["end"]) == 12 * 4
        for key in (*ARGUMENTS, *FIXED, "actor"):
            with pytest.raises(ConfigError, match=f"settings has '{key}'"):
                train(settings={key: 1})

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            ({"n_episodes": 0}, "n_episodes must be above 0"),
            ({"num_workers": 0}, "num_workers must be above 0"),
            ({"episodes_per_batch": 0}, "episodes_per_batch must be above 0"),
            ({"engine": "cluster"}, "engine must be one of"),
            ({"epsilon": 3}, "epsilon must be between"),
            ({"epsilon_decay": 0.0}, "epsilon_decay must be above 0 and at most 1, got 0.0"),
            (
                {"learning_steps_per_batch": -1},
                "learning_steps_per_batch must be at least 0, got -1",
            ),
            ({"env": "Pendulum-v1"}, "dqn needs Discrete actions"),
            ({"max_seconds": -1}, "max_seconds must be at least 0, got -1"),
            ({"max_seconds": float("nan")}, "max_seconds must be at least 0, got nan"),
            ({"target": float("nan")}, "target must be a number, got nan"),
            ({"engine": "ray"}, "replay buffer in this process, got engine 'ray'"),
            ({"settings": {"replay.shards": 2}}, "one replay buffer .* got replay.shards 2"),
        ],
    )
    def test_what_is_wrong_is_called_as_the_user_calls_it(self, arguments, said) -> None:
        with pytest.raises(ConfigError, match=said):
            train(**arguments)

    def test_what_the_machine_cannot_do_is_said_in_the_same_words(self, monkeypatch) -> None:
        monkeypatch.setattr(machine, "descriptors", lambda: (16, 100_000))

        with pytest.raises(ConfigError, match=r"too many open files: .* or lower num_workers$"):
            train()

    @pytest.mark.parametrize("toy", ["Corridor", "Loop", "Pictures", "Mixed"])
    def test_every_kind_of_observation_can_be_learned_from(self, toy) -> None:
        agent, seen = train(env=f"rookery.envs.toy.basic:{toy}", n_episodes=4)

        assert seen[-1].learner_steps > 0
        (one,) = rookery.rollout_worker(agent.policy(), seed=1)
        agent.add_trajectory_to_buffer(one)
        assert agent.act(one.final_obs) in range(4)
