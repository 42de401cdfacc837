"""For all spaces and all values: what is stored can be read back, and actions stay in bounds."""

from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.vector.utils import batch_space
from hypothesis import given
from hypothesis import strategies as st

from rookery.envs.spaces import CODED, Codes, SpaceCodec
from rookery.envs.toy import basic
from rookery.envs.vector import Envs
from rookery.types import LeafKind

SMALL = st.integers(1, 4)
SHAPES = st.lists(SMALL, max_size=3).map(tuple)
STARTS = st.integers(-5, 5)
FLOATS = st.sampled_from([np.float32, np.float64])
CODES = st.sampled_from(CODED)


@st.composite
def _multi_discrete(draw: Any) -> spaces.Space[Any]:
    sizes = draw(st.lists(SMALL, min_size=1, max_size=3))
    return spaces.MultiDiscrete(sizes, start=[draw(STARTS) for _ in sizes])


LEAVES = st.one_of(
    st.builds(lambda shape, dtype: spaces.Box(-3, 3, shape, dtype), SHAPES, FLOATS),
    st.builds(lambda shape: spaces.Box(0, 255, shape, np.uint8), SHAPES),
    st.builds(lambda shape: spaces.Box(-9, 9, shape, np.int64), SHAPES),
    st.builds(lambda shape, dtype: Codes(0, 99, shape, np.dtype(dtype).type), SHAPES, CODES),
    st.builds(lambda n, start: spaces.Discrete(n, start=start), SMALL, STARTS),
    _multi_discrete(),
    st.builds(spaces.MultiBinary, SMALL),
)
OBSERVATIONS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.dictionaries(st.sampled_from("abc"), inner, min_size=1).map(spaces.Dict),
        st.lists(inner, min_size=1, max_size=3).map(spaces.Tuple),
    ),
    max_leaves=4,
)


def _flat(space: Any, obs: Any) -> list[tuple[Any, Any]]:
    """The leaves of a space and of an observation, in the same order."""
    if isinstance(space, spaces.Dict):
        return [pair for key, child in space.spaces.items() for pair in _flat(child, obs[key])]
    if isinstance(space, spaces.Tuple):
        assert isinstance(obs, tuple)
        return [pair for k, child in enumerate(space.spaces) for pair in _flat(child, obs[k])]
    return [(space, obs)]


def _read_back(leaf: Any, space: Any, stored: Any) -> Any:
    """Undoes what storing does, by definition."""
    if leaf.kind is LeafKind.DISCRETE:
        start = np.ravel(space.start)
        return (stored + start).reshape(len(stored), *space.shape)
    if leaf.kind is LeafKind.IMAGE and leaf.shape != space.shape and len(space.shape) == 3:
        return stored.transpose(0, 2, 3, 1)
    return stored.reshape(len(stored), *space.shape)


@given(OBSERVATIONS, st.integers(1, 3), st.integers(0, 1000))
def test_stored_observations_lose_nothing(space, num, seed):
    batched = batch_space(space, num)
    batched.seed(seed)
    obs = batched.sample()
    codec = SpaceCodec(space, spaces.Discrete(2))

    stored = codec.encode(obs, num)

    leaves = list(stored.values()) if isinstance(stored, dict) else [stored]
    assert len(leaves) == len(codec.leaves)
    for leaf, array, (part, given_obs) in zip(codec.leaves, leaves, _flat(space, obs), strict=True):
        assert (array.shape, array.dtype.name) == ((num, *leaf.shape), leaf.dtype)
        assert array.flags.c_contiguous
        assert not np.shares_memory(array, given_obs)
        back = _read_back(leaf, part, array)
        np.testing.assert_array_equal(back, np.asarray(given_obs).astype(back.dtype))


@given(OBSERVATIONS, st.integers(1, 3), st.integers(0, 1000))
def test_decoding_undoes_storing(space, num, seed):
    batched = batch_space(space, num)
    batched.seed(seed)
    obs = batched.sample()
    codec = SpaceCodec(space, spaces.Discrete(2))

    back = codec.decode(codec.encode(obs, num))

    for (part, found), (_, meant) in zip(_flat(space, back), _flat(space, obs), strict=True):
        assert found.shape == (num, *part.shape)
        lossy = part.dtype == np.float64  # stored in 32 bits
        np.testing.assert_array_equal(found, meant.astype(np.float32) if lossy else meant)


