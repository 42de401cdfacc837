"""Recorded work: on the CPU nothing is recorded, and everything is done as it is written."""

import pytest
import torch
from torch import Tensor

from rookery.networks.cuda_graph import EARLY, CapturedFunction

CPU = torch.device("cpu")


def test_work_is_called_every_time_with_what_is_given() -> None:
    given: list[tuple[Tensor, ...]] = []

    def work(x: Tensor, y: Tensor) -> Tensor:
        given.append((x, y))
        return x + y

    capture = CapturedFunction(work, CPU)
    for k in range(EARLY + 3):
        x, y = torch.full((2,), float(k)), torch.ones(2)
        assert torch.equal(capture(x, y), x + 1)
        assert given[-1][0] is x
        assert given[-1][1] is y
    assert len(given) == EARLY + 3


def test_whatever_work_returns_comes_back() -> None:
    made = ({"a": torch.ones(1)}, [1, 2])

    assert CapturedFunction(lambda: made, CPU)() is made


def test_results_are_not_overwritten() -> None:
    capture = CapturedFunction(lambda x: x * 2, CPU)

    first = capture(torch.ones(3))
    capture(torch.zeros(3))

    assert torch.equal(first, torch.full((3,), 2.0))


def test_what_work_draws_is_what_its_generator_gives() -> None:
    rng, other = (torch.Generator().manual_seed(3) for _ in range(2))
    capture = CapturedFunction(lambda: torch.rand(2, generator=rng), CPU, [rng])

    for _ in range(EARLY + 3):
        assert torch.equal(capture(), torch.rand(2, generator=other))


def test_other_shapes_than_before_are_a_fault_wherever_it_runs() -> None:
    capture = CapturedFunction(torch.sum, CPU)
    capture(torch.ones(2))

    with pytest.raises(AssertionError, match=r"captured with .*2.* got .*3"):
        capture(torch.ones(3))
