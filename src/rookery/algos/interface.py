"""What every algorithm is: networks, a way to act, and losses. No I/O, no engine, no replay.

    for loss in algorithm.losses(batch, step=step, rng=rng):    # a gradient step after each
        ...
    algorithm.settle(step)                                      # target networks follow

Weights change in the learner and nowhere else: an algorithm computes losses and yields them. One
with several (critic, then actor) yields several, and each is computed after the step on the one
before it.
"""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from rookery.config.algorithms import AlgoConfig
from rookery.config.schema import EnvConfig, NetConfig
from rookery.errors import ConfigError
from rookery.types import ActionSpec, Array, Batch, EnvSpec, Extra, Floats, Obs, Rows

NOTHING: Mapping[str, Array] = MappingProxyType({})


class Loss(NamedTuple):
    """A scalar to descend on, and what was learned on the way."""

    group: str  # whose optimizer steps
    value: Tensor  # []
    td_error: Tensor | None  # [B], from the loss that should rank rows
    metrics: dict[str, Tensor]
    amount: Tensor | None = None  # [] how many things it is a mean of, where not of the B rows


class Acted(NamedTuple):
    """What to do in E environments, and what the acting policy expects of it."""

    action: Array  # [E, *action] as stored
    taken: Floats | None = None  # [E] float32: the value of that action
    best: Floats | None = None  # [E] float32: of the best one, which is bootstrapped from
    extras: Mapping[str, Array] = NOTHING  # [E, ...] each: what the algorithm wants to find again
    memory: Floats | None = None  # [E, M] what it remembers from now on
    version: int | None = None  # of the weights, where somebody else's chose

    def of(self, who: Rows | slice) -> "Acted":
        """Returns the part of some of the environments."""
        return Acted(
            self.action[who],
            None if self.taken is None else self.taken[who],
            None if self.best is None else self.best[who],
            {name: extra[who] for name, extra in self.extras.items()},
            None if self.memory is None else self.memory[who],
            self.version,
        )


class Algorithm:
    """A learner's side and an actor's side of one method. Derive from it, and put it in the table.

    A class of your own is used by `algo: module:Class`. Its constructor gets its settings (of the
    class `Settings`, where it has one), the network's, the environment's and the spec.
    """

    networks: nn.ModuleDict  # everything that is saved
    acting: nn.Module  # the part of it that actors need
    spec: EnvSpec  # which `greedy` needs
    extras: tuple[Extra, ...] = ()  # what its actors write into their rows beside the action
    memory: int = 0  # numbers that its policy remembers of each environment
    together: bool = False  # one `act` may answer several actors: it draws with `chance` alone
    draws: bool = False  # its policy draws its actions: judged without noise, it would do worse

    def __init__(self, config: AlgoConfig, net: NetConfig, env: EnvConfig, spec: EnvSpec): ...

    def groups(self) -> dict[str, list[nn.Parameter]]:
        """Returns the parameters of each optimizer."""
        raise NotImplementedError

    def losses(self, batch: Batch, *, step: int, rng: torch.Generator) -> Iterator[Loss]:
        """Yields what to descend on in learner step `step`, counted from 1."""
        raise NotImplementedError

    def settle(self, step: int) -> None:
        """Updates what follows the trained networks: after each learner step, and at step 0."""

    def act(
        self,
        obs: Obs,
        rng: np.random.Generator,
        *,
        epsilon: float = 0.0,
        noise: bool = True,
        values: bool = False,
        memory: Floats | None = None,
    ) -> Acted:
        """Chooses for [E] observations: a share `epsilon` of actions at random.

        Without `noise` the policy does what it takes for the best. Values cost time, so they are
        given only where they are asked for, by algorithms that have them.
        """
        raise NotImplementedError

    def scores(self, obs: Any, memory: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Returns what `greedy` decides by, and the memory afterwards, for stored observations.

        [B, n] numbers, of which the largest is chosen; those of several choices lie side by side.
        Of continuous actions it is the action itself, [B, A]. In torch alone and without looking
        at values, so that it can be exported as a graph. Noisy layers are quiet in it.
        """
        raise ConfigError(
            f"{type(self).__name__} has no scores; an ONNX graph needs them; give your algorithm "
            "the method rookery.algos.Algorithm.scores, or export it as safetensors"
        )

    def greedy(self, obs: Any, memory: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Returns what `act` does without noise, in torch: [B, *action] as stored, and memory."""
        scores, memory = self.scores(obs, memory)
        return decided(scores, self.spec.action), memory


def decided(scores: Tensor, action: ActionSpec) -> Tensor:
    """Returns the [B, *action] actions, as stored, that scores speak for."""
    if action.discrete:
        return scores.argmax(1)
    if action.several:
        parts = torch.split(scores, list(action.sizes), 1)
        return torch.stack([part.argmax(1) for part in parts], 1)
    return scores.reshape(-1, *action.shape)


def require(fits: bool, name: str, needs: str, spec: EnvSpec, instead: str) -> None:
    """Refuses an environment whose actions an algorithm cannot choose."""
    if not fits:
        raise ConfigError(
            f"{name} needs {needs}, but {spec.name} has {_actions(spec)}; {instead}, or choose an "
            "environment that has them"
        )


def _actions(spec: EnvSpec) -> str:
    action: Any = spec.action
    if action.discrete:
        return f"{action.n} discrete ones"
    return "several discrete ones at once" if action.several else "continuous ones"
