"""Replay on a device: when windows can be drawn, with which weights, and what they bring back."""

import math

import pytest
import torch
from torch import Tensor

from rookery.errors import ConfigError, EmptyReplayError
from rookery.replay.tape import LEAST, Column, Picks, Tape

WORLDS, STRIDE, SPAN = 3, 2, 5
CPU = torch.device("cpu")


def made(rows: int = 12, *, alpha: float = 1.0) -> Tape:
    return Tape(
        {"number": Column((), torch.int64), "view": Column((2, 2), torch.uint8)},
        {"memory": Column((4,), torch.float32)},
        worlds=WORLDS,
        rows=rows,
        stride=STRIDE,
        span=SPAN,
        alpha=alpha,
        device=CPU,
    )


def written(tape: Tape, rows: int, priority: float = 1.0) -> Tape:
    """Writes rows that say their number, and which world they are of; as one who plays does."""
    for _ in range(rows):
        number = 10 * tape.written + torch.arange(WORLDS)
        if tape.at_mark:
            tape.mark({"memory": number[:, None].expand(-1, 4)})
        mark = tape.write({"number": number, "view": number[:, None, None].expand(-1, 2, 2) % 251})
        if mark is not None:
            tape.admit(mark, torch.full((WORLDS,), priority))
    return tape


def drawn(tape: Tape, batch: int, *, beta: float = 1.0) -> Picks:
    return tape.draw(batch, beta=beta, rng=torch.Generator().manual_seed(0))


