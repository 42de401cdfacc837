"""State of an SB3 model in a checkpoint: arrays and JSON, without SB3's pickles.

    numbers, arrays = model_state(model)
    restore_model(model, numbers, arrays)       # a model that was built from the same settings

It holds what training goes on from: networks, optimizers, the entropy coefficient, SB3's counters
and all random generators. Schedules follow from the counters. Replay is saved apart
(`replay_rows.py`); the state of the environments is not saved.
"""

import random
from typing import Any

import numpy as np
import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.save_util import recursive_getattr
from torch import nn

from rookery import seeding
from rookery.networks.named_arrays import (
    arrays_of,
    load_arrays,
    load_optimizer,
    optimizer_arrays,
)
from rookery.types import Array, Arrays, JsonObject, SavedState, below, prefixed

COUNTERS = (  # attributes of SB3's algorithms, of which each algorithm has some
    "num_timesteps",
    "exploration_rate",
    "_current_progress_remaining",
    "_episode_num",
    "_n_calls",
    "_n_updates",
)


def model_state(model: BaseAlgorithm) -> tuple[JsonObject, Arrays]:
    """Returns a copy of a model's state: JSON data, and named arrays."""
    arrays: dict[str, Array] = {}
    parts, variables = model._get_torch_save_params()
    for name in parts:
        part = recursive_getattr(model, name)
        own = arrays_of(part) if isinstance(part, nn.Module) else optimizer_arrays(part)
        arrays |= prefixed(f"{name}:", {key: array.copy() for key, array in own.items()})
    for name in variables:
        arrays[f"variable:{name}"] = recursive_getattr(model, name).detach().cpu().numpy().copy()
    generators, states = _generators(model)
    counters = {name: getattr(model, name) for name in COUNTERS if hasattr(model, name)}
    return {"counters": counters, "generators": generators}, arrays | states


def restore_model(model: BaseAlgorithm, numbers: SavedState, arrays: Arrays) -> None:
    """Restores a state of `model_state`; raises CheckpointError if the networks are others."""
    parts, variables = model._get_torch_save_params()
    for name in parts:
        part, own = recursive_getattr(model, name), below(f"{name}:", arrays)
        if isinstance(part, nn.Module):
            load_arrays(part, own)
        else:
            load_optimizer(part, own)
    for name in variables:
        saved = torch.from_numpy(arrays[f"variable:{name}"].copy())
        recursive_getattr(model, name).data.copy_(saved)
    for name, value in numbers["counters"].items():
        setattr(model, name, value)
    _restore_generators(model, numbers["generators"], arrays)


def _generators(model: BaseAlgorithm) -> tuple[dict[str, Any], dict[str, Array]]:
    """Returns the states of all generators that SB3 draws from; most of them are global ones."""
    _, keys, *rest = np.random.get_state()  # noqa: NPY002  as in SB3
    arrays = {"generator:numpy": np.array(keys), "generator:torch": torch.get_rng_state().numpy()}
    if model.device.type == "cuda":
        arrays["generator:cuda"] = torch.cuda.get_rng_state(model.device).numpy()
    numbers = {
        "numpy": rest,
        "python": random.getstate(),
        "actions": seeding.state_of(model.action_space.np_random),
    }
    return numbers, arrays


def _restore_generators(model: BaseAlgorithm, numbers: SavedState, arrays: Arrays) -> None:
    keys = arrays["generator:numpy"]
    np.random.set_state(("MT19937", keys, *numbers["numpy"]))  # noqa: NPY002  as in SB3
    version, words, gauss = numbers["python"]
    random.setstate((version, tuple(words), gauss))
    torch.set_rng_state(torch.from_numpy(arrays["generator:torch"].copy()))
    if model.device.type == "cuda" and "generator:cuda" in arrays:
        state = torch.from_numpy(arrays["generator:cuda"].copy())
        torch.cuda.set_rng_state(state, model.device)
    model.action_space.np_random.bit_generator.state = numbers["actions"]
