"""Text: maps and cases as others write them down.

    blocked = read_map("maze.map")                             # MovingAI
    cases = read_scenario("maze.scen", blocked, agents=32)     # one case: the first 32 rows
    cases = parse("a.#B\\nb..A")                                # POGEMA: a goes to A, b to B
    cases = parse("..#.\\n....", agents_xy=[(0, 0)], targets_xy=[(1, 3)])

MovingAI's files (Sturtevant 2012, "Benchmarks for grid-based pathfinding") count x to the right and
y down; its octile maps allow diagonal moves, ours do not. POGEMA's x is the row and its y the
column. What is wrong with a text is said with the line it is in.
"""

from collections.abc import Iterable, Iterator, Sequence
from os import PathLike
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np

from rookery.envs.pathfinding.cases import Cases, Maps, check
from rookery.errors import ConfigError

Pair: TypeAlias = Sequence[int]  # row and column

TERRAIN = dict.fromkeys(".GS", 0) | dict.fromkeys("@OTW", 1)  # MovingAI's; water is not for walkers
MARKS = "@$!"  # POGEMA's cells for random starts, for random targets, and for neither
LETTERS = "abcdefghijklmnopqrstuvwxyz"
CELLS = {"#": 1} | dict.fromkeys(f".{MARKS}{LETTERS}{LETTERS.upper()}", 0)

VERSIONS = ("version 1", "version 1.0")
FIELDS = "bucket, map, width, height, start x and y, goal x and y, optimal length"


class Line(NamedTuple):
    where: str  # the file, if it is one, and the number
    text: str


class Row(NamedTuple):
    """A row of a scenario: one agent."""

    line: Line
    map: str
    size: tuple[int, int]  # rows and columns
    start: tuple[int, int]  # row and column
    goal: tuple[int, int]


def read_map(path: str | PathLike[str]) -> Maps:
    """Reads MovingAI's `.map`, [H, W]: `.`, `G` and swamp `S` are free, `@`, `O`, `T`, `W` not."""
    lines = list(_lines(Path(path)))
    size = dict(_header(path, lines[:4]))
    blocked = _grid(lines[4:], TERRAIN, width=size["width"])
    if len(blocked) != size["height"]:
        raise ConfigError(
            f"{path} has {len(blocked)} rows of cells but its header says height "
            f"{size['height']}; make them agree"
        )
    return blocked


def read_scenario(path: str | PathLike[str], blocked: Maps, *, agents: int) -> Cases:
    """Reads the first rows of MovingAI's `.scen` as one case, an agent each, on a map [H, W].

    Whether a way leads to a goal is not looked at: `cases.check(cases, reachable=True)` does.
    """
    lines = list(_lines(Path(path)))
    if not lines or " ".join(lines[0].text.split()) not in VERSIONS:
        found = f"it begins with {lines[0].text!r}" if lines else "it is empty"
        raise ConfigError(f"{path} must begin with {VERSIONS[0]!r}, but {found}; add that line")
    if not 1 <= agents < len(lines):
        raise ConfigError(
            f"{path} has {len(lines) - 1} rows, one for each agent, but {agents} agents were asked "
            "for; ask for at least 1 and no more than there are"
        )
    rows = [_row(line) for line in lines[1 : agents + 1]]
    _agree(rows, blocked)
    return _case(blocked, [row.start for row in rows], [row.goal for row in rows])


def parse(
    text: str,
    *,
    agents_xy: Sequence[Pair] | None = None,
    targets_xy: Sequence[Pair] | None = None,
) -> Cases:
    """Reads POGEMA's map string as one case: `.` is free, `#` blocked.

    A small letter is an agent's start and the capital one its target, numbered by the alphabet; or
    both are given beside the map, rows first. POGEMA's marks `@`, `$`, `!` for random starts and
    targets are free cells to us. It frees a blocked cell that an agent was put on; we refuse.
    """
    lines = [
        Line(f"line {number} of the map", line.strip())
        for number, line in enumerate(text.splitlines(), start=1)
        if line.strip()
    ]
    blocked = _grid(lines, CELLS, width=len(lines[0].text) if lines else 0)
    starts, goals = _lettered(lines)
    if (agents_xy is None) != (targets_xy is None):
        raise ConfigError("only one of agents_xy and targets_xy is given; give both, or neither")
    if agents_xy is None or targets_xy is None:
        return _case(blocked, *_matched(starts, goals, text))
    if starts or goals:
        raise ConfigError(
            "agents are given both by letters in the map and by agents_xy; leave one of them out"
        )
    _within("agents_xy", agents_xy, blocked)
    _within("targets_xy", targets_xy, blocked)
    return _case(blocked, agents_xy, targets_xy)


def as_movingai(blocked: Maps) -> str:
    """Writes a map [H, W] as MovingAI's `.map`, with `.` and `@`."""
    rows, columns = blocked.shape
    header = ["type octile", f"height {rows}", f"width {columns}", "map"]
    return "\n".join([*header, *_drawn(blocked, "@"), ""])


def as_pogema(blocked: Maps) -> str:
    """Writes a map [H, W] as POGEMA's string, without agents: they go beside it, as `agents_xy`."""
    return "\n".join(_drawn(blocked, "#"))


def _drawn(blocked: Maps, wall: str) -> Iterator[str]:
    return ("".join(wall if cell else "." for cell in row) for row in blocked)


def _lines(path: Path) -> Iterator[Line]:
    """Yields the lines of a file that say anything."""
    try:
        text = path.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path} cannot be read ({error}); give a text file of MovingAI's"
        ) from error
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            yield Line(f"{path}:{number}", line.strip())


