"""Checks of the settings of differential privacy: those that would break its guarantee.

A promise is refused where its arithmetic does not hold, rather than marked: a number that is shown
beside a run is believed.
"""

from collections.abc import Collection, Mapping

from rookery.config.checks import Limit
from rookery.errors import ConfigError, RefusedError
from rookery.server.server_rules import FINITE

BOUNDED = frozenset({"average", "sum", "federated"})  # weights of 1 each: see refuse_weight
UNBOUNDED = {
    "weighted": "a client's weight multiplies its influence, and the noise is for a weight of 1",
    "median": "one client can move a median further than any clipping bounds",
    "trimmed_mean": "one client decides who else is trimmed, which no clipping bounds",
    "krum": "one client can change who is chosen, which no clipping bounds",
}  # aggregation → why the noise does not hide a client in it


REMEDIES = {  # of numbers that must be above 0
    "clip_norm": "without a bound no noise hides a client; begin with an update's usual norm",
    "noise_multiplier": "without noise nothing is hidden; begin with 1, or turn privacy off",
    "noise_scale": "it is noise_multiplier times clip_norm, both of which are above 0",
    "target_epsilon": "give what a client may lose over all rounds; 1 is strong, 10 is weak",
}
LIMITS: Mapping[str, Limit] = {  # of the numbers of a promise
    **{name: Limit("must be a number above 0", FINITE, do) for name, do in REMEDIES.items()},
    "sample_rate": Limit(
        "must be one number above 0 and up to 1, the same for every client",
        {"exclusiveMinimum": 0, "maximum": 1},
        "give the share of clients that a round invites",
    ),
}


def refuse_numbers(**given: float) -> None:
    """Raises ConfigError for numbers, by their names in LIMITS, with which nothing is private."""
    for name, number in given.items():
        LIMITS[name].check(f"under differential privacy {name}", number)


def refuse_delta(delta: float, clients: int) -> None:
    """Raises a ConfigError for a delta with which one whole client's update could be shown."""
    if clients < 1:
        raise ConfigError(f"clients must be 1 or more, got {clients}; give how many there may be")
    if not 0 < delta < 1 / clients:
        raise ConfigError(
            f"under differential privacy delta must be above 0 and below 1 / clients, got {delta} "
            f"with {clients} clients; give a tenth: with more, one whole update could be shown"
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
