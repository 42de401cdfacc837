"""Rollouts: policies that only act, and what an actor plays with them."""

from typing import Any

import numpy as np
import pytest

from rookery.actors import actor as actors
from rookery.actors.policy import InferencePolicy, Recipe, recipe
from rookery.api.rollout_worker import rollout_worker
from rookery.config.load import load
from rookery.envs.toy import basic
from rookery.errors import CheckpointError, ConfigError
from rookery.training.build import build_parts
from scripted_roles import written

ECHO = "rookery.envs.toy.basic:Echo"
CORRIDOR = "rookery.envs.toy.basic:Corridor"


def policy(env: Any = ECHO, **settings: Any) -> InferencePolicy:
    made_from = recipe(env, {"net.hidden": [8], **settings})
    return InferencePolicy(made_from, *made_from.spaces())


class TestPolicy:
    @pytest.mark.parametrize("hidden", [[], [5], [7, 3, 4]])
    @pytest.mark.parametrize("dueling", [False, True])
    @pytest.mark.parametrize("normalize", [False, True])
    def test_the_network_is_read_off_its_weights(self, hidden, dueling, normalize) -> None:
        settings = {
            "net.hidden": hidden,
            "algo.dueling": dueling,
            "env.normalize_obs": normalize,
            "run.seed": 3,
        }
        given = policy(**settings)

        found = InferencePolicy.of(given.get_weights(), ECHO)

        assert found.recipe.config.net == given.recipe.config.net
        assert found.recipe.config.algo == given.recipe.config.algo
        for obs in np.eye(4, dtype=np.float32):
            assert found.act(obs) == given.act(obs)

    def test_what_weights_do_not_show_is_said(self) -> None:
        given = policy(**{"net.activation": "tanh"})

        found = InferencePolicy.of(given.get_weights(), ECHO, settings={"net.activation": "tanh"})

        assert found.recipe.config.net == given.recipe.config.net

    def test_weights_of_another_environment_are_refused(self) -> None:
        with pytest.raises(CheckpointError, match=r"another network: body\.hidden\.0\.weight"):
            InferencePolicy.of(policy().get_weights(), CORRIDOR)

    def test_epsilon_is_the_share_of_random_actions(self) -> None:
        given, obs = policy(), np.eye(4, dtype=np.float32)[0]
        greedy = given.act(obs)

        others = [given.act(obs, 0.5) != greedy for _ in range(1_000)]

        assert {given.act(obs) for _ in range(20)} == {greedy}
        assert np.mean(others) == pytest.approx(0.5 * 3 / 4, abs=0.06)  # 4 standard deviations

    def test_weights_given_out_are_a_copy(self) -> None:
        given = policy()
        for array in given.get_weights().values():
            array += 1.0

        again = policy().get_weights()
        assert all((a == again[name]).all() for name, a in given.get_weights().items())

    def test_frames_are_remembered_until_it_is_reset(self) -> None:
        given = policy("rookery.envs.toy.basic:Pictures", **{"env.frame_stack": 2})
        seen: list[Any] = []
        act = given.algorithm.act
        given.algorithm.act = lambda obs, rng, **how: seen.append(obs) or act(obs, rng, **how)  # type: ignore
        black, white = (np.full((1, 12, 12), c, np.uint8) for c in (0, 255))

        given.act(black)
        given.act(white)
        given.reset()
        given.act(white)

        assert [obs[0, :, 0, 0].tolist() for obs in seen] == [[0, 0], [0, 255], [255, 255]]


class TestRollout:
    def test_it_is_what_the_first_actor_of_a_run_with_this_seed_plays(self) -> None:
        config = load(
            changes={
                "env.id": ECHO,
                "run.seed": 11,
                "net.hidden": [8],
                "actor.envs": 1,
                "actor.chunk_episodes": 3,
                "run.mode": "sync",
                "run.engine": "inline",
            }
        )
        parts = build_parts(config)
        list(parts.actors.collect(64, [0.3], 3))
        rows = [row for row in written(parts.actors.rings[0]) if row["end"] == 0]

        played = rollout_worker(parts.learner.weights(), ECHO, 3, 0.3, seed=11)
        parts.close()

        assert [row["action"] for row in rows] == [a for one in played for a in one.action]
        assert [row["reward"] for row in rows] == [r for one in played for r in one.reward]
        assert [row["obs"] for row in rows] == [o.tolist() for one in played for o in one.obs]

    def test_every_episode_is_a_trajectory_that_ends_as_it_did(self) -> None:
        died = rollout_worker(policy(), episodes=2, epsilon=1.0)
        cut = rollout_worker(policy("rookery.envs.toy.basic:Loop"), episodes=2)

        for one in died:
            assert (one.env_steps, one.terminated.sum(), one.terminated[-1]) == (10, 1, True)
            assert not one.truncated.any()
        for one in cut:
            assert (one.env_steps, one.truncated.sum(), one.truncated[-1]) == (20, 1, True)
            assert one.final_obs.tolist() == [1.0, 0.0, 0.0, 0.0]  # where the ring closes

    def test_rewards_are_raw_whatever_the_policy_learned_from(self) -> None:
        scaled = policy(**{"env.reward_scale": 0.1, "env.reward_clip": 0.05})
        (one,) = rollout_worker(scaled, epsilon=1.0, seed=2)

        assert set(one.reward) == {0.0, 1.0}

    def test_the_same_seed_plays_the_same_episodes_and_another_others(self) -> None:
        plays = [rollout_worker(policy(), None, 2, 0.5, seed) for seed in (1, 1, 2)]
        first, again, other = [[t.obs.tolist() for t in played] for played in plays]

        assert first == again != other

    def test_episodes_longer_than_the_ring_stay_whole(self, monkeypatch) -> None:
        monkeypatch.setattr(actors, "LONG", 1)  # the ring holds 264 rows then
        left = policy(CORRIDOR)
        for array in (weights := left.get_weights()).values():
            array[...] = 0.0
        weights["body.out.bias"][:] = 1.0, 0.0  # always left, for 100 steps

        played = rollout_worker(weights, CORRIDOR, 7)

        assert [one.env_steps for one in played] == [100] * 7
        assert all(one.score == pytest.approx(-1.0) for one in played)

    def test_an_environment_class_will_do(self) -> None:
        made_from = Recipe(recipe(basic.Mixed, {"net.hidden": [4]}).config, basic.Mixed)
        (one,) = rollout_worker(InferencePolicy(made_from, *made_from.spaces()))

        assert {name: leaf.shape for name, leaf in one.obs.items()} == {
            "vector": (8, 3),
            "image": (8, 8, 8, 3),
            "choice": (8,),
        }
        assert set(one.obs["choice"]) <= {1, 2}

    @pytest.mark.parametrize(("episodes", "epsilon"), [(0, 0.5), (1, 1.5), (1, -0.1)])
    def test_odd_requests_are_refused(self, episodes, epsilon) -> None:
        with pytest.raises(
            ConfigError,
            match=r"episodes must be above 0, got|epsilon must be between 0.0 and 1.0, got",
        ):
            rollout_worker(policy(), episodes=episodes, epsilon=epsilon)
