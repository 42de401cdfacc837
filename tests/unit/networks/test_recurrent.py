"""The recurrent core: what it remembers, step by step and all at once."""

import copy
from collections.abc import Iterator

import pytest
import torch

from rookery.config.schema import NetConfig, Recurrent
from rookery.errors import ConfigError
from rookery.learner.learner import FlatParameters
from rookery.networks.recurrent import KINDS, RecurrentCore

KIND = pytest.mark.parametrize("kind", list(KINDS))


@pytest.fixture(autouse=True)
def _seeded() -> Iterator[None]:
    """Initial weights come from torch's global generator; the one outside stays as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def test_every_kind_of_memory_but_none_has_its_row() -> None:
    assert set(KINDS) == set(Recurrent) - {Recurrent.NONE}


@KIND
def test_a_sequence_gives_what_its_steps_give(kind: Recurrent) -> None:
    core, x = RecurrentCore(kind, 5, 7), drawn(3, 6, 5)
    memory = drawn(3, core.memory)

    y, after = core.unroll(x, memory)

    for t in range(6):
        said, memory = core.step(x[:, t], memory)
        torch.testing.assert_close(said, y[:, t], atol=1e-6, rtol=0)
    torch.testing.assert_close(memory, after, atol=1e-6, rtol=0)


@KIND
def test_gradients_of_a_sequence_are_those_of_its_steps(kind: Recurrent) -> None:
    core, x = RecurrentCore(kind, 5, 7), drawn(3, 6, 5)
    other, memory = copy.deepcopy(core), torch.zeros(3, core.memory)
    core.unroll(x, memory)[0].square().sum().backward()
    total = torch.zeros(())
    for t in range(6):
        y, memory = other.step(x[:, t], memory)
        total = total + y.square().sum()
    total.backward()

    for one, two in zip(core.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(one.grad, two.grad, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("kind", "memory"), [(Recurrent.LSTM, 14), (Recurrent.GRU, 7)])
def test_widths_are_those_of_outputs_and_of_states(kind: Recurrent, memory: int) -> None:
    core = RecurrentCore(kind, 5, 7)

    y, after = core.step(drawn(2, 5), torch.zeros(2, memory))

    assert (core.width, core.memory) == (7, memory)
    assert (y.shape, after.shape) == ((2, 7), (2, memory))


@KIND
def test_an_observation_of_long_ago_is_remembered(kind: Recurrent) -> None:
    core, x = RecurrentCore(kind, 5, 7), drawn(1, 6, 5)
    other = x.clone()
    other[:, 0] += 1.0
    zeros = torch.zeros(1, core.memory)

    assert not torch.equal(core.unroll(x, zeros)[0][:, -1], core.unroll(other, zeros)[0][:, -1])


@KIND
def test_environments_do_not_see_each_others_memory(kind: Recurrent) -> None:
    core, x, memory = (
        RecurrentCore(kind, 5, 7),
        drawn(3, 5),
        drawn(3, RecurrentCore(kind, 5, 7).memory),
    )
    fresh = memory.clone()
    fresh[1] = 0.0

    before, after = core.step(x, memory)[0], core.step(x, fresh)[0]

    assert torch.equal(before[[0, 2]], after[[0, 2]])
    assert not torch.equal(before[1], after[1])


@KIND
def test_an_optimizer_may_lay_the_weights_elsewhere(kind: Recurrent) -> None:
    core, x = RecurrentCore(kind, 5, 7), drawn(2, 3, 5)
    memory = torch.zeros(2, core.memory)
    before = core.unroll(x, memory)[0].detach()

    flat = FlatParameters(list(core.parameters()))

    assert torch.equal(core.unroll(x, memory)[0], before)
    with torch.no_grad():
        flat.data.zero_()
    assert not core.unroll(x, memory)[0].any()
    assert not core.step(x[:, 0], memory)[0].any()


def test_a_memory_of_no_width_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"net\.memory"):
        NetConfig(memory=0)
