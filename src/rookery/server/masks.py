"""Masks for secure sums: numbers on a grid, and streams of random numbers that two clients share.

Numbers are added as whole multiples of a step, modulo 2^64: there a mask that is uniformly random
hides what it is added to completely, and taking it away again is exact.
"""

import math
import os
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from rookery.errors import ConfigError, RefusedError
from rookery.types import Array

try:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
    from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF
except ImportError as error:
    raise ConfigError(
        "secure sums need cryptography, which is not installed; pip install 'rookery[server]', or "
        "turn secure sums off"
    ) from error

HEADROOM = 62  # bits of the sum of all clients at their bound: below the sign's, one to spare
SMALLEST, LARGEST = 1e-30, 1e30  # of a bound

Words: TypeAlias = npt.NDArray[np.uint64]  # modulo 2^64; below 2^63 positive, above negative


class Grid:
    """Numbers up to `bound` as multiples of a step, so fine that `clients` of them never wrap.

    step = 2^(ceil(log2(bound * clients)) - 62), which is below bound * clients * 2^-61. Rounding is
    toward zero: it never makes a norm larger, so that a clipped update stays clipped. A sum of K
    numbers is therefore off by less than K steps, and exact for float32 numbers whose last bit is
    not below a step. With a bound of 1 and 100 clients a step is 2^-55.
    """

    def __init__(self, bound: float, clients: int):
        if not SMALLEST <= bound <= LARGEST:
            raise ConfigError(
                f"a secure sum needs a bound of {SMALLEST:g} to {LARGEST:g} for the numbers of an "
                f"update, got {bound}; give the bound that updates are clipped to"
            )
        self.bound = bound
        self.step = 2.0 ** (math.ceil(math.log2(bound * clients)) - HEADROOM)

    def quantise(self, update: Array) -> Words:
        """Returns an update [P] in steps; one beyond the bound, or not finite, is refused."""
        wide = update.astype(np.float64)
        if not np.all(np.abs(wide) <= self.bound):
            raise RefusedError(
                f"the numbers of an update must be within {self.bound:g}, got up to "
                f"{np.abs(wide).max()}; clip it first",
                "range",
            )
        return np.trunc(wide / self.step).astype(np.int64).view(np.uint64)

    def restore(self, total: Words, clients: int) -> npt.NDArray[np.float64]:
        """Returns a sum [P] of so many clients; one they cannot have is refused.

        Whoever sent other numbers than it agreed to, by chance or on purpose, is not known.
        """
        restored = total.view(np.int64).astype(np.float64) * self.step
        if not np.all(np.abs(restored) <= self.bound * clients):
            raise RefusedError(
                f"a sum of {clients} clients must be within {self.bound * clients:g}, got "
                f"{np.abs(restored).max():g}: one of them did not send what it agreed to; draw "
                "another round",
                "range",
            )
        return restored


def stream(key: bytes, size: int) -> Words:
    """Returns [size] numbers that are a function of the key, and uniform to whoever has it not.

    ChaCha20's key stream. The nonce is zero: every key here makes one stream and no more.
    """
    made = Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor().update(bytes(8 * size))
    return np.frombuffer(made, "<u8").astype(np.uint64, copy=False)


class Key:
    """A private key of X25519, from its 32 bytes."""

    def __init__(self, secret: bytes):
        self.secret = secret
        self._private = X25519PrivateKey.from_private_bytes(secret)
        self.public = self._private.public_key().public_bytes_raw()  # [32]

    @classmethod
    def fresh(cls) -> "Key":
        return cls(os.urandom(32))

    def agreed(self, public: bytes, about: bytes) -> bytes:
        """Returns the key [32] that owners of two such keys get for one purpose, and nobody else.

        Bytes that are no public key, or one that agrees with all keys alike, are refused.
        """
        try:
            shared = self._private.exchange(X25519PublicKey.from_public_bytes(public))
        except ValueError as error:
            raise RefusedError(
                f"a public key must be 32 bytes of X25519, got {len(public)} that are none "
                f"({error}); make keys anew",
                "key",
            ) from error
        return HKDF(algorithm=SHA256(), length=32, salt=None, info=about).derive(shared)


def seal(key: bytes, text: bytes, about: bytes) -> bytes:
    """Encrypts and signs. The nonce is zero: every key here seals one message and no more."""
    return ChaCha20Poly1305(key).encrypt(bytes(12), text, about)


def unseal(key: bytes, sealed: bytes, about: bytes) -> bytes:
    """Decrypts; what was changed on its way, or sealed for another purpose, is refused."""
    try:
        return ChaCha20Poly1305(key).decrypt(bytes(12), sealed, about)
    except InvalidTag as error:
        raise RefusedError(
            f"{len(sealed)} sealed bytes were not sealed for this client by whom they name; ask "
            "for them again",
            "share",
        ) from error
