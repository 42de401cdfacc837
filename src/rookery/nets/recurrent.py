"""Layers with a memory: one step at a time while acting, whole sequences while learning."""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from rookery.config.schema import Recurrent

State: TypeAlias = tuple[Tensor, ...]  # [B, W] each: (h, c) or (h,)


class _Kind(NamedTuple):
    states: int  # tensors of width W that are remembered
    layer: Callable[..., Any]
    step: Callable[[Tensor, State, list[Tensor]], State]
    unroll: Callable[[Any, Tensor, State], tuple[Tensor, State]]


class Core(nn.Module):
    """An LSTM (Hochreiter & Schmidhuber 1997) or a GRU (Cho et al. 2014).

    `width` is the number of outputs, `memory` that of the numbers an environment's state takes;
    states travel as one array [E, memory]. Zeros are the memory at an episode's beginning.
    """

    def __init__(self, kind: Recurrent, inputs: int, width: int):
        super().__init__()
        self._kind = KINDS[kind]
        self.layer = self._kind.layer(inputs, width, batch_first=True)
        self.width, self.memory = width, self._kind.states * width

    def step(self, x: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Takes [E, F] and [E, M]; returns [E, W] and the memory afterwards, [E, M]."""
        state = self._kind.step(x, self._split(memory), self.layer.all_weights[0])
        return state[0], torch.cat(state, 1)

    def unroll(self, x: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Takes [B, T, F] and the memory before them, [B, M]; returns [B, T, W] and [B, M]."""
        state = tuple(part[None].contiguous() for part in self._split(memory))
        y, state = self._kind.unroll(self.layer, x, state)
        return y, torch.cat(state, 2)[0]

    def _split(self, memory: Tensor) -> State:
        return torch.split(memory, self.width, 1)


def _lstm_unroll(layer: nn.LSTM, x: Tensor, state: State) -> tuple[Tensor, State]:
    h, c = state
    return layer(x, (h, c))  # type: ignore[no-any-return]


def _gru_unroll(layer: nn.GRU, x: Tensor, state: State) -> tuple[Tensor, State]:
    y, h = layer(x, state[0])
    return y, (h,)


KINDS: dict[Recurrent, _Kind] = {  # none has no core, so it has no row
    Recurrent.LSTM: _Kind(
        states=2,
        layer=nn.LSTM,
        step=lambda x, state, weights: torch.lstm_cell(x, state, *weights),
        unroll=_lstm_unroll,
    ),
    Recurrent.GRU: _Kind(
        states=1,
        layer=nn.GRU,
        step=lambda x, state, weights: (torch.gru_cell(x, state[0], *weights),),
        unroll=_gru_unroll,
    ),
}
