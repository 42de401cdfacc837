"""Several runs that learn from each other: `rookery share`, as a script with the same flags.

    python examples/run_parallel_distributed.py --scenario sb3-sac --n_parallel 4 \\
        --cross_sample_ratio 0.2 --strategy self_heavy

`--help` shows the flags; hyphens and underscores are both fine. Without any, two short runs.
"""

import sys

from rookery.cli.main import main

if __name__ == "__main__":
    given = sys.argv[1:] or ["--scenario", "corridor", "--n_parallel", "2"]
    sys.argv[1:] = ["share", *given]
    sys.exit(main())
