"""Device replay, against the list of all rows that were ever written."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rookery.replay.device_replay import DeviceColumn, DeviceRing, SampledWindows

CPU = torch.device("cpu")


def made(*, worlds, rows, stride, span, alpha=1.0):
    columns = {"row": DeviceColumn((2,), torch.int64)}
    return DeviceRing(
        columns,
        {"memory": DeviceColumn((), torch.float32)},
        worlds=worlds,
        rows=rows,
        stride=stride,
        span=span,
        alpha=alpha,
        device=CPU,
    )


@st.composite
def shapes(draw):
    stride, span = draw(st.integers(1, 5)), draw(st.integers(1, 9))
    rows = stride + span + draw(st.integers(0, 12))
    return {"worlds": draw(st.integers(1, 3)), "rows": rows, "stride": stride, "span": span}


class Model:
    """Every row and memory, for good; windows by the definition."""

    def __init__(self, shape):
        self.stride, self.span = shape["stride"], shape["span"]
        self.capacity = -(-shape["rows"] // self.stride) * self.stride
        self.rows, self.memories = [], {}

    def windows(self):
        """Returns the first rows of windows whose rows all are there, and not overwritten."""
        there = range(max(0, len(self.rows) - self.capacity), len(self.rows))
        return [
            first
            for first in range(0, len(self.rows), self.stride)
            if first in there and first + self.span - 1 in there
        ]


def play(ring, model, rng):
    """Writes a row as the loop does, and the same into the model."""
    row = torch.from_numpy(rng.integers(1 << 40, size=(ring.worlds, 2)))
    if ring.at_mark:
        memory = torch.from_numpy(rng.random(ring.worlds).astype(np.float32))
        model.memories[len(model.rows)] = memory
        ring.mark({"memory": memory})
    mark = ring.write({"row": row})
    model.rows.append(row)
    if mark is not None:
        ring.admit(mark, torch.from_numpy(rng.random(ring.worlds) + 0.5))
    return mark


@given(shape=shapes(), count=st.integers(0, 60), seed=st.integers(0, 2**32 - 1))
def test_windows_can_be_drawn_exactly_while_all_their_rows_are_there(shape, count, seed):
    ring, model, rng = made(**shape), Model(shape), np.random.default_rng(seed)

    for _ in range(count):
        mark = play(ring, model, rng)
        windows = model.windows()
        assert ring.complete == len(windows)
        slots = {first // ring.stride % ring.count for first in windows}
        assert {int(slot) for slot in ring.priority.sum(1).nonzero()} == slots
        assert (ring.priority[sorted(slots)] > 0).all()
        newest = len(model.rows) - ring.span
        assert mark == (newest // ring.stride % ring.count if newest in windows else None)


@given(shape=shapes(), extra=st.integers(0, 40), seed=st.integers(0, 2**32 - 1))
def test_drawn_windows_are_rows_that_were_written_with_the_memory_before_them(shape, extra, seed):
    ring, model, rng = made(**shape), Model(shape), np.random.default_rng(seed)
    for _ in range(shape["span"] + extra):
        play(ring, model, rng)
    picks = ring.sample(16, beta=1.0, rng=torch.Generator().manual_seed(seed))
    first = {window // ring.stride % ring.count: window for window in model.windows()}

    rows, kept = ring.rows(picks)["row"], ring.remembered(picks)["memory"]
    for b, (mark, world) in enumerate(zip(*map(torch.Tensor.tolist, picks[:2]), strict=True)):
        expected = model.rows[first[mark] : first[mark] + ring.span]
        assert torch.equal(rows[:, b], torch.stack(expected)[:, world])
        assert torch.equal(rows[:, b], ring.window(mark)["row"][:, world])
        assert kept[b] == model.memories[first[mark]][world]


@settings(max_examples=30)
@given(alpha=st.sampled_from((0.0, 0.6, 1.0)), seed=st.integers(0, 2**32 - 1))
def test_windows_are_drawn_as_often_as_their_priority_to_the_power_alpha(alpha, seed):
    """Each of B equal parts gives one draw, and a window is in few of them in part: B * share of
    its draws is less than 2 away from their number, always. So there are no false alarms."""
    shape = {"worlds": 3, "rows": 12, "stride": 2, "span": 4}
    ring, model, rng = made(**shape, alpha=alpha), Model(shape), np.random.default_rng(seed)
    for _ in range(15):
        play(ring, model, rng)
    marks = torch.tensor([first // 2 % ring.count for first in model.windows()])
    mark, world = marks.repeat_interleave(3), torch.arange(3).repeat(len(marks))
    priority = torch.from_numpy((rng.random(len(mark)) ** 4 + 1e-3).astype(np.float32))

    ring.update_priorities(SampledWindows(mark, world, torch.ones(len(mark))), priority)
    picks = ring.sample(1000, beta=0.5, rng=torch.Generator().manual_seed(seed))

    share = priority.double() ** alpha
    share = share / share.sum()
    where = picks.mark * 3 + picks.world
    counts = torch.bincount(where, minlength=3 * ring.count)
    drawn = counts[mark * 3 + world]
    assert drawn.sum() == 1000
    assert ((drawn - 1000 * share).abs() < 2).all()
    likely = torch.zeros(3 * ring.count, dtype=torch.float64)
    likely[mark * 3 + world] = share
    weight = (likely[where] / likely[where].min()) ** -0.5
    torch.testing.assert_close(picks.weight.double(), weight, rtol=1e-4, atol=0)
    assert picks.weight.max() == 1.0
