"""Times one contender on one thread: how much work it does in a fixed time.

    python benchmarks/trial.py replay/cpprb_buffer.py:draw --seed 0 --seconds 2

A contender is a function `name(seed)` in a file of this folder that prepares everything and
returns its work: a callable without arguments that does one piece of what is being compared and
returns how much that was (batches, rows, env steps, learner steps). The last line on stdout is
`{"value": work per second}`.
"""

import argparse
import json
import os
import runpy
import time
from collections.abc import Callable
from pathlib import Path

ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"), "1"
)
WARMUP_S = 0.5  # compilers, caches and page faults have their turn before the clock starts
STRIDE = 8  # pieces of work between two looks at the clock


def spend(work: Callable[[], int], seconds: float) -> float:
    """Returns work per second, over `seconds` or one stride, whichever takes longer."""
    done, start = 0, time.perf_counter()
    while (spent := time.perf_counter() - start) < seconds or not done:
        for _ in range(STRIDE):
            done += work()
    return done / spent


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("contender", help="folder/file.py:function, relative to this folder")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=2.0)
    return parser.parse_args()


def main() -> None:
    args = parse()
    os.environ.update(ONE_THREAD)  # before numpy, numba or torch is imported
    script, _, function = args.contender.partition(":")
    work = runpy.run_path(str(Path(__file__).parent / script))[function](args.seed)
    spend(work, WARMUP_S)
    print(json.dumps({"value": spend(work, args.seconds)}))


if __name__ == "__main__":
    main()
