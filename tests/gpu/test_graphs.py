"""Work that is recorded and repeated: what comes out is what the work as written makes."""

import torch
from torch import Tensor

from rookery.config.schema import EnvConfig, LearnerConfig
from rookery.learner.captured_learner import CapturedLearner
from rookery.learner.learner import Learner
from rookery.networks.cuda_graph import EARLY, CapturedFunction
from rookery.pathfinding.team_dqn import TeamDQN
from rookery.types import Batch
from small_team_actors import team, team_actor

CALLS = EARLY + 4  # some as written, some from the graph


def test_a_graph_makes_what_the_work_makes(gpu: torch.device) -> None:
    called = 0

    def work(x: Tensor, y: Tensor) -> Tensor:
        nonlocal called
        called += 1
        return x @ y

    capture = CapturedFunction(work, gpu)
    for k in range(CALLS):
        x, y = (torch.randn(4, 4, device=gpu) + k for _ in range(2))
        torch.testing.assert_close(capture(x, y), x @ y)
    assert called == EARLY + 1  # the rest were replays


def test_a_graph_draws_anew_each_time_and_what_its_generator_gives(gpu: torch.device) -> None:
    rng, other = (torch.Generator(gpu).manual_seed(3) for _ in range(2))
    capture = CapturedFunction(lambda: torch.rand(8, device=gpu, generator=rng), gpu, [rng])

    for _ in range(CALLS):
        assert torch.equal(capture(), torch.rand(8, device=gpu, generator=other))


def test_what_a_graph_changes_in_place_stays_changed(gpu: torch.device) -> None:
    total = torch.zeros((), device=gpu)
    add = CapturedFunction(lambda x: total.add_(x), gpu)

    for k in range(CALLS):
        add(torch.tensor(float(k), device=gpu))

    assert total.item() == sum(range(CALLS))


class Plain(Learner):
    """Learns from tensors, as they are."""

    def _to_device(self, batch: Batch) -> Batch:
        return batch


def test_recorded_learner_steps_are_those_of_the_plain_learner(gpu: torch.device) -> None:
    """In bfloat16 the same sums may be taken in another order: close, and far from the start."""
    batch = _batch(gpu)
    plain, recorded = (_learner(kind, gpu) for kind in (Plain, CapturedLearner))
    start = _weights(plain).clone()

    for _ in range(CALLS):
        plain.learn(batch)
        recorded.learn(batch)

    moved = (_weights(plain) - start).norm()
    assert moved > 0
    assert (_weights(recorded) - _weights(plain)).norm() < 0.02 * moved


def test_a_recorded_step_that_is_not_finite_is_left_out_and_counted(gpu: torch.device) -> None:
    batch, recorded = _batch(gpu), _learner(CapturedLearner, gpu)
    bad = batch._replace(obs=batch.obs._replace(reward=batch.obs.reward * torch.nan))
    for _ in range(CALLS):
        recorded.learn(batch)
    before = _weights(recorded).clone()

    recorded.learn(bad)

    assert torch.equal(_weights(recorded), before)
    assert isinstance(recorded, CapturedLearner)
    recorded.read_skipped()
    assert recorded.skipped == 1


def _learner(kind: type[Learner], gpu: torch.device) -> Learner:
    made = kind(team(2), LearnerConfig(lr=1e-3), EnvConfig(), gpu)
    made.algorithm.update_targets(0)
    return made


def _batch(gpu: torch.device) -> Batch:
    algorithm = team(2)
    algorithm.networks.to(gpu)
    played = team_actor(2, algorithm=algorithm, device=gpu)
    played.play(32, torch.full((played.count,), 0.5, device=gpu))
    return played.sample(4, beta=0.4)[0]


def _weights(learner: Learner) -> Tensor:
    assert isinstance(learner.algorithm, TeamDQN)
    return torch.cat([p.detach().flatten() for p in learner.algorithm.online.parameters()])
