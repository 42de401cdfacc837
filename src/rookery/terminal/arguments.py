"""Command-line arguments: parser of a subcommand, converters of values, common arguments."""

import argparse
import inspect
import math
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from rookery.config import checks
from rookery.config.other_libraries import NAMES_ELSEWHERE
from rookery.errors import ConfigError
from rookery.terminal.output import say

MAX_SEEDS = 1_000


class Parser(argparse.ArgumentParser):
    """Argument parser that raises `ConfigError` for invalid arguments instead of exiting."""

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
        """Prints the help; unlike in argparse, a closed pipe (`| head`) is not an error."""
        say(self.format_help().rstrip("\n"))

    @property
    def flags(self) -> list[str]:
        """All flags (`--name`) of this parser and of its subparsers."""
        own = [flag for flag in self._option_string_actions if flag.startswith("--")]
        verbs = [a for a in self._actions if isinstance(a, argparse._SubParsersAction)]
        theirs = [flag for a in verbs for verb in a.choices.values() for flag in verb.flags]
        return list(dict.fromkeys(own + theirs))


def parse(parser: Parser, argv: list[str]) -> argparse.Namespace:
    """Parses arguments; an unknown flag raises `ConfigError`, which names the most similar flag.

    Flags may be written with underscores (--like_this).
    """
    hyphens = [re.sub(r"^--\w+", lambda flag: flag[0].replace("_", "-"), word) for word in argv]
    args, rest = parser.parse_known_args(hyphens)
    if not rest:
        return args
    unknown = next((word for word in rest if word.startswith("-")), rest[0])
    flag = unknown.partition("=")[0]
    raise ConfigError(
        f"{parser.prog} does not take {unknown!r}; {_flag_hint(parser, flag)}"
        f"`{parser.prog} --help` shows what it takes"
    )


def _flag_hint(parser: Parser, flag: str) -> str:
    """Returns what was meant: a setting as another library calls it, a flag, or a setting."""
    name = flag.lstrip("-").replace("-", "_")
    if "--set" in parser.flags and name in NAMES_ELSEWHERE:
        return _setting_hint(parser, [NAMES_ELSEWHERE[name]])
    near = checks.nearest(flag, parser.flags, least=0.7)
    if near not in (None, flag):  # equal: a flag of another verb
        return f"did you mean {near}? "
    if "--set" not in parser.flags:
        return ""
    from rookery.config.parse import keys

    found = [key for key in keys() if key.partition(".")[2] == name and key[:4] != "sb3."]
    return _setting_hint(parser, found)


def _setting_hint(parser: Parser, settings: list[str]) -> str:
    if not settings:
        return ""
    flags = [action.option_strings[0] for action in parser._actions if action.dest in settings]
    keys = [setting.split()[0].rstrip(";,") for setting in settings]  # it may be explained
    cure = " or ".join(flags or [f"--set {key}=VALUE" for key in keys])
    return f"Rookery calls it {' or '.join(settings)}; write {cure}. "


_FLAG = re.compile(r"(--[\w-]+(?:, --[\w-]+)*)(?: (\S+))?( \.\.\.)?  (.+)", re.DOTALL)
_DEFAULT = re.compile(r"\(default (\S+)\)$")


def add_flags(
    parser: argparse._ActionsContainer, text: str, **readers: Callable[[str], Any]
) -> None:
    """Adds the flags that a text describes, as the help shows them.

        --fps F  frames per second of the video (default 30)
        --seat {first,second}  your player in the game (default: drawn for each game)
        --tag TAG  group of runs to compare; repeatable (default: all)
        --dry-run  list the files that would be removed (default: remove them)

    The value of a flag is read by the reader of its name, otherwise by that of its metavar
    (READERS), or is text. `(default 30)` gives a default, `(default: words)` explains None.
    """
    for entry in _entries(text):
        read = readers.get(entry.dest) or READERS.get(entry.metavar, str)
        options: dict[str, Any] = {"metavar": entry.metavar, "type": read}
        if not entry.metavar:
            options = {"action": "store_true"}
        elif entry.metavar.startswith("{"):
            options = {"choices": entry.metavar[1:-1].split(",")}
        elif entry.metavar == "...":
            options |= {"nargs": argparse.REMAINDER, "default": []}
        if default := _DEFAULT.search(entry.about):
            options["default"] = read(default[1])
        if entry.several:
            options["nargs"] = "+"
        if "; repeatable (" in entry.about:
            options |= {"action": "append", "default": []}
        if entry.about.endswith("(required)"):
            options["required"] = True
        parser.add_argument(*entry.flags, help=entry.about, **options)


