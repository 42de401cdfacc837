"""A /dev/shm of its own for a process and all that it starts: others may work beside it.

Tests of what is left in shared memory look at the whole of it, so two processes of tests on one
machine would see each other's. Needs Linux and root.
"""

import ctypes
import os
import sys

_CLONE_NEWNS = 0x20000
_MS_REC, _MS_PRIVATE = 0x4000, 0x40000


def set_apart() -> None:
    """Does it, or says why it cannot be done."""
    if sys.platform != "linux" or os.geteuid() != 0:
        raise PermissionError("a /dev/shm of its own needs Linux and root; run tests one by one")
    libc = ctypes.CDLL(None, use_errno=True)
    done = (
        libc.unshare(_CLONE_NEWNS) == 0
        and libc.mount(None, b"/", None, _MS_REC | _MS_PRIVATE, None) == 0
        and libc.mount(b"tmpfs", b"/dev/shm", b"tmpfs", 0, b"mode=1777") == 0
    )
    if not done:
        raise OSError(ctypes.get_errno(), "no /dev/shm of its own; run tests one by one")
