"""GPU functions that are captured once as a CUDA graph and then replayed.

    step = CapturedFunction(function, device)   # tensors in, tensors out, always of the same shapes
    loss, error = step(x, y)                    # the first calls run eagerly, later ones replay

Each call overwrites the output tensors of the call before. On other devices than CUDA the function
is called directly.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

EARLY = 3  # calls before capturing, in which libraries choose kernels and allocate memory

Function = Callable[..., Any]


class CapturedFunction:
    """Calls `function`; after a few calls, captures it as a CUDA graph and replays that.

    The function must have no control flow that depends on tensor values, and must change its state
    in place. `generators` are the random generators that it samples from.
    """

    def __init__(
        self, function: Function, device: torch.device, generators: Sequence[torch.Generator] = ()
    ):
        self._function, self._generators, self._calls = function, generators, 0
        self._captures = device.type == "cuda"
        self._graph: torch.cuda.CUDAGraph | None = None
        self._inputs: tuple[Tensor, ...] = ()
        self._outputs: Any = None
        self._shapes: list[torch.Size] | None = None

    def __call__(self, *given: Tensor) -> Any:
        shapes = [tensor.shape for tensor in given]
        assert self._shapes in (None, shapes), f"captured with {self._shapes}, got {shapes}"
        self._shapes = shapes
        if not self._captures:
            return self._function(*given)
        self._calls += 1
        if self._calls <= EARLY:
            return self._on_side_stream(given)
        if self._graph is None:
            self._graph = self._capture(given)
        for mine, new in zip(self._inputs, given, strict=True):
            mine.copy_(new)
        self._graph.replay()
        return self._outputs

    def _on_side_stream(self, given: Sequence[Tensor]) -> Any:
        """Calls the function on a separate CUDA stream, as CUDA graphs require before capture."""
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            outputs = self._function(*given)
        torch.cuda.current_stream().wait_stream(stream)
        return outputs

    def _capture(self, given: Sequence[Tensor]) -> torch.cuda.CUDAGraph:
        self._inputs = tuple(tensor.clone() for tensor in given)
        graph = torch.cuda.CUDAGraph()
        for generator in self._generators:
            graph.register_generator_state(generator)
        with torch.cuda.graph(graph):
            self._outputs = self._function(*self._inputs)
        return graph
