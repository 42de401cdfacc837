"""Replay buffer of sequences on a GPU, for E parallel environments ("worlds") that step together.

    if ring.at_mark:                         # a sequence starts with the next row
        ring.mark(memories)                  # recurrent states before that row, [E, ...] each
    mark = ring.write(row)                   # one step of every environment, [E, ...] each
    if mark is not None:
        ring.admit(mark, priority)           # [E], for the sequences complete now
    picks = ring.sample(64, beta=0.4, rng=rng) # which sequences, with importance weights
    rows = ring.rows(picks)                  # name → [span, B, ...]
    ring.update_priorities(picks, priority)

A row is one step of all environments. A sequence ("window") has `span` rows, and one starts at
every `stride`-th row. The index of a sequence start is called its mark. The recurrent states before
the first row of a sequence are stored too (`marks`). A sequence can be sampled once its last row is
written and until its first row is overwritten. B is the batch size. No method waits for the device.
"""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from rookery.errors import ConfigError, EmptyReplayError

LEAST = 1e-6  # smallest priority of a sequence


class DeviceColumn(NamedTuple):
    """Shape and dtype of one field, such as the reward, of an env step in a `DeviceRing`."""

    shape: tuple[int, ...]  # of one world
    dtype: torch.dtype


class SampledWindows(NamedTuple):
    """The B sequences ("windows") of a sampled batch.

    Each is given by the index of its start (`mark`), its environment (`world`) and its importance
    weight.
    """

    mark: Tensor  # [B]
    world: Tensor  # [B]
    weight: Tensor  # [B] importance weights, the largest is 1


class DeviceRing:
    """Prioritized replay ring buffer on one device, of sequences of steps of many environments."""

    def __init__(
        self,
        columns: Mapping[str, DeviceColumn],
        marks: Mapping[str, DeviceColumn],
        *,
        worlds: int,
        rows: int,
        stride: int,
        span: int,
        alpha: float,
        device: torch.device,
    ):
        """Allocates `rows` steps of `worlds` parallel environments on a device.

        The number of steps is rounded up to a multiple of `stride`. `columns` are the fields of a
        step, `marks` the recurrent states that are stored at the start of each sequence. A sequence
        has `span` steps, and one starts every `stride` steps. Raises `ConfigError` if `rows` is
        less than `span + stride`.
        """
        if rows < span + stride:
            raise ConfigError(
                f"replay of {rows} steps holds no sequence of {span} steps, one every {stride}; "
                f"keep at least {span + stride}"
            )
        self.stride, self.span, self.alpha, self.worlds = stride, span, alpha, worlds
        self.count = -(-rows // stride)  # marks
        self.capacity = self.count * stride

        def zeros(fields: Mapping[str, DeviceColumn], rows: int) -> dict[str, Tensor]:
            return {
                name: torch.zeros(rows, worlds, *shape, dtype=dtype, device=device)
                for name, (shape, dtype) in fields.items()
            }

        self.columns, self.marks = zeros(columns, self.capacity), zeros(marks, self.count)
        self.priority = torch.zeros(self.count, worlds, device=device)  # 0: cannot be drawn
        self.written = 0  # rows, ever
        self._span = torch.arange(span, device=device)[:, None]

    @property
    def at_mark(self) -> bool:
        """True if a sequence starts with the next step that is written."""
        return self.written % self.stride == 0

    @property
    def complete(self) -> int:
        """Number of sequences of each environment that can be sampled now."""
        ends = (self.written - self.span) // self.stride + 1  # those that ever were complete
        begins = -(-max(0, self.written - self.capacity) // self.stride)
        return max(0, ends - begins)

    @property
    def nbytes(self) -> int:
        tensors = [*self.columns.values(), *self.marks.values(), self.priority]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    def mark(self, memories: Mapping[str, Tensor]) -> None:
        """Stores the recurrent states before the next step, where a new sequence starts.

        The oldest sequence, which is overwritten now, can no longer be sampled.
        """
        slot = self.written // self.stride % self.count
        for name, memory in memories.items():
            self.marks[name][slot] = memory
        self.priority[slot] = 0.0

    def write(self, row: Mapping[str, Tensor]) -> int | None:
        """Appends one step of all environments.

        Returns the start index of the sequences that this step completes, or None.
        """
        slot = self.written % self.capacity
        for name, value in row.items():
            self.columns[name][slot] = value
        self.written += 1
        first = self.written - self.span
        if first < 0 or first % self.stride:
            return None
        return first // self.stride % self.count

    def admit(self, mark: int, priority: Tensor) -> None:
        """Sets the initial priorities of the sequences with start index `mark`.

        There is one such sequence for each of the E environments; `priority` is [E].
        """
        self.priority[mark] = self._ranked(priority)

    def window(self, mark: int) -> dict[str, Tensor]:
        """Returns the sequences with start index `mark`: field name → [span, E, ...].

        There is one for each of the E environments; `span` is the length of a sequence.
        """
        rows = (mark * self.stride + self._span.squeeze(1)) % self.capacity
        return {name: column[rows] for name, column in self.columns.items()}

    def sample(self, batch: int, *, beta: float, rng: torch.Generator) -> SampledWindows:
        """Samples `batch` sequences by priority, one from each of `batch` equal strata.

        Raises `EmptyReplayError` if no sequence is complete yet.
        """
        if not self.complete:
            raise EmptyReplayError(
                f"{batch} sequences of {self.span} steps were requested of a replay that holds "
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
        return SampledWindows(pick // self.worlds, pick % self.worlds, weight)

    def rows(self, picks: SampledWindows) -> dict[str, Tensor]:
        """Returns the steps of B sampled sequences: field name → [span, B, ...].

        `span` is the length of a sequence.
        """
        rows = (picks.mark * self.stride + self._span) % self.capacity  # [span, B]
        return {name: column[rows, picks.world] for name, column in self.columns.items()}

    def remembered(self, picks: SampledWindows) -> dict[str, Tensor]:
        """Returns the recurrent states at the start of B sampled sequences: name → [B, ...]."""
        return {name: kept[picks.mark, picks.world] for name, kept in self.marks.items()}

    def update_priorities(self, picks: SampledWindows, priority: Tensor) -> None:
        """Sets the priorities of B sampled sequences to `priority` [B].

        No step may be written between `sample` and this call.
        """
        self.priority[picks.mark, picks.world] = self._ranked(priority)

    def _ranked(self, priority: Tensor) -> Tensor:
        """Returns priorities to the power of alpha.

        Before that, nan and priorities below `LEAST` are replaced by `LEAST`.
        """
        return priority.nan_to_num().clamp(min=LEAST) ** self.alpha
