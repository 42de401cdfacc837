"""Recording of a run: plays episodes with a checkpoint's weights and writes a GIF or video."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from gymnasium.error import DependencyNotInstalled

from rookery.checkpoints.load_weights import read_weights
from rookery.config.load import load_run
from rookery.envs.make import Factory
from rookery.errors import ConfigError, EnvError
from rookery.evaluation.evaluate_run import evaluator_of
from rookery.report import video
from rookery.terminal import output

USUAL_FPS = 30.0  # where the environment does not give its frame rate


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
    video.require(format)
    output.prepare(out, "a video")
    weights, config = read_weights(run_dir, checkpoint), load_run(run_dir)
    env = config.eval_env
    if max_steps is not None:
        limit = {"TimeLimit": {"max_episode_steps": max_steps}}
        env = replace(env, wrappers=(*env.wrappers, limit))  # the outermost
    with evaluator_of(config, weights, env, 1, factory, render=True) as evaluator:
        if not evaluator.envs.pictures:
            raise _no_frames(evaluator.envs.name)
        speed = fps or evaluator.envs.fps or USUAL_FPS
        try:
            played = [evaluator.run(seed=seed + i, record=True) for i in range(episodes)]
        except EnvError as error:
            if not isinstance(error.__cause__, DependencyNotInstalled):
                raise
            raise ConfigError(
                f"{config.env.id} cannot be rendered: {error.__cause__}; pip install "
                "'rookery[video]', or get the score alone with `rookery evaluate`"
            ) from error
    frames = [frame for one in played for frame in one.frames]
    if not frames:
        raise _no_frames(config.env.id)
    with output.reported(out):
        video.WRITERS[format](out, frames, speed)
    return {
        "file": str(out),
        "episodes": episodes,
        "returns": [score for one in played for score in one.returns],
        "lengths": [length for one in played for length in one.lengths],
        "frames": len(frames),
        "fps": speed,
        "version": weights.version,
    }


def _no_frames(name: str) -> ConfigError:
    return ConfigError(
        f"{name} renders no frames; a recording needs an environment that takes "
        "render_mode='rgb_array' and lists it in metadata['render_modes']; give it a render "
        "method, or get the score alone with `rookery evaluate`"
    )
