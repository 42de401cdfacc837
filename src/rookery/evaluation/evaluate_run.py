"""Evaluates a run, finished or in progress, with a checkpoint from its folder."""

import statistics
from pathlib import Path
from typing import Any

import torch

from rookery.algorithms import build_algorithm
from rookery.checkpoints.load_weights import read_weights
from rookery.config.load import load_run
from rookery.envs.make import Envs, Factory, make
from rookery.evaluation.evaluator import Evaluator, with_opponents
from rookery.networks.named_arrays import load_arrays


def evaluate_run(
    run_dir: Path,
    *,
    checkpoint: str = "best",
    episodes: int = 100,
    deterministic: bool = True,
    seed: int = 0,
    factory: Factory | None = None,
) -> dict[str, Any]:
    """Plays evaluation episodes with a checkpoint's weights; returns scores and statistics."""
    weights = read_weights(run_dir, checkpoint)
    config = load_run(run_dir)
    torch.set_num_threads(1)
    probe = make(config.env, 1, factory=factory)
    algorithm = build_algorithm(config, probe.spec)
    probe.close()
    load_arrays(algorithm.acting, weights.arrays)

    def make_envs(num: int) -> Envs:
        return with_opponents(config, make(config.eval_env, num, factory=factory), algorithm)

    evaluator = Evaluator(make_envs, algorithm, episodes=episodes)
    try:
        result = evaluator.run(
            seed=seed,
            epsilon=0.0 if deterministic else config.randomness.last,
            noise=not deterministic,
        )
    finally:
        evaluator.close()
    success = {} if result.success_rate is None else {"success_rate": result.success_rate}
    return {
        "episodes": episodes,
        "mean_return": statistics.fmean(result.returns),
        "std_return": statistics.pstdev(result.returns),
        **success,
        "returns": list(result.returns),
        "version": weights.version,
    }
