"""How flags are read: a wrong one is refused like any wrong request, with the nearest name."""

import argparse
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from rookery.cli.output import say
from rookery.errors import ConfigError

MAX_SEEDS = 1_000


class Parser(argparse.ArgumentParser):
    """An argument parser that raises instead of ending the process."""

    def __init__(self, prog: str, description: str | None) -> None:
        super().__init__(
            prog=prog,
            description=description,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; `{self.prog} --help` shows what is allowed")

    def print_help(self, file: Any = None) -> None:
        """The argparse of early Python 3.11 fails where a reader has left."""
        say(self.format_help().rstrip("\n"))

    @property
    def flags(self) -> list[str]:
        """Every flag it takes, before its verbs and after them."""
        own = [flag for flag in self._option_string_actions if flag.startswith("--")]
        verbs = [a for a in self._actions if isinstance(a, argparse._SubParsersAction)]
        theirs = [flag for a in verbs for verb in a.choices.values() for flag in verb.flags]
        return list(dict.fromkeys(own + theirs))


def parse(parser: Parser, argv: list[str]) -> argparse.Namespace:
    """Reads the flags and refuses what is left over."""
    args, rest = parser.parse_known_args(argv)
    if not rest:
        return args
    from rookery.config.parse import nearest  # only a mistake has to pay for it

    unknown = next((word for word in rest if word.startswith("-")), rest[0])
    flag = unknown.partition("=")[0]
    near = nearest(flag, parser.flags)
    hint = f"did you mean {near}? " if near not in (None, flag) else ""  # another verb may take it
    raise ConfigError(
        f"{parser.prog} does not take {unknown!r}; {hint}`{parser.prog} --help` shows what it takes"
    )


def accept_underscores(parser: argparse.ArgumentParser) -> None:
    """Takes every flag of a parser as --like_this too, without saying so in its help."""
    known = parser._option_string_actions
    for flag, action in list(known.items()):
        known.setdefault("--" + flag.removeprefix("--").replace("-", "_"), action)


def count(text: str) -> int:
    """Reads a whole number above 0."""
    if not text.isascii() or not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"needs a whole number above 0, got {text!r}")
    return int(text)


def between(low: float, high: float) -> Callable[[str], float]:
    """Returns a reader of numbers from one to another."""

    def read(text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = float("nan")
        if not low <= number <= high:  # nan is not
            raise argparse.ArgumentTypeError(
                f"needs a number from {low:g} to {high:g}, got {text!r}"
            )
        return number

    return read


def counts(text: str) -> list[int]:
    """Reads whole numbers above 0 with commas between them."""
    return [count(part.strip()) for part in text.split(",")]


def seeds(text: str) -> list[int]:
    """Reads `0-4`, `0,2,5` or a mixture of both."""
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d{1,18})(?:-(\d{1,18}))?", part.strip())
        if match is None:
            raise argparse.ArgumentTypeError(f"needs 0-4 or 0,2,5, got {text!r}")
        first, last = int(match[1]), int(match[2] or match[1])
        if not 0 <= last - first < MAX_SEEDS:
            raise argparse.ArgumentTypeError(
                f"needs ranges that go up and hold at most {MAX_SEEDS} seeds, got {part!r}"
            )
        found.extend(range(first, last + 1))
    if len(set(found)) < len(found):
        raise argparse.ArgumentTypeError(f"needs each seed once, got {text!r}")
    return found


def words(text: str) -> list[str]:
    """Reads words with commas between them."""
    return [word.strip() for word in text.split(",")]


def checkpoint(text: str) -> str:
    """Reads `best`, `last` or the number of a checkpoint."""
    if text in ("best", "last") or (text.isascii() and text.isdigit()):
        return text
    raise argparse.ArgumentTypeError(f"needs best, last or a number, got {text!r}")


def amounts(text: str) -> dict[str, float]:
    """Reads `GPU=1,CPU=2`."""
    found: dict[str, float] = {}
    for part in text.split(","):
        match = re.fullmatch(r"\s*([\w.:-]+)=(\d+(?:\.\d+)?)\s*", part)
        if match is None:
            raise argparse.ArgumentTypeError(f"needs NAME=AMOUNT,..., got {text!r}")
        found[match[1]] = float(match[2])
    return found


def target(
    usual: Path, out: str | None, format: str | None, formats: Sequence[str]
) -> tuple[Path, str]:
    """Returns the file to write and its format; the name and --format must not disagree.

    `usual` is the file where none is named, without the ending; the first format is the usual one.
    """
    path = Path(out) if out else usual.with_name(f"{usual.name}.{format or formats[0]}")
    ending = path.suffix.lower().removeprefix(".")
    if ending in formats and format in (None, ending):
        return path, ending
    if format is not None and ending not in formats:
        return path, format
    if format is None:
        endings = " or ".join(f".{known}" for known in formats)
        raise ConfigError(
            f"--out is {out!r}, which does not end in {endings}; rename it, or say which with "
            "--format"
        )
    raise ConfigError(f"--out is {out!r} and --format {format!r}; drop one of them, or rename it")
