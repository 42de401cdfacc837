"""Reads maps and problem instances from the text formats of MovingAI and POGEMA.

    blocked = read_map("maze.map")                             # MovingAI
    cases = read_scenario("maze.scen", blocked, agents=32)     # the first 32 starts and goals
    cases = parse("a.#B\\nb..A")                                # POGEMA: a goes to A, b to B
    cases = parse("..#.\\n....", agents_xy=[(0, 0)], targets_xy=[(1, 3)])

A problem instance is a map with a start and a goal cell for each agent. MovingAI's files
(Sturtevant 2012, "Benchmarks for grid-based pathfinding") count x to the right and y down; its
octile maps allow diagonal moves, this library does not. POGEMA's x is the row and its y the column.
Error messages name the line of the text.
"""

from collections.abc import Iterable, Iterator, Sequence
from os import PathLike
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np

from rookery.errors import ConfigError
from rookery.pathfinding.world.cases import LARGEST, Cases, Maps, check, find_fault

Pair: TypeAlias = Sequence[int]  # row and column

TERRAIN = dict.fromkeys(".GS", 0) | dict.fromkeys("@OTW", 1)  # MovingAI's; water is blocked
MARKS = "@$!"  # POGEMA's cells for random starts, for random targets, and for neither
LETTERS = "abcdefghijklmnopqrstuvwxyz"
CELLS = {"#": 1} | dict.fromkeys(f".{MARKS}{LETTERS}{LETTERS.upper()}", 0)

VERSIONS = ("version 1", "version 1.0")
FIELDS = "bucket, map, width, height, start x and y, goal x and y, optimal length"


class TextLine(NamedTuple):
    """A line of a text file, with its position for error messages."""

    where: str  # file, if there is one, and line number
    text: str


def read_map(path: str | PathLike[str]) -> Maps:
    """Reads a MovingAI `.map` file; returns its H rows and W columns as uint8 [H, W], 1: blocked.

    `.`, `G` and swamp `S` are free; `@`, `O`, `T` and `W` are blocked. Raises ConfigError if the
    file is unreadable or malformed.
    """
    lines = _lines(Path(path))
    size = _header(path, lines[:4])
    blocked = _grid(lines[4:], TERRAIN, width=size["width"])
    if len(blocked) != size["height"]:
        raise ConfigError(
            f"{path} has {len(blocked)} rows of cells but its header says height "
            f"{size['height']}; make them agree"
        )
    return blocked


def read_scenario(path: str | PathLike[str], blocked: Maps, *, agents: int) -> Cases:
    """Reads a MovingAI scenario file (`.scen`, start and goal cells) as one problem instance.

    Each line is one agent; the first `agents` lines are read, and ConfigError is raised if there
    are fewer. `blocked` [H, W] is the map of H rows and W columns. Whether goals can be reached is
    checked by `cases.check(cases, reachable=True)`, not here.
    """
    lines = _lines(Path(path))
    if not lines or " ".join(lines[0].text.split()) not in VERSIONS:
        found = f"it begins with {lines[0].text!r}" if lines else "it is empty"
        raise ConfigError(f"{path} must begin with {VERSIONS[0]!r}, but {found}; add that line")
    if not 1 <= agents < len(lines):
        raise ConfigError(
            f"{path} has {len(lines) - 1} rows, one for each agent, but {agents} agents were "
            "requested; request at least 1 and no more than it has rows"
        )
    names, starts, goals = zip(
        *(_row(line, blocked) for line in lines[1 : agents + 1]), strict=True
    )
    if (other := next((k for k in range(agents) if names[k] != names[0]), None)) is not None:
        raise ConfigError(
            f"{lines[other + 1].where} is for the map {names[other]}, rows before it are for "
            f"{names[0]}; give a scenario of one map, or ask for fewer agents"
        )
    cases = _case(blocked, starts, goals)
    _, agent, fault = find_fault(cases)
    if fault:
        where, text = lines[agent + 1]
        raise ConfigError(f"{where}: {' '.join(text.split())!r} {fault}")
    return cases


