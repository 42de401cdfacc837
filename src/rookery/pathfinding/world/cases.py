"""Path-finding problem instances ("cases"): maps with the agents' starts and goals.

    cases = generate(200, agents=32, size=40, density=0.3, rng=rng)
    cases = load("cases.npz"); save("cases.npz", cases)

One `Cases` holds many problem instances with the same map size and number of agents. A file of them
is an `.npz` with the arrays `maps`, `starts` and `goals`, as in `Cases`.
"""

import zipfile
import zlib
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from rookery.errors import ConfigError
from rookery.pathfinding.world import maps as drawing

Maps: TypeAlias = npt.NDArray[np.uint8]
Places: TypeAlias = npt.NDArray[np.int16]
Seeds: TypeAlias = npt.NDArray[np.int64]

LARGEST = 2**15 - 1  # rows, columns, agents: int16 has to hold them
UNREADABLE = (OSError, ValueError, TypeError, EOFError, zipfile.BadZipFile, zlib.error)
TRIES = 1000  # maps drawn for one problem instance before it is refused as impossible


class Cases(NamedTuple):
    """C path-finding problem instances of N agents: maps of H rows and W columns, starts, goals."""

    maps: Maps  # [C, H, W] 1: blocked
    starts: Places  # [C, N, 2] row and column; -1: an absent agent
    goals: Places  # [C, N, 2]


def generate(
    count: int, *, agents: int, size: int, density: float | None, rng: np.random.Generator
) -> Cases:
    """Draws random problem instances (square map, starts, goals) with reachable goals.

    Cells are blocked independently with probability `density`. None: each map draws its own density
    from the triangular distribution with ends 0 and 0.5 and mode 0.33 (as in PRIMAL: Sartoretti et
    al. 2019). Starts and goals are all distinct cells. A map without enough free cells for all
    agents is drawn again; ConfigError is raised after 1000 such maps.
    """
    check_possible(count, agents, size, density)
    return from_seeds(seeds(count, rng), agents=agents, size=size, density=density)


def seeds(count: int, rng: np.random.Generator) -> Seeds:
    """Draws random seeds for `count` problem instances."""
    return rng.integers(2**63, size=count, dtype=np.int64)


def from_seeds(seeds: Seeds, *, agents: int, size: int, density: float | None) -> Cases:
    """Generates one random problem instance per seed, with the distribution of `generate`.

    An instance does not depend on the other seeds.
    """
    count = len(seeds)
    check_possible(count, agents, size, density)
    shape = (count, agents, 2)
    cases = Cases(
        np.empty((count, size, size), dtype=np.uint8),
        np.empty(shape, dtype=np.int16),
        np.empty(shape, dtype=np.int16),
    )
    room = drawing.draw(seeds, -1.0 if density is None else density, TRIES, *cases)
    if room < agents:
        raise ConfigError(
            f"{agents} agents were to have starts and goals on {size} x {size} cells of density "
            f"{density}, but in {TRIES} such maps there was room for {room} at most; take fewer "
            "agents, a larger map or a lower density"
        )
    return cases


def pad(cases: Cases, agents: int, size: int) -> Cases:
    """Pads problem instances (map, starts, goals) to more agents and larger maps.

    The original map is in the upper left corner; all added cells are blocked. Added agents are
    absent: their starts and goals are -1. Raises ConfigError if the given numbers are too small.
    """
    count, present = cases.starts.shape[:2]
    rows, columns = cases.maps.shape[1:]
    if agents < present or size < max(rows, columns):
        raise ConfigError(
            f"instances of {present} agents on {rows} x {columns} cells do not fit into {agents} "
            f"agents on {size} x {size}; choose larger numbers"
        )
    maps = np.ones((count, size, size), dtype=np.uint8)
    maps[:, :rows, :columns] = cases.maps
    places = np.full((2, count, agents, 2), -1, dtype=np.int16)
    places[0, :, :present], places[1, :, :present] = cases.starts, cases.goals
    return Cases(maps, *places)


def check_possible(count: int, agents: int, size: int, density: float | None) -> None:
    """Raises ConfigError for a number of agents, map size or obstacle density out of range."""
    limits = (
        ("count", count, 0, np.inf),
        ("agents", agents, 1, LARGEST),
        ("size", size, 1, LARGEST),
    )
    for name, value, least, most in limits:
        if not least <= value <= most:
            raise ConfigError(
                f"problem instances need {name} from {least} to {most}, got {value}; choose "
                "one of these"
            )
    if density is not None and not 0 <= density < 1:
        raise ConfigError(
            f"a density is a share of blocked cells, 0 <= density < 1, got {density}; "
            "give one, or None to draw it for each map"
        )


