"""Spaces as plain data, and back."""

import json
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from rookery.envs.nested import NESTED
from rookery.envs.space_json import KINDS, outline, restore
from rookery.envs.spaces import Codes, action_codec, part_of
from rookery.errors import CheckpointError

UNEVEN = spaces.Box(np.array([-1.0, 0.1], np.float32), np.array([0.5, np.inf], np.float32))
SPACES = [
    UNEVEN,
    spaces.Box(0, 255, (8, 8, 3), np.uint8),
    spaces.Box(-np.inf, np.inf, (3,), np.float64),
    spaces.Box(0.1, 1.0, (), np.float32),
    spaces.Box(-5, 9, (2, 3), np.int32),
    Codes(0, 63, (2, 3, 3), np.uint8),
    spaces.Discrete(4, start=-2),
    spaces.MultiDiscrete([3, 4], start=[1, -1]),
    spaces.MultiDiscrete([[3, 4], [2, 2]], dtype=np.int32),
    spaces.MultiBinary(4),
    spaces.MultiBinary((2, 3)),
    spaces.Dict({"b": UNEVEN, "a": spaces.Dict({"z": spaces.Discrete(2)})}),
    spaces.Tuple([UNEVEN, spaces.Dict({"z": spaces.Tuple([spaces.Discrete(2)])})]),
]


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_a_space_comes_back_as_it_was(space):
    text = json.dumps(outline(space), allow_nan=False)

    back = restore(json.loads(text))
    assert back == space
    assert type(back) is type(space)
    assert back.dtype == space.dtype
    if isinstance(space, spaces.Dict):
        assert list(back) == list(space)  # leaves keep their order


def test_every_space_that_is_accepted_can_be_written():
    supported = {*part_of.registry, *action_codec.registry, *NESTED} - {object}
    assert set(KINDS.values()) == supported


def test_bounds_that_are_all_equal_are_one_number():
    assert outline(spaces.Box(0, 255, (84, 84), np.uint8))["high"] == 255


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"space": "Tuple"},
        {"space": "Discrete", "n": 0, "start": 0},
        {"space": "Discrete", "n": "many", "start": 0},
        {"space": "Box", "shape": [2], "dtype": "float32", "low": [0, 0, 0], "high": 1},
        {"space": "Box", "shape": [2], "dtype": "object", "low": 0, "high": 1},
        {"space": "Dict", "spaces": [["a", {"space": "MultiBinary"}]]},
        ["Box"],
    ],
)
def test_what_is_no_space_is_refused(given: Any):
    with pytest.raises(CheckpointError, match="describes no space"):
        restore(given)
