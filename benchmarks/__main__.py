"""`python -m benchmarks NAME` runs one benchmark."""

import signal
import sys
from types import FrameType

from benchmarks.command import main
from rookery.terminal import output


def _terminate(number: int, frame: FrameType | None) -> None:
    """Leaves by an exception, so that the process of the current trial is ended too."""
    raise SystemExit(128 + number)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _terminate)
    output.tolerate()
    sys.exit(main(sys.argv[1:]))
