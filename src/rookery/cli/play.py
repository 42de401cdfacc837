"""Lets a person play against a trained agent, in the terminal."""

import argparse
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from rookery.cli import output, signals
from rookery.errors import ConfigError

if TYPE_CHECKING:
    from rookery.loops.versus import Versus

EXAMPLES = """\
examples:
  rookery play runs/a
  rookery play runs/a --seat second --against v4000
"""
SEATS: dict[str, int | None] = {"first": 0, "second": 1, "random": None}
NUMBERS = ("first", "second", "third", "fourth")
HELP = [
    "  a number      does what has this number",
    "  help          shows this",
    "  quit          ends the game; so do Ctrl+D and Ctrl+C",
]
INTERRUPTED = 130  # 128 + SIGINT, as shells have it
T = TypeVar("T")


class Left(Exception):
    """The person has had enough."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    parser.add_argument("run", metavar="RUN", help="the folder that `rookery train` named")
    parser.add_argument(
        "--seat", choices=list(SEATS), default="random", help="yours; random (default): drawn"
    )
    parser.add_argument(
        "--against",
        type=opponent,
        default="best",
        metavar="WHO",
        help="best (default), latest, vN (a snapshot), random or scripted",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="of everything random; 0")


def run(args: argparse.Namespace) -> int:
    if args.seed < 0:
        raise ConfigError(f"--seed must be at least 0, got {args.seed}; leave it out for 0")
    _refuse_no_run(args.run)
    with signals.abrupt():
        from rookery.loops.versus import open_table

    versus = open_table(Path(args.run), against=args.against, seed=args.seed)
    output.say(f"{versus.name} against {args.against}; `help` explains, `quit` ends")
    ended: list[str] = []
    try:
        code = _games(versus, args.against, SEATS[args.seat], ended)
    except Left:
        code = 0
    except KeyboardInterrupt:
        code = INTERRUPTED
    finally:
        versus.close()
    output.say("", farewell(ended))
    return code


def _games(versus: "Versus", who: str, seat: int | None, ended: list[str]) -> int:
    """Plays until the person wants no more; notes how each game ended."""
    again = True
    while again:
        versus.begin(seat)
        _say("", f"you are {NUMBERS[versus.seat]}")
        _game(versus, who)
        ended.append(judged(versus.lead))
        _say("", versus.picture(), ended[-1])
        again = _asked("again? [y/n] ", {"y": True, "yes": True, "n": False, "no": False})
    return 0


def _game(versus: "Versus", who: str) -> None:
    while not versus.over:
        action = _choice(versus) if versus.due else None
        for seat, answer in versus.ply(action).items():
            name = who if versus.seats == 2 else f"{who} ({NUMBERS[seat]})"
            _say(f"{name} plays {answer}")


def _choice(versus: "Versus") -> int:
    """Shows the position and asks until an allowed action was named."""
    choices = {str(action): action for action in versus.choices}
    _say("", versus.picture(), f"you may play: {', '.join(choices)}")
    return _asked("your move: ", choices)


def _asked(prompt: str, answers: Mapping[str, T]) -> T:
    """Asks until one of the answers was given."""
    while True:
        given = _line(prompt).strip().lower()
        if given in answers:
            return answers[given]
        if given in ("help", "h", "?"):
            _say(*HELP)
        elif given in ("quit", "q", "exit"):
            raise Left
        else:
            _say(f"{given!r} is not one of {', '.join(answers)}; `help` explains")


def _say(*lines: str) -> None:
    """Prints lines; where nobody reads any more, there is nobody to play with."""
    try:
        print(*lines, sep="\n", flush=True)
    except BrokenPipeError:
        raise Left from None


def _line(prompt: str) -> str:
    try:
        return input(prompt)
    except (EOFError, BrokenPipeError):  # nobody writes any more, or nobody reads
        raise Left from None


def judged(lead: float) -> str:
    """Says how a game ended for somebody with so much more than the others."""
    return "you won" if lead > 0 else "you lost" if lead < 0 else "a draw"


def farewell(ended: list[str]) -> str:
    """Counts the games."""
    if not ended:
        return "bye"
    won, drawn = ended.count("you won"), ended.count("a draw")
    return f"bye: {won} won, {drawn} drawn, {len(ended) - won - drawn} lost"


def opponent(text: str) -> str:
    """Reads who is played against."""
    if text in ("best", "latest", "random", "scripted"):
        return text
    if match := re.fullmatch(r"v(\d{1,12})", text):
        return f"v{int(match[1])}"
    raise argparse.ArgumentTypeError(
        f"needs best, latest, random, scripted, or v and a version, got {text!r}"
    )


def _refuse_no_run(run_dir: str) -> None:
    from rookery.config.load import load_run

    load_run(run_dir)
