"""Four clients with different poles: what each learns alone, and what they learn together.

    python benchmarks/study/rookery_federated.py --seeds 10-14

Client i balances poles of one half-length. Alone it trains for as many env steps as all four
together have in the federation, so that only what it sees differs. Together they train for a round
each, from the same parameters, and a `FederatedParameterServer` averages what the rounds have
changed (FedAvg, McMahan et al. 2017): rows never leave their client. Everything is judged greedily
on fresh episodes of all four poles at the end, and at no other time. A pole is solved at a mean
return of 475 of 500.

Prints a table of mean returns over seeds, then all of it as one JSON object.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

from rookery.algos import build_algorithm
from rookery.cli.arguments import seeds
from rookery.components.join import RoundPupil
from rookery.config.load import load
from rookery.config.schema import Config
from rookery.envs.make import make
from rookery.evaluator import Evaluator
from rookery.loops.notice import Notice, Sharing, portable, settings_of
from rookery.nets.arrays import arrays_of, load_arrays
from rookery.server.federated import FederatedParameterServer
from rookery.server.parameters import Parameters
from rookery.types import Array

SCENARIO = "ppo-cartpole"
SOLVED, EPISODES, STEPS = 475.0, 100, 500
LENGTHS = "0.1,0.5,1.5,3"
# With the scenario's own 0.98 and 0.8 the longest pole, which falls slowest, was not learned on
# two of four seeds (0 to 3). These two were chosen there: judge by other seeds.
HORIZON = {"algo.gamma": 0.99, "algo.gae_lambda": 0.9}


class Pole(CartPoleEnv):
    """CartPole with a pole of another half-length (0.5 is CartPole-v1), of the same mass."""

    def __init__(self, length: float = 0.5, **more: Any):
        super().__init__(**more)
        self.length = length
        self.polemass_length = self.masspole * length


def config(args: argparse.Namespace, length: float, seed: int) -> Config:
    chosen = load(
        args.scenario,
        overrides=args.overrides,
        changes={
            **(HORIZON if args.scenario == SCENARIO else {}),
            "env.id": "rookery_federated:Pole",
            "env.kwargs": {"length": length},
            "env.max_episode_steps": STEPS,
            "run.seed": seed,
        },
    )
    return portable(chosen)


def pupil(chosen: Config, steps: int) -> RoundPupil:
    return RoundPupil(chosen, Notice(Sharing.FEDERATED, settings_of(chosen), steps, 30.0, None))


def arrays(of: RoundPupil) -> dict[str, Array]:
    return {name: p.detach().numpy().copy() for name, p in of.trained.items()}


def acting(of: RoundPupil) -> dict[str, Array]:
    return {n: a.copy() for n, a in arrays_of(of.parts.learner.algorithm.acting).items()}


def trained_round(one: RoundPupil) -> Any:
    while (update := one.step()) is None:
        one.ended.clear()
    return update


def alone(args: argparse.Namespace, length: float, seed: int, count: int) -> dict[str, Array]:
    """Trains one client by itself, for as many env steps as all of them have."""
    one = pupil(config(args, length, seed), args.rounds * args.round_steps * count)
    try:
        one.load(Parameters(0, arrays(one)))
        trained_round(one)
        return acting(one)
    finally:
        one.close()


def together(args: argparse.Namespace, lengths: Sequence[float], seed: int) -> dict[str, Array]:
    """Trains all of them in rounds, from the parameters of the same seed."""
    first = pupil(config(args, lengths[0], seed), 1)
    server = FederatedParameterServer(
        arrays(first), "federated", min_workers_for_update=len(lengths), deadline_s=1e6
    )
    first.close()
    clients = {
        f"pole-{length:g}": pupil(config(args, length, 1_000 * i + seed), args.round_steps)
        for i, length in enumerate(lengths, 1)
    }
    try:
        for name in clients:
            server.register_worker(name)
        for number in range(args.rounds):
            served = server.get_parameters()
            assert served is not None
            assert served.version == number
            for name, client in clients.items():
                client.load(served)
                update = trained_round(client)
                server.push_gradients(name, update.arrays, update.weight, version=served.version)
        final, client = server.get_parameters(), next(iter(clients.values()))
        assert final is not None
        client.load(final)
        return acting(client)
    finally:
        for client in clients.values():
            client.close()
        server.close()


def judged(args: argparse.Namespace, weights: dict[str, Array], lengths: Sequence[float]) -> Any:
    """Returns the mean return on each pole, of episodes nobody has seen."""
    found = []
    for length in lengths:
        chosen = config(args, length, 0)
        envs = make(chosen.env, 1)
        algorithm = build_algorithm(chosen, envs.spec)
        envs.close()
        load_arrays(algorithm.acting, weights)
        judge = Evaluator(lambda num, c=chosen: make(c.env, num), algorithm, episodes=EPISODES)
        found.append(float(np.mean(judge.run(seed=777_777).returns)))
        judge.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--scenario", default=SCENARIO)
    parser.add_argument("--lengths", default=LENGTHS)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--round-steps", type=int, default=2_048)
    parser.add_argument("--seeds", type=seeds, default=seeds("10-14"))
    parser.add_argument("--set", action="append", default=[], dest="overrides")
    parser.add_argument("--only", choices=("alone", "together"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    lengths = [float(word) for word in args.lengths.split(",")]
    rows: dict[str, list[list[float]]] = {}  # who → seeds → poles

    def note(who: str, seed: int, weights: dict[str, Array], began: float) -> None:
        scores = judged(args, weights, lengths)
        rows.setdefault(who, []).append(scores)
        said = "  ".join(f"{score:6.1f}" for score in scores)
        print(f"seed {seed} {who:<12} {said}  {time.monotonic() - began:5.0f} s", file=sys.stderr)

    for seed in args.seeds:
        if args.only != "alone":
            began = time.monotonic()
            note("together", seed, together(args, lengths, seed), began)
        for length in lengths if args.only != "together" else ():
            began = time.monotonic()
            note(f"alone {length:g}", seed, alone(args, length, seed, len(lengths)), began)
    print(f"{'mean return on':<16}" + "".join(f"{length:>9g}" for length in lengths) + "  solved")
    for who, scores in rows.items():
        every = np.array(scores)
        solved = (every >= SOLVED).all(axis=1)
        cells = "".join(f"{mean:9.1f}" for mean in every.mean(axis=0))
        print(f"{who:<16}{cells}  all four in {solved.sum()} of {len(solved)} seeds")
    print(json.dumps({"lengths": lengths, "seeds": args.seeds, "returns": rows}))


if __name__ == "__main__":
    main()
