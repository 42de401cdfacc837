"""Export of a trained policy to a file, which is kept only if it acts as the run's policy does."""

from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from rookery.actors.policy import Policy
from rookery.algorithms import Algorithm
from rookery.checkpoints.load_weights import read_own_weights
from rookery.config.load import load_run
from rookery.envs.frame_stack import PolicyInputs
from rookery.envs.make import Envs, Factory, make
from rookery.errors import CheckpointError, ConfigError
from rookery.export import bundle, onnx
from rookery.export.bundle import PolicyBundle
from rookery.files import replacing
from rookery.terminal import output
from rookery.types import ActionSpec, Array

CHECKED = 256  # observations for which both policies act
RANDOM = 0.5  # share of random actions in the episodes of the check
CLOSE = 1e-5  # tolerance for continuous actions in -1 to 1, and for tied values


class ActingPolicy(Protocol):
    """Interface of a policy that acts on single observations, with a state for the next call."""

    def act(
        self, obs: Any, state: Any = None, deterministic: bool | None = None
    ) -> tuple[Any, Any]: ...


class Format(NamedTuple):
    """File format of exported policies: functions to write a policy and to read it back."""

    require: Callable[[], None]  # raises ConfigError if packages are missing
    write: Callable[[Path, PolicyBundle, Algorithm], None]
    read: Callable[[Path, PolicyBundle], ActingPolicy]


FORMATS: dict[str, Format] = {
    "safetensors": Format(
        require=lambda: None,
        write=lambda path, content, algorithm: bundle.write(path, content),
        read=lambda path, content: bundle.policy_of(bundle.read(path)),
    ),
    "onnx": Format(require=onnx.require, write=onnx.write, read=onnx.OnnxSession),
}


class ComparisonResult(NamedTuple):
    """Differences between the actions of two policies on the same observations."""

    checked: int
    largest_difference: float  # between continuous actions in -1 to 1; 0 for discrete ones
    ties: int  # discrete actions that differ, with equal values except for rounding


def export(
    run_dir: Path,
    out: Path,
    *,
    format: str = "safetensors",
    checkpoint: str = "best",
    seed: int = 0,
    factory: Factory | None = None,
) -> dict[str, Any]:
    """Exports the policy of a run's checkpoint to the file `out`.

    The file is written under a temporary name, and renamed if its actions equal those of the run's
    policy; otherwise `CheckpointError` is raised. Returns the result as a dict for JSON.
    """
    FORMATS[format].require()
    output.prepare(out, "an exported policy")
    weights, config = read_own_weights(run_dir, checkpoint), load_run(run_dir)
    envs = make(config.env, 1, factory=factory)
    content = PolicyBundle(config, envs.codec, envs.spec, weights.arrays)
    with closing(envs), output.reported(out), replacing(out) as scratch:
        algorithm = bundle.policy_of(content).algorithm
        FORMATS[format].write(scratch, content, algorithm)
        own, read = bundle.policy_of(content), FORMATS[format].read(scratch, content)
        compared = compare(own, read, envs, wander(envs, algorithm, seed))
    written = {"file": str(out), "format": format, "bytes": out.stat().st_size}
    return {**written, **compared._asdict()}


def wander(envs: Envs, algorithm: Algorithm, seed: int) -> Iterator[tuple[Any, bool]]:
    """Plays episodes, half of the actions random, to get observations for a comparison of policies.

    Yields (observation, first); `first` is True for the first observation of an episode.
    """
    rng, fresh = np.random.default_rng(seed), True
    view = PolicyInputs(envs.spec, envs.reset(seed), algorithm.memory)
    for _ in range(CHECKED):
        yield envs.codec.decode_one(view.obs), fresh
        acted = algorithm.act(view.seen(), rng, epsilon=RANDOM, memory=view.memory)
        steps = envs.step(acted.action)
        view.push(steps, acted.memory)
        fresh = bool(steps.terminated[0] or steps.truncated[0] or not steps.real[0])


def compare(
    own: Policy, read: ActingPolicy, envs: Envs, observations: Iterator[tuple[Any, bool]]
) -> ComparisonResult:
    """Compares the actions of two policies on the same observations.

    Raises `CheckpointError` if actions differ by more than rounding errors explain.
    """
    action = envs.spec.action
    largest, ties, number = 0.0, 0, 0
    state: Any = None
    theirs: Any = None
    for number, (obs, fresh) in enumerate(observations, 1):
        if fresh:
            state = theirs = None
        before = state
        expected, state = own.act(obs, before, deterministic=True)
        found, theirs = read.act(obs, theirs, deterministic=True)
        one, other = _stored(envs, expected), _stored(envs, found)
        if one is None or other is None:
            raise _mismatch(number, expected, found)
        if action.continuous:
            largest = max(largest, float(np.abs(one - other).max()))
            same = largest <= CLOSE
        else:
            equal = np.array_equal(one, other)
            same = equal or _tied(_scores(own, obs, before), one, other, action)
            ties += same and not equal
        if not same:
            raise _mismatch(number, expected, found)
    return ComparisonResult(number, largest, ties)


def _stored(envs: Envs, action: Any) -> Array | None:
    """Converts an environment's action to the form that is stored in the replay buffer.

    Continuous actions are scaled to -1 to 1. Returns None if the action is invalid.
    """
    with suppress(ConfigError):
        return envs.codec.encode_action(np.asarray(action)[None])[0]  # type: ignore[no-any-return]
    return None


def _scores(own: Policy, obs: Any, state: Any) -> Array | None:
    with suppress(ConfigError):  # a user's algorithm without scores
        return own.scores(obs, state)
    return None


def _tied(scores: Array | None, one: Array, other: Array, action: ActionSpec) -> bool:
    """Returns whether the network gives two discrete actions the same score, up to rounding.

    The scores are Q-values or logits.
    """
    if scores is None:
        return False
    parts = np.split(scores, np.cumsum(action.sizes)[:-1]) if action.several else [scores]
    pairs = zip(parts, np.atleast_1d(one), np.atleast_1d(other), strict=True)
    return all(abs(part[a] - part[b]) < CLOSE * max(1.0, abs(part[a])) for part, a, b in pairs)


def _mismatch(number: int, expected: Any, found: Any) -> CheckpointError:
    return CheckpointError(
        f"observation {number} of {CHECKED}: the run's policy returns {_brief(expected)} and the "
        f"exported file {_brief(found)}; they must agree (continuous actions to {CLOSE:g} of "
        "their range), so the file was removed; choose the other --format, and report it"
    )


def _brief(action: Any) -> str:
    text = str(np.asarray(action).tolist())
    return text if len(text) <= 80 else text[:77] + "..."
