"""Deep Q-learning: its target and loss by hand, and what follows the trained network."""

from typing import Any

import numpy as np
import pytest
import torch

from rookery.algorithms.algorithm import Loss
from rookery.algorithms.dqn import Dqn
from rookery.config.algorithms import DqnConfig
from rookery.config.schema import Activation, EnvConfig, LearnerConfig, NetConfig
from rookery.errors import ConfigError
from rookery.learner.learner import Learner
from rookery.networks.encoders import Normalize
from rookery.types import Batch
from sample_experience import MIXED
from scripted_roles import flat_spec

TWO = flat_spec(width=2, actions=2)

# Rows are actions, columns are features: q(x)[a] = W[a] . x
ONLINE = [[1.0, 0.0], [0.0, 2.0]]
TARGET = [[10.0, 0.0], [0.0, 4.0]]


def linear(net: Any, weight: list[list[float]]) -> None:
    with torch.no_grad():
        net.body.out.weight.copy_(torch.tensor(weight))
        net.body.out.bias.zero_()


def dqn(online: Any = ONLINE, target: Any = TARGET, **config: Any) -> Dqn:
    """Returns an algorithm whose two networks are the given matrices."""
    made = Dqn(DqnConfig(**config), NetConfig(hidden=()), EnvConfig(), TWO)
    linear(made.networks["online"], online)
    linear(made.networks["target"], target)
    return made


def batch(
    obs: Any, action: Any, reward: Any, discount: Any, next_obs: Any, weight: Any = None
) -> Batch:
    return Batch(
        obs=torch.tensor(obs),
        action=torch.tensor(action),
        reward=torch.tensor(reward),
        discount=torch.tensor(discount),
        next_obs=torch.tensor(next_obs),
        weight=torch.tensor(weight) if weight else torch.ones(len(action)),
        rows=np.arange(len(action)),
    )


def one(discount: float, reward: float = 0.5) -> Batch:
    """One transition: q(obs, 0) = 3, and the next observation is (1, 1)."""
    return batch([[3.0, 7.0]], [0], [reward], [discount], [[1.0, 1.0]])


def loss_of(algorithm: Dqn, on: Batch) -> Loss:
    losses = list(algorithm.losses(on, step=1, rng=torch.Generator()))
    assert len(losses) == 1
    return losses[0]


def target_of(algorithm: Dqn, on: Batch) -> float:
    """Recovers the target from the TD error: wanted = error + q, and q is 3."""
    td_error = loss_of(algorithm, on).td_error
    assert td_error is not None
    return float(td_error[0]) + 3.0


class TestTarget:
    def test_double_chooses_with_the_trained_and_values_with_the_target_network(self) -> None:
        # At (1, 1) online says (1, 2): action 1. Target says (10, 4): the value of 1 is 4.
        assert target_of(dqn(double=True), one(0.5)) == 0.5 + 0.5 * 4.0

    def test_without_double_the_target_network_does_both(self) -> None:
        assert target_of(dqn(double=False), one(0.5)) == 0.5 + 0.5 * 10.0

    @pytest.mark.parametrize("double", [True, False])
    def test_nothing_is_bootstrapped_after_termination(self, double: bool) -> None:
        assert target_of(dqn(double=double), one(0.0)) == 0.5

    @pytest.mark.parametrize("steps", [1, 3, 5])
    def test_the_discount_is_the_batchs_own_however_many_steps_it_spans(self, steps: int) -> None:
        # gamma of the config is 0.99 and must not be applied a second time.
        discount = 0.5**steps
        assert target_of(dqn(double=True), one(discount, reward=1.75)) == 1.75 + discount * 4.0

    def test_dueling_adds_a_value_to_centred_advantages(self) -> None:
        made = Dqn(DqnConfig(dueling=True), NetConfig(hidden=()), EnvConfig(), TWO)
        linear(made.networks["online"], [[5.0, 0.0], [1.0, 0.0], [0.0, 3.0]])

        with torch.no_grad():
            q = made.acting(torch.tensor([[1.0, 1.0]]))

        # value 5, advantages (1, 3) around their mean 2
        assert q.tolist() == [[4.0, 6.0]]

    def test_dueling_acts_on_advantages_alone(self) -> None:
        made = Dqn(DqnConfig(dueling=True), NetConfig(hidden=(8,)), EnvConfig(), TWO)
        obs = np.random.default_rng(0).normal(size=(50, 2)).astype(np.float32)
        with torch.no_grad():
            best = made.acting(torch.from_numpy(obs)).argmax(1).tolist()

        assert made.act(obs, np.random.default_rng(0), epsilon=0.0).action.tolist() == best

    def test_no_gradient_flows_into_the_target(self) -> None:
        made = dqn(double=True)
        loss_of(made, one(0.5)).value.backward()

        assert all(p.grad is None for p in made.networks["target"].parameters())
        # The error is 2.5 - 3, within Huber's parabola: the gradient is 0.5 * obs, in row 0.
        grad = made.networks["online"].body.out.weight.grad  # type: ignore[union-attr]
        assert grad.tolist() == [[1.5, 3.5], [0.0, 0.0]]  # type: ignore[union-attr]


