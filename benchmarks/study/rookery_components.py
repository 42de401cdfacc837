"""What a `MainLoop` learns with `ParameterServer(initial_params)`, and without a server of its own.

    python benchmarks/study/rookery_components.py --seeds 0-4 --out benchmarks/results/NAME.jsonl

Every seed trains a DQN agent with its default settings on CartPole for 25,000 env steps, once in
each way, and evaluates it greedily. Prints and writes one JSON object per run, then the medians.
"""

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from rookery import (
    DistributedAgent,
    DistributedEnvironment,
    MainLoop,
    ParameterServer,
    ReplayBufferPool,
)
from rookery.terminal.arguments import seeds

ENV, EPISODES = "CartPole-v1", 20  # of the evaluation
WAYS = ("server", "none")


def trained(seed: int, way: str, env_steps: int) -> dict[str, Any]:
    """Trains one agent, and returns what became of it."""
    agent = DistributedAgent("dqn", env=ENV, seed=seed)
    server = ParameterServer(agent.get_policy_parameters()) if way == "server" else None

    def stop(progress: dict[str, Any]) -> None:
        if progress["env_steps"] >= env_steps:
            loop.stop_training()

    with DistributedEnvironment(ENV, 1, seed=seed, engine="inline") as environment:
        buffer = ReplayBufferPool(4, seed=seed)
        loop = MainLoop(environment, buffer, agent, server, {"callback": stop})
        done = loop.run_training(env_steps, evaluation_frequency=0, checkpoint_frequency=0)
    return {
        "seed": seed,
        "server": way,
        "env_steps": done["env_steps"],
        "gradients": done["gradients"],
        "versions": done["version"],
        "returns": list(agent.evaluate_policy(EPISODES).returns),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--seeds", type=seeds, default=seeds("0-4"))
    parser.add_argument("--env-steps", type=int, default=25_000)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    scores: dict[str, list[float]] = {way: [] for way in WAYS}
    for seed in args.seeds:
        for way in WAYS:
            run = trained(seed, way, args.env_steps)
            scores[way].append(statistics.fmean(run["returns"]))
            line = json.dumps(run)
            print(line, flush=True)
            if args.out is not None:
                with args.out.open("a") as file:
                    file.write(line + "\n")
    medians = {way: statistics.median(found) for way, found in scores.items()}
    print(json.dumps({**medians, "ratio": medians["server"] / medians["none"]}))


if __name__ == "__main__":
    main()
