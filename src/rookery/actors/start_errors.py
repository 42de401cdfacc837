"""Errors of actors and inference servers that cannot start: out of file descriptors or memory."""

import contextlib
import errno
from collections.abc import Iterator

from rookery.errors import LostError, RookeryError

ADVICE = {
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "close other programs: the machine is out of open files",
    errno.EAGAIN: "raise the limit of processes (ulimit -u, or the container's pids limit)",
    errno.ENOMEM: "close other programs: there is no memory left",
}


@contextlib.contextmanager
def started(what: str) -> Iterator[None]:
    """Context in which a process is started; raises LostError if the operating system refuses.

    `what` names the process. The message contains advice that fits the errno.
    """
    try:
        yield
    except RookeryError:  # some are OSErrors too
        raise
    except OSError as error:
        advice = ADVICE.get(error.errno or 0, "see what the system says")
        raise LostError(
            f"{what} could not be started ({error}); {advice}, or use fewer actors (--actors)"
        ) from error
