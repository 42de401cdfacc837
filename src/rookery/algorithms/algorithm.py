"""The base class of RL algorithms: their networks, how they select actions, and their losses.

    for loss in algorithm.losses(batch, step=step, rng=rng):    # a gradient step after each
        ...
    algorithm.update_targets(step)

Only the learner process changes weights. An algorithm with several losses (critic, then actor)
yields them in order; the learner takes a gradient step on each loss before it asks for the next
one.
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
from rookery.types import ActionSpec, Array, EnvSpec, Extra, Floats, Obs, Rows, TensorBatch

NO_EXTRAS: Mapping[str, Array] = MappingProxyType({})


class Loss(NamedTuple):
    """A scalar loss to minimise, with TD errors for replay priorities and metrics to log."""

    group: str  # the parameter group, and so the optimizer, that it trains
    value: Tensor  # []
    td_error: Tensor | None  # [B] for priorities; None: the loss sets none
    metrics: dict[str, Tensor]
    amount: Tensor | None = None  # [] number of elements averaged; None: the B rows


class Acted(NamedTuple):
    """Actions for E environments, with value estimates and extra columns to store in replay."""

    action: Array  # [E, *action] as stored
    taken: Floats | None = None  # [E] float32: value of the action taken
    best: Floats | None = None  # [E] float32: value of the best action, for bootstrapping
    extras: Mapping[str, Array] = NO_EXTRAS  # [E, ...] each: columns to store with the rows
    memory: Floats | None = None  # [E, M] recurrent state after this step
    version: int | None = None  # of the weights; None: the actor's own

    def of(self, who: Rows | slice) -> "Acted":
        """Returns the actions and their values for a part of the environments only.

        `who` selects the environments: an array of indices or a slice.
        """
        return Acted(
            self.action[who],
            None if self.taken is None else self.taken[who],
            None if self.best is None else self.best[who],
            {name: extra[who] for name, extra in self.extras.items()},
            None if self.memory is None else self.memory[who],
            self.version,
        )


class Algorithm:
    """The base class of RL algorithms: losses for the learner, actions for actors.

    The setting `algo: module:Class` selects a custom subclass. Its constructor gets the settings of
    the algorithm (an instance of its class `Settings`, if it has one), of the network and of the
    environment, and the environment's spec.
    """

    networks: nn.ModuleDict  # everything that is saved
    acting: nn.Module  # the part that actors need
    spec: EnvSpec  # `greedy` needs it
    extras: tuple[Extra, ...] = ()  # columns that its actors store besides the action
    memory: int = 0  # size of the recurrent state, for each environment
    batches_actors: bool = False  # one `act` call may serve several actors (see `exploration`)
    evaluate_stochastic: bool = False  # evaluations sample actions instead of acting greedily
    sampling_temperature: float = 1.0  # sampled actions have probabilities softmax(scores / this)
    compares_policies: bool = False  # losses compare the policy with the one that acted
    progress: float = (
        0.0  # finished fraction of the run, for scheduled settings; the learner sets it
    )
    capturable: bool = False  # losses and target updates may be replayed as a CUDA graph

    def __init__(self, config: AlgoConfig, net: NetConfig, env: EnvConfig, spec: EnvSpec): ...

    def groups(self) -> dict[str, list[nn.Parameter]]:
        """Returns the trained parameters in named groups; each group has its own optimizer."""
        raise NotImplementedError

    def losses(self, batch: TensorBatch, *, step: int, rng: torch.Generator) -> Iterator[Loss]:
        """Yields the losses of one batch, in the order in which the learner minimises them.

        `step` is the number of the gradient step, counted from 1.
        """
        raise NotImplementedError

    def ends_rollout(self, metrics: Mapping[str, Tensor | float]) -> bool:
        """Returns whether the rest of the present rollout should not be learned from.

        `metrics` are those of the last gradient step. For on-policy algorithms only.
        """
        return False

    def update_targets(self, step: int) -> None:
        """Updates target networks, if any; the learner calls it after each gradient step.

        Step 0, before the first gradient step, copies the initial weights into the target networks.
        """

    def phase(self, step: int) -> int:
        """Returns a number that tells gradient steps with different computations apart.

        Examples are steps that update the policy or copy the target network, which others do not.
        If the algorithm is `capturable`, one CUDA graph can replay all steps of a phase.
        """
        return 0

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
        """Returns an action for each of E observations.

        With probability `epsilon` it is uniformly random; otherwise the policy selects it, greedily
        unless `noise` is True. With `values`, the result also holds the values of the action taken
        and of the best action (`taken`, `best`), if the algorithm has value estimates. `memory` is
        the recurrent state, for recurrent policies.
        """
        raise NotImplementedError

    def scores(self, obs: Any, memory: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Returns action scores for a batch of B observations, and the next recurrent state.

        For n discrete actions, scores are [B, n], and the greedy action has the largest score; for
        multi-discrete actions they are concatenated. For continuous actions, scores are the greedy
        action itself, [B, A] with A components. The recurrent state is None if there is none. Uses
        only torch operations without control flow that depends on values, so that it can be
        exported to ONNX. Noisy layers use their mean weights.
        """
        raise ConfigError(
            f"{type(self).__name__} has no scores; an ONNX graph needs them; give your algorithm "
            "the method rookery.algorithms.Algorithm.scores, or export it as safetensors"
        )

    def greedy(self, obs: Any, memory: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Returns the greedy actions for a batch of observations, and the next recurrent state.

        The state is None if the policy is not recurrent.
        """
        scores, memory = self.scores(obs, memory)
        return best_actions(scores, self.spec.action), memory

    def sampled(
        self, obs: Any, uniform: Tensor, memory: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Returns discrete actions sampled by random numbers [B, n], uniform in (0, 1).

        They are the Gumbel-max samples of softmax(scores / `sampling_temperature`); where all
        numbers are equal, they are the greedy actions.
        """
        scores, memory = self.scores(obs, memory)
        gumbel = -torch.log(-torch.log(uniform))
        return best_actions(scores / self.sampling_temperature + gumbel, self.spec.action), memory


def best_actions(scores: Tensor, action: ActionSpec) -> Tensor:
    """Returns the greedy actions of a batch, given the scores that `Algorithm.scores` returned.

    `action` describes the action space.
    """
    if action.discrete:
        return scores.argmax(1)
    if action.several:
        parts = torch.split(scores, list(action.sizes), 1)
        return torch.stack([part.argmax(1) for part in parts], 1)
    return scores.reshape(-1, *action.shape)


def require_actions(fits: bool, name: str, needs: str, spec: EnvSpec, instead: str) -> None:
    """Raises `ConfigError` if `fits` is False: algorithm `name` cannot use `spec`'s action space.

    The message tells which actions the algorithm `needs`, and what to choose `instead`.
    """
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
