"""Action masks, which tell which of n discrete actions are allowed in a state.

    mask = allowed(obs, spec)            # [B, n], or None where observations have none
    best = masked(q, mask).argmax(1)     # always an allowed action

Both functions take numpy arrays or tensors. Masks are applied when acting, and in every target that
bootstraps from the best action or from the policy's expectation. Forbidden actions are never taken,
so training never corrects their values.
"""

from typing import Any, overload

import numpy as np
import torch
from torch import Tensor

from rookery.types import MASK, Array, EnvSpec

# Finite, because 0 times infinity would be nan, and far enough from the lowest float to be divided
# by a temperature. Scores of allowed actions are kept above it, even of a network that diverged.
FORBIDDEN, LEAST = -1e30, -1e29


def allowed(obs: Any, spec: EnvSpec) -> Any:
    """Returns the action masks of observations as booleans [..., n], for n discrete actions.

    Returns None if observations have no masks. With frame stacking, the mask of the latest frame is
    used. A mask of zeros only, as in some final observations, allows every action.
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
    """Returns Q values or logits in which forbidden actions have a very low value (-1e30).

    `scores` and the boolean `mask` (True: allowed) are [..., n], for n discrete actions. If `mask`
    is None, every action is allowed.
    """
    if mask is None:
        return scores
    if isinstance(scores, Tensor):
        return torch.where(mask, scores.clamp(min=LEAST), FORBIDDEN)
    return np.where(mask, np.maximum(scores, LEAST), scores.dtype.type(FORBIDDEN))
