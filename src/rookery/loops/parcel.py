"""A policy in one file: its arrays, and in the header all that is needed to act with them.

The file is in the safetensors format. Its header has one entry of ours, JSON text:

| key | is |
|---|---|
| `format`, `rookery` | of this layout, and the version that wrote it |
| `config` | all settings |
| `observation_space`, `action_space` | as `envs/outline.py` writes them |
| `spec` | what becomes of them where they are stored: leaves and actions |
| `sha256` | of the arrays |
"""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from rookery import __version__
from rookery.config.load import as_dict, parse
from rookery.config.schema import Config
from rookery.envs.outline import outline, restore
from rookery.envs.spaces import Codec, spec_of
from rookery.errors import CheckpointError, ConfigError
from rookery.nets.arrays import fingerprint
from rookery.types import Array, EnvSpec

FORMAT = 1
KEY = "rookery"  # of our entry in the header
AGAIN = "give a file that `rookery export` wrote, or export it again"


class Parcel(NamedTuple):
    """What a file holds: enough to act, without the run and without the environment."""

    config: Config
    codec: Codec
    spec: EnvSpec
    arrays: Mapping[str, Array]  # of what acts


def write(path: Path, parcel: Parcel) -> None:
    """Writes a parcel."""
    about = {
        "format": FORMAT,
        "rookery": __version__,
        "config": as_dict(parcel.config),
        "observation_space": outline(parcel.codec.observation_space),
        "action_space": outline(parcel.codec.action_space),
        "spec": _plain(parcel.spec),
        "sha256": fingerprint(parcel.arrays),
    }
    arrays = {k: np.require(array, requirements="C") for k, array in parcel.arrays.items()}
    path.write_bytes(save(arrays, metadata={KEY: json.dumps(about)}))


def read(path: Path) -> Parcel:
    """Reads a parcel. Nothing in it is unpickled; what is no parcel is a `CheckpointError`."""
    about, arrays = _contents(path)
    if about.get("format") != FORMAT:
        raise CheckpointError(
            f"{path} has format {about.get('format')}, written by Rookery {about.get('rookery')}; "
            f"Rookery {__version__} reads format {FORMAT}; load it with the release that wrote it"
        )
    if about.get("sha256") != fingerprint(arrays):
        raise CheckpointError(f"the arrays in {path} do not match their checksum; {AGAIN}")
    try:
        return _parcel(about, arrays)
    except (ConfigError, CheckpointError, LookupError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path} does not describe a policy: {error}; {AGAIN}") from error


def is_parcel(path: Path) -> bool:
    """Says whether a file is one of ours, damaged or not."""
    try:
        _contents(path)
    except CheckpointError:
        return False
    return True


def _contents(path: Path) -> tuple[dict[str, Any], dict[str, Array]]:
    try:
        with safe_open(path, framework="numpy") as file:
            about = json.loads((file.metadata() or {})[KEY])
            return dict(about), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    # KeyError: another's safetensors; RecursionError: a header of ten thousand brackets
    except (OSError, SafetensorError, LookupError, TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{path} cannot be read as a policy ({type(error).__name__}: {error}); {AGAIN}"
        ) from error


def _parcel(about: Mapping[str, Any], arrays: Mapping[str, Array]) -> Parcel:
    config = parse(Config, about["config"])
    observation, action = (restore(about[name]) for name in ("observation_space", "action_space"))
    spec = spec_of(about["spec"]["name"], observation, action, config.env.frame_stack)
    if _plain(spec) != about["spec"]:
        raise CheckpointError("its spec is another than its spaces'")
    return Parcel(config, Codec(observation, action), spec, arrays)


def _plain(spec: EnvSpec) -> Any:
    return json.loads(json.dumps(asdict(spec)))  # lists for tuples, as they come back
