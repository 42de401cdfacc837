"""Plays episodes with a trained agent and writes them as a GIF or a video."""

import argparse
import os
from pathlib import Path
from typing import Any

from rookery.cli import arguments, output, signals
from rookery.errors import ConfigError

EXAMPLES = """\
examples:
  rookery record runs/a
  rookery record runs/a --checkpoint last --episodes 3 --out film.mp4
"""
FORMATS = ("gif", "mp4")
SLOWEST, FASTEST = 0.1, 1_000.0  # frames a second


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    parser.add_argument("run", metavar="RUN", help="the folder that `rookery train` named")
    parser.add_argument("--out", metavar="FILE", help="default RUN/episode.gif")
    parser.add_argument("--format", choices=FORMATS, help="default: what the file's name ends in")
    parser.add_argument(
        "--episodes", type=arguments.count, default=1, metavar="N", help="default 1"
    )
    parser.add_argument(
        "--checkpoint",
        type=arguments.checkpoint,
        default="best",
        metavar="WHICH",
        help="best (default), last, or the env steps of a checkpoint",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="of the first episode")
    parser.add_argument(
        "--fps",
        type=arguments.between(SLOWEST, FASTEST),
        metavar="F",
        help="frames a second; default: the environment's own",
    )
    parser.add_argument(
        "--max-steps",
        type=arguments.count,
        default=1_000,
        metavar="N",
        help="cuts longer episodes (1000); all pictures are held in memory",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")


def run(args: argparse.Namespace) -> int:
    if args.seed < 0:
        raise ConfigError(f"--seed must be at least 0, got {args.seed}; leave it out for 0")
    out, format = target(args.run, args.out, args.format)
    _refuse_no_run(args.run)
    need_no_screen()
    with signals.abrupt():
        from rookery.loops.film import film

    answer = film(
        Path(args.run),
        out,
        format=format,
        checkpoint=args.checkpoint,
        episodes=args.episodes,
        max_steps=args.max_steps,
        seed=args.seed,
        fps=args.fps,
    )
    if args.json:
        output.say_json(answer)
    else:
        output.say(*summary(answer))
    return 0


def target(run_dir: str, out: str | None, format: str | None) -> tuple[Path, str]:
    """Returns the film to write and its format."""
    return arguments.target(Path(run_dir) / "episode", out, format, FORMATS)


def need_no_screen() -> None:
    """Lets pygame and MuJoCo draw where there is no screen; what the user has set stays."""
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    if not any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY")):
        os.environ.setdefault("MUJOCO_GL", "egl")


def summary(answer: dict[str, Any]) -> list[str]:
    """Says in two lines what was played and where it is."""
    scores = ", ".join(f"{score:.2f}" for score in answer["returns"])
    return [
        f"{answer['file']}: {answer['frames']} frames at {answer['fps']:g} a second",
        f"  return {scores} with version {answer['version']}",
    ]


def _refuse_no_run(run_dir: str) -> None:
    from rookery.config.load import load_run

    load_run(run_dir)
