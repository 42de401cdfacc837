"""The policy's inputs in each environment: observations, frame stacks and recurrent states."""

import copy

import numpy as np

from rookery.envs.vector import Steps
from rookery.types import Array, Bools, EnvSpec, Floats, Obs, Rows


class PolicyInputs:
    """The policy's inputs in E environments: observations or frame stacks, and recurrent states.

    Frames are stacked oldest first. At the start of an episode the whole stack is filled with the
    first frame, as in batches sampled from replay, and the recurrent state is 0.
    """

    def __init__(self, spec: EnvSpec, obs: Obs, memory: int = 0):
        self.spec, self.obs = spec, obs
        num = len(next(iter(spec.unpack(obs).values())))
        self.memory = np.zeros((num, memory), dtype=np.float32) if memory else None
        self.stacks: dict[str, Array] = {}
        if spec.frame_stack > 1:
            self.stacks = remember(None, spec.unpack(obs), spec.frame_stack)

    def seen(self) -> Obs:
        """Returns the observations that the policy acts on next, one for each of E environments.

        Arrays are [E, *shape], with frames stacked along axis 1. Without frame stacking they are
        the environments' latest observations.
        """
        return self.spec.pack(self.stacks) if self.stacks else self.obs

    def final(self, final_obs: Obs, who: Rows) -> Obs:
        """Returns final observations, stacked with the frames before them, as the policy sees them.

        `final_obs` are the observations of all environments, `who` the indices of those whose
        episodes have ended. Must be called before `push` is called with the same step.
        """
        leaves = {name: leaf[who] for name, leaf in self.spec.unpack(final_obs).items()}
        if self.stacks:
            before = {name: stack[who] for name, stack in self.stacks.items()}
            leaves = remember(before, leaves, self.spec.frame_stack)
        return self.spec.pack(leaves)  # type: ignore[no-any-return]

    def after(self, steps: Steps) -> "PolicyInputs":
        """Returns a copy of the policy inputs, updated with `steps`, the results of an env step.

        The original is not changed. The recurrent state in the copy is not updated.
        """
        ahead = copy.copy(self)
        ahead.push(steps)
        return ahead

    def push(self, steps: Steps, memory: Floats | None = None) -> None:
        """Updates the policy inputs after a step of all environments.

        `steps` has the new observations, `memory` the recurrent state that the policy returned.
        """
        self.obs = steps.obs
        if not self.stacks and memory is None:
            return
        ended = steps.terminated | steps.truncated
        fresh = np.flatnonzero(ended | ~steps.real if steps.rested is None else ended)
        if memory is not None:
            self.memory = self._kept(memory, steps.rested)
            self.memory[fresh] = 0.0
        if self.stacks:
            leaves, depth = self.spec.unpack(steps.obs), self.spec.frame_stack
            self.stacks = remember(self.stacks, leaves, depth)
            for name, stack in self.stacks.items():
                stack[fresh] = _filled(leaves[name][fresh], depth)

    def _kept(self, memory: Floats, rested: Bools | None) -> Floats:
        """Returns the recurrent state of each environment after a step.

        It is the state in `memory`, which the policy returned. In multi-player games, each
        environment of the vector is one player; players that were not to move (True in `rested`)
        keep their previous state.
        """
        if rested is None:
            return memory
        assert self.memory is not None, "a policy has a recurrent state always or never"
        return np.where(rested[:, None], self.memory, memory)


def remember(
    frames: dict[str, Array] | None, leaves: dict[str, Array], depth: int
) -> dict[str, Array]:
    """Returns new frame stacks with the new frame `leaves` added, and the oldest dropped.

    `frames` is the previous stack of `depth` frames, or None at the start of an episode, where the
    new frame fills the whole stack. Stacks and frames are arrays by name.
    """
    if frames is None:
        return {name: _filled(leaf, depth) for name, leaf in leaves.items()}
    return {
        name: np.concatenate([frames[name][:, leaf.shape[1] :], leaf], axis=1)
        for name, leaf in leaves.items()
    }


def _filled(leaf: Array, depth: int) -> Array:
    return np.concatenate([leaf] * depth, axis=1)
