"""The gallery: snapshots of policies as files.

    gallery = Gallery(run_dir / "opponents", pool / "league", tag)
    gallery.put(version, weights, about={"learner_steps": 4_000, "env_steps": 80_000})
    gallery.weights(who)

A file is there whole or not at all. In a league each run shows its snapshots to the others, in a
folder of their pool and under a tag of its own. Whom a run may meet it copies first: others drop
their snapshots when they like, and a pool goes with its runs.
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
TAG_BITS = 40  # below them: the version
TAGS = 1 << 12  # of runs in a league: who they are stays exact in a float


class Found(NamedTuple):
    """Another run's snapshot."""

    who: int
    part: Part


class Gallery:
    """Where snapshots of this run are, copies of others', and what the others show.

    Its folder is made with the first of them: a run that is refused before leaves none.
    """

    def __init__(
        self, folder: Path, league: Path | None = None, tag: int = 0, part: Part = Part.MAIN
    ):
        self.folder, self.league, self.tag, self.part = folder, league, tag, part
        for unfinished in folder.glob(f"*{UNFINISHED}"):  # by one that was killed
            unfinished.unlink()

    def put(self, who: int, weights: Mapping[str, Array], about: Mapping[str, int]) -> None:
        """Writes a snapshot of this run, and shows it; or one of another's, as it was copied."""
        self.folder.mkdir(parents=True, exist_ok=True)
        _write(self.path(who), weights, about)
        if self.league is not None and not who >> TAG_BITS:
            with contextlib.suppress(OSError):  # the pool may be gone, or full: nobody sees it then
                self.league.mkdir(mode=0o700, exist_ok=True)
                _copy(self.path(who), self._shown(who))

    def drop(self, who: int) -> None:
        self.path(who).unlink(missing_ok=True)
        if self.league is not None and not who >> TAG_BITS:
            self._shown(who).unlink(missing_ok=True)

    def weights(self, who: int) -> dict[str, Array]:
        """Reads a snapshot, this run's or another's. One that is gone is a CheckpointError."""
        path = self.path(who)
        try:
            return load_file(path)
        except (OSError, SafetensorError) as error:
            raise CheckpointError(
                f"the snapshot {path} cannot be read ({error}); put it back from a copy, or "
                "resume from a checkpoint, which has all that are in use; where a game takes "
                "longer than several snapshots, raise selfplay.snapshot_period"
            ) from error

    def about(self, who: int) -> dict[str, int]:
        """Returns what was written beside a snapshot's weights."""
        return about(self.path(who))

    def versions(self) -> list[int]:
        """Returns this run's snapshots, oldest first."""
        return [version for version, _ in snapshots(self.folder)]

    def guests(self) -> list[int]:
        """Returns whom of others' there are copies of."""
        names = (GUEST.fullmatch(path.name) for path in sorted(self.folder.glob("t*")))
        return [int(name[1]) << TAG_BITS | int(name[2]) for name in names if name is not None]

    def path(self, who: int) -> Path:
        tag, version = who >> TAG_BITS, who & ((1 << TAG_BITS) - 1)
        whose = f"t{tag}-" if tag else ""
        return self.folder / f"{whose}v{version:09d}.safetensors"

    def foreign(self) -> list[Found]:
        """Returns the league's snapshots that are not this run's, in the order of their names."""
        names = (FOREIGN.fullmatch(name) for name in self._league_names())
        return [
            Found(int(name[2]) << TAG_BITS | int(name[3]), Part(name[1]))
            for name in names
            if name is not None and int(name[2]) != self.tag
        ]

    def adopt(self, found: Found, like: Mapping[str, Array]) -> bool:
        """Copies another run's snapshot; says whether it was there, and of a network like ours."""
        path, version = self.path(found.who), found.who & ((1 << TAG_BITS) - 1)
        if path.exists():
            return True
        assert self.league is not None, "only a league has others"
        shown = self.league / _shown(found.part, found.who >> TAG_BITS, version)
        try:
            if _shapes(shown) == {name: list(array.shape) for name, array in like.items()}:
                _copy(shown, path)
        except (OSError, SafetensorError):  # dropped as we looked, or no snapshot at all
            return False
        return path.exists()

    def _league_names(self) -> list[str]:
        if self.league is None:
            return []
        try:
            return sorted(os.listdir(self.league))
        except FileNotFoundError:  # nobody has shown any yet, or the pool is gone
            return []

    def _shown(self, version: int) -> Path:
        assert self.league is not None
        return self.league / _shown(self.part, self.tag, version)


def snapshots(folder: Path) -> Iterator[tuple[int, Path]]:
    """Yields (version, file) of a run's snapshots, oldest first."""
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if name := NAME.fullmatch(path.name):
            yield int(name[1]), path


def about(path: Path) -> dict[str, int]:
    """Returns what was written beside a snapshot's weights: version, learner_steps, env_steps."""
    with safe_open(path, framework="np") as file:
        return {name: int(value) for name, value in (file.metadata() or {}).items()}


def claim(league: Path, run: str) -> int:
    """Returns a run's tag in a league, from 1: its alone, and the same when it comes back."""
    first = zlib.crc32(run.encode())
    for tag in (1 + (first + i) % (TAGS - 1) for i in range(TAGS - 1)):
        try:
            os.symlink(run, league / str(tag))  # there with its content, or not at all
        except FileExistsError:
            if os.readlink(league / str(tag)) != run:
                continue
        return tag
    raise ConfigError(
        f"{league} has {TAGS - 1} runs already, and no more have a tag; begin a new pool"
    )


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
    """Copies a file whole, unless it is there; a link would need both on one disk."""
    if not path.exists():
        unfinished = path.with_suffix(UNFINISHED)
        shutil.copyfile(source, unfinished)
        os.replace(unfinished, path)
