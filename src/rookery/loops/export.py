"""Exports a run's policy to one file, and gives the file only if it acts as the run does."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from rookery.algos import Algorithm, build_algorithm
from rookery.config.load import load_run
from rookery.envs.frames import View
from rookery.envs.make import Envs, make
from rookery.errors import CheckpointError, ConfigError
from rookery.loops import front, graph, parcel, place
from rookery.loops.front import Policy
from rookery.loops.launch import read_weights
from rookery.loops.parcel import Parcel
from rookery.loops.wiring import Factory
from rookery.manage.checkpoint import scratch_name
from rookery.nets.arrays import load_arrays
from rookery.types import ActionSpec, Array

CHECKED = 256  # observations that both are asked about
RANDOM = 0.5  # share of random actions on the way to them
CLOSE = 1e-5  # what continuous actions, -1 to 1, may differ by; and values that count as equal


class Acts(Protocol):
    """A policy, or a graph."""

    def act(self, obs: Any, state: Any = None) -> tuple[Any, Any]: ...


class Format(NamedTuple):
    """A way to write a policy, and to act with what was written."""

    require: Callable[[], None]  # refuses where it cannot be done
    write: Callable[[Path, Parcel, Algorithm], None]
    read: Callable[[Path, Parcel], Acts]


FORMATS: dict[str, Format] = {
    "safetensors": Format(
        require=lambda: None,
        write=lambda path, content, algorithm: parcel.write(path, content),
        read=lambda path, content: front.load(path),
    ),
    "onnx": Format(
        require=graph.require,
        write=lambda path, content, algorithm: graph.write(
            path, algorithm, content.codec, content.spec
        ),
        read=lambda path, content: graph.Session(path, content.codec, content.spec),
    ),
}


class Compared(NamedTuple):
    """How two policies answered the same questions."""

    checked: int
    largest_difference: float  # between continuous actions from -1 to 1; 0 for choices
    ties: int  # choices that differ where the values of both are equal but for rounding


def export(
    run_dir: Path,
    out: Path,
    *,
    format: str = "safetensors",
    checkpoint: str = "best",
    seed: int = 0,
    factory: Factory | None = None,
) -> dict[str, Any]:
    """Writes the file under another name, asks it and the run alike, and only then renames it."""
    FORMATS[format].require()
    place.prepare(out, "an exported policy")
    weights, config = read_weights(run_dir, checkpoint), load_run(run_dir)
    envs = make(config.env, 1, factory=factory)
    content = Parcel(config, envs.codec, envs.spec, weights.arrays)
    scratch = scratch_name(out)
    try:
        with place.reported(out):
            compared = _written(scratch, format, content, envs, seed)
            scratch.replace(out)
    finally:
        scratch.unlink(missing_ok=True)
        envs.close()
    return {
        "file": str(out),
        "format": format,
        "bytes": out.stat().st_size,
        **compared._asdict(),
    }


def _written(path: Path, format: str, content: Parcel, envs: Envs, seed: int) -> Compared:
    algorithm = build_algorithm(content.config, content.spec)
    load_arrays(algorithm.acting, content.arrays)
    FORMATS[format].write(path, content, algorithm)
    own, read = front.policy_of(content), FORMATS[format].read(path, content)
    return compare(own, read, envs, wander(envs, algorithm, seed))


def wander(envs: Envs, algorithm: Algorithm, seed: int) -> Iterator[tuple[Any, bool]]:
    """Yields observations of half-random episodes in the environment's form; True: one begins."""
    rng, fresh = np.random.default_rng(seed), True
    view = View(envs.spec, envs.reset(seed), algorithm.memory)
    for _ in range(CHECKED):
        yield _first(envs.codec.decode(view.obs)), fresh
        acted = algorithm.act(view.seen(), rng, epsilon=RANDOM, memory=view.memory)
        steps = envs.step(acted.action)
        view.push(steps, acted.memory)
        fresh = bool(steps.terminated[0] or steps.truncated[0] or not steps.real[0])


def _first(obs: Any) -> Any:
    if isinstance(obs, dict):
        return {key: _first(part) for key, part in obs.items()}
    return obs[0]


def compare(
    own: Policy, read: Acts, envs: Envs, observations: Iterator[tuple[Any, bool]]
) -> Compared:
    """Asks both about each observation; raises where they answer differently."""
    action = envs.spec.action
    largest, ties, number = 0.0, 0, 0
    state: Any = None
    theirs: Any = None
    for number, (obs, fresh) in enumerate(observations, 1):
        before = None if fresh else state
        wanted, state = own.act(obs, before)
        found, theirs = read.act(obs, None if fresh else theirs)
        one, other = _stored(envs, wanted), _stored(envs, found)
        if one is None or other is None:
            raise _different(number, wanted, found)
        if action.continuous:
            largest = max(largest, float(np.abs(one - other).max()))
            same = largest <= CLOSE
        else:
            equal = np.array_equal(one, other)
            same = equal or _tied(_scores(own, obs, before), one, other, action)
            ties += same and not equal
        if not same:
            raise _different(number, wanted, found)
    return Compared(number, largest, ties)


def _stored(envs: Envs, action: Any) -> Array | None:
    """Returns an action as it is stored, where motions are all of one size; None: it is none."""
    try:
        return envs.codec.encode_action(np.asarray(action)[None])[0]  # type: ignore[no-any-return]
    except ConfigError:
        return None


def _scores(own: Policy, obs: Any, state: Any) -> Array | None:
    try:
        return own.scores(obs, state)
    except ConfigError:  # an algorithm of the user's that has none
        return None


def _tied(scores: Array | None, one: Array, other: Array, action: ActionSpec) -> bool:
    """Are the values of two choices known, and equal but for rounding?"""
    if scores is None:
        return False
    parts = np.split(scores, np.cumsum(action.sizes)[:-1]) if action.several else [scores]
    pairs = zip(parts, np.atleast_1d(one), np.atleast_1d(other), strict=True)
    return all(abs(part[a] - part[b]) < CLOSE * max(1.0, abs(part[a])) for part, a, b in pairs)


def _different(number: int, wanted: Any, found: Any) -> CheckpointError:
    return CheckpointError(
        f"observation {number} of {CHECKED}: the run's policy answers {_brief(wanted)} and the "
        f"exported file {_brief(found)}; they must agree (continuous actions to {CLOSE:g} of "
        "their range), and the file was removed; choose the other --format, and report it"
    )


def _brief(action: Any) -> str:
    text = str(np.asarray(action).tolist())
    return text if len(text) <= 80 else text[:77] + "..."
