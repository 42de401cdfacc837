"""Saved states of environments, so that a resumed run continues bit for bit.

An environment, or a wrapper, supports this by defining

    def export_state(self) -> dict | None:       # JSON: numbers, strings, lists, dicts
    def restore_state(self, state: dict) -> None:

for its own variables, without its random generator `np_random`, which this module saves. Gymnasium
classes in the dict `MEMORY`, which lists the attributes that hold their state, need no such
methods. If any other environment has no such methods, or its `export_state` returns None, its
vector of environments cannot be saved: `export` then returns None.

Progress that is kept across episodes, such as the level of a curriculum, can be exported
separately. A restarted actor process, or a resumed run without exact state, restores this progress
and begins new episodes:

    def export_progress(self) -> dict | None:    # JSON; None: no progress to save
    def restore_progress(self, state: dict) -> None:     # before a reset
"""

import base64
import json
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, cycle, islice
from typing import Any, TypeAlias

import gymnasium as gym
import numpy as np
from gymnasium import wrappers
from gymnasium.envs.classic_control import (
    AcrobotEnv,
    CartPoleEnv,
    Continuous_MountainCarEnv,
    MountainCarEnv,
    PendulumEnv,
)
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.vector import SyncVectorEnv, VectorEnv

from rookery import seeding
from rookery.envs.async_vector import AsyncVector
from rookery.envs.env_fault import ENV_ERRORS, Fault, raised
from rookery.envs.step_checks import BoxingGuard, Guard
from rookery.errors import CheckpointError

Vector: TypeAlias = VectorEnv[Any, Any, Any]
Layer: TypeAlias = Any  # an environment, a wrapper around one, or a vector of them

# Exact class → attributes that change during episodes. Subclasses may have more of them.
MEMORY: dict[type, tuple[str, ...]] = {
    CartPoleVectorEnv: ("state", "steps", "prev_done", "low", "high", "steps_beyond_terminated"),
    SyncVectorEnv: ("_autoreset_envs",),
    AsyncVector: (),  # which resets in the same step
    AcrobotEnv: ("state",),
    CartPoleEnv: ("state", "steps_beyond_terminated"),
    Continuous_MountainCarEnv: ("state",),
    MountainCarEnv: ("state",),
    PendulumEnv: ("state", "last_u"),
    BoxingGuard: (),
    Guard: (),
    wrappers.TimeLimit: ("_elapsed_steps",),
    wrappers.OrderEnforcing: ("_has_reset",),
    wrappers.PassiveEnvChecker: (),
    wrappers.ClipReward: (),
    wrappers.DiscretizeAction: (),
    wrappers.DtypeObservation: (),
    wrappers.FilterObservation: (),
    wrappers.FlattenObservation: (),
    wrappers.GrayscaleObservation: (),
    wrappers.RescaleAction: (),
    wrappers.RescaleObservation: (),
    wrappers.ReshapeObservation: (),
    wrappers.ResizeObservation: (),
}


def export(vector: Vector) -> list[dict[str, Any]] | None:
    """Returns the exact state, as JSON, of every environment and wrapper of a vector environment.

    Returns None if one of them cannot be saved.
    """
    found = _everywhere(vector, _export_layers)
    return None if None in found else list(chain.from_iterable(found))


def restore(vector: Vector, saved: list[dict[str, Any]]) -> None:
    """Restores the state of a vector environment that `export` returned.

    Raises `CheckpointError` if `vector` has other environments or wrappers than the saved one.
    """
    names = _everywhere(vector, _names)
    given, here = [one["class"] for one in saved], list(chain.from_iterable(names))
    if given != here:
        raise CheckpointError(
            f"the saved environments are {_short(given)}, these are {_short(here)}; "
            "resume with the env section, and the number of environments, of the saved run"
        )
    _everywhere(vector, _restore_layers, _divided(saved, map(len, names)))


def count_progress(vector: Vector) -> list[int]:
    """Returns how many layers can save progress: of the vector itself, and of each environment.

    These layers define `export_progress` and `restore_progress`. Progress is state that is kept
    across episodes, such as the level of a curriculum.
    """
    return _everywhere(vector, _count_progress)


def export_progress(vector: Vector) -> list[Any]:
    """Returns the progress of all layers that can save it, as JSON."""
    return list(chain.from_iterable(_everywhere(vector, _export_progress)))


def restore_progress(vector: Vector, progress: Sequence[Any]) -> None:
    """Restores progress that `export_progress` returned; fewer values are repeated in order."""
    _everywhere(vector, _restore_progress, _divided(cycle(progress), count_progress(vector)))


def pack(value: Any) -> Any:
    """Converts an array, numpy scalar or tuple to JSON; returns any other value unchanged.

    `unpack` restores the value bit for bit.
    """
    if isinstance(value, np.ndarray | np.generic):
        data = base64.b64encode(value.tobytes()).decode("ascii")
        shape = list(value.shape) if isinstance(value, np.ndarray) else None
        return {"dtype": value.dtype.str, "shape": shape, "data": data}
    if isinstance(value, tuple):
        return {"tuple": [pack(part) for part in value]}
    return value


