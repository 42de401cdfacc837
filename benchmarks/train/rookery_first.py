"""Seconds from the start of a process to its first learner step, in async with two actors.

    python benchmarks/train/rookery_first.py --engine ray

CartPole with its own scenario. Everything counts: the interpreter's imports, Ray, the actors. The
last line on stdout is `{"value": seconds}`.
"""

import argparse
import json
import tempfile
import time

import psutil

ENV_STEPS = 10**9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--engine", default="ray")
    parser.add_argument("--actors", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=0.0, help="not used")
    args = parser.parse_args()
    import rookery
    from rookery.event import Learned

    with tempfile.TemporaryDirectory() as folder:
        overrides = [
            "run.mode=async",
            f"run.engine={args.engine}",
            f"actor.num={args.actors}",
            f"run.env_steps={ENV_STEPS}",
        ]
        events = rookery.events(
            "cartpole", seed=args.seed, overrides=overrides, run_dir=f"{folder}/run"
        )
        for event in events:
            if isinstance(event, Learned):
                break
        took = time.time() - psutil.Process().create_time()
        events.close()
    print(json.dumps({"value": took}))


if __name__ == "__main__":
    main()
