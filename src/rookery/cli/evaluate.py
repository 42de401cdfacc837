"""Plays episodes with a trained agent and reports the score."""

import argparse
from pathlib import Path
from typing import Any

from rookery.cli import arguments, output, signals
from rookery.errors import ConfigError

EXAMPLES = """\
examples:
  rookery evaluate runs/a
  rookery evaluate runs/a --checkpoint last --episodes 20 --json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    parser.add_argument("run", metavar="RUN", help="the folder that `rookery train` named")
    parser.add_argument(
        "--episodes", type=arguments.count, default=100, metavar="N", help="default 100"
    )
    parser.add_argument(
        "--checkpoint",
        type=arguments.checkpoint,
        default="best",
        metavar="WHICH",
        help="best (default), last, or the env steps of a checkpoint",
    )
    parser.add_argument("--stochastic", action="store_true", help="explore as in training")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="of the episodes")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")


def run(args: argparse.Namespace) -> int:
    if args.seed < 0:
        raise ConfigError(f"--seed must be at least 0, got {args.seed}; leave it out for 0")
    _refuse_no_run(args.run)
    with signals.abrupt():
        from rookery.loops.judge import judge

    answer = judge(
        Path(args.run),
        checkpoint=args.checkpoint,
        episodes=args.episodes,
        deterministic=not args.stochastic,
        seed=args.seed,
    )
    if args.json:
        output.say_json(answer)
    else:
        output.say(*summary(answer))
    return 0


def summary(answer: dict[str, Any]) -> list[str]:
    """Says the score in two lines."""
    returns, share = answer["returns"], answer.get("success_rate")
    told = "" if share is None else f", {share:.0%} succeeded"
    return [
        f"mean return {answer['mean_return']:.2f} +- {answer['std_return']:.2f} "
        f"over {answer['episodes']} episodes with version {answer['version']}",
        f"  lowest {min(returns):.2f}, highest {max(returns):.2f}{told}",
    ]


def _refuse_no_run(run_dir: str) -> None:
    from rookery.config.load import load_run

    load_run(run_dir)
