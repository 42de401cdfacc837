"""Captured gradient steps equal eager ones. Without a GPU the same function is called directly."""

import numpy as np
import pytest
import torch

from learner_batches import CASES, Case, algorithm_for, config_for, host_batch
from rookery.config.schema import Capture, Optimizer
from rookery.errors import ConfigError, LostError
from rookery.learner.captured_learner import (
    BUFFERS,
    LOOK_PERIOD,
    CapturedLearner,
    StagedBatch,
)
from rookery.learner.learner import Learner
from rookery.training.build import _captures

CPU = torch.device("cpu")
STEPS = 9  # several copies of the target network, several updates of a delayed policy


def learner(kind: type[Learner], case: Case, *settings: str) -> Learner:
    config = config_for(case, *settings)
    return kind(algorithm_for(case, *settings), config.learner, config.env, CPU, seed=1)


def assert_equal_weights(one: Learner, other: Learner) -> None:
    for a, b in zip(
        one.algorithm.networks.parameters(), other.algorithm.networks.parameters(), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_captured_steps_of_every_algorithm_are_those_of_the_eager_learner(name: str) -> None:
    case = CASES[name]
    eager, captured = (learner(kind, case) for kind in (Learner, CapturedLearner))
    captured.prioritized = True  # type: ignore[attr-defined]

    for seed in range(STEPS):
        expected, got = (made.learn(host_batch(case, seed)) for made in (eager, captured))
        assert expected.metrics.keys() == got.metrics.keys()
        np.testing.assert_allclose(got.td_error, expected.td_error, rtol=1e-4, atol=1e-5)

    assert_equal_weights(captured, eager)
    assert captured.learner_steps == STEPS


@pytest.mark.parametrize("optimizer", Optimizer)
@pytest.mark.parametrize("limit", ["null", "0.01"])
def test_every_optimizer_steps_as_in_the_eager_learner(optimizer: str, limit: str) -> None:
    settings = (f"learner.optimizer={optimizer}", f"learner.max_grad_norm={limit}")
    case = CASES["SAC"]
    eager, captured = (learner(kind, case, *settings) for kind in (Learner, CapturedLearner))

    for seed in range(4):
        for made in (eager, captured):
            made.learn(host_batch(case, seed))

    assert_equal_weights(captured, eager)


@pytest.mark.parametrize("name", ["SAC", "dqn"])
def test_a_step_that_is_not_finite_changes_no_parameters_and_is_counted(name: str) -> None:
    case = CASES[name]
    made = learner(CapturedLearner, case)
    made.learn(host_batch(case, 0))
    before = [p.detach().clone() for p in made.algorithm.acting.parameters()]

    result = made.learn(host_batch(case, 1, reward=np.full(32, np.nan, np.float32)))

    after = list(made.algorithm.acting.parameters())
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert result.td_error is None
    made.read_skipped()
    assert made.skipped == 1


def test_a_later_loss_that_is_not_finite_undoes_the_steps_on_earlier_ones() -> None:
    case = CASES["SAC"]
    eager, captured = (learner(kind, case) for kind in (Learner, CapturedLearner))
    for made in (eager, captured):
        made.learn(host_batch(case, 0))
        for parameter in made.algorithm.temperature.parameters():  # type: ignore[attr-defined]
            parameter.data.fill_(torch.nan)  # critic, actor and temperature losses all depend on it
        made.learn(host_batch(case, 1))

    for name in ("critic", "policy"):
        ours, theirs = (
            [p for key, p in made.algorithm.acting.named_parameters() if key.startswith(name)]
            for made in (captured, eager)
        )
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_too_many_bad_steps_between_two_looks_end_the_run() -> None:
    case = CASES["dqn"]
    made = learner(CapturedLearner, case, "learner.max_bad_steps=2")
    for _ in range(2):
        made.learn(host_batch(case, 0, reward=np.full(32, np.inf, np.float32)))

    with pytest.raises(LostError, match="2 learner steps in a row"):
        made.read_skipped()


def test_bad_steps_that_are_not_in_a_row_do_not_end_the_run() -> None:
    case = CASES["dqn"]
    made = learner(CapturedLearner, case, "learner.max_bad_steps=2")
    for reward in (np.inf, 1.0, np.inf):
        made.learn(host_batch(case, 0, reward=np.full(32, reward, np.float32)))

    made.read_skipped()

    assert made.skipped == 2


def test_the_counts_are_read_every_hundred_steps_and_for_a_checkpoint() -> None:
    case = CASES["dqn"]
    made = learner(CapturedLearner, case)
    made.learn(host_batch(case, 0, reward=np.full(32, np.inf, np.float32)))

    made.count_skipped()
    assert made.skipped == 0
    assert made.state()[0]["skipped"] == 1

    for _ in range(LOOK_PERIOD):
        made.learn(host_batch(case, 0))
    made.learn(host_batch(case, 0, reward=np.full(32, np.inf, np.float32)))
    made.count_skipped()
    assert made.skipped == 2


def test_metrics_of_a_step_are_not_those_of_the_next() -> None:
    case = CASES["SAC"]
    made = learner(CapturedLearner, case)

    first = made.learn(host_batch(case, 0)).metrics
    before = {name: float(value) for name, value in first.items()}
    made.learn(host_batch(case, 1))

    assert {name: float(value) for name, value in first.items()} == before


@pytest.mark.parametrize("kwargs", ["{}", "{fused: false}"])
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_a_first_step_that_is_not_finite_is_skipped_whatever_the_optimizer(
    optimizer: str, kwargs: str
) -> None:
    case = CASES["dqn"]
    settings = (f"learner.optimizer={optimizer}", f"learner.optimizer_kwargs={kwargs}")
    eager, captured = (learner(kind, case, *settings) for kind in (Learner, CapturedLearner))

    for made in (eager, captured):
        made.learn(host_batch(case, 0, reward=np.full(32, np.nan, np.float32)))
        made.learn(host_batch(case, 1))

    assert_equal_weights(captured, eager)


def test_a_learner_that_has_learned_continues_from_another_state() -> None:
    case = CASES["SAC"]
    eager, captured = (learner(kind, case) for kind in (Learner, CapturedLearner))
    eager.learn(host_batch(case, 0))
    for seed in (5, 6):
        captured.learn(host_batch(case, seed))
    captured.restore(*eager.state())

    for made in (eager, captured):
        made.learn(host_batch(case, 1))

    assert_equal_weights(captured, eager)


def test_a_captured_learner_continues_from_the_state_of_an_eager_one() -> None:
    case = CASES["TD3"]
    eager, captured = (learner(kind, case) for kind in (Learner, CapturedLearner))
    eager.learn(host_batch(case, 0))
    captured.restore(*eager.state())

    for made in (eager, captured):
        made.learn(host_batch(case, 1))

    assert_equal_weights(captured, eager)
    assert captured.learner_steps == 2


def test_a_staged_batch_holds_what_was_loaded_last() -> None:
    batches = [host_batch(CASES["SAC"], seed) for seed in range(BUFFERS + 2)]
    staged = StagedBatch(batches[0], CPU)
    for batch in batches:
        staged.load(batch)
        for name in ("obs", "action", "reward", "discount", "next_obs", "weight"):
            assert torch.equal(getattr(staged.batch, name), torch.from_numpy(getattr(batch, name)))


def test_a_staged_batch_keeps_the_entries_of_observations_and_extra_columns() -> None:
    obs = {"image": np.ones((4, 1, 3, 3), np.uint8), "vector": np.zeros((4, 2), np.float32)}
    batch = host_batch(CASES["dqn"], 0, 4, obs=obs, next_obs=None, extras={"a": np.arange(4)})
    staged = StagedBatch(batch, CPU)
    staged.load(batch)

    assert staged.batch.next_obs is None
    assert torch.equal(staged.batch.obs["image"], torch.from_numpy(obs["image"]))
    assert torch.equal(staged.batch.extras["a"], torch.arange(4))


class TestWhen:
    """Which learners capture their steps."""

    GPU = torch.device("cuda:0")

    def test_auto_captures_on_a_gpu_and_not_on_the_cpu(self) -> None:
        algorithm, config = algorithm_for(CASES["SAC"]), config_for(CASES["SAC"])
        assert _captures(config, algorithm, self.GPU)
        assert not _captures(config, algorithm, CPU)

    def test_off_never_captures(self) -> None:
        config = config_for(CASES["SAC"], "learner.capture=off")
        assert config.learner.capture is Capture.OFF
        assert not _captures(config, algorithm_for(CASES["SAC"]), self.GPU)

    def test_on_is_refused_where_nothing_can_be_captured(self) -> None:
        config = config_for(CASES["SAC"], "learner.capture=on")
        with pytest.raises(ConfigError, match=r"learner.capture is on, but sac on cpu"):
            _captures(config, algorithm_for(CASES["SAC"]), CPU)
