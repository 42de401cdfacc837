"""Masks in algorithms: which of n actions may be taken, wherever one is chosen or counted on.

    mask = allowed(obs, spec)            # [B, n], or None where observations have none
    best = masked(q, mask).argmax(1)     # never one that is not allowed

Both take arrays of numpy as well as tensors. Acting must ask, and so must every target that
bootstraps from the best action, or from a policy's expectation: what is never allowed is never
taken, so nothing corrects what a network says of it.
"""

from typing import Any, overload

import numpy as np
import torch
from torch import Tensor

from rookery.types import MASK, Array, EnvSpec

# Finite, or a probability of 0 times it would be nan; and far enough from the lowest float to be
# divided by a temperature. What is allowed stays above it, even where a network has diverged.
FORBIDDEN, LEAST = -1e30, -1e29


def allowed(obs: Any, spec: EnvSpec) -> Any:
    """Returns bools [..., n] for stored observations, of a stack of frames the latest; or None.

    A mask that allows nothing, as a final observation may have, restricts nothing.
    """
    if not spec.masked:
        return None
    mask = obs[MASK][..., -spec.action.n :]
    if isinstance(mask, Tensor):
        mask = mask.bool()
        return mask | ~mask.any(-1, keepdim=True)
    mask = mask != 0
    return mask | ~mask.any(-1, keepdims=True)


@overload
def masked(scores: Tensor, mask: Any) -> Tensor: ...
@overload
def masked(scores: Array, mask: Any) -> Array: ...
def masked(scores: Any, mask: Any) -> Any:
    """Returns values or logits [..., n] in which what is not allowed is the lowest."""
    if mask is None:
        return scores
    if isinstance(scores, Tensor):
        return torch.where(mask, scores.clamp(min=LEAST), FORBIDDEN)
    return np.where(mask, np.maximum(scores, LEAST), scores.dtype.type(FORBIDDEN))
