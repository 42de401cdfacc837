"""Weight snapshots on disk: files with weights of past policies that runs play against.

    store = SnapshotStore(run_dir / "opponents", pool / "league", tag)
    store.put(version, weights, about={"learner_steps": 4_000, "env_steps": 80_000})
    store.weights(who)

Files are written atomically. In a league, whose runs play against each other's snapshots, each run
also publishes its snapshots in a folder that all runs share (in the pool), under its own number
(tag). A run copies another run's snapshot before it plays against it, since the other run may
delete the snapshot and the pool is removed when its runs end.
"""

import contextlib
import os
import re
import shutil
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file, save_file

from rookery.config.schema import Part
from rookery.errors import CheckpointError, ConfigError
from rookery.types import Array

FOLDER = "opponents"
NAME = re.compile(r"v(\d{9,12})\.safetensors")
FOREIGN = re.compile(r"(main|exploiter)-(\d{1,4})-v(\d{9,12})\.safetensors")
GUEST = re.compile(r"t(\d{1,4})-v(\d{9,12})\.safetensors")
UNFINISHED = ".part"
TAG_BITS = 40  # position of the tag in the number of an opponent; the version is below
TAGS = 1 << 12  # tags of a league, so that numbers of opponents are exact as floats


class LeagueSnapshot(NamedTuple):
    """A weight snapshot that another run of a league has published.

    A league is a set of runs that play against each other.
    """

    who: int
    part: Part


class SnapshotStore:
    """Files of weight snapshots: those of this run, and copies of other runs' snapshots.

    In a league (runs that play against each other) it also publishes this run's snapshots in the
    league's folder. The folder of this run's snapshots is made with the first snapshot.
    """

    def __init__(
        self, folder: Path, league: Path | None = None, tag: int = 0, part: Part = Part.MAIN
    ):
        self.folder, self.league, self.tag, self.part = folder, league, tag, part
        for unfinished in folder.glob(f"*{UNFINISHED}"):  # left by a killed process
            unfinished.unlink()

    def put(self, who: int, weights: Mapping[str, Array], about: Mapping[str, int]) -> None:
        """Writes a weight snapshot to a file; one of this run is also published in the league.

        `who` is the snapshot's id. In a league, runs play against each other's snapshots.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        _write(self.path(who), weights, about)
        if published := self._published(who):
            with contextlib.suppress(OSError):  # the pool may be removed or full
                published.parent.mkdir(mode=0o700, exist_ok=True)
                _copy(self.path(who), published)

    def drop(self, who: int) -> None:
        self.path(who).unlink(missing_ok=True)
        if published := self._published(who):
            published.unlink(missing_ok=True)

    def weights(self, who: int) -> dict[str, Array]:
        """Reads the weights of the weight snapshot (past policy) with the id `who`.

        Raises `CheckpointError` if the file cannot be read.
        """
        return read_weights(
            self.path(who),
            "resume from a checkpoint, which has all snapshots in use; if a game takes longer than "
            "several snapshots, raise selfplay.snapshot_period",
        )

    def about(self, who: int) -> dict[str, int]:
        """Returns a weight snapshot's metadata: version, learner_steps, env_steps."""
        return about(self.path(who))

    def versions(self) -> list[int]:
        """Returns the versions of this run's weight snapshots, oldest first."""
        return [version for version, _ in snapshots(self.folder)]

    def league_copies(self) -> list[int]:
        """Returns the ids of other runs' weight snapshots that this run has copied."""
        names = (GUEST.fullmatch(path.name) for path in sorted(self.folder.glob("t*")))
        return [int(name[1]) << TAG_BITS | int(name[2]) for name in names if name is not None]

    def path(self, who: int) -> Path:
        tag, version = who >> TAG_BITS, who & ((1 << TAG_BITS) - 1)
        whose = f"t{tag}-" if tag else ""
        return self.folder / f"{whose}v{version:09d}.safetensors"

    def league_snapshots(self) -> list[LeagueSnapshot]:
        """Returns the weight snapshots that other runs have published, sorted by file name.

        The other runs are those of the league, which play against each other. Returns an empty list
        outside of a league.
        """
        try:
            files = sorted(os.listdir(self.league)) if self.league is not None else []
        except FileNotFoundError:  # no snapshot was published yet, or the pool is gone
            return []
        names = (FOREIGN.fullmatch(name) for name in files)
        return [
            LeagueSnapshot(int(name[2]) << TAG_BITS | int(name[3]), Part(name[1]))
            for name in names
            if name is not None and int(name[2]) != self.tag
        ]

    def copy_from_league(self, found: LeagueSnapshot, like: Mapping[str, Array]) -> bool:
        """Copies another run's weight snapshot, and returns whether this run has it now.

        It is not copied if it was deleted, or if its arrays have other shapes than those of `like`.
        """
        path, version = self.path(found.who), found.who & ((1 << TAG_BITS) - 1)
        if path.exists():
            return True
        assert self.league is not None, "not in a league"
        shown = self.league / _shown(found.part, found.who >> TAG_BITS, version)
        try:
            if _shapes(shown) == {name: list(array.shape) for name, array in like.items()}:
                _copy(shown, path)
        except (OSError, SafetensorError):  # dropped meanwhile, or not a snapshot
            return False
        return path.exists()

    def _published(self, who: int) -> Path | None:
        """Returns the path at which the league finds a snapshot; None for other runs' snapshots."""
        if self.league is None or who >> TAG_BITS:
            return None
        return self.league / _shown(self.part, self.tag, who)


