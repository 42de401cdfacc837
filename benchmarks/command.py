"""Runs a benchmark: Rookery, and what it is compared with, in one run on this machine.

A benchmark has contenders, each a script of the folder `benchmarks` that does the same work and
prints {"value": ...}. Every trial is a process of its own with one thread. Trials are interleaved
(round 1: each contender once; round 2: each contender once; ...), so that a machine that slows
down slows all of them. A value is the median over the rounds, its spread
(largest - smallest) / median, and a ratio Rookery's median / the contender's median, or what its
name says.
"""

import argparse
import importlib.util
import sys
import textwrap
from collections.abc import Sequence

from benchmarks.bench import Answer, Bench
from benchmarks.report import report
from benchmarks.run import Trial, attempt, interleave
from benchmarks.summary import summary
from benchmarks.table import BENCHES
from benchmarks.variants import WITH_ACTORS, engines
from rookery.config.schema import Engine
from rookery.errors import ConfigError, RookeryError
from rookery.terminal import arguments, output

PROGRAM = "python -m benchmarks"
EXAMPLES = """\
examples, from the repository root:
  python -m benchmarks replay --peers
  python -m benchmarks train --peers --seeds 0-4 --json
  python -m benchmarks train --engines processes,ray
"""
ENGINES = (str(Engine.PROCESSES), str(Engine.RAY))  # of --engines
EXTRAS = {"stable_baselines3": "sb3", "uvicorn": "server"}  # what a benchmark needs → its extra
INTERRUPTED = 130  # 128 + SIGINT, as shells have it


def main(argv: Sequence[str]) -> int:
    """Runs one benchmark, prints its answer and returns the exit code."""
    try:
        args = arguments.parse(parser(), list(argv))
        answer = measured(args)
    except RookeryError as error:
        return _complain(f"error: {error}", error.exit_code)
    except KeyboardInterrupt:
        return _complain("interrupted", INTERRUPTED)
    if args.json:
        output.say_json(answer)
    else:
        output.say(*report(answer))
    return 0


def parser() -> arguments.Parser:
    """Returns the parser of the flags."""
    made = arguments.Parser(prog=PROGRAM, description=__doc__)
    made.epilog = f"{_list()}\n\n{EXAMPLES}"
    made.add_argument("bench", choices=list(BENCHES), help="what to measure")
    made.add_argument(
        "--actors",
        type=arguments.counts,
        metavar="1,2",
        help="collect: numbers of actors to compare; async: number of actors",
    )
    made.add_argument(
        "--engines",
        type=arguments.words,
        metavar="processes,ray",
        help="train: measure what these engines cost, versus the first of them",
    )
    made.add_argument("--peers", action="store_true", help="run other libraries (rookery[peers])")
    rounds = made.add_mutually_exclusive_group()
    rounds.add_argument(
        "--rounds", type=arguments.count, metavar="N", help="trials of each contender"
    )
    rounds.add_argument(
        "--seeds", type=arguments.seeds, metavar="0-4", help="one round for each seed"
    )
    made.add_argument(
        "--seconds", type=float, default=2.0, metavar="S", help="of a timed trial (default 2)"
    )
    made.add_argument("--json", action="store_true", help="one JSON object as the last line")
    return made


def measured(args: argparse.Namespace) -> Answer:
    """Runs the benchmark that was asked for and returns its answer."""
    bench = _chosen(args)
    if bench.needs and not _installed(bench.needs):
        raise ConfigError(
            f"bench {args.bench} measures {bench.needs}, which is not installed; "
            f"pip install 'rookery[{EXTRAS[bench.needs]}]'"
        )
    seeds = args.seeds or range(args.rounds or bench.rounds)
    asked = [contender for contender in bench.contenders if args.peers or not contender.package]
    present = [
        contender for contender in asked if not contender.package or _installed(contender.package)
    ]
    trials = [Trial(seed, args.seconds, bench.deadline_s) for seed in seeds]
    runs = interleave(present, trials, attempt)
    return summary(
        args.bench,
        bench,
        runs,
        absent=[contender for contender in asked if contender not in present],
    )


def _chosen(args: argparse.Namespace) -> Bench:
    if args.engines and args.bench != "train":
        raise ConfigError(f"bench {args.bench} has one engine, got --engines; it goes with train")
    if args.engines:
        return engines(_known(args.engines))
    if not args.actors:
        return BENCHES[args.bench]
    if args.bench not in WITH_ACTORS:
        raise ConfigError(
            f"bench {args.bench} has no actors, got --actors; "
            f"it goes with {' and '.join(WITH_ACTORS)}"
        )
    return WITH_ACTORS[args.bench](args.actors)


def _known(names: Sequence[str]) -> Sequence[str]:
    if wrong := [name for name in names if name not in ENGINES]:
        raise ConfigError(
            f"--engines are of {', '.join(ENGINES)}, got {', '.join(wrong)}; "
            f"write {PROGRAM} train --engines processes,ray"
        )
    return names


def _installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def _list() -> str:
    """Returns what each benchmark measures, for the help."""
    lines = (
        textwrap.fill(
            f"{name:<12} {bench.about}",
            width=99,
            initial_indent="  ",
            subsequent_indent=" " * 15,
        )
        for name, bench in BENCHES.items()
    )
    return "\n".join(["benchmarks:", *lines])


def _complain(message: str, code: int) -> int:
    print(f"benchmarks: {message}", file=sys.stderr, flush=True)
    return code
