"""Policy bundle: one safetensors file with a policy's weights, settings and spaces.

The header of the file has an entry `rookery` with JSON text:

| key | content |
|---|---|
| `format`, `rookery` | version of this layout, version of Rookery that wrote the file |
| `config` | all settings |
| `observation_space`, `action_space` | spaces, as `envs/space_json.py` writes them |
| `spec` | shapes and types of observations and actions as networks and replay use them |
| `sha256` | checksum of the arrays |
"""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open

from rookery.actors.policy import Policy
from rookery.algorithms import Algorithm, build_algorithm
from rookery.checkpoints.checkpoint import save_bytes
from rookery.config.load import as_dict
from rookery.config.parse import parse
from rookery.config.schema import Config
from rookery.envs.space_json import outline, restore
from rookery.envs.spaces import SpaceCodec, spec_of
from rookery.errors import CheckpointError, ConfigError
from rookery.networks.named_arrays import fingerprint, load_arrays
from rookery.types import Array, EnvSpec
from rookery.version import __version__

FORMAT = 1
KEY = "rookery"  # entry in the safetensors header
AGAIN = "give a file that `rookery export` wrote, or export it again"


class PolicyBundle(NamedTuple):
    """Content of an exported policy file: weights, settings and spaces.

    A policy built from it needs no run folder and no environment.
    """

    config: Config
    codec: SpaceCodec
    spec: EnvSpec
    arrays: Mapping[str, Array]  # weights of the acting network


def write(path: Path, policy: PolicyBundle) -> None:
    """Writes a policy bundle (weights, settings and spaces) to a safetensors file."""
    about = {
        "format": FORMAT,
        "rookery": __version__,
        "config": as_dict(policy.config),
        "observation_space": outline(policy.codec.observation_space),
        "action_space": outline(policy.codec.action_space),
        "spec": _plain(policy.spec),
        "sha256": fingerprint(policy.arrays),
    }
    path.write_bytes(described(about, policy.arrays))


def described(about: Mapping[str, Any], arrays: Mapping[str, Array]) -> bytes:
    """Returns the bytes of a safetensors file whose header has JSON about its arrays."""
    return save_bytes(arrays, {KEY: json.dumps(about)})


def read(path: Path) -> PolicyBundle:
    """Reads a policy bundle, without pickle; raises `CheckpointError` for any other file."""
    about, arrays = contents(path)
    if about.get("sha256") != fingerprint(arrays):
        raise CheckpointError(f"the arrays in {path} do not match their checksum; {AGAIN}")
    try:
        return _bundle_from(about, arrays)
    except (ConfigError, CheckpointError, LookupError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path} does not describe a policy: {error}; {AGAIN}") from error


def is_bundle(path: Path) -> bool:
    """Returns whether a file has the header of a policy bundle."""
    try:
        with safe_open(path, framework="numpy") as file:
            return KEY in (file.metadata() or {})
    except (OSError, SafetensorError):
        return False


def contents(
    path: Path, what: str = "a policy", again: str = AGAIN
) -> tuple[dict[str, Any], dict[str, Array]]:
    """Reads a file of `described`, without pickle; raises `CheckpointError` for any other file."""
    try:
        with safe_open(path, framework="numpy") as file:
            about = dict(json.loads((file.metadata() or {})[KEY]))
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    # KeyError: another safetensors file; RecursionError: a deeply nested header
    except (OSError, SafetensorError, LookupError, TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{path} cannot be read as {what} ({type(error).__name__}: {error}); {again}"
        ) from error
    if about.get("format") != FORMAT:
        raise CheckpointError(
            f"{path} has format {about.get('format')}, written by Rookery {about.get('rookery')}; "
            f"Rookery {__version__} reads format {FORMAT}; load it with the release that wrote it"
        )
    return about, arrays


def _bundle_from(about: Mapping[str, Any], arrays: Mapping[str, Array]) -> PolicyBundle:
    config = parse(Config, about["config"])
    observation, action = (restore(about[name]) for name in ("observation_space", "action_space"))
    spec = spec_of(about["spec"]["name"], observation, action, config.env.frame_stack)
    if _plain(spec) != about["spec"]:
        raise CheckpointError("its spec does not match its spaces")
    return PolicyBundle(config, SpaceCodec(observation, action), spec, arrays)


def _plain(spec: EnvSpec) -> Any:
    return json.loads(json.dumps(asdict(spec)))  # lists instead of tuples, as in the file


def policy_of(policy: PolicyBundle, algorithm: Algorithm | None = None) -> Policy:
    """Builds a policy from the content of a policy file; `algorithm` may be built already."""
    torch.set_num_threads(policy.config.learner.threads)
    algorithm = algorithm or build_algorithm(policy.config, policy.spec)
    load_arrays(algorithm.acting, policy.arrays)
    return Policy(algorithm, policy.codec, policy.spec, policy.config.randomness.last)
