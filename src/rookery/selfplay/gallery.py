"""The gallery: snapshots of policies as files.

    gallery = Gallery(run_dir / "opponents", pool / "league", tag)
    path = gallery.put(version, weights, learner_steps=4_000, env_steps=80_000)
    gallery.weights(who)

A file is there whole or not at all. In a league each run puts its snapshots into the pool as well,
under a tag of its own; what it must not do is write under another's.
"""

import contextlib
import os
import re
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file, save_file

from rookery.config.schema import Part
from rookery.errors import CheckpointError
from rookery.types import Array

FOLDER, LEAGUE = "opponents", "league"
NAME = re.compile(r"v(\d{9,12})\.safetensors")
FOREIGN = re.compile(r"(main|exploiter)-(\d{1,4})-v(\d{9,12})\.safetensors")
TAG_BITS = 40  # below them: the version
TAGS = 1 << 12  # of runs in a league: who they are stays exact in a float


class Found(NamedTuple):
    """Another run's snapshot."""

    who: int
    part: Part


class Gallery:
    """Where snapshots of this run are, and those of the league's other runs."""

    def __init__(
        self, folder: Path, league: Path | None = None, tag: int = 0, part: Part = Part.MAIN
    ):
        self.folder, self.league, self.tag, self.part = folder, league, tag, part
        for place in (folder, league):
            if place is not None:
                place.mkdir(parents=True, exist_ok=True)

    def put(self, version: int, weights: Mapping[str, Array], about: Mapping[str, int]) -> None:
        """Writes a snapshot of this run."""
        path = self._own(version)
        _write(path, weights, about)
        if self.league is not None:
            with contextlib.suppress(FileExistsError):  # a resumed run comes by here again
                os.link(path, self._shown(version))

    def drop(self, version: int) -> None:
        self._own(version).unlink(missing_ok=True)
        if self.league is not None:
            self._shown(version).unlink(missing_ok=True)

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

    def path(self, who: int) -> Path:
        tag, version = who >> TAG_BITS, who & ((1 << TAG_BITS) - 1)
        if tag == 0 or self.league is None:
            return self._own(version)
        found = sorted(self.league.glob(f"*-{tag}-v{version:09d}.safetensors"))
        return found[0] if found else self.league / f"main-{tag}-v{version:09d}.safetensors"

    def foreign(self) -> list[Found]:
        """Returns the league's snapshots that are not this run's, in the order of their names."""
        if self.league is None:
            return []
        names = (FOREIGN.fullmatch(path.name) for path in sorted(self.league.iterdir()))
        return [
            Found(int(name[2]) << TAG_BITS | int(name[3]), Part(name[1]))
            for name in names
            if name is not None and int(name[2]) != self.tag
        ]

    def _own(self, version: int) -> Path:
        return self.folder / f"v{version:09d}.safetensors"

    def _shown(self, version: int) -> Path:
        assert self.league is not None
        return self.league / f"{self.part}-{self.tag}-v{version:09d}.safetensors"


def snapshots(folder: Path) -> Iterator[tuple[int, Path]]:
    """Yields (version, file) of a run's snapshots, oldest first."""
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if name := NAME.fullmatch(path.name):
            yield int(name[1]), path


def about(path: Path) -> dict[str, int]:
    """Returns what was written beside a snapshot's weights: version, learner_steps, env_steps."""
    with safe_open(path, framework="np") as file:
        return {name: int(value) for name, value in (file.metadata() or {}).items()}


def tag_of(run_id: str) -> int:
    """Returns a league's number for a run, from 1."""
    return 1 + zlib.crc32(run_id.encode()) % (TAGS - 1)


def _write(path: Path, weights: Mapping[str, Array], about: Mapping[str, int]) -> None:
    arrays = {name: np.ascontiguousarray(array) for name, array in weights.items()}
    unfinished = path.with_suffix(".part")
    save_file(arrays, unfinished, metadata={name: str(value) for name, value in about.items()})
    os.replace(unfinished, path)