def save(path: str | PathLike[str], cases: Cases) -> None:
    """Writes problem instances to a compressed `.npz` file."""
    with Path(path).open("wb") as file:  # given a name, numpy would add its suffix
        np.savez_compressed(file, allow_pickle=False, **cases._asdict())


def load(path: str | PathLike[str]) -> Cases:
    """Reads and checks problem instances of an `.npz` file; integers of any width are accepted."""
    try:
        # opened here: numpy does not close a damaged file
        with Path(path).open("rb") as file, np.load(file, allow_pickle=False) as found:
            arrays = {name: found[name] for name in Cases._fields if name in found}
    except UNREADABLE as error:
        raise ConfigError(
            f"{path} is not a file of problem instances ({type(error).__name__}: {error}); it must "
            f"be an .npz with the arrays {', '.join(Cases._fields)}: write one with cases.save"
        ) from error
    if missing := [name for name in Cases._fields if name not in arrays]:
        raise ConfigError(
            f"{path} has no {', '.join(missing)}; a file of problem instances has the arrays "
            f"{', '.join(Cases._fields)}: write one with cases.save"
        )
    cases = Cases(*(_cast(path, name, arrays[name]) for name in Cases._fields))
    check(cases)
    return cases


def check(cases: Cases, *, reachable: bool = False) -> None:
    """Raises ConfigError for invalid problem instances; `reachable`: also for unreachable goals."""
    case, agent, fault = find_fault(cases, reachable=reachable)
    if fault:
        where = f"instance {case}" if agent < 0 else f"instance {case}, agent {agent}"
        raise ConfigError(f"{where}: {fault}")


def find_fault(cases: Cases, *, reachable: bool = False) -> tuple[int, int, str]:
    """Returns the instance, the agent and a description of the first fault of problem instances.

    The agent is -1 if the whole instance is at fault, and the description empty if none is. Raises
    ConfigError for arrays of wrong shapes or types.
    """
    _check_shapes(cases)
    case, agent, fault = drawing.fault(*map(np.ascontiguousarray, cases), reachable)
    return case, agent, FAULTS.get(fault, "")


FAULTS: dict[int, str] = {
    drawing.CELL: "the map has cells that are neither 0 nor 1; write 0 free, 1 blocked",
    drawing.EMPTY: "it has no agents; give at least one agent a start and a goal",
    drawing.HALF: "has a start or a goal but not both; an absent agent has -1 in all four numbers",
    drawing.OUTSIDE: "starts or ends outside of the map; rows and columns count from 0",
    drawing.WALL: "starts or ends on a blocked cell; choose a free one",
    drawing.SHARED: "has the start or goal of another agent; give each agent its own cells",
    drawing.APART: "its goal cannot be reached from its start; choose connected cells",
}


def _cast(path: str | PathLike[str], name: str, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Casts an array of a file to uint8 (maps) or int16; ConfigError if that changes its values."""
    expected = np.dtype(np.uint8) if name == "maps" else np.dtype(np.int16)
    if array.dtype.kind not in "iub":
        raise ConfigError(
            f"{path}: {name} must be whole numbers, got {array.dtype}; save it as {expected}"
        )
    narrow = array.astype(expected)
    if not np.array_equal(narrow, array):
        raise ConfigError(
            f"{path}: {name} has numbers that {expected} does not hold; rows, columns and agents "
            f"go up to {LARGEST}, cells are 0 or 1"
        )
    return narrow


def _check_shapes(cases: Cases) -> None:
    maps, starts, goals = (np.shape(part) for part in cases)
    fits = len(maps) == 3 and len(starts) == 3 and starts[2] == 2
    if not fits or goals != starts or maps[0] != starts[0] or not all((*maps[1:], starts[1])):
        raise ConfigError(
            "problem instances are maps [C, H, W] with starts and goals [C, N, 2], got "
            f"{list(maps)}, {list(starts)} and {list(goals)}; reshape them"
        )
    if max((*maps[1:], starts[1])) > LARGEST:
        raise ConfigError(
            f"problem instances have up to {LARGEST} rows, columns and agents, got {list(maps)} "
            f"and {list(starts)}; make them smaller"
        )
    types = [str(part.dtype) for part in cases]
    if types != ["uint8", "int16", "int16"]:
        raise ConfigError(
            f"maps are uint8, starts and goals int16, got {', '.join(types)}; use array.astype"
        )


def select(cases: Cases, which: slice) -> Cases:
    """Returns some of the given problem instances, those in the slice `which`."""
    return Cases(cases.maps[which], cases.starts[which], cases.goals[which])


def concatenate(parts: Sequence[Cases]) -> Cases:
    """Concatenates problem instances with equal numbers of agents and map sizes."""
    return Cases(*map(np.concatenate, zip(*parts, strict=True)))