def parse(
    text: str,
    *,
    agents_xy: Sequence[Pair] | None = None,
    targets_xy: Sequence[Pair] | None = None,
) -> Cases:
    """Parses a POGEMA map string as one problem instance: `.` is free, `#` blocked.

    A lower-case letter is an agent's start and the same upper-case letter its goal; agents are
    numbered in alphabetical order. Alternatively the starts are given as `agents_xy` and the goals
    as `targets_xy`, in pairs of row and column. POGEMA's characters `@`, `$`, `!` for random starts
    and goals are then read as free cells; together with letters they raise ConfigError. So does a
    start or goal on a blocked cell, where POGEMA would free the cell.
    """
    lines = _numbered(text, "line {} of the map")
    blocked = _grid(lines, CELLS, width=len(lines[0].text) if lines else 0)
    starts, goals = _lettered(lines)
    if (agents_xy is None) != (targets_xy is None):
        raise ConfigError("only one of agents_xy and targets_xy is given; give both, or neither")
    if agents_xy is None or targets_xy is None:
        agents_xy, targets_xy = _matched(starts, goals, text)
    elif starts or goals:
        raise ConfigError(
            "agents are given both by letters in the map and by agents_xy; leave one of them out"
        )
    _check_pairs("agents_xy", agents_xy, blocked)
    _check_pairs("targets_xy", targets_xy, blocked)
    cases = _case(blocked, agents_xy, targets_xy)
    check(cases)
    return cases


def as_movingai(blocked: Maps) -> str:
    """Returns a grid map as the text of a MovingAI `.map` file: `.` free, `@` blocked."""
    rows, columns = blocked.shape
    header = ["type octile", f"height {rows}", f"width {columns}", "map"]
    return "\n".join([*header, *_drawn(blocked, "@"), ""])


def as_pogema(blocked: Maps) -> str:
    """Returns a grid map as a POGEMA map string without agents: `.` free, `#` blocked."""
    return "\n".join(_drawn(blocked, "#"))


def _drawn(blocked: Maps, wall: str) -> Iterator[str]:
    return ("".join(wall if cell else "." for cell in row) for row in blocked)


def _lines(path: Path) -> list[TextLine]:
    """Reads the non-blank lines of a text file."""
    try:
        return _numbered(path.read_text(encoding="ascii"), f"{path}:{{}}")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path} cannot be read ({error}); give a text file of MovingAI's"
        ) from error


def _numbered(text: str, where: str) -> list[TextLine]:
    """Returns the non-blank lines of a text; `where` names a line, with {} for its number."""
    lines = enumerate(map(str.strip, text.splitlines()), start=1)
    return [TextLine(where.format(number), line) for number, line in lines if line]


def _header(path: str | PathLike[str], lines: list[TextLine]) -> dict[str, int]:
    """Checks the 4 header lines of a MovingAI map; returns its "height" and "width"."""
    rows = [line.text.split() for line in lines]
    names = [words[0] for words in rows]
    if sorted(names[1:3]) != ["height", "width"] or names[0:1] + names[3:] != ["type", "map"]:
        raise ConfigError(
            f"{path} must begin with the lines type octile, height H, width W and map, got "
            f"{', '.join(line.text for line in lines) or 'nothing'}; add them"
        )
    if rows[0] != ["type", "octile"]:
        raise ConfigError(f"{lines[0].where}: a map of type octile is needed, got {lines[0].text}")
    return {names[k]: _whole(lines[k], rows[k][-1], names[k]) for k in (1, 2)}