class TestLoss:
    def test_the_loss_is_hubers_mean_weighted_by_importance(self) -> None:
        made = dqn(double=True)
        # q = 1, 0.5, 2; wanted = 1.5, 2.5, 2 (terminated): errors 0.5, 2, 0
        on = batch(
            [[1.0, 0.0], [0.5, 0.0], [0.0, 1.0]],
            [0, 0, 1],
            [1.5, 2.5, 2.0],
            [0.0, 0.0, 0.0],
            [[0.0, 0.0]] * 3,
            weight=[1.0, 0.25, 0.5],
        )

        loss = loss_of(made, on)

        assert loss.value.item() == pytest.approx((1.0 * 0.125 + 0.25 * 1.5 + 0.0) / 3)
        assert loss.td_error is not None
        assert loss.td_error.tolist() == [0.5, 2.0, 0.0]  # unweighted: it ranks rows
        assert not loss.td_error.requires_grad
        assert loss.metrics["q_mean"].item() == pytest.approx((1.0 + 0.5 + 2.0) / 3)

    @pytest.mark.parametrize("weight", [0.0, 0.25, 1.0])
    def test_importance_weights_scale_loss_and_gradient(self, weight: float) -> None:
        whole, part = dqn(), dqn()
        loss_of(whole, one(0.5)).value.backward()
        loss_of(part, one(0.5)._replace(weight=torch.tensor([weight]))).value.backward()

        grads = [made.acting.body.out.weight.grad for made in (whole, part)]  # type: ignore[union-attr]
        assert torch.equal(grads[1], weight * grads[0])  # type: ignore[arg-type, operator]

    def test_the_bootstrapped_value_is_of_the_batchs_own_next_observation(self) -> None:
        on = batch([[3.0, 7.0]] * 2, [0, 0], [0.0, 0.0], [1.0, 1.0], [[2.0, 0.0], [0.0, 3.0]])
        # (2, 0): online (2, 0) → action 0, worth 20. (0, 3): online (0, 6) → action 1, worth 12.
        td_error = loss_of(dqn(double=True), on).td_error

        assert (td_error + 3.0).tolist() == [20.0, 12.0]  # type: ignore[operator]


def target_weight(made: Dqn) -> list[list[float]]:
    return made.networks["target"].body.out.weight.tolist()  # type: ignore[union-attr, operator, return-value]


class TestSettling:
    def test_the_target_follows_at_every_multiple_of_its_period_and_not_between(self) -> None:
        made = dqn(target_period=3)
        followed = []
        for step in range(1, 8):
            linear(made.networks["online"], [[float(step), 0.0], [0.0, 0.0]])
            made.update_targets(step)
            followed.append(target_weight(made)[0][0])

        assert followed == [10.0, 10.0, 3.0, 3.0, 3.0, 6.0, 6.0]

    def test_polyak_moves_the_target_a_share_of_the_way_at_every_step(self) -> None:
        made = dqn(target_tau=0.25, target_period=1)

        made.update_targets(1)
        assert target_weight(made) == [[7.75, 0.0], [0.0, 3.5]]  # 10 + (1 - 10) / 4
        made.update_targets(2)
        assert target_weight(made) == [[6.0625, 0.0], [0.0, 3.125]]

    def test_before_the_first_step_the_target_is_a_copy_either_way(self) -> None:
        for config in ({"target_tau": 0.25}, {"target_period": 100}):
            made = dqn(**config)
            made.update_targets(0)

            assert target_weight(made) == ONLINE

    def test_polyak_steps_leave_no_graph_behind(self) -> None:
        made = dqn(target_tau=0.1)
        for step in range(1, 4):
            made.update_targets(step)

        target = list(made.networks["target"].parameters())
        assert all(p.grad_fn is None and not p.requires_grad for p in target)

    def test_the_two_networks_begin_equal_and_share_no_weight(self) -> None:
        made = Dqn(DqnConfig(), NetConfig(hidden=(4,)), EnvConfig(), TWO)
        online, target = made.networks["online"], made.networks["target"]

        for ours, theirs in zip(online.parameters(), target.parameters(), strict=True):
            assert torch.equal(ours, theirs)
            assert ours.data_ptr() != theirs.data_ptr()
        assert {id(p) for p in made.groups()["q"]} == {id(p) for p in online.parameters()}


