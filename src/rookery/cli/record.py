"""Play episodes with a trained agent and write them as a GIF or a video."""

import argparse
import os
from pathlib import Path
from typing import Any

from rookery.terminal import abrupt_exit, arguments, output

EXAMPLES = """\
examples:
  rookery record runs/a
  rookery record runs/a --checkpoint last --episodes 3 --out film.mp4
"""
FORMATS = ("gif", "mp4")
SLOWEST, FASTEST = 0.1, 1_000.0  # frames per second


FLAGS = """
--out FILE  video file to write (default: RUN/episode.gif)
--format {gif,mp4}  format of the file (default: by the extension of --out)
--episodes N  number of episodes to record (default 1)
--seed SEED  seed S of the first episode; the others have S + 1, ... (default 0)
--fps F  frames per second of the video (default: the environment's own)
--max-steps N  maximum number of env steps per episode; longer episodes are cut, since all frames
  are held in memory (default 1000)
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    arguments.add_run(parser)
    arguments.add_checkpoint(parser)
    arguments.add_flags(parser, FLAGS, out=str, fps=arguments.between(SLOWEST, FASTEST))
    arguments.add_json(parser)


def run(args: argparse.Namespace) -> int:
    out, format = arguments.target(Path(args.run) / "episode", args.out, args.format, FORMATS)
    arguments.require_run(args.run)
    need_no_screen()
    with abrupt_exit.abrupt():
        from rookery.evaluation.record_run import record_run

    answer = record_run(
        Path(args.run),
        out,
        format=format,
        checkpoint=args.checkpoint,
        episodes=args.episodes,
        max_steps=args.max_steps,
        seed=args.seed,
        fps=args.fps,
    )
    output.answer(args, answer, summary(answer))
    return 0


def need_no_screen() -> None:
    """Sets environment variables so that pygame and MuJoCo render without a screen."""
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    if not any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY")):
        os.environ.setdefault("MUJOCO_GL", "egl")


def summary(answer: dict[str, Any]) -> list[str]:
    """Returns two lines of text: the recorded file, and the returns of the episodes."""
    scores = ", ".join(f"{score:.2f}" for score in answer["returns"])
    return [
        f"{answer['file']}: {answer['frames']} frames at {answer['fps']:g} per second",
        f"  return {scores} with version {answer['version']}",
    ]
