"""Evaluates a run, finished or in progress, with a checkpoint from its folder."""

import contextlib
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from rookery.checkpoints.load_weights import read_weights
from rookery.config.load import load_run
from rookery.config.schema import Config, EnvConfig
from rookery.envs.make import Factory, make
from rookery.evaluation.evaluation_process import build_policy
from rookery.evaluation.evaluator import MOST_ENVS, Evaluator, with_opponents
from rookery.networks.named_arrays import load_arrays
from rookery.types import Weights


@contextlib.contextmanager
def evaluator_of(
    config: Config,
    weights: Weights,
    env: EnvConfig,
    episodes: int,
    factory: Factory | None,
    *,
    render: bool = False,
) -> Iterator[Evaluator]:
    """Context with an evaluator that plays `env` with the weights of a checkpoint."""
    torch.set_num_threads(1)
    with contextlib.closing(
        make(env, min(episodes, MOST_ENVS), factory=factory, render=render)
    ) as envs:
        algorithm = build_policy(config, envs, factory)
        load_arrays(algorithm.acting, weights.arrays)
        if not render:  # in a recording the policy plays all seats of a game
            with_opponents(config, envs, algorithm)
        yield Evaluator(lambda num: envs, algorithm, episodes=episodes)


def evaluate_run(
    run_dir: Path,
    *,
    checkpoint: str = "best",
    episodes: int = 100,
    deterministic: bool | None = None,
    seed: int = 0,
    factory: Factory | None = None,
) -> dict[str, Any]:
    """Plays evaluation episodes with a checkpoint's weights; returns scores and statistics.

    `deterministic` is as in `Policy.act`.
    """
    weights, config = read_weights(run_dir, checkpoint), load_run(run_dir)
    with evaluator_of(config, weights, config.eval_env, episodes, factory) as evaluator:
        result = evaluator.run(
            seed=seed,
            epsilon=config.randomness.last if deterministic is False else 0.0,
            noise=None if deterministic is None else not deterministic,
        )
    success = {} if result.success_rate is None else {"success_rate": result.success_rate}
    return {
        "episodes": episodes,
        "mean_return": statistics.fmean(result.returns),
        "std_return": statistics.pstdev(result.returns),
        **success,
        "returns": list(result.returns),
        "version": weights.version,
    }
