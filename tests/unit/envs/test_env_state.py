"""Saved environments go on bit for bit, and what cannot be saved says so."""

import json
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rookery.config.schema import EnvConfig
from rookery.envs.env_state import pack, unpack
from rookery.envs.make import make
from rookery.envs.toy import basic
from rookery.envs.vector import Envs
from rookery.errors import CheckpointError, EnvError

TOYS = [
    basic.Corridor,
    basic.Echo,
    basic.Loop,
    basic.Pictures,
    basic.Reach,
    basic.Dials,
    basic.Mixed,
]
IDS = ["CartPole-v1", "Acrobot-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Pendulum-v1"]

MAKERS = {kind.__name__: lambda kind=kind: make(EnvConfig(), 3, factory=kind) for kind in TOYS}
MAKERS |= {env_id: lambda env_id=env_id: make(EnvConfig(id=env_id), 3) for env_id in IDS}
MAKERS |= {
    "CartPole one by one": lambda: make(EnvConfig(wrappers=("FlattenObservation",)), 3),
    "limited": lambda: make(EnvConfig(max_episode_steps=7), 3, factory=basic.Echo),
    "resets a step later": lambda: Envs(
        SyncVectorEnv([basic.Echo] * 3, autoreset_mode=AutoresetMode.NEXT_STEP), "later"
    ),
}


def _actions(envs, steps):
    rng, action = np.random.default_rng(5), envs.spec.action
    if action.discrete:
        return rng.integers(0, action.n, size=(steps, envs.num))
    if action.several:
        return rng.integers(0, action.sizes, size=(steps, envs.num, *action.shape))
    return rng.uniform(-1, 1, size=(steps, envs.num, *action.shape)).astype(np.float32)


def _trace(envs, actions):
    """Everything a run could notice, as bytes."""
    trace = []
    for action in actions:
        steps = envs.step(action)
        parts = [steps.obs, steps.reward, steps.terminated, steps.truncated, steps.real]
        ended = steps.terminated | steps.truncated
        final = {k: v[ended] for k, v in envs.spec.unpack(steps.final_obs).items()}
        leaves = [envs.spec.unpack(parts[0]), final]
        trace.append([{k: v.tobytes() for k, v in leaf.items()} for leaf in leaves])
        trace[-1] += [part.tobytes() for part in parts[1:]]
    return trace


@pytest.mark.parametrize("maker", MAKERS.values(), ids=MAKERS)
@pytest.mark.parametrize("before", [0, 9])
def test_a_restored_environment_goes_on_bit_for_bit(maker, before):
    original, copy = maker(), maker()
    actions = _actions(original, before + 40)
    obs = original.reset(11)
    for action in actions[:before]:
        obs = original.step(action).obs

    state = json.loads(json.dumps(original.export_state()))
    restored = copy.restore_state(state)

    for name, leaf in original.spec.unpack(obs).items():
        np.testing.assert_array_equal(leaf, copy.spec.unpack(restored)[name])
    assert _trace(original, actions[before:]) == _trace(copy, actions[before:])


SHORT = {
    "native": lambda: make(EnvConfig(max_episode_steps=5), 2),
    "resets a step later": lambda: Envs(
        SyncVectorEnv([lambda: basic.Echo(4, 3)] * 2, autoreset_mode=AutoresetMode.NEXT_STEP),
        "later",
    ),
    "resets at once": lambda: make(EnvConfig(max_episode_steps=3), 2, factory=basic.Echo),
}


@pytest.mark.parametrize("maker", SHORT.values(), ids=SHORT)
@pytest.mark.parametrize("before", range(1, 8))
def test_it_does_not_matter_where_in_an_episode_the_state_was_saved(maker, before):
    original, copy = maker(), maker()
    actions = _actions(original, before + 12)
    original.reset(3)
    _trace(original, actions[:before])

    copy.restore_state(original.export_state())

    assert _trace(original, actions[before:]) == _trace(copy, actions[before:])


