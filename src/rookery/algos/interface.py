"""What every algorithm is: networks, a way to act, and losses. No I/O, no engine, no replay.

    for loss in algorithm.losses(batch):     # the learner takes a gradient step after each
        ...
    algorithm.settle(learner_steps)          # target networks follow

Weights change in the learner and nowhere else: an algorithm computes losses and yields them. One
with several (critic, then actor) yields several, and each is computed after the step on the one
before it.
"""

from collections.abc import Iterator
from typing import NamedTuple, Protocol

import numpy as np
from torch import Tensor, nn

from rookery.types import Array, Batch, Floats, Obs, Rows


class Loss(NamedTuple):
    """A scalar to descend on, and what was learned on the way."""

    group: str  # whose optimizer steps
    value: Tensor  # []
    td_error: Tensor | None  # [B], from the loss that should rank rows
    metrics: dict[str, Tensor]


class Acted(NamedTuple):
    """What to do in E environments, and what the acting policy expects of it."""

    action: Array  # [E, *action] as stored
    taken: Floats | None = None  # [E] float32: the value of that action
    best: Floats | None = None  # [E] float32: of the best one, which is bootstrapped from

    def of(self, who: Rows) -> "Acted":
        """Returns the part of some of the environments."""
        if self.taken is None or self.best is None:
            return Acted(self.action[who])
        return Acted(self.action[who], self.taken[who], self.best[who])


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

    def act(
        self, obs: Obs, epsilon: float, rng: np.random.Generator, *, values: bool = False
    ) -> Acted:
        """Chooses for [E] observations; `epsilon` 0 is greedy.

        Values cost time, so they are given only where they are asked for, by algorithms that
        have them.
        """