def add_settings(
    parser: argparse._ActionsContainer, text: str, **readers: Callable[[str], Any]
) -> None:
    """Adds flags that are short for settings; a value is in the attribute named as the setting.

        --algo NAME  algo.name
        --shards N  replay.shards: parts into which the replay buffer is split

    Without words of its own the help of a flag is the comment of its setting.
    """
    from rookery.config.describe import about

    for entry in _entries(text):
        key, _, words = entry.about.partition(": ")
        read = readers.get(entry.dest) or READERS.get(entry.metavar, str)
        words = f"{words or about(key)} (setting {key}; default: the scenario's)"
        parser.add_argument(*entry.flags, dest=key, metavar=entry.metavar, type=read, help=words)


class _Entry(NamedTuple):
    """A flag as a text describes it."""

    flags: list[str]
    metavar: str  # "": it takes no value
    several: bool  # takes one value or more
    about: str

    @property
    def dest(self) -> str:
        return self.flags[0].removeprefix("--").replace("-", "_")


def _entries(text: str) -> Iterator[_Entry]:
    for paragraph in re.split(r"\n(?=--)", inspect.cleandoc(text)):
        found = _FLAG.fullmatch(paragraph)
        assert found is not None, paragraph
        about = " ".join(found[4].split())
        yield _Entry(found[1].split(", "), found[2] or "", bool(found[3]), about)


def given_settings(args: argparse.Namespace) -> dict[str, Any]:
    """Returns the settings that flags were given for, by dotted key."""
    return {key: value for key, value in vars(args).items() if "." in key and value is not None}


def add_overrides(parser: argparse._ActionsContainer) -> None:
    """Adds the flag --set, which changes any setting, to a parser."""
    add_flags(parser, SET)


def add_wandb(parser: argparse._ActionsContainer) -> None:
    """Adds the flags --wandb and --no-wandb, which change the scenario's setting, to a parser."""
    about = "log metrics to Weights & Biases, or do not (default: the scenario's)"
    action = argparse.BooleanOptionalAction
    parser.add_argument("--wandb", action=action, dest="report.wandb", help=about)


def add_json(parser: argparse._ActionsContainer) -> None:
    """Adds the flag --json (machine-readable output) to a parser."""
    add_flags(parser, "--json  print the result as JSON, in the last line (default: text)")


def add_run(parser: argparse.ArgumentParser) -> None:
    """Adds the positional argument RUN, the folder of a training run, to a parser."""
    about = "run folder, as printed by `rookery train` (required)"
    parser.add_argument("run", type=folder, metavar="RUN", help=about)


def add_runs(parser: argparse.ArgumentParser) -> None:
    """Adds the positional argument RUN, folders of several training runs, to a parser."""
    about = "folders of training runs, or their parents (required)"
    parser.add_argument("run", nargs="+", type=path, metavar="RUN", help=about)


def add_checkpoint(parser: argparse.ArgumentParser) -> None:
    """Adds the flag --checkpoint, which chooses a checkpoint of a run, to a parser."""
    add_flags(parser, CHECKPOINT)


def require_run(run_dir: str | Path) -> None:
    """Raises `ConfigError` unless the folder holds a training run; does not import torch."""
    from rookery.config.load import load_run

    load_run(run_dir)


def whole(text: str) -> int:
    """Parses a command-line value that must be a whole number, such as 100_000, 1e5 or 2.5e6."""
    return _whole(text, "needs a whole number")


