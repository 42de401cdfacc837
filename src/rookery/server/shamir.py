"""Shares of a secret, any `threshold` of which give it back; fewer tell nothing (Shamir 1979).

A share is the value of a random polynomial of degree threshold - 1 at 1, 2, 3, ...; the secret is
its value at 0. All of it modulo a prime far above any secret: shares that do not belong together
nearly always give a number that is too large to be one, and are found out.
"""

import os
from collections.abc import Mapping

from rookery.errors import RefusedError

PRIME = 2**521 - 1  # of Mersenne's
SECRET, SHARE = 32, 66  # bytes of a secret and of a share


def split(secret: bytes, threshold: int, holders: int) -> list[bytes]:
    """Cuts a secret into shares: that at place i is the polynomial's value at i + 1."""
    assert len(secret) == SECRET
    assert 1 <= threshold <= holders
    drawn = [int.from_bytes(os.urandom(SHARE + 16)) % PRIME for _ in range(threshold - 1)]
    polynomial = [int.from_bytes(secret), *drawn]
    return [_value(polynomial, x).to_bytes(SHARE) for x in range(1, holders + 1)]


def join(shares: Mapping[int, bytes], threshold: int) -> bytes:
    """Returns the secret of shares by where their polynomial was taken, from 1.

    Too few are a RefusedError "quorum"; those of several secrets, or damaged ones, "share".
    """
    if len(shares) < threshold:
        raise RefusedError(
            f"a secret needs {threshold} shares, got {len(shares)}; wait for more holders",
            "quorum",
        )
    chosen = dict(sorted(shares.items())[:threshold])
    secret = sum(_weight(x, chosen) * int.from_bytes(chosen[x]) for x in chosen) % PRIME
    if secret >> (8 * SECRET):
        raise RefusedError(
            f"the shares of {', '.join(map(str, chosen))} are not of one secret; ask again, and "
            "leave out whose shares are wrong",
            "share",
        )
    return secret.to_bytes(SECRET)


def _value(polynomial: list[int], x: int) -> int:
    total = 0
    for coefficient in reversed(polynomial):
        total = (total * x + coefficient) % PRIME
    return total


def _weight(x: int, places: Mapping[int, bytes]) -> int:
    """Returns what the value at x counts for the value at 0 (Lagrange)."""
    above, below = 1, 1
    for other in places:
        if other != x:
            above, below = above * other % PRIME, below * (other - x) % PRIME
    return above * pow(below, -1, PRIME)
