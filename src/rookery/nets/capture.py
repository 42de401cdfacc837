"""Work on a device that is recorded once and repeated as a whole: a CUDA graph.

    step = Capture(work)            # work: tensors in, tensors out, always of the same shapes
    loss, error = step(x, y)        # the first few times as it is written, then in one launch

What comes out is overwritten by the next call. On other devices the work is just done.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

EARLY = 3  # calls before recording, in which libraries choose their kernels and take their memory

Work = Callable[..., Sequence[Tensor]]


class Capture:
    """Calls `work`, and after a few calls replays what it did. It must not look at any value."""

    def __init__(self, work: Work):
        self._work, self._calls = work, 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._given: tuple[Tensor, ...] = ()
        self._made: Sequence[Tensor] = ()

    def __call__(self, *given: Tensor) -> Sequence[Tensor]:
        if given[0].device.type != "cuda":
            return self._work(*given)
        self._calls += 1
        if self._calls <= EARLY:
            return self._aside(given)
        if self._graph is None:
            self._record(given)
        for mine, new in zip(self._given, given, strict=True):
            mine.copy_(new)
        assert self._graph is not None
        self._graph.replay()
        return self._made

    def _aside(self, given: Sequence[Tensor]) -> Sequence[Tensor]:
        """Works on a stream of its own, as recording will: memory is taken where it will be used."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            made = self._work(*given)
        torch.cuda.current_stream().wait_stream(stream)
        return made

    def _record(self, given: Sequence[Tensor]) -> None:
        self._given = tuple(tensor.clone() for tensor in given)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._made = self._work(*self._given)
