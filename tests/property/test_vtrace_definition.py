"""For all stretches, however they end: V-trace is what the paper says."""

import math
from typing import Any

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from plain_vtrace import by_hand
from rookery.algorithms.impala import vtrace

GAMMA = 0.9
NUMBERS = st.floats(-3.0, 3.0, width=32)
STRETCHES = st.integers(1, 8).flatmap(
    lambda steps: st.tuples(
        st.lists(st.floats(-1.5, 1.5, width=32), min_size=steps, max_size=steps),
        st.lists(NUMBERS, min_size=steps, max_size=steps),
        st.lists(NUMBERS, min_size=steps + 1, max_size=steps + 1),
        st.integers(1, steps),  # steps before the episode's end, or the stretch's
        st.booleans(),  # does it die there?
    )
)


@given(STRETCHES, st.sampled_from([0.5, 1.0, 2.0]), st.sampled_from([0.5, 1.0]))
def test_targets_and_advantages_equal_the_paper(
    stretch: tuple[Any, ...], rho_clip: float, c_clip: float
) -> None:
    log_ratio, reward, value, played, dies = stretch
    steps = len(reward)
    mask = [1.0] * played + [0.0] * (steps - played)
    discount = [GAMMA] * played + [0.0] * (steps - played)
    if dies:
        discount[played - 1] = 0.0
    value[played + 1 :] = [value[played]] * (steps - played)  # padding repeats the last one

    traced = vtrace(
        *(torch.tensor([row]) for row in (log_ratio, reward, discount, value, mask)),
        rho_clip=rho_clip,
        c_clip=c_clip,
    )

    ratio = [math.exp(x) for x in log_ratio]
    wanted, advantage = by_hand(
        ratio[:played],
        reward[:played],
        discount[:played],
        value[: played + 1],
        rho_clip,
        c_clip,
    )
    np.testing.assert_allclose(traced.value_target[0, :played], wanted, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(traced.advantage[0, :played], advantage, rtol=1e-3, atol=1e-3)
