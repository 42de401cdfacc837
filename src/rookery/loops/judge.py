"""Judges a run that is over, or in progress, from its folder alone."""

import statistics
from pathlib import Path
from typing import Any

import torch

from rookery.algos import build_algorithm
from rookery.config.load import load_run
from rookery.envs.make import Envs, make
from rookery.evaluator import Evaluator
from rookery.loops.company import seat_judge
from rookery.loops.launch import read_weights
from rookery.loops.wiring import Factory
from rookery.nets.arrays import load_arrays


def judge(
    run_dir: Path,
    *,
    checkpoint: str = "best",
    episodes: int = 100,
    deterministic: bool = True,
    seed: int = 0,
    factory: Factory | None = None,
) -> dict[str, Any]:
    """Plays `episodes` episodes with a checkpoint's weights and returns their returns."""
    weights = read_weights(run_dir, checkpoint)
    config = load_run(run_dir)
    torch.set_num_threads(1)
    probe = make(config.env, 1, factory=factory)
    algorithm = build_algorithm(config, probe.spec)
    probe.close()
    load_arrays(algorithm.acting, weights.arrays)

    def seated(num: int) -> Envs:
        return seat_judge(config, make(config.judged_env, num, factory=factory), algorithm)

    evaluator = Evaluator(seated, algorithm, episodes=episodes)
    try:
        judged = evaluator.run(
            seed=seed,
            epsilon=0.0 if deterministic else config.randomness.last,
            noise=not deterministic,
        )
    finally:
        evaluator.close()
    succeeded = {} if judged.success_rate is None else {"success_rate": judged.success_rate}
    return {
        "episodes": episodes,
        "mean_return": statistics.fmean(judged.returns),
        "std_return": statistics.pstdev(judged.returns),
        **succeeded,
        "returns": list(judged.returns),
        "version": weights.version,
    }
