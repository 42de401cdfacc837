"""The state of environments, so that a run goes on where it stopped, bit for bit.

An environment, or a wrapper, joins in by defining

    def export_state(self) -> dict | None:       # JSON: numbers, strings, lists, dicts
    def restore_state(self, state: dict) -> None:

for the variables of its own; gymnasium's `np_random` is kept here. Others take part when their
exact class is in `MEMORY`, which names the attributes that make them what they are. Anything else,
and what exports None, cannot be saved, and `export` says so with None.

What outlasts episodes, such as the lessons of a curriculum, an environment or a wrapper may also
give by itself, for whoever plays on with new episodes:

    def export_progress(self) -> dict | None:    # JSON; None: there is none
    def restore_progress(self, state: dict) -> None:     # before a reset
"""

import base64
import json
from collections.abc import Iterator
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
from rookery.envs.fault import Fault, raised
from rookery.envs.guard import BoxingGuard, Guard
from rookery.errors import CheckpointError

Layer: TypeAlias = Any  # an environment, a wrapper around one, or a vector of them

# Exact class → attributes that change while it plays. A subclass may keep more: it is not in here.
MEMORY: dict[type, tuple[str, ...]] = {
    CartPoleVectorEnv: ("state", "steps", "prev_done", "low", "high", "steps_beyond_terminated"),
    SyncVectorEnv: ("_autoreset_envs",),
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


def export(vector: VectorEnv[Any, Any, Any]) -> list[dict[str, Any]] | None:
    """Returns the state of every layer, or None where one of them cannot be saved."""
    saved = []
    for layer in _layers(vector):
        if not _exportable(layer):
            return None
        saved.append(_export(layer))
        if _speaks(layer) and saved[-1]["own"] is None:
            return None
    return saved


def restore(vector: VectorEnv[Any, Any, Any], saved: list[dict[str, Any]]) -> None:
    """Puts every layer back; `vector` must be made of the same classes in the same order."""
    layers = list(_layers(vector))
    given, here = [one["class"] for one in saved], [type(one).__name__ for one in layers]
    if given != here:
        raise CheckpointError(
            f"the saved environments are {_short(given)}, these are {_short(here)}; "
            "resume with the env section, and the number of environments, of the saved run"
        )
    for layer, one in zip(layers, saved, strict=True):
        _restore(layer, one)


def growing(vector: VectorEnv[Any, Any, Any]) -> list[Layer]:
    """Returns the layers that make progress, in their order."""
    methods = ("export_progress", "restore_progress")
    return [layer for layer in _layers(vector) if _has(layer, *methods)]


def pack(value: Any) -> Any:
    """Turns arrays, numpy scalars and tuples into JSON that `unpack` gives back bit for bit."""
    if isinstance(value, np.ndarray | np.generic):
        data = base64.b64encode(value.tobytes()).decode("ascii")
        shape = list(value.shape) if isinstance(value, np.ndarray) else None
        return {"dtype": value.dtype.str, "shape": shape, "data": data}
    if isinstance(value, tuple):
        return {"tuple": [pack(part) for part in value]}
    return value


def unpack(value: Any) -> Any:
    """The inverse of `pack`; arrays are fresh and writable."""
    if isinstance(value, dict) and "tuple" in value:
        return tuple(unpack(part) for part in value["tuple"])
    if not isinstance(value, dict):
        return value
    flat = np.frombuffer(base64.b64decode(value["data"]), dtype=np.dtype(value["dtype"]))
    return flat[0] if value["shape"] is None else flat.reshape(value["shape"]).copy()


def asked(layer: Layer, call: str) -> Any:
    """Returns what a layer exports; anything but JSON is a `Fault`."""
    try:
        own = getattr(layer, call)()
        json.dumps(own)
    except Exception as error:  # a user's code: whatever it raises gets a name
        advice = "it must return JSON: numbers, strings, lists and dicts; use array.tolist()"
        raise Fault(f"{raised(call, error)}; {advice}") from error
    return own


def _layers(vector: VectorEnv[Any, Any, Any]) -> Iterator[Layer]:
    yield vector
    for env in vector.envs if isinstance(vector, SyncVectorEnv) else ():
        while isinstance(env, gym.Wrapper):
            yield env
            env = env.env
        yield env


def _exportable(layer: Layer) -> bool:
    if not (_speaks(layer) or type(layer) in MEMORY):
        return False
    rng = _rng(layer)
    return rng is None or isinstance(rng.bit_generator, np.random.PCG64)


def _speaks(layer: Layer) -> bool:
    return _has(layer, "export_state", "restore_state")


def _has(layer: Layer, *methods: str) -> bool:
    return all(callable(getattr(layer, name, None)) for name in methods)


def _rng(layer: Layer) -> np.random.Generator | None:
    """Returns the generator a layer owns; wrappers and vectors show that of what they hold."""
    if isinstance(layer, gym.Wrapper | SyncVectorEnv):
        return None
    rng = layer.np_random
    assert isinstance(rng, np.random.Generator)
    return rng


def _export(layer: Layer) -> dict[str, Any]:
    rng = _rng(layer)
    own = asked(layer, "export_state") if _speaks(layer) else None
    names = () if _speaks(layer) else MEMORY[type(layer)]
    return {
        "class": type(layer).__name__,
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
    """Names each run of equal layers once: 65 layers are not worth 65 words."""
    return f"{len(names)} layers ({', '.join(dict.fromkeys(names))})"