@given(
    st.floats(-100, 100, width=32),
    st.floats(0, 100, width=32),
    SHAPES,
    FLOATS,
    st.lists(st.floats(-2, 2, width=32), min_size=1, max_size=5),
)
def test_decoded_actions_stay_in_their_space_and_keep_their_order(low, width, shape, dtype, stored):
    space = spaces.Box(low, low + width, shape, dtype)
    codec = SpaceCodec(spaces.Discrete(2), space)
    rows = np.array(sorted(stored), np.float32)
    action = np.broadcast_to(rows.reshape(-1, *(1,) * len(shape)), (len(rows), *shape))

    decoded = codec.decode_action(action)

    assert decoded in batch_space(space, len(rows))
    assert (np.diff(decoded, axis=0) >= 0).all()


@given(st.integers(-50, 50), st.integers(1, 6), st.integers(1, 4))
def test_decoded_choices_cover_the_space(start, n, num):
    space = spaces.Discrete(n, start=start)
    codec = SpaceCodec(spaces.Discrete(2), space)

    decoded = [codec.decode_action(np.full(num, a)) for a in range(n)]

    assert [int(one[0]) for one in decoded] == list(range(start, start + n))


ACTIONS = st.one_of(
    st.builds(lambda n, start: spaces.Discrete(n, start=start), SMALL, STARTS),
    _multi_discrete(),
    st.builds(spaces.MultiBinary, st.lists(SMALL, min_size=1, max_size=2)),
)


@given(ACTIONS, st.integers(1, 5), st.integers(0, 1000))
def test_choices_are_read_back_as_they_were_given(space, num, seed):
    space.seed(seed)
    given_actions = np.stack([space.sample() for _ in range(num)])
    codec = SpaceCodec(spaces.Discrete(2), space)

    stored = codec.encode_action(given_actions)

    spec = codec.action
    assert (stored.shape, stored.dtype.name) == ((num, *spec.shape), spec.dtype)
    assert ((stored >= 0) & (stored < np.array(spec.sizes or spec.n))).all()
    decoded = codec.decode_action(stored)
    np.testing.assert_array_equal(decoded, given_actions)
    assert all(action in space for action in decoded)


@given(
    st.floats(-100, 100, width=32),
    st.floats(0, 100, width=32),
    SHAPES,
    FLOATS,
    st.integers(0, 1000),
)
def test_motions_are_read_back_to_within_a_rounding(low, width, shape, dtype, seed):
    space = spaces.Box(low, low + width, shape, dtype)
    space.seed(seed)
    action = np.stack([space.sample() for _ in range(3)])
    codec = SpaceCodec(spaces.Discrete(2), space)

    stored = codec.encode_action(action)

    assert (stored.shape, stored.dtype.name) == ((3, *shape), "float32")
    assert (np.abs(stored) <= 1).all()
    np.testing.assert_allclose(codec.decode_action(stored), action, atol=2e-5)


def _rows(mode, length, seed, actions):
    """The rows an actor would store for one environment, and how often it had to ask."""
    envs = Envs(SyncVectorEnv([lambda: basic.Echo(2, length)], autoreset_mode=mode), "echo")
    obs, rows, asked = envs.reset(seed), [], 0
    todo = list(actions)
    while todo:
        steps = envs.step(np.array([todo[0]]))
        asked += 1
        if steps.real[0]:
            rows.append((obs.tobytes(), todo.pop(0), float(steps.reward[0])))
            if steps.terminated[0]:
                rows.append((steps.final_obs.tobytes(), "end"))
        obs = steps.obs
    return rows, asked


@given(st.integers(1, 5), st.integers(0, 99), st.lists(st.integers(0, 1), min_size=1, max_size=20))
def test_both_autoreset_modes_store_the_same_rows(length, seed, actions):
    following, asked = _rows(AutoresetMode.NEXT_STEP, length, seed, actions)
    at_once, asked_at_once = _rows(AutoresetMode.SAME_STEP, length, seed, actions)

    assert following == at_once
    assert asked_at_once == len(actions)
    assert asked == len(actions) + (len(actions) - 1) // length
