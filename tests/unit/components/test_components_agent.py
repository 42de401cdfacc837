"""Agents: gradients apart from steps, parameters, files, several of them."""

from typing import Any

import numpy as np
import pytest
from beartype.roar import BeartypeCallHintViolation

from rookery.components.agents import DistributedAgent, MultiAgentLearner
from rookery.components.protocols import LearningAgent
from rookery.envs.toy.basic import Corridor, Echo, Reach
from rookery.errors import CheckpointError, ConfigError, LostError
from rookery.learner.learner import Learner
from rookery.server.parameter_server import ParameterServer

SMALL: dict[str, Any] = {"net.hidden": [8]}


def agent_of(algorithm: str = "dqn", **more: Any) -> DistributedAgent:
    settings = SMALL | more.pop("settings", {})
    return DistributedAgent(
        algorithm,
        target_update_frequency=3,
        env=more.pop("env", Corridor),
        settings=settings,
        **more,
    )


def batch_of(rng: np.random.Generator, size: int = 16) -> dict[str, Any]:
    eye = np.eye(8, dtype=np.float32)
    return {
        "obs": eye[rng.integers(8, size=size)],
        "action": rng.integers(2, size=size),
        "reward": rng.normal(size=size).astype(np.float32),
        "next_obs": eye[rng.integers(8, size=size)],
        "terminated": rng.random(size) < 0.2,
    }


def equal(one: DistributedAgent, other: DistributedAgent) -> bool:
    theirs, target = other.learner.state()[1], one.learner.state()[1]
    return all(np.array_equal(target[k], theirs[k]) for k in target if k.startswith("net."))


def test_one_worker_through_a_server_learns_what_a_plain_learner_does_bit_for_bit():
    """Target networks too: they are copied every third step, and 20 are taken."""
    plain, served = agent_of(lr=0.01), agent_of(lr=0.01)
    server = ParameterServer(
        served.get_policy_parameters(), update_frequency=1, optimizer="adam", lr=0.01
    )
    server.register_worker("w")
    rng = np.random.default_rng(0)

    for version in range(20):
        batch = plain._batch(batch_of(rng))
        Learner.learn(plain.learner, batch)
        server.push_gradients("w", served.compute_gradients(batch), version=version)
        served.set_policy_parameters(server.get_parameters(version).arrays)

    assert equal(plain, served)
    assert plain.learner_steps == served.learner_steps == 20


@pytest.mark.parametrize("algorithm", ["dqn", "a2c"])
def test_gradients_and_a_step_by_them_are_what_learning_is(algorithm):
    one, two = agent_of(algorithm), agent_of(algorithm)
    rng = np.random.default_rng(0)
    for _ in range(5):
        batch = one._batch(batch_of(rng)) if algorithm == "dqn" else _rollout(rng)
        one.learn_from_batch(batch)
        two.compute_gradients(batch)
        assert two.update_policy() == one.learner_steps

    assert equal(one, two)


def _rollout(rng: np.random.Generator) -> Any:
    from rookery.types import Batch

    plain = agent_of()._batch(batch_of(rng))
    noise = {n: rng.normal(size=16).astype(np.float32) for n in ("advantage", "return", "log_prob")}
    return Batch(*plain[:7], None, noise)


def test_gradients_of_two_halves_average_to_those_of_the_whole():
    agent = agent_of(settings={"learner.max_grad_norm": None})
    whole = batch_of(np.random.default_rng(0), 32)
    halves = [{k: v[part] for k, v in whole.items()} for part in (slice(16), slice(16, None))]

    both = agent.compute_gradients(whole)
    first, second = (agent.compute_gradients(half) for half in halves)

    for name in both:
        np.testing.assert_allclose(both[name], (first[name] + second[name]) / 2, atol=1e-6)


def test_computing_gradients_changes_no_parameter():
    agent = agent_of()
    before = agent.get_policy_parameters()
    gradients = agent.compute_gradients(batch_of(np.random.default_rng(0)))

    assert list(gradients) == list(before)
    assert agent.learner_steps == 0
    assert all(np.array_equal(before[k], v) for k, v in agent.get_policy_parameters().items())
    assert agent.td_error.shape == (16,)


def test_an_algorithm_with_several_losses_gives_the_gradients_of_all():
    agent = agent_of("sac", env=Reach)
    size, space = 8, Reach().observation_space
    obs = np.zeros((size, *space.shape), dtype=np.float32)
    action = np.zeros((size, *Reach().action_space.shape), dtype=np.float32)
    batch = {"obs": obs, "action": action, "reward": np.ones(size), "next_obs": obs}
    gradients = agent.compute_gradients({**batch, "terminated": np.zeros(size, dtype=bool)})

    assert set(gradients) == set(agent.get_policy_parameters())
    assert all(np.abs(gradients[k]).max() > 0 for k in gradients if k.endswith("out.bias"))


def test_first_parameters_are_where_target_networks_begin_too():
    one, other = agent_of(seed=1), agent_of(seed=2)
    one.set_policy_parameters(other.get_policy_parameters())

    assert equal(one, other)
    assert one.learner_steps == 0


def test_weights_of_a_prioritised_batch_count():
    batch = batch_of(np.random.default_rng(0))
    one, other = agent_of(settings={"learner.max_grad_norm": None}), agent_of()
    full = one.compute_gradients(batch)
    half = one.compute_gradients({**batch, "weight": np.full(16, 0.5, dtype=np.float32)})

    for name in full:
        np.testing.assert_allclose(half[name], full[name] / 2, atol=1e-6)
    assert other.epsilon == 1.0


