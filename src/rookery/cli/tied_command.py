"""Runs a subcommand of `rookery` that ends when its parent process ends.

    python -m rookery.cli.tied_command train cartpole ...

The standard input of this process is a pipe that only the parent process holds open. When the
parent ends in any way, the pipe closes and the subcommand ends as after SIGTERM: a training run
saves a checkpoint and stops sharing its replay buffer. The kernel's parent-death signal cannot be
used: it is sent for each of the parent's threads, and a second SIGTERM ends a run without saving.
"""

import os
import signal
import sys
import threading
import time

from rookery.cli.main import main

PATIENCE_S = 10.0  # seconds for a run to save and end


def follow(fd: int) -> None:
    """Waits until the parent process ends (`fd`, a pipe, closes), then ends this process."""
    while os.read(fd, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(PATIENCE_S)
    os._exit(128 + signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=follow, args=(0,), name="parent", daemon=True).start()
    code = main()
    sys.stderr.flush()
    os._exit(code)  # a normal exit with torch loaded takes a second, for which the launcher waits