def unpack(value: Any) -> Any:
    """Converts JSON from `pack` back to the original value; arrays are new and writable."""
    if isinstance(value, dict) and "tuple" in value:
        return tuple(unpack(part) for part in value["tuple"])
    if not isinstance(value, dict):
        return value
    flat = np.frombuffer(base64.b64decode(value["data"]), dtype=np.dtype(value["dtype"]))
    return flat[0] if value["shape"] is None else flat.reshape(value["shape"]).copy()


def exported(layer: Layer, call: str) -> Any:
    """Calls an environment's or wrapper's export method and returns its result.

    `call` is the method's name, such as "export_state". Raises `Fault` if the method raises, or its
    result is not JSON.
    """
    try:
        own = getattr(layer, call)()
        json.dumps(own)
    except ENV_ERRORS as error:  # a user's code may raise anything
        advice = "it must return JSON: numbers, strings, lists and dicts; use array.tolist()"
        raise Fault(f"{raised(call, error)}; {advice}") from error
    return own


def _everywhere(vector: Vector, function: Callable[..., Any], *args: Sequence[Any]) -> list[Any]:
    """Calls a function with a vector, then with each environment that it steps; returns results.

    Each of `args` has a value for every call. A native vector and a vector of games step no single
    environments.
    """
    own = function(vector, *(values[0] for values in args))
    rest = [values[1:] for values in args]
    if isinstance(vector, AsyncVector):
        return [own, *vector.each(function, *rest)]
    envs = vector.envs if isinstance(vector, SyncVectorEnv) else ()
    return [own, *(function(env, *(one[k] for one in rest)) for k, env in enumerate(envs))]


def _divided(values: Iterable[Any], lengths: Iterable[int]) -> list[list[Any]]:
    left = iter(values)
    return [list(islice(left, length)) for length in lengths]


def _layers(env: Layer) -> list[Layer]:
    """Returns an environment and all wrappers around it, the outermost first."""
    layers = [env]
    while isinstance(layers[-1], gym.Wrapper):
        layers.append(layers[-1].env)
    return layers


def _names(env: Layer) -> list[str]:
    return list(map(_name, _layers(env)))


def _name(layer: Layer) -> str:
    """Returns the class of a layer; both ways to step single environments have the same states."""
    return SyncVectorEnv.__name__ if isinstance(layer, AsyncVector) else type(layer).__name__


def _export_layers(env: Layer) -> list[dict[str, Any]] | None:
    saved = []
    for layer in _layers(env):
        if not _exportable(layer):
            return None
        saved.append(_export(layer))
        if _exports_itself(layer) and saved[-1]["own"] is None:
            return None
    return saved


def _restore_layers(env: Layer, saved: list[dict[str, Any]]) -> None:
    for layer, one in zip(_layers(env), saved, strict=True):
        _restore(layer, one)


def _with_progress(env: Layer) -> list[Layer]:
    return [layer for layer in _layers(env) if _has(layer, "export_progress", "restore_progress")]


def _count_progress(env: Layer) -> int:
    return len(_with_progress(env))


def _export_progress(env: Layer) -> list[Any]:
    return [exported(layer, "export_progress") for layer in _with_progress(env)]


def _restore_progress(env: Layer, progress: list[Any]) -> None:
    for layer, one in zip(_with_progress(env), progress, strict=True):
        if one is not None:
            layer.restore_progress(one)


def _exportable(layer: Layer) -> bool:
    if not (_exports_itself(layer) or type(layer) in MEMORY):
        return False
    rng = _rng(layer)
    return rng is None or isinstance(rng.bit_generator, np.random.PCG64)


def _exports_itself(layer: Layer) -> bool:
    return _has(layer, "export_state", "restore_state")


def _has(layer: Layer, *methods: str) -> bool:
    return all(callable(getattr(layer, name, None)) for name in methods)


def _rng(layer: Layer) -> np.random.Generator | None:
    """Returns the random generator of an environment; None for a layer that only holds others."""
    if isinstance(layer, gym.Wrapper | SyncVectorEnv | AsyncVector):
        return None
    rng = layer.np_random
    assert isinstance(rng, np.random.Generator)
    return rng


def _export(layer: Layer) -> dict[str, Any]:
    rng = _rng(layer)
    own = exported(layer, "export_state") if _exports_itself(layer) else None
    names = () if _exports_itself(layer) else MEMORY[type(layer)]
    return {
        "class": _name(layer),
        "own": own,
        "attributes": {name: pack(getattr(layer, name)) for name in names},
        "rng": None if rng is None else seeding.state_of(rng),
    }


def _restore(layer: Layer, saved: dict[str, Any]) -> None:
    if saved["rng"] is not None:
        layer.np_random = seeding.with_state(saved["rng"])
    for name, value in saved["attributes"].items():
        setattr(layer, name, unpack(value))
    if saved["own"] is not None:
        layer.restore_state(saved["own"])


def _short(names: list[str]) -> str:
    """Returns text with the number of class names and each name once, for an error message.

    `names` are the classes of the environments and wrappers of a vector.
    """
    return f"{len(names)} layers ({', '.join(dict.fromkeys(names))})"
