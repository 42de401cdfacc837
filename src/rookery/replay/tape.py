"""Replay on a device: rows of many worlds that step together, and windows of their steps.

    if tape.at_mark:
        tape.mark(memories)                  # [E, ...] each, as they are before the next row
    mark = tape.write(row)                   # [E, ...] each; every world has stepped once
    if mark is not None:
        tape.admit(mark, priority)           # [E] of windows that are complete now
    picks = tape.draw(64, beta=0.4, rng=rng) # which windows, with importance weights
    rows = tape.rows(picks)                  # name → [span, B, ...]
    tape.rerank(picks, priority)

A window begins at every `stride`-th row, where what the worlds remembered is kept too (`marks`).
It can be drawn once its last row is there, and until its first one is overwritten. Nothing here
waits for the device.
"""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from rookery.errors import ConfigError, EmptyReplayError

LEAST = 1e-6  # priority that keeps a window from never being drawn again


class Column(NamedTuple):
    """What a row has of one kind."""

    shape: tuple[int, ...]  # of one world
    dtype: torch.dtype


class Picks(NamedTuple):
    """Windows that were drawn."""

    mark: Tensor  # [B]
    world: Tensor  # [B]
    weight: Tensor  # [B] importance weights, the largest is 1


class Tape:
    """A ring in time on one device."""

    def __init__(
        self,
        columns: Mapping[str, Column],
        marks: Mapping[str, Column],
        *,
        worlds: int,
        rows: int,
        stride: int,
        span: int,
        alpha: float,
        device: torch.device,
    ):
        """`rows` are rounded up to whole strides; a window has `span` of them."""
        if rows < span + stride:
            raise ConfigError(
                f"replay of {rows} steps holds no window of {span} steps, one every {stride}; "
                f"keep at least {span + stride}"
            )
        self.stride, self.span, self.alpha, self.worlds = stride, span, alpha, worlds
        self.count = -(-rows // stride)  # marks
        self.capacity = self.count * stride
        self.columns = {
            name: torch.zeros(
                self.capacity, worlds, *column.shape, dtype=column.dtype, device=device
            )
            for name, column in columns.items()
        }
        self.marks = {
            name: torch.zeros(self.count, worlds, *column.shape, dtype=column.dtype, device=device)
            for name, column in marks.items()
        }
        self.priority = torch.zeros(self.count, worlds, device=device)  # 0: cannot be drawn
        self.written = 0  # rows, ever
        self._span = torch.arange(span, device=device)[:, None]

    @property
    def at_mark(self) -> bool:
        """Does a window begin with the next row?"""
        return self.written % self.stride == 0

    @property
    def complete(self) -> int:
        """Windows of each world that can be drawn."""
        ends = (self.written - self.span) // self.stride + 1  # those that ever were complete
        begins = -(-max(0, self.written - self.capacity) // self.stride)
        return max(0, ends - begins)

    @property
    def nbytes(self) -> int:
        tensors = [*self.columns.values(), *self.marks.values(), self.priority]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    def mark(self, memories: Mapping[str, Tensor]) -> None:
        """Keeps what is remembered before the next row; what began here before is gone."""
        slot = self.written // self.stride % self.count
        for name, memory in memories.items():
            self.marks[name][slot] = memory
        self.priority[slot] = 0.0

    def write(self, row: Mapping[str, Tensor]) -> int | None:
        """Appends a row; returns the mark of the window that it completes, if it does."""
        slot = self.written % self.capacity
        for name, value in row.items():
            self.columns[name][slot] = value
        self.written += 1
        first = self.written - self.span
        if first < 0 or first % self.stride:
            return None
        return first // self.stride % self.count

    def admit(self, mark: int, priority: Tensor) -> None:
        """Lets the windows [E] that begin at a mark be drawn."""
        self.priority[mark] = self._ranked(priority)

    def window(self, mark: int) -> dict[str, Tensor]:
        """Returns a window of every world: name → [span, E, ...]."""
        rows = (mark * self.stride + self._span.squeeze(1)) % self.capacity
        return {name: column[rows] for name, column in self.columns.items()}

    def draw(self, batch: int, *, beta: float, rng: torch.Generator) -> Picks:
        """Draws one window from each of `batch` equal parts of all priorities."""
        if not self.complete:
            raise EmptyReplayError(
                f"{batch} windows of {self.span} steps were asked of a replay that holds "
                f"{self.written} steps; play more of them first"
            )
        mass = self.priority.flatten().double().cumsum(0)
        luck = torch.rand(batch, device=mass.device, generator=rng, dtype=torch.float64)
        steps = torch.arange(batch, device=mass.device, dtype=torch.float64)
        pick = torch.searchsorted(mass, (steps + luck) / batch * mass[-1], right=True)
        last = torch.searchsorted(mass, mass[-1:])  # rounding may not lead beyond those drawable
        pick = torch.minimum(pick, last)
        chosen = self.priority.flatten()[pick].clamp(min=LEAST**self.alpha)
        weight = (chosen / chosen.min()) ** -beta
        return Picks(pick // self.worlds, pick % self.worlds, weight)

    def rows(self, picks: Picks) -> dict[str, Tensor]:
        """Returns the rows of windows: name → [span, B, ...]."""
        rows = (picks.mark * self.stride + self._span) % self.capacity  # [span, B]
        return {name: column[rows, picks.world] for name, column in self.columns.items()}

    def remembered(self, picks: Picks) -> dict[str, Tensor]:
        """Returns what was kept where windows begin: name → [B, ...]."""
        return {name: kept[picks.mark, picks.world] for name, kept in self.marks.items()}

    def rerank(self, picks: Picks, priority: Tensor) -> None:
        """Gives windows new priorities, [B]; nothing may be written since they were drawn."""
        self.priority[picks.mark, picks.world] = self._ranked(priority)

    def _ranked(self, priority: Tensor) -> Tensor:
        """Returns priorities as they are drawn by; one nan would make all of them unknown."""
        return priority.nan_to_num().clamp(min=LEAST) ** self.alpha
