"""What a policy sees of its environments: the newest observations, or a stack of the latest."""

import copy

import numpy as np

from rookery.envs.vector import Steps
from rookery.types import Array, Bools, EnvSpec, Floats, Obs, Rows


class View:
    """The observations to act on. With a frame stack, the last few, oldest first.

    Where an episode begins its first frame fills the stack, as it does when a batch is drawn, and
    what a policy remembers is 0.
    """

    def __init__(self, spec: EnvSpec, obs: Obs, memory: int = 0):
        self.spec, self.obs = spec, obs
        num = len(next(iter(spec.unpack(obs).values())))
        self.memory = np.zeros((num, memory), dtype=np.float32) if memory else None
        self.stacks: dict[str, Array] = {}
        if spec.frame_stack > 1:
            self.stacks = {
                name: _filled(leaf, spec.frame_stack) for name, leaf in spec.unpack(obs).items()
            }

    def seen(self) -> Obs:
        """Returns [E, *leaf] observations, frames laid along a leaf's first axis."""
        return self.spec.pack(self.stacks) if self.stacks else self.obs

    def final(self, final_obs: Obs, who: Rows) -> Obs:
        """Returns what a policy sees of environments `who` as their episodes end, before `push`."""
        leaves = {name: leaf[who] for name, leaf in self.spec.unpack(final_obs).items()}
        for name, stack in self.stacks.items():
            newest = leaves[name]
            leaves[name] = np.concatenate([stack[who, newest.shape[1] :], newest], axis=1)
        return self.spec.pack(leaves)  # type: ignore[no-any-return]

    def after(self, steps: Steps) -> "View":
        """Returns the view there will be once a step is pushed."""
        ahead = copy.copy(self)
        ahead.stacks = {name: stack.copy() for name, stack in self.stacks.items()}
        ahead.push(steps)
        return ahead

    def push(self, steps: Steps, memory: Floats | None = None) -> None:
        """Takes in what a step brought, and what the policy remembers of it."""
        self.obs = steps.obs
        if not self.stacks and memory is None:
            return
        ended = steps.terminated | steps.truncated
        fresh = np.flatnonzero(ended | ~steps.real if steps.rested is None else ended)
        if memory is not None:
            self.memory = self._kept(memory, steps.rested)
            self.memory[fresh] = 0.0
        leaves = self.spec.unpack(steps.obs)
        for name, stack in self.stacks.items():
            leaf, width = leaves[name], leaves[name].shape[1]
            stack[:, :-width] = stack[:, width:].copy()
            stack[:, -width:] = leaf
            stack[fresh] = _filled(leaf[fresh], self.spec.frame_stack)

    def _kept(self, memory: Floats, rested: Bools | None) -> Floats:
        """Returns what is remembered; lanes that rested saw nothing new."""
        if rested is None:
            return memory
        assert self.memory is not None, "who remembers now did so before"
        return np.where(rested[:, None], self.memory, memory)


def remember(
    frames: dict[str, Array] | None, leaves: dict[str, Array], depth: int
) -> dict[str, Array]:
    """Returns the last `depth` frames of one environment; None: an episode begins."""
    if frames is None:
        return {name: _filled(leaf, depth) for name, leaf in leaves.items()}
    return {
        name: np.concatenate([frames[name][:, leaf.shape[1] :], leaf], axis=1)
        for name, leaf in leaves.items()
    }


def _filled(leaf: Array, depth: int) -> Array:
    return np.concatenate([leaf] * depth, axis=1)
