"""A command of `rookery` that ends when the one that started it is gone.

    python -m rookery.cli.tied train sac ...

Its standard input is a pipe that only its parent could write to. Once that is closed, however the
parent has ended, this ends as if it had been terminated: it saves, and leaves its pool. A death
signal of the kernel would not do: one comes for each of the parent's threads, and the second
SIGTERM means at once.
"""

import os
import signal
import sys
import threading
import time

from rookery.cli.main import main

PATIENCE_S = 10.0  # a run ends within


def follow(fd: int) -> None:
    """Waits for the end of the parent, then ends this process."""
    while os.read(fd, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(PATIENCE_S)
    os._exit(128 + signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=follow, args=(0,), name="parent", daemon=True).start()
    code = main()
    sys.stderr.flush()
    os._exit(code)  # taking apart an interpreter with torch in it takes a second; a flock waits