def _header(path: str | PathLike[str], lines: list[Line]) -> Iterator[tuple[str, int]]:
    """Yields the sizes by name; `height` and `width` may come in either order."""
    said = [line.text.split() for line in lines]
    names = [words[0] for words in said]
    if sorted(names[1:3]) != ["height", "width"] or names[0:1] + names[3:] != ["type", "map"]:
        raise ConfigError(
            f"{path} must begin with the lines type octile, height H, width W and map, got "
            f"{', '.join(line.text for line in lines) or 'nothing'}; add them"
        )
    if said[0] != ["type", "octile"]:
        raise ConfigError(f"{lines[0].where}: a map of type octile is needed, got {lines[0].text}")
    for line, words in zip(lines[1:3], said[1:3], strict=True):
        yield words[0], _whole(line, words[-1], words[0])


def _grid(lines: list[Line], cells: dict[str, int], *, width: int) -> Maps:
    """Turns rows of characters into a map."""
    for where, text in lines:
        if strange := next((mark for mark in text if mark not in cells), None):
            raise ConfigError(
                f"{where}: {strange!r} at column {text.index(strange)} is no kind of cell; "
                f"write one of {' '.join(cells)}"
            )
        if len(text) != width:
            raise ConfigError(f"{where}: {len(text)} cells, but the map is {width} wide; even it")
    if not lines or not width:
        raise ConfigError("the map has no cells; write at least one row of them")
    return np.array([[cells[mark] for mark in line.text] for line in lines], dtype=np.uint8)


def _row(line: Line) -> Row:
    fields = line.text.split("\t") if "\t" in line.text else line.text.split()
    if len(fields) != 9:
        raise ConfigError(
            f"{line.where}: {len(fields)} fields, but a row has nine: {FIELDS}; write them all"
        )
    numbers = [_whole(line, field, "a field") for field in fields[2:8]]
    width, height, start_x, start_y, goal_x, goal_y = numbers
    return Row(line, fields[1], (height, width), (start_y, start_x), (goal_y, goal_x))


def _whole(line: Line, word: str, what: str) -> int:
    if not word.isdecimal():
        raise ConfigError(f"{line.where}: {what} must be a whole number, got {word!r}; write one")
    return int(word)


def _agree(rows: list[Row], blocked: Maps) -> None:
    """Refuses rows that do not fit a map, or each other."""
    starts: dict[tuple[int, int], Row] = {}
    goals: dict[tuple[int, int], Row] = {}
    for row in rows:
        if row.size != blocked.shape:
            raise ConfigError(
                f"{row.line.where} is for a map of {row.size[1]} x {row.size[0]} cells, got one of "
                f"{blocked.shape[1]} x {blocked.shape[0]}; give the map {row.map}"
            )
        if row.map != rows[0].map:
            raise ConfigError(
                f"{row.line.where} is for the map {row.map}, rows before it are for "
                f"{rows[0].map}; give a scenario of one map, or ask for fewer agents"
            )
        _claim(row, "start", row.start, blocked, starts)
        _claim(row, "goal", row.goal, blocked, goals)


def _claim(
    row: Row, what: str, cell: tuple[int, int], blocked: Maps, taken: dict[tuple[int, int], Row]
) -> None:
    where = f"{row.line.where}: the {what} at x {cell[1]}, y {cell[0]}"
    if cell[0] >= row.size[0] or cell[1] >= row.size[1]:
        raise ConfigError(f"{where} is outside of the map; x counts columns and y rows, from 0")
    if blocked[cell]:
        raise ConfigError(f"{where} is blocked; see whether the map is the scenario's {row.map}")
    if cell in taken:
        raise ConfigError(
            f"{where} is that of {taken[cell].line.where} too; agents need cells of their own: "
            "take a scenario for many agents"
        )
    taken[cell] = row


def _lettered(lines: list[Line]) -> tuple[dict[str, Pair], dict[str, Pair]]:
    """Finds starts and goals in a map, by their small letters."""
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
            f"of the letters {alone} the map has a start or a target only; write both, small and "
            "capital"
        )
    if any(mark in text for mark in MARKS) and names:
        raise ConfigError(
            f"the map has both letters and marks of {MARKS}, which ask for random places; keep one"
        )
    return [starts[name] for name in names], [goals[name] for name in names]


def _within(name: str, pairs: Sequence[Pair], blocked: Maps) -> None:
    for number, pair in enumerate(pairs):
        fits = len(pair) == 2 and all(isinstance(part, int | np.integer) for part in pair)
        if not fits or not (0 <= pair[0] < len(blocked) and 0 <= pair[1] < blocked.shape[1]):
            raise ConfigError(
                f"{name}[{number}] must be a row and a column on a map of {blocked.shape[0]} by "
                f"{blocked.shape[1]} cells, got {pair!r}; rows come first and count from 0"
            )


def _case(blocked: Maps, starts: Iterable[Pair], goals: Iterable[Pair]) -> Cases:
    """Makes one case; `check` says what is wrong with its places."""
    places = [np.array([list(places)], dtype=np.int64) for places in (starts, goals)]
    if not all(found.ndim == 3 for found in places):
        raise ConfigError(
            "nobody is in the map; write letters into it, or give agents_xy and targets_xy as "
            "pairs of row and column"
        )
    cases = Cases(blocked[None], *(found.astype(np.int16) for found in places))
    check(cases)
    return cases
