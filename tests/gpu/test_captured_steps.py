"""Gradient steps from CUDA graphs are those of the eager learner, for every algorithm."""

import pytest
import torch

from learner_batches import CASES, algorithm_for, config_for, host_batch
from rookery.learner.captured_learner import CapturedLearner
from rookery.learner.learner import Learner
from rookery.networks.cuda_graph import EARLY

STEPS = 4 * EARLY + 4  # each phase is captured and replayed


def learners(name: str, gpu: torch.device, *settings: str) -> tuple[Learner, CapturedLearner]:
    config = config_for(CASES[name], *settings)
    eager, captured = (
        kind(algorithm_for(CASES[name], *settings), config.learner, config.env, gpu, seed=1)
        for kind in (Learner, CapturedLearner)
    )
    assert isinstance(captured, CapturedLearner)
    captured.prioritized = True
    return eager, captured


@pytest.mark.parametrize("name", CASES)
def test_captured_steps_are_those_of_the_eager_learner(name: str, gpu: torch.device) -> None:
    eager, captured = learners(name, gpu)
    start = _weights(eager).clone()

    for seed in range(STEPS):
        for made in (eager, captured):
            made.learn(host_batch(CASES[name], seed))

    moved = (_weights(eager) - start).norm()
    assert moved > 0
    assert (_weights(captured) - _weights(eager)).norm() < 1e-3 * moved


def test_a_captured_step_that_is_not_finite_changes_nothing(gpu: torch.device) -> None:
    case = CASES["SAC"]
    _, captured = learners("SAC", gpu)
    for seed in range(STEPS):
        captured.learn(host_batch(case, seed))
    before = {name: array.copy() for name, array in captured.weights().items()}
    bad = host_batch(case, 0)
    bad.reward[0] = float("nan")

    assert captured.learn(bad).td_error is None

    after = captured.weights()
    assert all((after[name] == before[name]).all() for name in before)
    captured.read_skipped()
    assert captured.skipped == 1


def test_a_run_continues_from_a_checkpoint_of_captured_steps(gpu: torch.device) -> None:
    case = CASES["TD3"]
    _, first = learners("TD3", gpu)
    _, second = learners("TD3", gpu)
    for seed in range(STEPS):
        first.learn(host_batch(case, seed))
    second.restore(*first.state())
    for seed in range(STEPS):
        for made in (first, second):
            made.learn(host_batch(case, seed))

    assert (_weights(first) - _weights(second)).norm() < 1e-4 * _weights(first).norm()


def test_weights_on_the_host_are_those_on_the_device(gpu: torch.device) -> None:
    _, captured = learners("SAC", gpu)
    captured.learn(host_batch(CASES["SAC"], 0))

    host = captured.weights()

    for name, tensor in captured.algorithm.acting.state_dict().items():
        assert (host[name] == tensor.cpu().numpy()).all()


def _weights(learner: Learner) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in learner.algorithm.networks.parameters()])