def starts(tape: Tape) -> set[int]:
    """Returns the numbers of the rows that drawable windows begin with."""
    marks = tape.priority.nonzero()[:, 0].unique()
    return {int(tape.window(int(mark))["number"][0, 0]) // 10 for mark in marks}


def test_a_window_can_be_drawn_once_its_last_row_is_there() -> None:
    tape = written(made(), SPAN - 1)
    assert (tape.complete, starts(tape)) == (0, set())

    written(tape, 1)

    assert (tape.complete, starts(tape)) == (1, {0})


def test_a_window_is_gone_when_its_first_row_is_overwritten() -> None:
    tape = written(made(rows=12), 12)
    assert starts(tape) == {0, 2, 4, 6}

    written(tape, 1)

    assert starts(tape) == {2, 4, 6, 8}


def test_a_mark_alone_takes_its_old_window_away() -> None:
    tape = written(made(rows=12), 12)

    tape.mark({"memory": torch.zeros(WORLDS, 4)})

    assert starts(tape) == {2, 4, 6}


def test_windows_bring_their_rows_and_memories_across_the_tapes_end() -> None:
    tape = written(made(rows=12), 12 + 5)
    picks = Picks(torch.tensor([5, 4]), torch.tensor([2, 0]), torch.ones(2))

    rows, kept = tape.rows(picks), tape.remembered(picks)

    assert rows["number"].T.tolist() == [[102, 112, 122, 132, 142], [80, 90, 100, 110, 120]]
    assert rows["view"].shape == (SPAN, 2, 2, 2)
    assert torch.equal(rows["view"].long(), rows["number"][..., None, None].expand(-1, -1, 2, 2))
    assert kept["memory"].tolist() == [[102.0] * 4, [80.0] * 4]


def test_a_marks_window_is_that_of_all_worlds() -> None:
    tape = written(made(), 12)

    window = tape.window(3)["number"]

    assert window.tolist() == [[10 * row + world for world in range(3)] for row in range(6, 11)]


def test_rows_are_rounded_up_to_whole_strides() -> None:
    assert [made(rows).capacity for rows in (7, 8, 9)] == [8, 8, 10]


def test_too_few_rows_for_a_window_are_refused() -> None:
    made(SPAN + STRIDE)

    with pytest.raises(ConfigError, match=r"of 6 steps holds no window of 5 .* keep at least 7"):
        made(SPAN + STRIDE - 1)


def test_nothing_is_drawn_before_a_window_is_complete() -> None:
    tape = written(made(), SPAN - 1)

    with pytest.raises(EmptyReplayError, match=r"3 windows of 5 .* holds 4 steps; play more"):
        drawn(tape, 3)


def test_one_window_is_always_left_in_the_smallest_tape() -> None:
    tape = written(made(SPAN + STRIDE), SPAN)

    for _ in range(20):
        written(tape, 1)
        assert tape.complete >= 1
        assert starts(tape)


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_new_priorities_count_by_their_power(alpha: float) -> None:
    tape = written(made(alpha=alpha), SPAN)
    picks = Picks(torch.tensor([0, 0]), torch.tensor([2, 0]), torch.ones(2))

    tape.rerank(picks, torch.tensor([4.0, 9.0]))

    expected = torch.tensor([9.0, 1.0, 4.0]) ** alpha
    torch.testing.assert_close(tape.priority[0], expected)


@pytest.mark.parametrize("given", [0.0, -1.0, LEAST / 2, float("nan")])
def test_no_priority_makes_a_window_undrawable_nor_all_unknown(given: float) -> None:
    tape = written(made(alpha=0.5), SPAN)

    tape.rerank(Picks(torch.tensor([0]), torch.tensor([1]), torch.ones(1)), torch.tensor([given]))

    assert tape.priority[0, 1] == pytest.approx(LEAST**0.5)
    assert set(drawn(tape, 30).world.tolist()) == {0, 2}


def test_an_infinite_priority_still_leaves_finite_weights() -> None:
    tape = written(made(alpha=0.5), SPAN)
    tape.admit(0, torch.tensor([float("inf"), 1.0, 1.0]))

    assert drawn(tape, 8).weight.isfinite().all()


def test_each_equal_part_of_all_priorities_gives_one_window() -> None:
    """Priorities 1, 2, 1: of four draws the first is world 0, the last world 2, always."""
    tape = written(made(), SPAN)
    tape.admit(0, torch.tensor([1.0, 2.0, 1.0]))

    for seed in range(20):
        picks = tape.draw(4, beta=0.0, rng=torch.Generator().manual_seed(seed))
        assert picks.world.tolist() == [0, 1, 1, 2]


@pytest.mark.parametrize("beta", [0.0, 0.4, 1.0])
def test_weights_undo_priorities_and_the_largest_is_one(beta: float) -> None:
    tape = written(made(), SPAN)
    tape.admit(0, torch.tensor([1.0, 2.0, 4.0]))

    picks = drawn(tape, 7, beta=beta)

    expected = torch.tensor([1.0, 2.0, 4.0])[picks.world] ** -beta
    torch.testing.assert_close(picks.weight, expected)
    assert picks.weight.max() == 1.0


@pytest.mark.parametrize("luck", [0.0, math.nextafter(1.0, 0.0)])
def test_no_luck_leads_to_a_window_that_cannot_be_drawn(
    luck: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither to those before the first that can be, nor by rounding beyond the last."""
    tape = written(made(rows=12), 13 + SPAN)  # the tape went around: marks 1 and 2 are drawn anew
    tape.priority[0, 0] = tape.priority[-1, -1] = 0.0
    monkeypatch.setattr(torch, "rand", lambda *_, **k: torch.full((3,), luck, dtype=k["dtype"]))

    picks = drawn(tape, 3)

    assert (tape.priority[picks.mark, picks.world] > 0).all()


def test_weights_are_relative_to_what_was_drawn() -> None:
    tape = written(made(), SPAN)
    tape.admit(0, torch.tensor([LEAST, 2.0, 4.0]))

    picks = drawn(tape, 3)

    assert 0 not in picks.world
    torch.testing.assert_close(picks.weight.max(), torch.tensor(1.0))


def test_its_bytes_are_those_of_all_it_keeps() -> None:
    tape = made(rows=12)

    kept: list[Tensor] = [*tape.columns.values(), *tape.marks.values(), tape.priority]
    assert tape.nbytes == sum(part.untyped_storage().nbytes() for part in kept)
    assert tape.nbytes == 12 * 3 * (8 + 4) + 6 * 3 * (16 + 4)