def test_an_exported_state_is_not_touched_by_playing_on():
    envs = make(EnvConfig(), 3)
    envs.reset(0)
    state = envs.export_state()
    copy = json.dumps(state)

    for action in _actions(envs, 5):
        envs.step(action)

    assert json.dumps(state) == copy


def test_step_counts_survive_a_restore():
    class Doomed(basic.Echo):
        MEMORY = ("cue", "steps", "fuse")

        def __init__(self):
            super().__init__()
            self.fuse = 6

        def step(self, action):
            self.fuse -= 1
            obs, reward, *rest = super().step(action)
            return obs, reward if self.fuse else np.nan, *rest

    envs, copy = (make(EnvConfig(), 1, factory=Doomed) for _ in range(2))
    envs.reset(0)
    for _ in range(4):
        envs.step(np.zeros(1, int))
    copy.restore_state(envs.export_state())

    with pytest.raises(EnvError, match="Doomed, environment 0, step 6: "):
        _trace(copy, np.zeros((3, 1), int))


class Mute(gym.Wrapper):
    """A wrapper whose state is unknown."""


class Speaking(gym.Wrapper):
    """A wrapper that says what its state is."""

    def __init__(self, env):
        super().__init__(env)
        self.count = 0

    def step(self, action):
        self.count += 1
        obs, _, *rest = self.env.step(action)
        return obs, float(self.count), *rest

    def export_state(self):
        return {"count": self.count}

    def restore_state(self, state):
        self.count = state["count"]


class Silent(basic.Echo):
    export_state = None


class OwnGenerator(basic.Echo):
    """Draws from a generator whose state is not plain numbers."""

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.np_random = np.random.Generator(np.random.MT19937(seed))
        return self._next_cue(), {}


UNSAVED = {
    "no export_state": Silent,
    "unknown wrapper": lambda: Mute(basic.Echo()),
    "stateful wrapper": lambda: gym.wrappers.StickyAction(basic.Echo(), 0.5),
    "another generator": OwnGenerator,
    "unknown environment": lambda: gym.make("FrozenLake-v1"),
}


@pytest.mark.parametrize("kind", UNSAVED.values(), ids=UNSAVED)
def test_what_cannot_be_saved_says_so_with_none(kind):
    envs = make(EnvConfig(), 2, factory=kind)
    envs.reset(0)

    assert envs.export_state() is None


def test_there_is_nothing_to_save_before_the_first_reset():
    assert make(EnvConfig(), 2, factory=basic.Echo).export_state() is None


def test_a_wrapper_that_speaks_for_itself_is_saved():
    envs, copy = (make(EnvConfig(), 1, factory=lambda: Speaking(basic.Echo())) for _ in range(2))
    envs.reset(0)
    for _ in range(3):
        envs.step(np.zeros(1, int))

    copy.restore_state(envs.export_state())

    assert copy.step(np.zeros(1, int)).reward[0] == 4.0


def test_an_export_that_is_not_json_is_refused_with_what_to_do():
    class Arrays(basic.Echo):
        def export_state(self) -> dict[str, Any]:
            return {"cue": np.zeros(3)}

    envs = make(EnvConfig(), 1, factory=Arrays)
    envs.reset(0)

    with pytest.raises(EnvError, match=r"Arrays.*export_state.*tolist"):
        envs.export_state()


def test_a_restore_that_fails_names_the_environment():
    class Picky(basic.Echo):
        MEMORY: ClassVar[tuple[str, ...]] = ()

        def restore_state(self, state):
            raise KeyError("cue")

    envs = make(EnvConfig(), 1, factory=Picky)
    envs.reset(0)

    with pytest.raises(EnvError, match=r"Picky.*restore_state raised KeyError"):
        envs.restore_state(envs.export_state())


