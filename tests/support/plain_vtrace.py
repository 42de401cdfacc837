"""V-trace by its definition, in plain Python."""

import math


def by_hand(
    ratio: list[float],
    reward: list[float],
    discount: list[float],
    value: list[float],
    rho_clip: float,
    c_clip: float,
) -> tuple[list[float], list[float]]:
    """Espeholt et al. 2018, equation 1, summed from scratch for each step of one stretch."""
    steps = len(reward)
    wanted = []
    for s in range(steps):
        total = value[s]
        for t in range(s, steps):
            carried = math.prod(
                discount[i] * min(c_clip, ratio[i]) for i in range(s, t)
            )  # gamma is inside: it is 0 after a death
            delta = min(rho_clip, ratio[t]) * (reward[t] + discount[t] * value[t + 1] - value[t])
            total += carried * delta
        wanted.append(total)
    after = [*wanted[1:], value[steps]]
    advantage = [
        min(rho_clip, ratio[t]) * (reward[t] + discount[t] * after[t] - value[t])
        for t in range(steps)
    ]
    return wanted, advantage
