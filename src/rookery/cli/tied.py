"""A command of `rookery` that ends when the one that started it is gone.

    python -m rookery.cli.tied PARENT_PID train sac ...

The kernel sends SIGTERM when the parent dies, however it dies, and a run that is terminated
takes itself out of its pool before it ends.
"""

import signal
import sys

from rookery.cli.main import main
from rookery.engines.child import die_with

if __name__ == "__main__":
    die_with(int(sys.argv.pop(1)), signal.SIGTERM)
    sys.exit(main())
