"""What is stored for each kind of space, and what is refused."""

from typing import Any, NamedTuple

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector.utils import batch_space

from rookery.envs.spaces import Codes, SpaceCodec, part_of, spec_of
from rookery.errors import ConfigError, EnvError, ProtocolError
from rookery.types import ActionSpec, Leaf, LeafKind

TWO = spaces.Discrete(2)


class Case(NamedTuple):
    space: spaces.Space[Any]
    leaf: Leaf
    obs: Any  # [2, ...] of the environment's form
    stored: Any


def _leaf(shape, dtype, kind, sizes=()) -> Leaf:
    return Leaf("", shape, dtype, kind, sizes)


def _pixels(*shape: int) -> Any:
    return np.arange(np.prod(shape), dtype=np.uint8).reshape(shape)


CASES = {
    "float box": Case(
        spaces.Box(-1, 1, (2,), np.float32),
        _leaf((2,), "float32", LeafKind.VECTOR),
        np.array([[0, 1], [2, 3]], np.float32),
        [[0, 1], [2, 3]],
    ),
    "double box": Case(
        spaces.Box(-1, 1, (2,), np.float64),
        _leaf((2,), "float32", LeafKind.VECTOR),
        np.array([[0, 1], [2, 0.1]]),
        [[0, 1], [2, np.float32(0.1)]],
    ),
    "scalar box": Case(
        spaces.Box(-1, 1, (), np.float32),
        _leaf((1,), "float32", LeafKind.VECTOR),
        np.array([3, 4], np.float32),
        [[3], [4]],
    ),
    "integer box": Case(
        spaces.Box(0, 9, (2,), np.int32),
        _leaf((2,), "float32", LeafKind.VECTOR),
        np.array([[0, 1], [2, 3]], np.int32),
        [[0, 1], [2, 3]],
    ),
    "small uint8 board": Case(
        spaces.Box(0, 2, (2, 2), np.uint8),
        _leaf((2, 2), "float32", LeafKind.VECTOR),
        _pixels(2, 2, 2),
        _pixels(2, 2, 2),
    ),
    "codes on a board": Case(
        Codes(0, 63, (2, 2), np.uint8),
        _leaf((2, 2), "uint8", LeafKind.CODES),
        _pixels(2, 2, 2),
        _pixels(2, 2, 2),
    ),
    "codes that look like a picture": Case(
        Codes(0, 255, (2, 2, 3), np.uint8),
        _leaf((2, 2, 3), "uint8", LeafKind.CODES),
        _pixels(2, 2, 2, 3),
        _pixels(2, 2, 2, 3),
    ),
    "codes below 0": Case(
        Codes(-1, 99, (2,), np.int16),
        _leaf((2,), "int16", LeafKind.CODES),
        np.array([[-1, 1], [2, 99]], np.int16),
        [[-1, 1], [2, 99]],
    ),
    "a single code": Case(
        Codes(0, 9, (), np.int64),
        _leaf((1,), "int64", LeafKind.CODES),
        np.array([3, 4]),
        [[3], [4]],
    ),
    "picture, channels last": Case(
        spaces.Box(0, 255, (4, 5, 3), np.uint8),
        _leaf((3, 4, 5), "uint8", LeafKind.IMAGE),
        _pixels(2, 4, 5, 3),
        _pixels(2, 4, 5, 3).transpose(0, 3, 1, 2),
    ),
    "picture, channels first": Case(
        spaces.Box(0, 255, (3, 5, 6), np.uint8),
        _leaf((3, 5, 6), "uint8", LeafKind.IMAGE),
        _pixels(2, 3, 5, 6),
        _pixels(2, 3, 5, 6),
    ),
    "picture of twelve channels, last": Case(
        spaces.Box(0, 255, (14, 14, 12), np.uint8),
        _leaf((12, 14, 14), "uint8", LeafKind.IMAGE),
        _pixels(2, 14, 14, 12),
        _pixels(2, 14, 14, 12).transpose(0, 3, 1, 2),
    ),
    "picture without channels": Case(
        spaces.Box(0, 255, (4, 5), np.uint8),
        _leaf((1, 4, 5), "uint8", LeafKind.IMAGE),
        _pixels(2, 4, 5),
        _pixels(2, 1, 4, 5),
    ),
    "discrete from -3": Case(
        spaces.Discrete(4, start=-3),
        _leaf((1,), "int64", LeafKind.DISCRETE, (4,)),
        np.array([-3, 0]),
        [[0], [3]],
    ),
    "small discrete": Case(
        spaces.Discrete(200, start=100, dtype=np.uint8),
        _leaf((1,), "int64", LeafKind.DISCRETE, (200,)),
        np.array([100, 255], np.uint8),
        [[0], [155]],
    ),
    "multi discrete with starts": Case(
        spaces.MultiDiscrete([2, 5], start=[1, -1]),
        _leaf((2,), "int64", LeafKind.DISCRETE, (2, 5)),
        np.array([[1, -1], [2, 3]]),
        [[0, 0], [1, 4]],
    ),
    "multi discrete of two axes": Case(
        spaces.MultiDiscrete([[2, 3], [4, 5]]),
        _leaf((4,), "int64", LeafKind.DISCRETE, (2, 3, 4, 5)),
        np.array([[[0, 1], [2, 3]], [[1, 2], [3, 4]]]),
        [[0, 1, 2, 3], [1, 2, 3, 4]],
    ),
    "multi binary of two axes": Case(
        spaces.MultiBinary((2, 2)),
        _leaf((4,), "int8", LeafKind.BINARY),
        np.array([[[0, 1], [1, 0]], [[1, 1], [0, 0]]], np.int8),
        [[0, 1, 1, 0], [1, 1, 0, 0]],
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_every_supported_space_has_one_stored_form(case):
    codec = SpaceCodec(case.space, TWO)

    stored = codec.encode(case.obs, 2)

    assert codec.leaves == (case.leaf,)
    assert stored.dtype == case.leaf.dtype
    assert stored.shape == (2, *case.leaf.shape)
    np.testing.assert_array_equal(stored, case.stored)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_stored_observations_are_contiguous_and_share_no_memory(case):
    codec = SpaceCodec(case.space, TWO)
    for obs in (case.obs, np.asfortranarray(case.obs)):
        stored = codec.encode(obs, 2)

        assert stored.flags.c_contiguous
        assert stored.flags.writeable
        assert not np.shares_memory(stored, obs)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_one_observation_is_stored_like_the_first_of_a_batch(case):
    codec = SpaceCodec(case.space, TWO)

    codec.check(case.obs[0])

    np.testing.assert_array_equal(codec.encode_one(case.obs[0]), codec.encode(case.obs, 2)[:1])


def test_every_kind_of_leaf_is_in_the_table_of_cases():
    assert {type(case.space) for case in CASES.values()} == set(part_of.registry) - {object}


def test_nested_dicts_become_leaves_with_joined_names():
    space = spaces.Dict(
        {"arm": spaces.Dict({"angle": spaces.Box(-1, 1, (2,))}), "cue": spaces.Discrete(3)}
    )
    obs = {"arm": {"angle": np.zeros((2, 2), np.float32)}, "cue": np.array([1, 2])}

    spec = spec_of("robot", space, TWO, frame_stack=4)
    stored = SpaceCodec(space, TWO).encode(obs, 2)

    assert [leaf.name for leaf in spec.obs] == ["arm/angle", "cue"]
    assert (spec.name, spec.frame_stack, spec.is_dict) == ("robot", 4, True)
    np.testing.assert_array_equal(stored["cue"], [[1], [2]])
    assert stored["arm/angle"].shape == (2, 2)


def test_a_dict_of_one_entry_stays_a_dict():
    space = spaces.Dict({"only": spaces.Discrete(2)})

    assert spec_of("x", space, TWO).is_dict
    assert list(SpaceCodec(space, TWO).encode_one({"only": 1})) == ["only"]


MIXED = spaces.Tuple(
    [
        spaces.Box(-1, 1, (3,), np.float32),
        spaces.Dict(
            {
                "cue": spaces.Discrete(3, start=1),
                "arm": spaces.Tuple(
                    [spaces.MultiBinary(2), spaces.Box(0, 255, (8, 8, 3), np.uint8)]
                ),
            }
        ),
    ]
)


def test_tuples_become_leaves_with_joined_indices():
    assert [leaf.name for leaf in spec_of("x", MIXED, TWO).obs] == [
        "0",
        "1/arm/0",
        "1/arm/1",
        "1/cue",
    ]
    assert [leaf.name for leaf in spec_of("x", spaces.Tuple([TWO]), TWO).obs] == ["0"]


@pytest.mark.parametrize("space", [MIXED, spaces.Tuple([TWO]), spaces.Dict({"a": MIXED})], ids=str)
def test_a_tuple_comes_back_as_it_was(space):
    """One observation, and a batch as Gymnasium's vectors have it."""
    space.seed(3)
    codec, one, batch = SpaceCodec(space, TWO), space.sample(), batch_space(space, 4).sample()

    assert data_equivalence(codec.decode_one(codec.encode_one(one)), one)
    assert data_equivalence(codec.decode(codec.encode(batch, 4)), batch)
    codec.check(one)


def test_a_missing_part_of_a_tuple_is_named():
    with pytest.raises(EnvError, match="has no '1': "):
        SpaceCodec(spaces.Tuple([TWO, TWO]), TWO).check((1,))


REFUSED_OBS = {
    "empty tuple": (spaces.Tuple([]), "a Tuple needs at least one"),
    "Text": (spaces.Text(5), "wrapper"),
    "Graph": (spaces.Graph(TWO, None), "wrapper"),
    "Sequence": (spaces.Sequence(TWO), "pad"),
    "OneOf": (spaces.OneOf([TWO, TWO]), "Dict"),
    "nothing in it": (spaces.Box(0, 1, (0,)), "it is empty"),
    "no codes": (Codes(0, 1, (0,), np.uint8), "at least one"),
    "codes that torch has no word for": (Codes(0, 1, (2,), np.uint16), "uint8, int8"),
    "codes that are floats": (Codes(0, 1, (2,), np.float32), "or make it a Box"),
    "empty dict": (spaces.Dict({}), "at least one"),
    "stacked pictures": (spaces.Box(0, 255, (4, 8, 8, 3), np.uint8), "env.frame_stack"),
    "text in a tuple in a dict": (
        spaces.Dict({"a": spaces.Tuple([TWO, spaces.Text(5)])}),
        "'a/1'",
    ),
    "names that collide": (
        spaces.Dict({"a/b": TWO, "a": spaces.Dict({"b": TWO})}),
        "rename the keys",
    ),
    "no name": (spaces.Dict({"": TWO}), "rename the keys"),
}


@pytest.mark.parametrize(("space", "help"), REFUSED_OBS.values(), ids=REFUSED_OBS)
def test_an_unsupported_observation_space_is_refused_with_what_would_help(space, help):
    with pytest.raises(ConfigError) as refusal:
        spec_of("x", space, TWO)

    assert help in str(refusal.value)
    assert "observation space" in str(refusal.value)


REFUSED_ACTIONS = {
    "Dict": (spaces.Dict({"a": TWO}), "bounded Box"),
    "Tuple": (spaces.Tuple([TWO]), "bounded Box"),
    "Text": (spaces.Text(5), "wrapper"),
    "unbounded": (spaces.Box(-np.inf, np.inf, (2,)), "finite low and high"),
    "half bounded": (spaces.Box(0, np.inf, (2,)), "finite low and high"),
    "integers": (spaces.Box(0, 3, (2,), np.int64), "Discrete"),
    "nothing": (spaces.Box(0, 1, (0,)), "it is empty"),
    "no dials": (spaces.MultiDiscrete([]), "it is empty"),
}


@pytest.mark.parametrize(("space", "help"), REFUSED_ACTIONS.values(), ids=REFUSED_ACTIONS)
def test_an_unsupported_action_space_is_refused_with_what_would_help(space, help):
    with pytest.raises(ConfigError) as refusal:
        spec_of("x", TWO, space)

    assert help in str(refusal.value)
    assert str(space) in str(refusal.value)


def test_discrete_actions_are_stored_from_zero():
    space = spaces.Discrete(3, start=-1)
    codec = SpaceCodec(TWO, space)

    decoded = codec.decode_action(np.array([0, 1, 2]))

    assert codec.action == ActionSpec(n=3, start=-1)
    np.testing.assert_array_equal(decoded, [-1, 0, 1])
    assert all(action in space for action in decoded)


SEVERAL = {
    "dials": (spaces.MultiDiscrete([3, 2], start=[-1, 5]), (3, 2), [[0, 1]], [[-1, 6]]),
    "dials in rows": (
        spaces.MultiDiscrete([[2, 3], [4, 5]]),
        (2, 3, 4, 5),
        [[1, 2, 3, 4]],
        [[[1, 2], [3, 4]]],
    ),
    "switches": (spaces.MultiBinary(3), (2, 2, 2), [[0, 1, 1]], [[0, 1, 1]]),
    "switches in rows": (spaces.MultiBinary((2, 1)), (2, 2), [[0, 1]], [[[0], [1]]]),
}


@pytest.mark.parametrize(("space", "sizes", "stored", "given"), SEVERAL.values(), ids=SEVERAL)
def test_several_choices_are_stored_in_one_row_from_zero(space, sizes, stored, given):
    codec = SpaceCodec(TWO, space)

    decoded = codec.decode_action(np.array(stored))

    assert codec.action == ActionSpec(shape=(len(sizes),), sizes=sizes)
    np.testing.assert_array_equal(decoded, given)
    assert decoded[0] in space
    np.testing.assert_array_equal(codec.encode_action(decoded), stored)


def test_an_action_is_one_choice_several_or_a_motion():
    kinds = [
        ActionSpec(n=3),
        ActionSpec(shape=(2,), sizes=(2, 3)),
        ActionSpec(shape=(1,), low=(0.0,), high=(1.0,)),
    ]

    assert [kind.discrete for kind in kinds] == [True, False, False]
    assert [kind.several for kind in kinds] == [False, True, False]
    assert [kind.continuous for kind in kinds] == [False, False, True]
    assert [kind.dtype for kind in kinds] == ["int64", "int64", "float32"]


ODD_ACTIONS = {
    "too large": (spaces.MultiDiscrete([2, 3]), [[1, 3]], "from [0, 0] to [1, 2]"),
    "before the start": (spaces.Discrete(2, start=1), [0], "whole numbers from 1 to 2"),
    "a fraction": (spaces.MultiBinary(2), [[0.5, 1.0]], "got float64"),
    "one number for two dials": (spaces.MultiDiscrete([2, 2]), [0, 1], "got int64 of shape (2,)"),
    "no axis of steps": (spaces.Discrete(2), 1, "shape ()"),
    "beyond a bound": (spaces.Box(-1, 1, (1,)), [[1.5]], "to 1.5"),
    "nan": (spaces.Box(-1, 1, (1,)), [[np.nan]], "numbers from [-1.0] to [1.0]"),
    "text": (spaces.Discrete(2), ["left"], "got <U4"),
}


@pytest.mark.parametrize(("space", "action", "said"), ODD_ACTIONS.values(), ids=ODD_ACTIONS)
def test_an_action_that_its_space_does_not_have_is_not_stored(space, action, said):
    with pytest.raises(ConfigError) as refusal:
        SpaceCodec(TWO, space).encode_action(action)

    assert said in str(refusal.value)


def test_continuous_actions_are_rescaled_to_the_bounds_and_never_leave_them():
    space = spaces.Box(np.array([-2, 0], np.float32), np.array([2, 0.1], np.float32))
    codec = SpaceCodec(TWO, space)

    stored = np.array([[-1, -1], [0, 0], [1, 1], [-9, 9]], np.float32)
    decoded = codec.decode_action(stored)

    assert codec.action.shape == (2,)
    assert codec.action.low == (-2.0, 0.0)
    assert codec.action.high == (2.0, float(np.float32(0.1)))
    np.testing.assert_array_equal(decoded[[0, 2]], [space.low, space.high])
    np.testing.assert_array_equal(decoded[3], [-2, np.float32(0.1)])
    np.testing.assert_allclose(decoded[1], [0, 0.05], rtol=1e-6)
    assert decoded in batch_space(space, 4)


def test_an_action_that_is_not_finite_blames_the_policy():
    codec = SpaceCodec(TWO, spaces.Box(-1, 1, (1,)))

    with pytest.raises(ProtocolError, match=r"the policy .*nan"):
        codec.decode_action(np.array([[np.nan]], np.float32))


BAD_VALUES = {
    "nan": (spaces.Box(-1, 1, (3,)), [[0, 0, 0], [0, 0, np.nan]], "observation[2] is nan"),
    "inf": (spaces.Box(-1, 1, (1, 2)), [[[0, 0]], [[0, np.inf]]], "observation[0, 1] is inf"),
    "too large": (spaces.Box(-1, 1, (1,), np.float64), [[0], [1e300]], "observation[0] is 1e+300"),
    "scalar nan": (spaces.Box(-1, 1, ()), [0, np.nan], "observation is nan"),
    "class 3 of 3": (spaces.Discrete(3), [0, 3], "observation is 3"),
    "before the start": (spaces.MultiDiscrete([2, 2], start=[1, 1]), [[1, 1], [0, 1]], "[0] is 0"),
    "neither 0 nor 1": (spaces.MultiBinary(2), [[0, 1], [0, 256]], "observation[1] is 256"),
}


@pytest.mark.parametrize(("space", "obs", "said"), BAD_VALUES.values(), ids=BAD_VALUES)
def test_a_value_that_may_not_be_stored_is_named_with_its_place(space, obs, said):
    with pytest.raises(EnvError) as refusal:
        SpaceCodec(space, TWO).encode(np.array(obs), 2)

    assert said in str(refusal.value)
    assert "environment 1" in str(refusal.value)


BAD_FORMS = {
    "shape": (np.zeros(3, np.float32), r"shape \(3,\)"),
    "broadcastable shape": (np.zeros((1, 2), np.float32), r"shape \(1, 2\)"),
    "object": (np.array([None, 1], object), "object"),
    "text": (np.array(["a", "b"]), "U1"),
    "complex": (np.array([1j, 2]), "complex"),
}


@pytest.mark.parametrize(("obs", "said"), BAD_FORMS.values(), ids=BAD_FORMS)
def test_a_wrong_shape_or_kind_is_refused_and_never_cast(obs, said):
    codec = SpaceCodec(spaces.Box(-1, 1, (2,)), TWO)

    with pytest.raises(EnvError, match=said):
        codec.check(obs)


def test_floats_where_the_space_says_integers_are_refused():
    for space in (spaces.Box(0, 9, (2,), np.int64), spaces.MultiBinary(2)):
        with pytest.raises(EnvError, match="float64"):
            SpaceCodec(space, TWO).check(np.array([0.5, 1.5]))


def test_integers_and_doubles_where_the_space_says_float32_are_accepted():
    codec = SpaceCodec(spaces.Box(-1, 1, (2,), np.float32), TWO)

    for obs in ([0, 1], np.array([0.0, 1.0]), (False, True)):
        codec.check(obs)
        np.testing.assert_array_equal(codec.encode_one(obs), np.array([[0, 1]], np.float32))


def test_a_missing_key_is_named():
    codec = SpaceCodec(spaces.Dict({"a": TWO, "b": TWO}), TWO)

    with pytest.raises(EnvError, match="has no 'b'"):
        codec.check({"a": 1})
