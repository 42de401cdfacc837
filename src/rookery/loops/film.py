"""Films a run: plays episodes with a checkpoint's weights and writes what they looked like."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from gymnasium.error import DependencyNotInstalled

from rookery.algos import build_algorithm
from rookery.config.load import load_run
from rookery.config.schema import Config, EnvConfig
from rookery.envs.make import make
from rookery.errors import ConfigError, EnvError
from rookery.evaluator import Evaluator, Judged
from rookery.loops import place
from rookery.loops.launch import read_weights
from rookery.loops.wiring import Factory
from rookery.nets.arrays import load_arrays
from rookery.report import gif, mp4
from rookery.types import Array, Weights

USUAL_FPS = 30.0  # where the environment says nothing


class Writer(NamedTuple):
    """A format of films."""

    require: Callable[[], None]  # refuses where it cannot be written
    write: Callable[[Path, Sequence[Array], float], None]


WRITERS: dict[str, Writer] = {
    "gif": Writer(gif.require, gif.write_gif),
    "mp4": Writer(mp4.require, mp4.write_mp4),
}


def film(
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
    """Plays greedily, episode i with seed + i, and writes all of them one after another.

    `max_steps` cuts each episode; without `fps` the film is as fast as the environment says.
    """
    WRITERS[format].require()
    place.prepare(out, "a film")
    weights, config = read_weights(run_dir, checkpoint), load_run(run_dir)
    with _evaluator(config, weights, _cut(config.judged_env, max_steps), factory) as evaluator:
        speed = fps or evaluator.envs.fps or USUAL_FPS
        with _packages(config.env.id):
            played = [evaluator.run(seed=seed + i, record=True) for i in range(episodes)]
    frames = _frames(played, config.env.id)
    with place.reported(out):
        WRITERS[format].write(out, frames, speed)
    return {
        "file": str(out),
        "episodes": episodes,
        "returns": [score for one in played for score in one.returns],
        "lengths": [length for one in played for length in one.lengths],
        "frames": len(frames),
        "fps": speed,
        "version": weights.version,
    }


def _cut(env: EnvConfig, max_steps: int | None) -> EnvConfig:
    """Puts a time limit around all others: it may shorten an episode and never prolongs one."""
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
            raise _blind(envs.name)
        algorithm = build_algorithm(config, envs.spec)
        load_arrays(algorithm.acting, weights.arrays)
        yield Evaluator(lambda num: envs, algorithm, episodes=1)
    finally:
        envs.close()


@contextmanager
def _packages(name: str) -> Iterator[None]:
    """Says what to install where an environment lacks what it draws with."""
    try:
        yield
    except EnvError as error:
        if not isinstance(error.__cause__, DependencyNotInstalled):
            raise
        raise ConfigError(
            f"{name} cannot be drawn: {error.__cause__}; pip install 'rookery[video]', or look at "
            "the score alone with `rookery evaluate`"
        ) from error


def _blind(name: str) -> ConfigError:
    return ConfigError(
        f"{name} gives no pictures; a film needs an environment that takes "
        "render_mode='rgb_array' and names it in metadata['render_modes']; give it a render "
        "method, or look at the score alone with `rookery evaluate`"
    )


def _frames(played: Sequence[Judged], name: str) -> list[Array]:
    frames = [frame for one in played for frame in one.frames]
    if not frames:
        raise _blind(name)
    return frames
