"""Several runs that learn from each other: `rookery share`, as a script with the same flags.

    python examples/run_parallel_distributed.py --scenario sac --n_parallel 4 \\
        --cross_sample_ratio 0.2 --strategy self_heavy

`--help` shows the flags; hyphens and underscores are both fine.
"""

import sys

from rookery.cli.main import main

if __name__ == "__main__":
    sys.argv.insert(1, "share")
    sys.exit(main())