def test_a_state_of_other_environments_is_refused():
    three, two, other = (
        make(EnvConfig(), 3, factory=basic.Echo),
        make(EnvConfig(), 2, factory=basic.Echo),
        make(EnvConfig(), 3, factory=basic.Loop),
    )
    three.reset(0)
    state = three.export_state()

    for envs in (two, other):
        with pytest.raises(CheckpointError, match="resume with"):
            envs.restore_state(state)
    with pytest.raises(CheckpointError, match="format 99"):
        three.restore_state(state | {"version": 99})


class Growing(gym.Wrapper):
    """Counts its episodes, and says so as its progress."""

    def __init__(self, env):
        super().__init__(env)
        self.episodes = 0

    def reset(self, **options):
        self.episodes += 1
        return self.env.reset(**options)

    def export_progress(self):
        return {"episodes": self.episodes}

    def restore_progress(self, state):
        self.episodes = state["episodes"]


def growing(num, kind=lambda: Growing(basic.Echo())):
    return make(EnvConfig(), num, factory=kind)


class TestProgress:
    def test_it_is_that_of_every_environment_in_their_order(self):
        envs, copy = growing(3), growing(3)
        envs.restore_progress([{"episodes": n} for n in (4, 5, 6)])

        copy.restore_progress(json.loads(json.dumps(envs.export_progress())))
        copy.reset(0)

        assert copy.export_progress() == [{"episodes": n} for n in (5, 6, 7)]

    @pytest.mark.parametrize(
        ("num", "begun"),
        [(1, [4]), (2, [4, 5]), (5, [4, 5, 4, 5, 4])],
        ids=["fewer", "same", "more"],
    )
    def test_environments_that_are_more_than_before_take_turns_at_the_others(self, num, begun):
        envs = growing(num)

        envs.restore_progress([{"episodes": 4}, {"episodes": 5}])

        assert [one["episodes"] for one in envs.export_progress()] == begun

    def test_a_wrapper_around_the_one_that_makes_progress_hides_nothing(self):
        envs = growing(2, lambda: Mute(Growing(basic.Echo())))
        envs.reset(0)

        assert envs.export_state() is None
        assert envs.export_progress() == [{"episodes": 1}] * 2

    def test_without_the_methods_there_is_none_and_none_is_taken(self):
        envs = growing(2, basic.Echo)
        envs.restore_progress([{"episodes": 4}])

        assert envs.export_progress() is None

    def test_who_has_none_now_says_so_and_is_told_nothing(self):
        class Mixed(Growing):
            def export_progress(self):
                return None

            def restore_progress(self, state):
                raise AssertionError("there was nothing to tell")

        kinds = iter([Growing, Mixed] * 2 + [Mixed] * 2)
        envs, same, none = (growing(2, lambda: next(kinds)(basic.Echo())) for _ in range(3))

        assert envs.export_progress() == [{"episodes": 0}, None]
        same.restore_progress(envs.export_progress())
        assert none.export_progress() is None

    def test_what_is_not_json_is_refused_with_what_to_do(self):
        class Arrays(Growing):
            def export_progress(self):
                return {"levels": np.zeros(3)}

        with pytest.raises(EnvError, match=r"export_progress.*tolist"):
            growing(1, lambda: Arrays(basic.Echo())).export_progress()

    def test_one_that_cannot_be_taken_up_names_the_environment(self):
        class Picky(Growing):
            def restore_progress(self, state):
                raise KeyError("levels")

        with pytest.raises(EnvError, match=r"restore_progress raised KeyError"):
            growing(1, lambda: Picky(basic.Echo())).restore_progress([{}])


VALUES = [
    None,
    3,
    0.1,
    np.float32(0.1),
    np.arange(6, dtype=np.int32).reshape(2, 3),
    np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    np.zeros((0, 2)),
    np.array(2.5),
    (np.float32(0.1), 1, (True,)),
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_packing_survives_json_bit_for_bit(value):
    back = unpack(json.loads(json.dumps(pack(value))))

    assert type(back) is type(value)
    if isinstance(value, np.ndarray):
        assert (back.dtype, back.shape) == (value.dtype, value.shape)
        assert back.flags.writeable
        np.testing.assert_array_equal(back, value)
    else:
        assert back == value
