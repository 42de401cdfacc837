"""Errors for actor processes that cannot start: too few file descriptors, processes or memory."""

import errno

from rookery.errors import LostError

ADVICE = {
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "close other programs: the machine is out of open files",
    errno.EAGAIN: "raise the limit of processes (ulimit -u, or the container's pids limit)",
    errno.ENOMEM: "close other programs: there is no memory left",
}


def unstarted(what: str, error: OSError) -> LostError:
    """Returns a LostError for an actor or inference server process that could not be started.

    `what` names the process. The message contains advice that fits the errno of `error`, which the
    operating system raised.
    """
    advice = ADVICE.get(error.errno or 0, "see what the system says")
    return LostError(
        f"{what} could not be started ({error}); {advice}, or use fewer actors (--actors)"
    )
