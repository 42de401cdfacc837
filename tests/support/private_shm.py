"""A /dev/shm of its own for a process and all that it starts.

Tests of what is left in shared memory look at the whole of it, so two test processes on one
machine would see each other's rings. Needs Linux, and root for the mount.

    python private_shm.py       ends with 0 where it can be done, else says in one line why not
"""

import ctypes
import os
import sys

_CLONE_NEWNS = 0x20000
_MS_REC, _MS_PRIVATE = 0x4000, 0x40000


def set_apart() -> None:
    """Mounts an empty /dev/shm that this process and its children alone see; raises OSError."""
    if sys.platform != "linux":
        raise OSError("a /dev/shm of its own needs Linux")
    libc = ctypes.CDLL(None, use_errno=True)
    done = (
        libc.unshare(_CLONE_NEWNS) == 0
        and libc.mount(None, b"/", None, _MS_REC | _MS_PRIVATE, None) == 0
        and libc.mount(b"tmpfs", b"/dev/shm", b"tmpfs", 0, b"mode=1777") == 0
    )
    if not done:
        reason = os.strerror(ctypes.get_errno())
        raise OSError(f"a /dev/shm of its own needs the right to mount one: {reason}")


if __name__ == "__main__":
    try:
        set_apart()
    except OSError as error:
        sys.exit(f"tests of whole runs go one by one: {error}")
