"""A learner whose steps are recorded: the same steps, and bad ones left out without a look."""

from typing import Any

import pytest
import torch

from rookery.config.schema import EnvConfig, LearnerConfig, Optimizer
from rookery.errors import LostError
from rookery.learner.captured_learner import CapturedLearner, rebuilt, tensors_of
from rookery.learner.learner import Learner
from rookery.pathfinding.team_dqn import TeamDQN
from rookery.schedule import Decay
from rookery.types import Batch
from small_team_actors import team, team_actor

CPU = torch.device("cpu")


class Plain(Learner):
    """Learns from tensors, as they are."""

    def _to_device(self, batch: Batch) -> Batch:
        return batch


def learner(kind: type[Learner], **config: Any) -> Learner:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        algorithm = team(2)
    made = kind(algorithm, LearnerConfig(**config), EnvConfig(), CPU)
    algorithm.update_targets(0)
    return made


@pytest.fixture(scope="module")
def batch() -> Batch:
    played = team_actor(2, algorithm=team(2))
    played.play(32, torch.full((played.count,), 0.5))
    return played.sample(4, beta=0.4)[0]


def weights(learner: Learner) -> torch.Tensor:
    assert isinstance(learner.algorithm, TeamDQN)
    return torch.cat([p.detach().flatten() for p in learner.algorithm.online.parameters()])


@pytest.mark.parametrize("optimizer", [Optimizer.ADAM, Optimizer.ADAMW, Optimizer.SGD])
@pytest.mark.parametrize("limit", [None, 1e-3])
def test_recorded_steps_are_those_of_the_plain_learner(
    batch: Batch, optimizer: Optimizer, limit: float | None
) -> None:
    plain, recorded = (
        learner(kind, optimizer=optimizer, max_grad_norm=limit) for kind in (Plain, CapturedLearner)
    )
    for _ in range(3):
        plain.learn(batch)
        recorded.learn(batch)

    torch.testing.assert_close(weights(recorded), weights(plain), rtol=1e-5, atol=1e-7)
    assert recorded.learner_steps == 3


def test_a_step_that_is_not_finite_leaves_everything_as_it_was(batch: Batch) -> None:
    recorded = learner(CapturedLearner)
    recorded.learn(batch)
    before = weights(recorded).clone()
    window = batch.obs._replace(reward=torch.full_like(batch.obs.reward, torch.nan))

    recorded.learn(batch._replace(obs=window))

    assert torch.equal(weights(recorded), before)
    assert isinstance(recorded, CapturedLearner)
    recorded.read_skipped()
    assert recorded.skipped == 1


def test_too_many_bad_steps_between_two_looks_end_the_run(batch: Batch) -> None:
    recorded = learner(CapturedLearner, max_bad_steps=2)
    assert isinstance(recorded, CapturedLearner)
    window = batch.obs._replace(reward=torch.full_like(batch.obs.reward, torch.nan))
    for _ in range(2):
        recorded.learn(batch._replace(obs=window))

    with pytest.raises(LostError, match=r"2 learner steps in a row .* lower learner.lr"):
        recorded.read_skipped()


def test_the_learning_rate_goes_down_in_place() -> None:
    recorded = learner(CapturedLearner, lr=1e-2, lr_end=0.0, lr_decay=Decay.LINEAR)
    (group,) = recorded.optimizers["q"].param_groups
    rate = group["lr"]

    recorded.advance(0.5)

    assert group["lr"] is rate
    assert rate.item() == pytest.approx(5e-3)


def test_a_recorded_learner_goes_on_from_its_state(batch: Batch) -> None:
    first, second = learner(CapturedLearner), learner(CapturedLearner)
    first.learn(batch)
    second.restore(*first.state())
    for one in (first, second):
        one.learn(batch)

    assert torch.equal(weights(first), weights(second))
    assert second.learner_steps == 2


def test_a_batch_is_taken_apart_and_put_together_again(batch: Batch) -> None:
    tensors = tensors_of(batch)
    again = rebuilt(batch, iter(tensors))

    assert len(tensors) > 10
    assert all(a is b for a, b in zip(tensors_of(again), tensors, strict=True))
    assert again.rows is batch.rows
