"""Play a game against a trained agent in the terminal."""

import argparse
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from rookery.terminal import abrupt_exit, arguments, output

if TYPE_CHECKING:
    from rookery.selfplay.human_play import HumanGame

EXAMPLES = """\
examples:
  rookery play runs/a
  rookery play runs/a --seat second --against v4000
"""
SEATS: dict[str, int | None] = {"first": 0, "second": 1, "random": None}
NUMBERS = ("first", "second", "third", "fourth")
HELP = [
    "  a number      plays the action with this number",
    "  help          shows this list",
    "  quit          ends the game, as do Ctrl+D and Ctrl+C",
]
INTERRUPTED = 130  # 128 + SIGINT, the shells' convention
T = TypeVar("T")


class PlayerLeft(Exception):
    """Raised when the human player quits the game or closes the terminal."""


FLAGS = """
--seat {first,second,random}  your player in the game: first, second, or random in each game
  (default random)
--against WHO  opponent: best or last (checkpoints of the run), vN (the run's weight snapshot of
  version N), random, or scripted (the game's rule-based player) (default best)
--seed SEED  seed of all random numbers of the games (default 0)
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    arguments.add_run(parser)
    arguments.add_flags(parser, FLAGS, against=opponent)


def run(args: argparse.Namespace) -> int:
    arguments.require_run(args.run)
    with abrupt_exit.abrupt():
        from rookery.selfplay.human_play import open_table

    game = open_table(Path(args.run), against=args.against, seed=args.seed)
    output.say(f"{game.games.name} against {args.against}; `help` explains, `quit` ends")
    ended: list[str] = []
    try:
        code = _games(game, args.against, SEATS[args.seat], ended)
    except PlayerLeft:
        code = 0
    except KeyboardInterrupt:
        code = INTERRUPTED
    finally:
        game.close()
    output.say("", farewell(ended))
    return code


def _games(game: "HumanGame", who: str, seat: int | None, ended: list[str]) -> int:
    """Plays games with the human player until they decline another one; returns exit code 0.

    Appends the result of each game to `ended`.
    """
    again = True
    while again:
        game.begin(seat)
        _say("", f"you are {NUMBERS[game.seat]}")
        _game(game, who)
        ended.append(result_text(game.lead))
        _say("", game.picture(), ended[-1])
        again = _asked("again? [y/n] ", {"y": True, "yes": True, "n": False, "no": False})
    return 0


def _game(game: "HumanGame", who: str) -> None:
    while not game.over:
        action = _choice(game) if game.due else None
        for seat, answer in game.ply(action).items():
            name = who if game.games.seats == 2 else f"{who} ({NUMBERS[seat]})"
            _say(f"{name} plays {answer}")


def _choice(game: "HumanGame") -> int:
    """Shows the position and asks the human player until they give an allowed action."""
    choices = {str(action): action for action in game.choices}
    _say("", game.picture(), f"you may play: {', '.join(choices)}")
    return _asked("your move: ", choices)


def _asked(prompt: str, answers: Mapping[str, T]) -> T:
    """Prompts the human player until they type a key of `answers`; returns its value."""
    while True:
        given = _line(prompt).strip().lower()
        if given in answers:
            return answers[given]
        if given in ("help", "h", "?"):
            _say(*HELP)
        elif given in ("quit", "q", "exit"):
            raise PlayerLeft
        else:
            _say(f"{given!r} is not one of {', '.join(answers)}; `help` explains")


def _say(*lines: str) -> None:
    """Prints lines for the human player; raises `PlayerLeft` if the output is closed."""
    try:
        print(*lines, sep="\n", flush=True)
    except BrokenPipeError:
        raise PlayerLeft from None


def _line(prompt: str) -> str:
    try:
        return input(prompt)
    except (EOFError, BrokenPipeError):  # input or output is closed
        raise PlayerLeft from None


def result_text(lead: float) -> str:
    """Returns a game's result in words; `lead` is the player's score minus the best opponent's."""
    return "you won" if lead > 0 else "you lost" if lead < 0 else "a draw"


def farewell(ended: list[str]) -> str:
    """Returns the line printed at the end: numbers of games won, drawn and lost."""
    if not ended:
        return "bye"
    won, drawn = ended.count("you won"), ended.count("a draw")
    return f"bye: {won} won, {drawn} drawn, {len(ended) - won - drawn} lost"


def opponent(text: str) -> str:
    """Parses the command-line name of an opponent.

    It is best, last, random, scripted, or v and the version of a weight snapshot (v400).
    """
    if text in ("best", "random", "scripted"):
        return text
    if text in ("last", "latest"):
        return "latest"  # the name of the player in ladders
    if match := re.fullmatch(r"v(\d{1,12})", text):
        return f"v{int(match[1])}"
    raise argparse.ArgumentTypeError(
        f"needs best, last, random, scripted, or v and a version, got {text!r}"
    )
