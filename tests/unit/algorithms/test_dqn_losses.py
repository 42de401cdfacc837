"""What the parts of DQN minimise, against the papers' formulas worked out number by number.

Networks, targets and losses are computed a second time here, in loops over plain floats.
"""

from collections.abc import Iterator
from itertools import product
from math import cos, exp, log, pi
from typing import Any

import numpy as np
import pytest
import torch

from rookery.algorithms.algorithm import Loss
from rookery.algorithms.dqn import Dqn
from rookery.algorithms.return_distributions import VALUES
from rookery.config.algorithms import DqnConfig, Values
from rookery.config.schema import EnvConfig, NetConfig
from rookery.types import Batch
from scripted_roles import flat_spec

INPUTS, ACTIONS, ROWS, ATOMS, TAUS = 3, 4, 6, 5, 3
LOW, HIGH = -2.0, 3.0
Row = list[float]
Rows = list[Row]

SIZES: dict[str, Any] = {"atoms": ATOMS, "value_min": LOW, "value_max": HIGH, "quantiles": TAUS}
PARTS = [
    pytest.param({"values": values, "double": double, "dueling": dueling}, id=name)
    for values, double, dueling in product(Values, (True, False), (True, False))
    for name in [f"{values}{'-double' * double}{'-dueling' * dueling}"]
]
MUNCHAUSEN = [
    pytest.param({"values": values, "dueling": dueling, "munchausen": True}, id=name)
    for values, dueling in product((Values.MEAN, Values.IMPLICIT), (True, False))
    for name in [f"{values}-munchausen{'-dueling' * dueling}"]
]


