"""Differential privacy of clients: clipping, noise, sampling, and the mean that may be shown.

    invited = subsample(clients, ledger.sample_rate)
    total = sum(clip(update, C) for each update of those that answered)  # [P]
    ledger.charge()
    mean = noisy_mean(total, z * C, q * N)

What is protected is a client with all it sends, not one of its episodes. Units, the same
everywhere (McMahan et al. 2018, *Learning differentially private recurrent language models*):

C `clip_norm`          the L2 norm that a client's whole update [P] is clipped to, all layers as one
z `noise_multiplier`   noise has standard deviation z C on the SUM of clipped updates
q `sample_rate`        each of N clients takes part in a round with probability q, each by itself
mean                   (sum + noise) / (q N): its noise has standard deviation z C / (q N)

The mean is over the *expected* number of clients, q N. The number that came is a secret too: if
the sum were divided by it, the presence of one client would scale all updates, and neighbours would
differ by more than C. A client that was drawn and did not answer counts as zero. A round without
participants is released like any other, as noise: leaving it out would tell.

The server is trusted: it sees single updates, and is believed to clip, to add the noise and to
keep what it sees to itself.
"""

import os
from collections.abc import Iterable

import numpy as np

from rookery.errors import RefusedError
from rookery.server.aggregate import Doubles
from rookery.server.privacy.privacy_checks import refuse_numbers
from rookery.types import Array, Floats

DRAWS = 4  # normal numbers in each number of noise
HAIR = 1e-6  # far above what rounding to float32 can add to a norm, and far below any use


def clip(update: Array, bound: float) -> Array:
    """Scales an update [P] down to an L2 norm of at most `bound`; one that is below it stays.

    A NaN has no norm: an update that is not finite is a RefusedError.
    """
    refuse_numbers(clip_norm=bound)
    wide = update.astype(np.float64)
    with np.errstate(over="ignore"):
        norm = float(np.linalg.norm(wide))
    if not np.isfinite(norm):
        raise RefusedError(
            f"an update must be finite to be clipped, and has norm {norm}; send one without NaN "
            "and infinities",
            "finite",
        )
    if norm <= bound:
        return update
    return (wide * (bound * (1 - HAIR) / norm)).astype(np.result_type(update, np.float32))


def noise(size: int, scale: float) -> Doubles:
    """Returns [size] normal numbers of standard deviation `scale`, from the operating system.

    There is no seed on purpose: who knows it, or can work it out from noise in parameters whose
    updates are known, takes the noise away again. Hence bits that cannot be foretold, all of them.
    Each number is the sum of four, of variance a quarter: the gaps between floating-point numbers
    then no longer tell what was added to (Holohan & Braghin 2021; the leak is Mironov 2012's).
    """
    refuse_numbers(noise_scale=scale)
    total = np.zeros(size)
    for _ in range(DRAWS):
        total += _normals(size)
    total *= scale / np.sqrt(DRAWS)
    return total


def subsample(clients: Iterable[str], rate: float) -> list[str]:
    """Draws each client independently with probability `rate` (Poisson sampling).

    Epsilon holds only if it is unknown which were drawn: the operating system's bits here too.
    """
    refuse_numbers(sample_rate=rate)
    every = list(clients)
    drawn = _uniforms(len(every)) < rate
    return [client for client, is_in in zip(every, drawn, strict=True) if is_in]


def noisy_mean(total: Doubles, scale: float, clients: float) -> Floats:
    """Returns the mean [P] of a sum over `clients`, after noise of deviation `scale` is added."""
    return ((total + noise(total.size, scale)) / clients).astype(np.float32)


def _uniforms(size: int) -> Doubles:
    """Returns [size] numbers in (0, 1), of 52 bits each."""
    bits = np.frombuffer(os.urandom(8 * size), np.uint64)
    return ((bits >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52


def _normals(size: int) -> Doubles:
    """Returns [size] standard normal numbers (Box & Muller 1958)."""
    half = (size + 1) // 2
    radius, angle = np.sqrt(-2 * np.log(_uniforms(half))), 2 * np.pi * _uniforms(half)
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:size]