def count(text: str) -> int:
    """Parses a command-line value that must be a whole number above 0."""
    return _whole(text, "needs a whole number above 0", least=1)


def seed(text: str) -> int:
    """Parses a command-line value that must be a whole number from 0 on."""
    return _whole(text, "needs a whole number, at least 0", least=0)


def _whole(text: str, needs: str, least: float = -math.inf) -> int:
    number = checks.whole(text)
    if number is None or number < least:
        raise argparse.ArgumentTypeError(f"{needs}, such as 1000 or 1e3, got {text!r}")
    return number


def folder(text: str) -> str:
    """Parses the command-line name of a file or folder; it must not be empty."""
    if not text.strip():
        raise argparse.ArgumentTypeError("needs the name of a folder or file, got an empty one")
    return text


def path(text: str) -> Path:
    """Parses a command-line path; an empty one would be the current folder."""
    return Path(folder(text))


def existing_folder(text: str) -> Path:
    """Parses the command-line name of a folder to read, which must exist."""
    if not Path(text).is_dir() or not text:
        raise argparse.ArgumentTypeError(f"needs a folder that exists, got {text!r}")
    return Path(text)


def between(low: float, high: float) -> Callable[[str], float]:
    """Returns a parser of command-line values (argparse's `type=`) for numbers from low to high."""

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
    """Parses a command-line value: whole numbers above 0, separated by commas."""
    return [count(part.strip()) for part in text.split(",")]


def seeds(text: str) -> list[int]:
    """Parses a command-line list of seeds: `0-4`, `0,2,5` or a mixture; each seed only once."""
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
    """Parses a command-line value: words separated by commas."""
    return [word.strip() for word in text.split(",")]


def checkpoint(text: str) -> str:
    """Parses the command-line name of a checkpoint: `best`, `last` or its number of env steps."""
    if text in ("best", "last") or (text.isascii() and text.isdigit()):
        return text
    raise argparse.ArgumentTypeError(f"needs best, last or a number, got {text!r}")


def amounts(text: str) -> dict[str, float]:
    """Parses amounts of Ray resources, such as `GPU=1,CPU=2`, to a dict by resource name."""
    found: dict[str, float] = {}
    for part in text.split(","):
        match = re.fullmatch(r"\s*([\w.:-]+)=(\d+(?:\.\d+)?)\s*", part)
        if match is None:
            raise argparse.ArgumentTypeError(f"needs NAME=AMOUNT,..., got {text!r}")
        found[match[1]] = float(match[2])
    return found


READERS: dict[str, Callable[[str], Any]] = {  # of values of flags, by metavar
    "N": count,
    "SEED": seed,
    "X": float,
    "FILE": path,
    "DIR": path,
    "WHICH": checkpoint,
}
SET = """
--set KEY=VALUE  setting to change, such as replay.batch_size=64; `rookery list --settings` shows
  all; repeatable (default: none)
"""
CHECKPOINT = """
--checkpoint WHICH  checkpoint of the run to load: best (highest evaluation score), last, or its
  number of env steps (default best)
"""


def target(
    usual: Path, out: str | None, format: str | None, formats: Sequence[str]
) -> tuple[Path, str]:
    """Returns a command's output file and its format, from the flags --out and --format.

    Without --out the file is `usual` plus an extension. Without --format the extension decides, by
    default the first of `formats`. Raises `ConfigError` if the extension is unknown or contradicts
    --format.
    """
    path = Path(out) if out else usual.with_name(f"{usual.name}.{format or formats[0]}")
    ending = path.suffix.lower().removeprefix(".")
    if ending in formats and format in (None, ending):
        return path, ending
    if format is None:
        endings = " or ".join(f".{known}" for known in formats)
        raise ConfigError(
            f"--out is {out!r}, which does not end in {endings}; rename it, or say which with "
            "--format"
        )
    if ending not in formats:
        return path, format
    raise ConfigError(f"--out is {out!r} and --format {format!r}; drop one of them, or rename it")