def made(**config: Any) -> Dqn:
    """Returns an algorithm with two networks that have nothing to do with one another."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        settings = DqnConfig(**(SIZES | {"temperature": 0.5} | config))
        spec = flat_spec(INPUTS, ACTIONS)
        algorithm = Dqn(settings, NetConfig(hidden=(7,)), EnvConfig(), spec)
        with torch.no_grad():
            for parameter in algorithm.networks.parameters():
                parameter.normal_(0.0, 0.7)
    return algorithm


def some() -> Batch:
    """Rows that end and rows that go on, some of them beyond what atoms reach."""
    rng = np.random.default_rng(0)
    return Batch(
        obs=torch.from_numpy(rng.normal(size=(ROWS, INPUTS)).astype(np.float32)),
        action=torch.tensor([0, 1, 2, 3, 1, 0]),
        reward=torch.tensor([0.3, -1.0, 4.0, 0.0, 1.25, -5.0]),
        discount=torch.tensor([0.9, 0.0, 0.9, 1.0, 0.0, 0.81]),
        next_obs=torch.from_numpy(rng.normal(size=(ROWS, INPUTS)).astype(np.float32)),
        weight=torch.tensor([1.0, 0.5, 0.25, 1.0, 0.75, 0.1]),
        rows=np.arange(ROWS),
    )


class Fixed:
    """Draws what it was given: for the trained network, then for the target."""

    def __init__(self) -> None:
        rng = np.random.default_rng(1)
        self.said, self.wanted = rng.random((2, ROWS, TAUS)).astype(np.float32)
        self._next = iter((self.said, self.wanted))

    def __call__(self, batch: int, rng: torch.Generator) -> torch.Tensor:
        return torch.from_numpy(next(self._next))


class PlainLosses:
    """Everything once more, one row at a time."""

    def __init__(self, algorithm: Dqn, taus: Fixed):
        self.config, self.taus = algorithm.config, taus
        self.nets = {name: self._weights(net) for name, net in algorithm.networks.items()}
        width = (HIGH - LOW) / (ATOMS - 1)
        self.support = [LOW + k * width for k in range(ATOMS)]
        self.even = [(k + 0.5) / TAUS for k in range(TAUS)]

    @staticmethod
    def _weights(net: Any) -> dict[str, Any]:
        return {name: value.double().tolist() for name, value in net.state_dict().items()}

    def said(self, net: str, obs: Row, taus: Row | None = None) -> Rows:
        """Returns what a network says of every action: a list of numbers each."""
        outs = self._outs(self.nets[net], obs, taus or self.even)
        if not self.config.dueling:
            return outs
        value, advantages = outs[0], outs[1:]
        centre = [sum(a[k] for a in advantages) / ACTIONS for k in range(len(value))]
        return [[value[k] + a[k] - centre[k] for k in range(len(value))] for a in advantages]

    def _outs(self, w: dict[str, Any], obs: Row, taus: Row) -> Rows:
        if self.config.values is not Values.IMPLICIT:
            hidden = relu(linear(w, "body.hidden.0", obs))
            flat = linear(w, "body.out", hidden)
            size = {Values.CATEGORICAL: ATOMS, Values.QUANTILES: TAUS}.get(self.config.values, 1)
            return [flat[k : k + size] for k in range(0, len(flat), size)]
        seen = relu(linear(w, "body.body.out", obs))
        columns = []
        for tau in taus:
            share = relu(linear(w, "body.embed", [cos(pi * i * tau) for i in range(64)]))
            columns.append(linear(w, "body.out", [a * b for a, b in zip(seen, share, strict=True)]))
        return [list(row) for row in zip(*columns, strict=True)]

    def mean(self, said: Row) -> float:
        if self.config.values is Values.CATEGORICAL:
            return sum(p * z for p, z in zip(softmax(said), self.support, strict=True))
        return sum(said) / len(said)

    def wanted(self, reward: float, discount: float, action: int, b: int, on: Batch) -> Row:
        """Returns samples, quantiles or probabilities that should have been said."""
        obs, next_obs = on.obs[b].tolist(), on.next_obs[b].tolist()
        following = self.said("target", next_obs, self.taus.wanted[b].tolist())
        if self.config.munchausen:
            return self._munchausen(reward, discount, action, obs, next_obs, following)
        chooser = "online" if self.config.double else "target"
        means = [self.mean(said) for said in self.said(chooser, next_obs)]
        best = following[means.index(max(means))]
        if self.config.values is Values.CATEGORICAL:
            return self._projected(softmax(best), reward, discount)
        return [reward + discount * z for z in best]

    def _munchausen(
        self, reward: float, discount: float, action: int, obs: Row, next_obs: Row, following: Rows
    ) -> Row:
        t = self.config.temperature
        now = softmax([self.mean(said) / t for said in self.said("target", obs)])
        paid = reward + self.config.munchausen_scale * max(t * log(now[action]), -1.0)
        policy = softmax([self.mean(said) / t for said in self.said("target", next_obs)])
        values = []
        for k in range(len(following[0])):
            soft = sum(p * (z[k] - t * log(p)) for p, z in zip(policy, following, strict=True))
            values.append(paid + discount * soft)
        return values

    def _projected(self, probs: Row, reward: float, discount: float) -> Row:
        """Algorithm 1 of Bellemare et al. 2017, as a triangle around every atom."""
        width = self.support[1] - self.support[0]
        result = [0.0] * ATOMS
        for p, z in zip(probs, self.support, strict=True):
            moved = min(max(reward + discount * z, LOW), HIGH)
            for i, atom in enumerate(self.support):
                result[i] += p * max(0.0, 1.0 - abs(moved - atom) / width)
        return result

    def loss_and_error(self, said: Row, wanted: Row, taus: Row) -> tuple[float, float]:
        """Returns the loss and what ranks the row."""
        if self.config.values is Values.CATEGORICAL:
            pairs = zip(wanted, softmax(said), strict=True)
            divergence = sum(w * (log(w) - log(p)) for w, p in pairs if w > 0)
            return divergence, divergence
        error = sum(wanted) / len(wanted) - sum(said) / len(said)
        if self.config.values is Values.MEAN:
            return huber(error), error
        loss = 0.0
        for tau, quantile in zip(taus, said, strict=True):
            pulls = (abs(tau - (w < quantile)) * huber(w - quantile) for w in wanted)
            loss += sum(pulls) / len(wanted)
        return loss, error

    def row(self, b: int, on: Batch) -> tuple[float, float]:
        action = int(on.action[b])
        implicit = self.config.values is Values.IMPLICIT
        taus = self.taus.said[b].tolist() if implicit else self.even
        said = self.said("online", on.obs[b].tolist(), taus)[action]
        wanted = self.wanted(float(on.reward[b]), float(on.discount[b]), action, b, on)
        return self.loss_and_error(said, wanted, taus)


def linear(w: dict[str, Any], name: str, x: Row) -> Row:
    rows = zip(w[f"{name}.weight"], w[f"{name}.bias"], strict=True)
    return [sum(a * b for a, b in zip(row, x, strict=True)) + bias for row, bias in rows]


def relu(x: Row) -> Row:
    return [max(0.0, a) for a in x]


def softmax(x: Row) -> Row:
    powers = [exp(a - max(x)) for a in x]
    return [power / sum(powers) for power in powers]


def huber(error: float) -> float:
    return 0.5 * error**2 if abs(error) <= 1 else abs(error) - 0.5


def losses(algorithm: Dqn, on: Batch) -> Iterator[Loss]:
    return algorithm.losses(on, step=1, rng=torch.Generator())


@pytest.mark.parametrize("parts", PARTS + MUNCHAUSEN)
def test_loss_and_ranks_are_those_of_the_papers(parts: dict[str, Any]) -> None:
    algorithm, on, taus = made(**parts), some(), Fixed()
    inference_server = PlainLosses(algorithm, taus)
    expected = [inference_server.row(b, on) for b in range(ROWS)]
    if parts["values"] is Values.IMPLICIT:
        algorithm.values.sample_tau = taus  # type: ignore[method-assign]

    (loss,) = losses(algorithm, on)

    weighted = sum(w * row for w, (row, _) in zip(on.weight.tolist(), expected, strict=True)) / ROWS
    assert loss.value.item() == pytest.approx(weighted, rel=1e-4)
    assert loss.td_error is not None
    assert loss.td_error.tolist() == pytest.approx([error for _, error in expected], abs=1e-4)
    assert not loss.td_error.requires_grad


@pytest.mark.parametrize("parts", PARTS + MUNCHAUSEN)
def test_the_trained_network_alone_gets_a_gradient(parts: dict[str, Any]) -> None:
    algorithm = made(**parts)

    (loss,) = losses(algorithm, some())
    loss.value.backward()  # type: ignore[no-untyped-call]

    assert all(p.grad is not None for p in algorithm.networks["online"].parameters())
    assert all(p.grad is None for p in algorithm.networks["target"].parameters())


@pytest.mark.parametrize("values", Values)
def test_chosen_actions_alone_are_taught_without_dueling(values: Values) -> None:
    algorithm, on = made(values=values), some()
    on = on._replace(action=torch.full((ROWS,), 2))

    (loss,) = losses(algorithm, on)
    loss.value.backward()  # type: ignore[no-untyped-call]

    grad = algorithm.networks["online"].body.out.weight.grad  # type: ignore[union-attr]
    taught = grad.unflatten(0, (ACTIONS, -1)).abs().sum((1, 2))  # type: ignore[operator, union-attr]
    assert (taught > 0).tolist() == [False, False, True, False]


class TestProjection:
    KIND = VALUES[Values.CATEGORICAL](DqnConfig(**SIZES))

    def projected(self, reward: float, discount: float, logits: list[float]) -> Row:
        said, given = torch.tensor([logits]), (torch.tensor([reward]), torch.tensor([discount]))
        return self.KIND.bellman_backup(said, *given)[0].tolist()

    def test_no_probability_is_lost_or_made(self) -> None:
        rng = np.random.default_rng(0)
        for reward, discount in product((-9.0, -2.0, 0.1, 0.5, 3.0, 9.0), (0.0, 0.5, 1.0)):
            found = self.projected(reward, discount, rng.normal(size=ATOMS).tolist())

            assert sum(found) == pytest.approx(1.0, abs=1e-6)
            assert min(found) >= 0

    def test_what_lies_on_an_atom_stays_there(self) -> None:
        found = self.projected(0.0, 1.0, [0.0, 1.0, 2.0, 3.0, 4.0])

        assert found == pytest.approx(softmax([0.0, 1.0, 2.0, 3.0, 4.0]), abs=1e-6)

    def test_an_ended_episode_is_worth_its_reward(self) -> None:
        # The atoms are -2, -0.75, 0.5, 1.75, 3; and 1 lies two fifths of the way from 0.5.
        assert self.projected(1.0, 0.0, [0.0] * ATOMS) == pytest.approx([0, 0, 0.6, 0.4, 0])

    @pytest.mark.parametrize(("reward", "where"), [(-50.0, 0), (50.0, ATOMS - 1)])
    def test_what_lies_outside_is_the_outermost_atom(self, reward: float, where: int) -> None:
        found = self.projected(reward, 1.0, [0.0] * ATOMS)

        assert found[where] == pytest.approx(1.0)


def test_every_kind_of_values_has_its_row_in_the_table() -> None:
    assert set(VALUES) == set(Values)
