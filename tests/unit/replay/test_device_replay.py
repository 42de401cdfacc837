"""Replay on a device: when windows can be drawn, with which weights, and what they bring back."""

import math

import pytest
import torch
from torch import Tensor

from rookery.errors import ConfigError, EmptyReplayError
from rookery.replay.device_replay import LEAST, DeviceColumn, DeviceRing, SampledWindows

WORLDS, STRIDE, SPAN = 3, 2, 5
CPU = torch.device("cpu")


def made(rows: int = 12, *, alpha: float = 1.0) -> DeviceRing:
    return DeviceRing(
        {"number": DeviceColumn((), torch.int64), "view": DeviceColumn((2, 2), torch.uint8)},
        {"memory": DeviceColumn((4,), torch.float32)},
        worlds=WORLDS,
        rows=rows,
        stride=STRIDE,
        span=SPAN,
        alpha=alpha,
        device=CPU,
    )


def written(ring: DeviceRing, rows: int, priority: float = 1.0) -> DeviceRing:
    """Writes rows that say their number, and which world they are of; as one who plays does."""
    for _ in range(rows):
        number = 10 * ring.written + torch.arange(WORLDS)
        if ring.at_mark:
            ring.mark({"memory": number[:, None].expand(-1, 4)})
        mark = ring.write({"number": number, "view": number[:, None, None].expand(-1, 2, 2) % 251})
        if mark is not None:
            ring.admit(mark, torch.full((WORLDS,), priority))
    return ring


def drawn(ring: DeviceRing, batch: int, *, beta: float = 1.0) -> SampledWindows:
    return ring.sample(batch, beta=beta, rng=torch.Generator().manual_seed(0))


