"""Differential privacy of clients: clipping, noise, sampling, and the mean that may be shown.

    invited = subsample(clients, ledger.sample_rate)
    updates = {client: update of each that answered}           # [P] each
    mean = private_mean(updates, ledger, clip_norm=C, invited=invited, size=P)

What is protected is a client with all it sends, not one of its episodes. Units, the same
everywhere (McMahan et al. 2018, *Learning differentially private recurrent language models*):

C `clip_norm`          the L2 norm that a client's whole update [P] is clipped to, all layers as one
z `noise_multiplier`   noise has standard deviation z C on the SUM of clipped updates
q `sample_rate`        each of N clients takes part in a round with probability q, each by itself
mean                   (sum + noise) / (q N): its noise has standard deviation z C / (q N)

The mean is over the *expected* number of clients, q N, whoever came. How many came is a secret too:
divided by the actual number, the presence of one client would scale everybody's updates, and
neighbours would differ by more than C. Who was invited and did not answer counts as zero. A round
to which nobody came is released like any other, as noise: leaving it out would tell.

The server is trusted: it sees single updates, and is believed to clip, to add the noise and to
tell nobody.
"""

import os
from collections.abc import Collection, Iterable, Mapping
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from rookery.errors import RefusedError
from rookery.server.privacy.privacy_budget import Ledger
from rookery.server.privacy.privacy_checks import refuse_numbers
from rookery.types import Array, Floats

DRAWS = 4  # normal numbers in each number of noise
HAIR = 1e-6  # far above what rounding to float32 can add to a norm, and far below any use

Doubles: TypeAlias = npt.NDArray[np.float64]


def clip(update: Array, bound: float) -> Array:
    """Scales an update [P] down to an L2 norm of at most `bound`; one that is below it stays.

    A NaN has no norm: an update that is not finite is a RefusedError.
    """
    refuse_numbers(1, {"clip_norm": bound})
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
    refuse_numbers(1, {"noise_scale": scale})
    total = np.zeros(size)
    for _ in range(DRAWS):
        total += _normals(size)
    total *= scale / np.sqrt(DRAWS)
    return total


def subsample(clients: Iterable[str], rate: float) -> list[str]:
    """Draws each client by itself with probability `rate`: some rounds have more, some nobody.

    Epsilon counts on nobody knowing who was drawn, hence the operating system's bits here too.
    """
    refuse_numbers(1, {"sample_rate": rate})
    everybody = list(clients)
    drawn = _uniforms(len(everybody)) < rate
    return [client for client, is_in in zip(everybody, drawn, strict=True) if is_in]


def release(total: Floats, ledger: Ledger, *, clip_norm: float) -> Doubles:
    """Turns a sum [P] of clipped updates into the mean that may be shown, and charges for it.

    The ledger is charged first: where it raises, nothing is shown.
    """
    refuse_numbers(ledger.clients, {"clip_norm": clip_norm})
    ledger.charge()
    return noisy_mean(total, ledger, clip_norm=clip_norm, sample_rate=ledger.sample_rate)


def noisy_mean(total: Floats, ledger: Ledger, *, clip_norm: float, sample_rate: float) -> Doubles:
    """Returns the mean [P] of a round that was drawn with `sample_rate` and has been charged."""
    noisy = total + noise(total.size, ledger.noise_multiplier * clip_norm)
    return np.asarray(noisy / (sample_rate * ledger.clients), dtype=np.float64)


def private_mean(
    updates: Mapping[str, Array],
    ledger: Ledger,
    *,
    clip_norm: float,
    invited: Collection[str],
    size: int,
) -> Doubles:
    """Clips updates [size] by client, adds them up and releases their mean [size].

    Whoever comes without having been drawn is refused: where clients invite themselves, taking
    part tells something, and epsilon does not hold.
    """
    if uninvited := sorted(updates.keys() - set(invited)):
        raise RefusedError(
            f"only clients that this round drew may take part, got {', '.join(uninvited[:8])}; "
            "wait to be invited",
            "uninvited",
        )
    total = np.zeros(size)
    for client, update in updates.items():
        if update.shape != (size,):
            raise RefusedError(
                f"an update must have shape ({size},), got {update.shape} from {client}; send all "
                "parameters as one vector",
                "schema",
            )
        total += clip(update, clip_norm)
    return release(total, ledger, clip_norm=clip_norm)


def _uniforms(size: int) -> Doubles:
    """Returns [size] numbers in (0, 1), of 52 bits each."""
    bits = np.frombuffer(os.urandom(8 * size), np.uint64)
    return ((bits >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52


def _normals(size: int) -> Doubles:
    """Returns [size] standard normal numbers (Box & Muller 1958)."""
    half = (size + 1) // 2
    radius, angle = np.sqrt(-2 * np.log(_uniforms(half))), 2 * np.pi * _uniforms(half)
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:size]
