"""Work on a device that is recorded once and repeated as a whole: a CUDA graph.

    step = Capture(work, device)    # work: tensors in, tensors out, always of the same shapes
    loss, error = step(x, y)        # the first few times as it is written, then in one launch

What comes out is overwritten by the next call. On other devices the work is just done.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

EARLY = 3  # calls before recording, in which libraries choose their kernels and take their memory

Work = Callable[..., Any]


class Capture:
    """Calls `work`, and after a few calls replays what it did. It must not look at any value.

    What `work` keeps for itself it must change in place. `generators` are those it draws from.
    """

    def __init__(
        self, work: Work, device: torch.device, generators: Sequence[torch.Generator] = ()
    ):
        self._work, self._generators, self._calls = work, generators, 0
        self._records = device.type == "cuda"
        self._graph: torch.cuda.CUDAGraph | None = None
        self._given: tuple[Tensor, ...] = ()
        self._made: Any = None
        self._shapes: list[torch.Size] | None = None

    def __call__(self, *given: Tensor) -> Any:
        shapes = [tensor.shape for tensor in given]
        assert self._shapes in (None, shapes), f"recorded with {self._shapes}, got {shapes}"
        self._shapes = shapes
        if not self._records:
            return self._work(*given)
        self._calls += 1
        if self._calls <= EARLY:
            return self._aside(given)
        if self._graph is None:
            self._graph = self._recorded(given)
        for mine, new in zip(self._given, given, strict=True):
            mine.copy_(new)
        self._graph.replay()
        return self._made

    def _aside(self, given: Sequence[Tensor]) -> Any:
        """Works on a stream of its own, as recording will: memory is taken where it is used."""
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            made = self._work(*given)
        torch.cuda.current_stream().wait_stream(stream)
        return made

    def _recorded(self, given: Sequence[Tensor]) -> torch.cuda.CUDAGraph:
        self._given = tuple(tensor.clone() for tensor in given)
        graph = torch.cuda.CUDAGraph()
        for generator in self._generators:
            graph.register_generator_state(generator)
        with torch.cuda.graph(graph):
            self._made = self._work(*self._given)
        return graph
