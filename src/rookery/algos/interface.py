"""What every algorithm is: networks, a way to act, and losses. No I/O, no engine, no replay.

    for loss in algorithm.losses(batch):     # the learner takes a gradient step after each
        ...
    algorithm.settle(learner_steps)          # target networks follow

Weights change in the learner and nowhere else: an algorithm computes losses and yields them. One
with several (critic, then actor) yields several, and each is computed after the step on the one
before it.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np
from torch import Tensor, nn

from rookery.types import Array, Batch, Obs


class Loss(NamedTuple):
    """A scalar to descend on, and what was learned on the way."""

    group: str  # whose optimizer steps
    value: Tensor  # []
    td_error: Tensor | None  # [B], from the loss that should rank rows
    metrics: dict[str, Tensor]


class Algorithm(Protocol):
    """A learner's side and an actor's side of one method."""

    networks: nn.ModuleDict  # everything that is saved
    acting: nn.Module  # the part of it that actors need

    def groups(self) -> dict[str, list[nn.Parameter]]:
        """Returns the parameters of each optimizer."""

    def losses(self, batch: Batch) -> Iterator[Loss]: ...

    def settle(self, learner_steps: int) -> None:
        """Updates what follows the trained networks, after each learner step."""

    def observe(self, leaves: dict[str, Array]) -> None:
        """Updates running statistics of observations from rows just drained."""

    def act(self, obs: Obs, epsilon: float, rng: np.random.Generator) -> Any:
        """Returns stored actions for [E] observations; `epsilon` 0 is greedy."""