def starts(ring: DeviceRing) -> set[int]:
    """Returns the numbers of the rows that drawable windows begin with."""
    marks = ring.priority.nonzero()[:, 0].unique()
    return {int(ring.window(int(mark))["number"][0, 0]) // 10 for mark in marks}


def test_a_window_can_be_drawn_once_its_last_row_is_there() -> None:
    ring = written(made(), SPAN - 1)
    assert (ring.complete, starts(ring)) == (0, set())

    written(ring, 1)

    assert (ring.complete, starts(ring)) == (1, {0})


def test_a_window_is_gone_when_its_first_row_is_overwritten() -> None:
    ring = written(made(rows=12), 12)
    assert starts(ring) == {0, 2, 4, 6}

    written(ring, 1)

    assert starts(ring) == {2, 4, 6, 8}


def test_a_mark_alone_takes_its_old_window_away() -> None:
    ring = written(made(rows=12), 12)

    ring.mark({"memory": torch.zeros(WORLDS, 4)})

    assert starts(ring) == {2, 4, 6}


def test_windows_bring_their_rows_and_memories_across_the_tapes_end() -> None:
    ring = written(made(rows=12), 12 + 5)
    picks = SampledWindows(torch.tensor([5, 4]), torch.tensor([2, 0]), torch.ones(2))

    rows, kept = ring.rows(picks), ring.remembered(picks)

    assert rows["number"].T.tolist() == [[102, 112, 122, 132, 142], [80, 90, 100, 110, 120]]
    assert rows["view"].shape == (SPAN, 2, 2, 2)
    assert torch.equal(rows["view"].long(), rows["number"][..., None, None].expand(-1, -1, 2, 2))
    assert kept["memory"].tolist() == [[102.0] * 4, [80.0] * 4]


def test_a_marks_window_is_that_of_all_worlds() -> None:
    ring = written(made(), 12)

    window = ring.window(3)["number"]

    assert window.tolist() == [[10 * row + world for world in range(3)] for row in range(6, 11)]


def test_rows_are_rounded_up_to_whole_strides() -> None:
    assert [made(rows).capacity for rows in (7, 8, 9)] == [8, 8, 10]


def test_too_few_rows_for_a_window_are_refused() -> None:
    made(SPAN + STRIDE)

    with pytest.raises(ConfigError, match=r"of 6 steps holds no sequence of 5 .* keep at least 7"):
        made(SPAN + STRIDE - 1)


def test_nothing_is_drawn_before_a_window_is_complete() -> None:
    ring = written(made(), SPAN - 1)

    with pytest.raises(EmptyReplayError, match=r"3 sequences of 5 .* holds 4 steps; play more"):
        drawn(ring, 3)


def test_the_smallest_device_replay_always_holds_one_sequence() -> None:
    ring = written(made(SPAN + STRIDE), SPAN)

    for _ in range(20):
        written(ring, 1)
        assert ring.complete >= 1
        assert starts(ring)


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_new_priorities_count_by_their_power(alpha: float) -> None:
    ring = written(made(alpha=alpha), SPAN)
    picks = SampledWindows(torch.tensor([0, 0]), torch.tensor([2, 0]), torch.ones(2))

    ring.update_priorities(picks, torch.tensor([4.0, 9.0]))

    expected = torch.tensor([9.0, 1.0, 4.0]) ** alpha
    torch.testing.assert_close(ring.priority[0], expected)


@pytest.mark.parametrize("given", [0.0, -1.0, LEAST / 2, float("nan")])
def test_no_priority_makes_a_window_undrawable_nor_all_unknown(given: float) -> None:
    ring = written(made(alpha=0.5), SPAN)

    ring.update_priorities(
        SampledWindows(torch.tensor([0]), torch.tensor([1]), torch.ones(1)), torch.tensor([given])
    )

    assert ring.priority[0, 1] == pytest.approx(LEAST**0.5)
    assert set(drawn(ring, 30).world.tolist()) == {0, 2}


def test_an_infinite_priority_still_leaves_finite_weights() -> None:
    ring = written(made(alpha=0.5), SPAN)
    ring.admit(0, torch.tensor([float("inf"), 1.0, 1.0]))

    assert drawn(ring, 8).weight.isfinite().all()


def test_each_equal_part_of_all_priorities_gives_one_window() -> None:
    """Priorities 1, 2, 1: of four draws the first is world 0, the last world 2, always."""
    ring = written(made(), SPAN)
    ring.admit(0, torch.tensor([1.0, 2.0, 1.0]))

    for seed in range(20):
        picks = ring.sample(4, beta=0.0, rng=torch.Generator().manual_seed(seed))
        assert picks.world.tolist() == [0, 1, 1, 2]


@pytest.mark.parametrize("beta", [0.0, 0.4, 1.0])
def test_weights_undo_priorities_and_the_largest_is_one(beta: float) -> None:
    ring = written(made(), SPAN)
    ring.admit(0, torch.tensor([1.0, 2.0, 4.0]))

    picks = drawn(ring, 7, beta=beta)

    expected = torch.tensor([1.0, 2.0, 4.0])[picks.world] ** -beta
    torch.testing.assert_close(picks.weight, expected)
    assert picks.weight.max() == 1.0


@pytest.mark.parametrize("luck", [0.0, math.nextafter(1.0, 0.0)])
def test_no_luck_leads_to_a_window_that_cannot_be_drawn(
    luck: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither to those before the first that can be, nor by rounding beyond the last."""
    ring = written(made(rows=12), 13 + SPAN)  # the tape went around: marks 1 and 2 are drawn anew
    ring.priority[0, 0] = ring.priority[-1, -1] = 0.0
    monkeypatch.setattr(torch, "rand", lambda *_, **k: torch.full((3,), luck, dtype=k["dtype"]))

    picks = drawn(ring, 3)

    assert (ring.priority[picks.mark, picks.world] > 0).all()


def test_weights_are_relative_to_what_was_drawn() -> None:
    ring = written(made(), SPAN)
    ring.admit(0, torch.tensor([LEAST, 2.0, 4.0]))

    picks = drawn(ring, 3)

    assert 0 not in picks.world
    torch.testing.assert_close(picks.weight.max(), torch.tensor(1.0))


def test_its_bytes_are_those_of_all_it_keeps() -> None:
    ring = made(rows=12)

    kept: list[Tensor] = [*ring.columns.values(), *ring.marks.values(), ring.priority]
    assert ring.nbytes == sum(part.untyped_storage().nbytes() for part in kept)
    assert ring.nbytes == 12 * 3 * (8 + 4) + 6 * 3 * (16 + 4)
