"""Recording of a run: plays episodes with a checkpoint's weights and writes a GIF or video."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from gymnasium.error import DependencyNotInstalled

from rookery.algorithms import build_algorithm
from rookery.checkpoints.load_weights import read_weights
from rookery.config.load import load_run
from rookery.config.schema import Config, EnvConfig
from rookery.envs.make import Factory, make
from rookery.errors import ConfigError, EnvError
from rookery.evaluation.evaluator import EvaluationResult, Evaluator
from rookery.networks.named_arrays import load_arrays
from rookery.report import gif, mp4
from rookery.terminal import output_path
from rookery.types import Array, Weights

USUAL_FPS = 30.0  # where the environment does not give its frame rate


class VideoFormat(NamedTuple):
    """A video file format: a check that it can be written, and the function that writes it."""

    require: Callable[[], None]  # raises where the format cannot be written
    write: Callable[[Path, Sequence[Array], float], None]


VIDEO_FORMATS: dict[str, VideoFormat] = {
    "gif": VideoFormat(gif.require, gif.write_gif),
    "mp4": VideoFormat(mp4.require, mp4.write_mp4),
}


def record_run(
    run_dir: Path,
    out: Path,
    *,
    format: str = "gif",
    checkpoint: str = "best",
    episodes: int = 1,
    max_steps: int | None = None,
    seed: int = 0,
    fps: float | None = None,
    factory: Factory | None = None,
) -> dict[str, Any]:
    """Plays greedy episodes with a checkpoint's weights and writes them to one video file.

    Episode i has seed `seed + i`; `max_steps` truncates each. Without `fps` the environment's frame
    rate is used. Returns the scores, and facts about the file.
    """
    VIDEO_FORMATS[format].require()
    output_path.prepare(out, "a video")
    weights, config = read_weights(run_dir, checkpoint), load_run(run_dir)
    with _evaluator(config, weights, _limited(config.eval_env, max_steps), factory) as evaluator:
        speed = fps or evaluator.envs.fps or USUAL_FPS
        with _missing_packages(config.env.id):
            played = [evaluator.run(seed=seed + i, record=True) for i in range(episodes)]
    frames = _frames(played, config.env.id)
    with output_path.reported(out):
        VIDEO_FORMATS[format].write(out, frames, speed)
    return {
        "file": str(out),
        "episodes": episodes,
        "returns": [score for one in played for score in one.returns],
        "lengths": [length for one in played for length in one.lengths],
        "frames": len(frames),
        "fps": speed,
        "version": weights.version,
    }


def _limited(env: EnvConfig, max_steps: int | None) -> EnvConfig:
    """Returns the environment's settings with a time limit of `max_steps` as outermost wrapper."""
    if max_steps is None:
        return env
    limit = {"TimeLimit": {"max_episode_steps": max_steps}}
    return replace(env, wrappers=(*env.wrappers, limit))


@contextmanager
def _evaluator(
    config: Config, weights: Weights, env: EnvConfig, factory: Factory | None
) -> Iterator[Evaluator]:
    torch.set_num_threads(1)
    envs = make(env, 1, factory=factory, render=True)
    try:
        if not envs.pictures:
            raise _no_frames(envs.name)
        algorithm = build_algorithm(config, envs.spec)
        load_arrays(algorithm.acting, weights.arrays)
        yield Evaluator(lambda num: envs, algorithm, episodes=1)
    finally:
        envs.close()


@contextmanager
def _missing_packages(name: str) -> Iterator[None]:
    """Context manager that raises ConfigError if packages for rendering are missing.

    The message says which extra of Rookery to install with pip.
    """
    try:
        yield
    except EnvError as error:
        if not isinstance(error.__cause__, DependencyNotInstalled):
            raise
        raise ConfigError(
            f"{name} cannot be rendered: {error.__cause__}; pip install 'rookery[video]', or get "
            "the score alone with `rookery evaluate`"
        ) from error


def _no_frames(name: str) -> ConfigError:
    return ConfigError(
        f"{name} renders no frames; a recording needs an environment that takes "
        "render_mode='rgb_array' and lists it in metadata['render_modes']; give it a render "
        "method, or get the score alone with `rookery evaluate`"
    )


def _frames(played: Sequence[EvaluationResult], name: str) -> list[Array]:
    frames = [frame for one in played for frame in one.frames]
    if not frames:
        raise _no_frames(name)
    return frames
