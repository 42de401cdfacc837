"""Renames in a copied run folder: its settings, its checkpoints, and their checksums.

Only the Python of this file knows the format of another commit's checkpoints, so that the library
needs no code for them: MANIFEST.json holds size and SHA-256 of every file, and its own.
"""

import hashlib
import json
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from benchmarks.proof import renames
from benchmarks.proof.renames import Names

CONFIG, MANIFEST, STATE, ARRAYS = (
    "config.yaml",
    "MANIFEST.json",
    "state.json",
    "arrays.safetensors",
)


def translate(run_dir: Path, names: Names) -> None:
    """Writes a run folder down in the names of another tree. It must be a copy."""
    config = run_dir / CONFIG
    settings = names.settings(yaml.safe_load(config.read_text()))
    _replace(config, yaml.safe_dump(settings, sort_keys=False).encode())
    for manifest in sorted(run_dir.glob(f"*/*/{MANIFEST}")):
        _translate_checkpoint(manifest.parent, names)


def _translate_checkpoint(folder: Path, names: Names) -> None:
    manifest = json.loads((folder / MANIFEST).read_bytes())
    if (state := folder / STATE).exists():
        _replace(state, json.dumps(names.plain(renames.state(_read(state)))).encode())
        _replace(folder / ARRAYS, renamed_arrays((folder / ARRAYS).read_bytes()))
        for path in (state, folder / ARRAYS):
            manifest["files"][path.name] = _digest(path.read_bytes())
    manifest["about"] = names.plain(manifest["about"])
    manifest |= renames.MANIFEST
    del manifest["sha256"]
    manifest["sha256"] = seal(manifest)
    _replace(folder / MANIFEST, json.dumps(manifest, indent=1).encode())


def renamed_arrays(raw: bytes) -> bytes:
    """Returns a safetensors file with other names: its header is JSON, and its data stay."""
    (length,) = struct.unpack_from("<Q", raw)
    header = json.loads(raw[8 : 8 + length])
    new = json.dumps({renames.array(name): about for name, about in header.items()}).encode()
    new += b" " * (-len(new) % 8)  # the data are aligned
    return struct.pack("<Q", len(new)) + new + raw[8 + length :]


def seal(manifest: Mapping[str, Any]) -> str:
    """Returns the checksum of a manifest that has none yet."""
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _digest(raw: bytes) -> dict[str, Any]:
    return {"size": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}


def _read(path: Path) -> Any:
    return json.loads(path.read_bytes())


def _replace(path: Path, raw: bytes) -> None:
    """Never into the file itself, which another folder may share as a hard link."""
    scratch = path.with_name(path.name + ".new")
    scratch.write_bytes(raw)
    os.replace(scratch, path)
