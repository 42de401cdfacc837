"""Play episodes with a trained agent and report the mean return."""

import argparse
from pathlib import Path
from typing import Any

from rookery.terminal import abrupt_exit, arguments, output

EXAMPLES = """\
examples:
  rookery evaluate runs/a
  rookery evaluate runs/a --checkpoint last --episodes 20 --json
"""


FLAGS = """
--episodes N  number of evaluation episodes (default 100)
--stochastic  explore as at the end of training (default: greedy, or sampled if trained for that)
--seed SEED  seed of the episodes (default 0)
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    arguments.add_run(parser)
    arguments.add_checkpoint(parser)
    arguments.add_flags(parser, FLAGS)
    arguments.add_json(parser)


def run(args: argparse.Namespace) -> int:
    arguments.require_run(args.run)
    with abrupt_exit.abrupt():
        from rookery.evaluation.evaluate_run import evaluate_run

    answer = evaluate_run(
        Path(args.run),
        checkpoint=args.checkpoint,
        episodes=args.episodes,
        deterministic=False if args.stochastic else None,
        seed=args.seed,
    )
    output.answer(args, answer, summary(answer))
    return 0


def summary(answer: dict[str, Any]) -> list[str]:
    """Returns the result of an evaluation as two lines of text: mean return, lowest, highest."""
    returns, share = answer["returns"], answer.get("success_rate")
    success = "" if share is None else f", {share:.0%} succeeded"
    return [
        f"mean return {answer['mean_return']:.2f} +- {answer['std_return']:.2f} "
        f"over {answer['episodes']} episodes with version {answer['version']}",
        f"  lowest {min(returns):.2f}, highest {max(returns):.2f}{success}",
    ]