def test_a_batch_that_is_not_finite_is_left_out_and_too_many_of_them_are_an_error():
    agent = agent_of(settings={"learner.max_bad_steps": 3})
    batch = batch_of(np.random.default_rng(0)) | {"reward": np.full(16, np.nan, dtype=np.float32)}

    assert agent.compute_gradients(batch) == {}
    assert agent.learn_from_batch(batch) == {}
    assert agent.get_training_stats()["skipped"] == 2
    with pytest.raises(ConfigError, match="no gradients to step by"):
        agent.update_policy()
    with pytest.raises(LostError, match="3 learner steps in a row"):
        agent.compute_gradients(batch)


def test_gradients_and_parameters_of_another_network_are_refused():
    agent, other = agent_of(), agent_of(settings={"net.hidden": [4]})

    with pytest.raises(ConfigError, match=r"online.body.hidden.0.weight \(4, 8\) for \(8, 8\)"):
        agent.apply_gradients(other.get_policy_parameters())
    with pytest.raises(ConfigError, match="another network"):
        agent.set_policy_parameters({"table": np.zeros(3)})


def test_a_saved_agent_goes_on_exactly(tmp_path):
    one, rng = agent_of(), np.random.default_rng(0)
    for _ in range(4):
        one.learn_from_batch(batch_of(rng))
    file = one.save_checkpoint(tmp_path / "agent")

    other = agent_of(seed=9)
    other.load_checkpoint(file)
    batch = batch_of(rng)
    for agent in (one, other):
        agent.learn_from_batch(batch)

    assert equal(one, other)
    assert other.learner_steps == 5
    with pytest.raises(CheckpointError, match="of dqn, this one is of a2c"):
        agent_of("a2c").load_checkpoint(file)


def test_statistics_begin_anew_and_learner_steps_go_on():
    agent = agent_of()
    agent.learn_from_batch(batch_of(np.random.default_rng(0)))
    before = agent.get_training_stats()
    agent.reset_training_stats()
    after = agent.get_training_stats()

    assert (before["batches"], after["batches"]) == (1, 0)
    assert (before["learner_steps"], after["learner_steps"]) == (1, 1)
    assert np.isfinite(before["loss"])
    assert np.isnan(after["loss"])


def test_exploration_falls_with_learner_steps():
    agent = agent_of(update_frequency=4, settings={"actor.epsilon_steps": 40})
    rng = np.random.default_rng(0)
    seen = [agent.epsilon]
    for _ in range(12):
        agent.learn_from_batch(batch_of(rng))
        seen.append(agent.epsilon)

    assert seen[0] == 1.0
    assert seen == sorted(seen, reverse=True)
    assert seen[10:] == [pytest.approx(0.1)] * 3


def test_an_evaluation_plays_so_many_episodes_without_exploring():
    judged = agent_of(env=Echo).evaluate_policy(3)

    assert judged.lengths == (10, 10, 10)
    assert judged.reward == pytest.approx(np.mean(judged.returns))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"learner.lr": 1.0}, "argument lr"),
        ({"env.normalize_obs": True}, "NormalizeObservation"),
        ({"net.wide": 1}, "net.wide"),
    ],
)
def test_settings_that_mean_something_else_here_are_refused(settings, says):
    with pytest.raises(ConfigError, match=says):
        agent_of(settings=settings)


def test_single_steps_are_refused_by_algorithms_that_need_more():
    batch = batch_of(np.random.default_rng(0))

    for agent in (agent_of("a2c"), agent_of(settings={"algo.n_step": 3})):
        with pytest.raises(ConfigError, match="more than single steps"):
            agent.learn_from_batch(batch)
    with pytest.raises(ConfigError, match="add next_obs"):
        agent_of().learn_from_batch({k: v for k, v in batch.items() if k != "next_obs"})


def test_an_agent_is_what_loops_ask_for_and_refuses_wrong_types():
    assert isinstance(agent_of(), LearningAgent)
    with pytest.raises(BeartypeCallHintViolation):
        DistributedAgent("dqn", "fast")
    with pytest.raises(BeartypeCallHintViolation):
        agent_of().learn_from_batch([1])


class Sure:
    """An agent that always does the same."""

    def __init__(self, action: Any, reward: float = 0.0, loss: float = 0.0):
        self.action, self.stats, self.seen = action, {"reward": reward, "loss": loss}, []

    def act(self, obs):
        return self.action

    def get_training_stats(self):
        return self.stats

    def learn_from_batch(self, batch):
        self.seen.append(batch)
        return {"loss": 0.0}


def test_several_agents_learn_from_their_own_batches_or_from_one():
    team = MultiAgentLearner({"a": Sure(0), "b": Sure(1)})
    team.train_agents({"a": {"obs": 1}})
    team.train_agents({"obs": 2})

    assert team.agents["a"].seen == [{"obs": 1}, {"obs": 2}]
    assert team.agents["b"].seen == [{"obs": 2}]


def test_the_best_agent_has_the_highest_reward_or_the_lowest_loss():
    team = MultiAgentLearner({"a": Sure(0, reward=1.0, loss=3.0), "b": Sure(0, 2.0, 5.0)})

    assert team.get_best_agent() == "b"
    assert team.get_best_agent("loss") == "a"
    with pytest.raises(ConfigError, match="reward or loss, got 'luck'"):
        team.get_best_agent("luck")


def test_an_ensemble_does_what_most_would_and_the_mean_of_motions():
    votes = MultiAgentLearner({"a": Sure(2), "b": Sure(1), "c": Sure(1)})
    mean = MultiAgentLearner({"a": Sure(np.float32([0.0])), "b": Sure(np.float32([1.0]))})

    assert votes.ensemble_predict(None) == 1
    assert mean.ensemble_predict(None) == pytest.approx([0.5])
    with pytest.raises(ConfigError, match="no agents"):
        MultiAgentLearner({})