def snapshots(folder: Path) -> Iterator[tuple[int, Path]]:
    """Yields (version, file) of a run's weight snapshots, oldest first.

    Yields nothing if the folder does not exist.
    """
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if name := NAME.fullmatch(path.name):
            yield int(name[1]), path


def read_weights(path: Path, advice: str = "remove the file") -> dict[str, Array]:
    """Returns the weights in a weight snapshot's file; raises `CheckpointError` as `reading`."""
    with reading(path, advice):
        return load_file(path)


@contextlib.contextmanager
def reading(path: Path, advice: str = "remove the file") -> Iterator[None]:
    """Context that raises `CheckpointError` if the weight snapshot cannot be read.

    `advice` is what to do without a copy of its file.
    """
    try:
        yield
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise CheckpointError(
            f"the snapshot {path} cannot be read ({error}); restore it from a copy, or {advice}"
        ) from error


def about(path: Path) -> dict[str, int]:
    """Returns the metadata of a weight snapshot's file: version, learner_steps, env_steps."""
    with safe_open(path, framework="np") as file:
        return {name: int(value) for name, value in (file.metadata() or {}).items()}


def claim(league: Path, run: str) -> int:
    """Reserves a number from 1 (tag) for a run in a league; a resumed run gets the same number.

    A league is a set of runs that play against each other. Raises `ConfigError` if no number is
    free.
    """
    first = zlib.crc32(run.encode())
    for tag in (1 + (first + i) % (TAGS - 1) for i in range(TAGS - 1)):
        try:
            os.symlink(run, league / str(tag))  # atomic, content included
        except FileExistsError:
            if os.readlink(league / str(tag)) != run:
                continue
        return tag
    raise ConfigError(f"{league} has {TAGS - 1} runs already, and no tag is left; start a new pool")


def _shown(part: Part, tag: int, version: int) -> str:
    return f"{part}-{tag}-v{version:09d}.safetensors"


def _shapes(path: Path) -> dict[str, list[int]]:
    with safe_open(path, framework="np") as file:
        return {name: list(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118 - no dict


def _write(path: Path, weights: Mapping[str, Array], about: Mapping[str, int]) -> None:
    arrays = {name: np.ascontiguousarray(array) for name, array in weights.items()}
    unfinished = path.with_suffix(UNFINISHED)
    save_file(arrays, unfinished, metadata={name: str(value) for name, value in about.items()})
    os.replace(unfinished, path)


def _copy(source: Path, path: Path) -> None:
    """Copies `source` to `path` atomically, unless `path` exists.

    A hard link instead of a copy would fail across file systems.
    """
    if not path.exists():
        unfinished = path.with_suffix(UNFINISHED)
        shutil.copyfile(source, unfinished)
        os.replace(unfinished, path)
