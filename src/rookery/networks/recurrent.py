"""Recurrent layers: one step at a time for acting, whole sequences for learning."""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from rookery.config.schema import Recurrent

State: TypeAlias = tuple[Tensor, ...]  # [B, W] each: (h, c) or (h,)


class _Kind(NamedTuple):
    states: int  # number of state tensors of width W
    layer: Callable[..., Any]
    step: Callable[[Tensor, State, list[Tensor]], State]
    unroll: Callable[[Any, Tensor, State], tuple[Tensor, State]]


class RecurrentCore(nn.Module):
    """A recurrent layer: an LSTM (Hochreiter & Schmidhuber 1997) or a GRU (Cho et al. 2014).

    `width` is the number of outputs, `memory` the size of one environment's recurrent state (h and
    c for an LSTM). The states of E environments are one tensor [E, memory]; an episode starts with
    zeros.
    """

    def __init__(self, kind: Recurrent, inputs: int, width: int):
        super().__init__()
        self._kind = KINDS[kind]
        self.layer = self._kind.layer(inputs, width, batch_first=True)
        self.width, self.memory = width, self._kind.states * width

    def step(self, x: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Computes one step of E environments: returns outputs and the next recurrent state.

        `x` are the inputs [E, inputs], `memory` is the state before the step [E, memory]. Outputs
        are [E, width].
        """
        state = self._kind.step(x, self._split(memory), self.layer.all_weights[0])
        return state[0], torch.cat(state, 1)

    def unroll(self, x: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Computes B sequences of T steps: returns outputs and the last recurrent state.

        `x` are the inputs [B, T, inputs], `memory` is the state before the first step [B, memory].
        Outputs are [B, T, width].
        """
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


KINDS: dict[Recurrent, _Kind] = {  # Recurrent.NONE builds no core
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
