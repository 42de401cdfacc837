"""A process that polls a ring's `committed` in compiled code and answers in `consumed`.

python tests/support/ring_reader_process.py FD LAST        # an inherited ring
"""

import sys

from numba import njit

from rookery.replay.ring import COMMITTED, Ring
from rookery.replay.shared_memory import address, load, store
from rookery.types import Rows

CONSUMED = 32  # where `Ring.consume` posts
MOST_LOOKS = 2 * 10**9  # a bound: this ends even if nothing is ever seen


@njit(nogil=True)
def follow(words: Rows, last: int) -> bool:
    seen = 0
    for _ in range(MOST_LOOKS):
        value = load(address(words) + 8 * COMMITTED)
        if value != seen:
            seen = value
            store(address(words) + 8 * CONSUMED, seen)
        if seen == last:
            return True
    return False


if __name__ == "__main__":
    sys.exit(0 if follow(Ring.from_fd(int(sys.argv[1])).words, int(sys.argv[2])) else 1)