def _grid(lines: list[TextLine], cells: dict[str, int], *, width: int) -> Maps:
    """Converts lines of characters to a map; `cells` maps a character to 0 (free) or 1 (blocked).

    Raises ConfigError for other characters, lines of unequal length, or an empty map.
    """
    for where, text in lines:
        if strange := next((mark for mark in text if mark not in cells), None):
            raise ConfigError(
                f"{where}: {strange!r} at column {text.index(strange)} is not a cell; "
                f"write one of {' '.join(cells)}"
            )
        if len(text) != width:
            raise ConfigError(
                f"{where}: {len(text)} cells, but the map is {width} wide; make rows equally long"
            )
    if not lines or not width:
        raise ConfigError("the map has no cells; write at least one row of them")
    return np.array([[cells[mark] for mark in line.text] for line in lines], dtype=np.uint8)


def _row(line: TextLine, blocked: Maps) -> tuple[str, Pair, Pair]:
    """Returns the name of the map, the start and the goal in one line of a scenario file.

    Raises ConfigError if the line is for a map of another size than `blocked`.
    """
    fields = line.text.split("\t") if "\t" in line.text else line.text.split()
    if len(fields) != 9:
        raise ConfigError(
            f"{line.where}: {len(fields)} fields, but a row has nine: {FIELDS}; write them all"
        )
    width, height, *places = (_whole(line, field, "a field") for field in fields[2:8])
    if (height, width) != blocked.shape:
        raise ConfigError(
            f"{line.where} is for a map of {width} x {height} cells, got one of "
            f"{blocked.shape[1]} x {blocked.shape[0]}; give the map {fields[1]}"
        )
    return fields[1], places[1::-1], places[:1:-1]  # x before y in the file


def _whole(line: TextLine, word: str, what: str) -> int:
    if not word.isdecimal():
        raise ConfigError(f"{line.where}: {what} must be a whole number, got {word!r}; write one")
    return int(word)


def _lettered(lines: list[TextLine]) -> tuple[dict[str, Pair], dict[str, Pair]]:
    """Returns the starts and the goals in a POGEMA map string, both keyed by lower-case letter."""
    starts: dict[str, Pair] = {}
    goals: dict[str, Pair] = {}
    for row, (where, text) in enumerate(lines):
        for column, mark in enumerate(text):
            if not mark.isalpha():
                continue
            found = starts if mark.islower() else goals
            if mark.lower() in found:
                raise ConfigError(f"{where}: there is a second {mark!r}; use each letter once")
            found[mark.lower()] = (row, column)
    return starts, goals


def _matched(
    starts: dict[str, Pair], goals: dict[str, Pair], text: str
) -> tuple[list[Pair], list[Pair]]:
    names = sorted(starts)
    if names != sorted(goals):
        alone = "".join(sorted(starts.keys() ^ goals.keys()))
        raise ConfigError(
            f"the map has a start or a target only for the letters {alone}; write both, small and "
            "capital"
        )
    if any(mark in text for mark in MARKS) and names:
        raise ConfigError(
            f"the map has both letters and marks of {MARKS}, which ask for random places; keep one"
        )
    return [starts[name] for name in names], [goals[name] for name in names]


def _check_pairs(name: str, pairs: Sequence[Pair], blocked: Maps) -> None:
    for number, pair in enumerate(pairs):
        fits = len(pair) == 2 and all(isinstance(part, int | np.integer) for part in pair)
        if not fits or not (0 <= pair[0] < len(blocked) and 0 <= pair[1] < blocked.shape[1]):
            raise ConfigError(
                f"{name}[{number}] must be a row and a column on a map of {blocked.shape[0]} by "
                f"{blocked.shape[1]} cells, got {pair!r}; rows come first and count from 0"
            )


def _case(blocked: Maps, starts: Iterable[Pair], goals: Iterable[Pair]) -> Cases:
    """Builds one problem instance of a map with starts and goals; does not check it."""
    places = [np.array([list(places)], dtype=np.int64) for places in (starts, goals)]
    if not all(found.ndim == 3 for found in places):
        raise ConfigError(
            "the map has no agents; write letters into it, or give agents_xy and targets_xy as "
            "pairs of row and column"
        )
    return Cases(blocked[None], *(found.clip(-1, LARGEST).astype(np.int16) for found in places))