@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize("activation", [Activation.RELU, Activation.TANH])  # compiled, and torch
class TestValues:
    OBS = np.random.default_rng(0).normal(size=(50, 2)).astype(np.float32)

    @staticmethod
    def made(activation: Activation, dueling: bool) -> Dqn:
        net = NetConfig(hidden=(8,), activation=activation)
        return Dqn(DqnConfig(dueling=dueling), net, EnvConfig(), flat_spec(2, 4))

    def test_they_are_what_the_network_says_of_the_action_and_of_the_best(
        self, activation: Activation, dueling: bool
    ) -> None:
        algorithm = self.made(activation, dueling)

        acted = algorithm.act(self.OBS, np.random.default_rng(1), epsilon=0.5, values=True)

        with torch.no_grad():
            q = algorithm.acting(torch.from_numpy(self.OBS)).numpy()
        assert acted.taken is not None
        assert acted.best is not None
        np.testing.assert_allclose(acted.taken, q[np.arange(50), acted.action], atol=1e-6)
        np.testing.assert_allclose(acted.best, q.max(1), atol=1e-6)
        assert (acted.taken.dtype, acted.best.dtype) == (np.float32, np.float32)
        assert (acted.taken < acted.best).any()  # some were random
        assert (acted.taken == acted.best).any()

    def test_asking_for_them_changes_no_action(self, activation: Activation, dueling: bool) -> None:
        algorithm = self.made(activation, dueling)

        plain, valued = (
            algorithm.act(self.OBS, np.random.default_rng(1), epsilon=0.5, values=asked)
            for asked in (False, True)
        )

        assert plain.action.tolist() == valued.action.tolist()
        assert (plain.taken, plain.best) == (None, None)


class TestNormalising:
    def test_both_networks_see_the_same_statistics_at_once(self) -> None:
        made = Dqn(DqnConfig(), NetConfig(hidden=(4,)), EnvConfig(normalize_obs=True), TWO)
        seen = np.random.default_rng(0).normal(3.0, 2.0, size=(500, 2)).astype(np.float32)
        env, learner = EnvConfig(normalize_obs=True), LearnerConfig()
        Learner(made, learner, env, torch.device("cpu")).observe({"": seen}, np.zeros(500))

        for net in (made.networks["online"], made.networks["target"]):
            (norm,) = (m for m in net.modules() if isinstance(m, Normalize))
            np.testing.assert_allclose(norm.mean.numpy(), seen.mean(0), rtol=1e-5)
            np.testing.assert_allclose(norm.variance.numpy(), seen.var(0), rtol=1e-4)
        obs = torch.from_numpy(seen[:5])
        with torch.no_grad():
            assert torch.equal(made.networks["online"](obs), made.networks["target"](obs))

    def test_statistics_are_not_trained(self) -> None:
        made = Dqn(DqnConfig(), NetConfig(hidden=(4,)), EnvConfig(normalize_obs=True), TWO)

        assert sum(p.numel() for p in made.groups()["q"]) == (2 * 4 + 4) + (4 * 2 + 2)


def test_continuous_actions_are_refused_with_what_to_do() -> None:
    with pytest.raises(ConfigError) as caught:
        Dqn(DqnConfig(), NetConfig(), EnvConfig(), MIXED)

    message = str(caught.value)
    assert "mixed has continuous ones" in message
    assert "use sac or ppo, or choose an environment that has them" in message
