"""The promise of a private server, and the settings with which it would not be kept.

A promise is refused where its arithmetic does not hold, rather than marked: a number that is shown
beside a run is believed.
"""

import math
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from rookery.errors import ConfigError, RefusedError

BOUNDED = frozenset({"average", "sum", "federated"})  # weights of 1 each: see refuse_weight
UNBOUNDED = {
    "weighted": "a client's weight multiplies its influence, and the noise is for a weight of 1",
    "median": "one client can move a median further than any clipping bounds",
    "trimmed_mean": "one client decides who else is trimmed, which no clipping bounds",
    "krum": "one client can change who is chosen, which no clipping bounds",
}  # aggregation → why the noise does not hide a client in it


class Rule(NamedTuple):
    """What a number of a promise must be."""

    remedy: str
    allowed: str = "a number above 0"
    holds: Callable[[float, int], bool] = lambda number, _: 0 < number < math.inf  # and clients


RULES: dict[str, Rule] = {
    "clip_norm": Rule(
        "without a bound no noise hides a client; begin with the usual norm of an update"
    ),
    "noise_multiplier": Rule("without noise nothing is hidden; begin with 1, or turn privacy off"),
    "noise_scale": Rule("it is noise_multiplier times clip_norm, both of which are above 0"),
    "sample_rate": Rule(
        "give the share of clients that a round invites",
        "one number above 0 and up to 1, the same for every client",
        lambda rate, _: 0 < rate <= 1,
    ),
    "delta": Rule(
        "with more, showing one whole client's update would keep the promise; give a tenth of that",
        "above 0 and below 1 / clients",
        lambda delta, clients: 0 < delta < 1 / clients,
    ),
    "target_epsilon": Rule(
        "give what a client may lose over all rounds together; 1 is strong, 10 is weak"
    ),
}


def refuse_numbers(clients: int, given: Mapping[str, float]) -> None:
    """Raises a ConfigError for numbers, by their names in RULES, that promise nothing."""
    if clients < 1:
        raise ConfigError(f"clients must be 1 or more, got {clients}; give how many there may be")
    for name, number in given.items():
        rule = RULES[name]
        if not rule.holds(number, clients):
            raise ConfigError(
                f"under differential privacy {name} must be {rule.allowed}, got {number} with "
                f"{clients} clients; {rule.remedy}"
            )


def refuse_aggregation(method: str) -> None:
    """Raises a ConfigError for a rule in which one client's influence is not bounded."""
    if method not in BOUNDED:
        why = UNBOUNDED.get(method, "no bound is known on how far one client can move it")
        raise ConfigError(
            f"under differential privacy aggregation must be one of {', '.join(sorted(BOUNDED))}, "
            f"got {method!r}: {why}; take average, or turn privacy off"
        )


def refuse_workers(workers: Collection[str], clients: float) -> None:
    """Raises a RefusedError for more clients than the promise is about, or one that counts twice.

    The mean is over `clients`, and `delta` is below 1 / `clients`. Parts of a client, such as
    `alice/1`, would each be clipped by themselves: together they could move more than noise hides.
    """
    if parts := [worker for worker in workers if "/" in worker]:
        raise RefusedError(
            f"under differential privacy a client counts once, and {parts[0]!r} is a part of one; "
            f"register as {parts[0].partition('/')[0]!r}",
            "clients",
        )
    if len(workers) > clients:
        raise RefusedError(
            f"privacy was promised to {clients} clients, and {len(workers)} would have taken part; "
            "give clients=N for all that there may be (--clients N)",
            "clients",
        )


def refuse_weight(weight: float) -> None:
    """Raises a RefusedError where an update would count for more or less than one."""
    if weight != 1:
        raise RefusedError(
            f"under differential privacy every update has weight 1, got {weight}; leave the "
            "weight away",
            "weight",
        )
