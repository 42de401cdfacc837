"""One door for either autoreset mode, and nothing bad gets through it."""

from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from rookery.config.schema import EnvConfig
from rookery.envs.make import make
from rookery.envs.toy import basic
from rookery.envs.vector import MODES, Envs
from rookery.errors import ConfigError, EnvError

NEXT, SAME = AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP


def _envs(kind, mode, num=2):
    return Envs(SyncVectorEnv([kind] * num, autoreset_mode=mode), "toy")


def _play(envs, steps):
    for _ in range(steps):
        envs.step(np.zeros(envs.num, int))


def _rows(envs, seed, actions):
    """Writes down, for each environment, the rows an actor would store."""
    obs, rows = envs.reset(seed), [[] for _ in range(envs.num)]
    played = np.zeros(envs.num, int)
    for _ in range(3 * len(actions)):
        action = np.array([actions[min(n, len(actions) - 1)] for n in played])
        steps = envs.step(action)
        for i in np.flatnonzero(steps.real):
            played[i] += 1
            rows[i].append((_bytes(obs, i), action[i], float(steps.reward[i])))
            if steps.terminated[i] or steps.truncated[i]:
                rows[i].append((_bytes(steps.final_obs, i), bool(steps.terminated[i])))
        obs = steps.obs
    return [row[: len(actions)] for row in rows]


def _bytes(obs, i):
    leaves = obs if isinstance(obs, dict) else {"": obs}
    return {name: leaf[i].tobytes() for name, leaf in leaves.items()}


@pytest.mark.parametrize(
    "kind", [basic.Echo, basic.Loop, basic.Pictures, basic.Mixed, basic.Corridor]
)
def test_both_autoreset_modes_give_the_same_rows(kind):
    actions = np.random.default_rng(0).integers(0, 2, size=50)

    following = _rows(_envs(kind, NEXT), 3, actions)
    at_once = _rows(_envs(kind, SAME), 3, actions)

    assert following == at_once


@pytest.mark.parametrize("kind", [basic.Echo, basic.Pictures, basic.Mixed])
def test_guarded_environments_give_the_same_rows_as_bare_ones(kind):
    actions = np.random.default_rng(1).integers(0, 2, size=40)

    guarded = _rows(make(EnvConfig(), 2, factory=kind), 3, actions)
    bare = _rows(_envs(kind, SAME), 3, actions)

    assert guarded == bare


def test_a_step_that_only_resets_is_not_real():
    envs = _envs(lambda: basic.Echo(length=2), NEXT, num=1)
    envs.reset(0)
    action = np.array([0])

    steps = [envs.step(action) for _ in range(6)]

    assert [bool(s.real[0]) for s in steps] == [True, True, False, True, True, False]
    assert [bool(s.terminated[0]) for s in steps] == [False, True, False, False, True, False]


def test_every_step_is_real_when_episodes_begin_at_once():
    envs = _envs(lambda: basic.Echo(length=2), SAME, num=1)
    envs.reset(0)

    assert all(envs.step(np.array([0])).real[0] for _ in range(6))


def test_the_final_observation_is_that_of_the_ended_episode():
    envs = _envs(lambda: basic.Corridor(length=3), SAME, num=2)
    envs.reset(0)
    envs.step(np.array([1, 0]))

    steps = envs.step(np.array([1, 0]))

    assert steps.terminated.tolist() == [True, False]
    assert steps.final_obs[0].tolist() == [0, 0, 1]
    assert steps.obs[0].tolist() == [1, 0, 0]


def test_a_reset_forgets_that_an_episode_had_ended():
    envs = _envs(lambda: basic.Echo(length=1), NEXT, num=1)
    envs.reset(0)
    envs.step(np.array([0]))

    envs.reset(1)

    assert envs.step(np.array([0])).real[0]


def test_observations_of_earlier_steps_stay_as_they_were():
    envs = _envs(basic.Echo, SAME)
    kept = [envs.reset(0)]
    copies = [kept[0].copy()]
    for _ in range(15):
        steps = envs.step(np.zeros(2, int))
        kept += [steps.obs, steps.final_obs]
        copies += [steps.obs.copy(), steps.final_obs.copy()]

    for obs, copy in zip(kept, copies, strict=True):
        np.testing.assert_array_equal(obs, copy)


def test_native_cartpole_stores_no_row_of_a_reset():
    envs = make(EnvConfig(id="CartPole-v1"), 4)
    envs.reset(0)
    ended = np.zeros(4, bool)
    for _ in range(60):
        steps = envs.step(np.ones(4, np.int64))

        np.testing.assert_array_equal(steps.real, ~ended)
        assert (np.abs(steps.obs[~steps.real]) <= 0.05).all()  # a first observation
        ended = steps.terminated | steps.truncated


class Native(VectorEnv):
    """A native vector that resets at once and gives its final observations as one batch."""

    metadata: ClassVar[dict[str, Any]] = {"autoreset_mode": SAME}

    def __init__(self, num_envs=2, **answer):
        self.num_envs, self.answer = num_envs, answer
        self.single_observation_space = spaces.Dict({"x": spaces.Box(-9, 9, (1,))})
        self.single_action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return {"x": np.zeros((2, 1), np.float32)}, {}

    def step(self, actions):
        answer = {
            "obs": {"x": np.zeros((2, 1), np.float32)},
            "reward": np.ones(2),
            "terminated": np.array([True, False]),
            "truncated": np.zeros(2, bool),
            "info": {
                "final_obs": {"x": np.array([[5.0], [0.0]])},
                "final_info": {"is_success": np.array([True, False]), "lap": np.array([7.5, 0])},
            },
        } | self.answer
        return tuple(answer.values())


def test_final_observations_and_infos_of_a_native_vector_are_found():
    envs = Envs(Native(), "native")
    envs.reset(0)

    steps = envs.step(np.zeros(2, int))

    assert steps.final_obs["x"][0] == 5.0
    assert envs.finished_info(steps, 0, ("lap", "no")) == {"lap": 7.5, "is_success": 1.0}


NATIVE_FAULTS = {
    "reward shape": ({"reward": np.ones((2, 1))}, r"rewards .*\(2, 1\)"),
    "reward kind": ({"reward": np.array([None, 1])}, "rewards are object"),
    "reward value": ({"reward": np.array([0, np.nan])}, "environment 1, step 1: .* nan"),
    "flags": ({"terminated": np.zeros(2)}, "terminated is float64"),
    "obs shape": ({"obs": {"x": np.zeros((2, 2))}}, r"shape \(2, 2\)"),
    "final obs": ({"info": {}}, "final_obs"),
    "final value": ({"info": {"final_obs": [{"x": [np.inf]}, None]}}, "environment 0, .* inf"),
}


@pytest.mark.parametrize(("answer", "said"), NATIVE_FAULTS.values(), ids=NATIVE_FAULTS)
def test_a_native_vector_is_checked_as_well(answer, said):
    envs = Envs(Native(**answer), "native")
    envs.reset(0)

    with pytest.raises(EnvError, match=said):
        envs.step(np.zeros(2, int))


class Careless(Native):
    """Resets a step later, calls that step an ending too, and writes into one array for ever."""

    metadata: ClassVar[dict[str, Any]] = {"autoreset_mode": NEXT}

    def step(self, actions):
        flags = self.answer.setdefault("terminated", np.ones(2, bool))
        flags[1] = not flags[1]
        return super().step(actions)


def test_a_step_that_only_resets_ends_no_episode():
    envs = Envs(Careless(), "careless")
    envs.reset(0)

    steps = [envs.step(np.zeros(2, int)) for _ in range(4)]

    assert [s.real[0] for s in steps] == [True, False, True, False]
    assert [s.terminated[0] for s in steps] == [True, False, True, False]


def test_flags_of_earlier_steps_stay_as_they_were():
    envs = Envs(Careless(), "careless")
    envs.reset(0)

    steps = [envs.step(np.zeros(2, int)) for _ in range(4)]

    assert [s.terminated[1] for s in steps] == [False, True, False, True]


def test_a_vector_that_never_resets_itself_is_refused():
    with pytest.raises(ConfigError, match="autoreset mode"):
        _envs(basic.Echo, AutoresetMode.DISABLED)


def test_every_mode_that_resets_by_itself_is_in_the_table():
    assert set(MODES) == set(AutoresetMode) - {AutoresetMode.DISABLED}


class Bad(gym.Env):
    """Answers as it should until its fifth step, and then with what it was told to."""

    def __init__(self, **wrong):
        self.observation_space = spaces.Box(-1, 1, (2,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.wrong, self.played = wrong, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.played += 1
        answer = {
            "obs": np.zeros(2, np.float32),
            "reward": 0.0,
            "terminated": False,
            "truncated": False,
            "info": {},
        }
        if self.played == 5:
            if "error" in self.wrong:
                raise self.wrong["error"]
            if "whole" in self.wrong:
                return self.wrong["whole"]
            answer |= self.wrong
        return tuple(answer.values())


ZEROS = np.zeros(2, np.float32)
FAULTS = {
    "nan observation": ({"obs": np.array([0, np.nan], np.float32)}, r"observation\[1\] is nan"),
    "inf reward": ({"reward": np.inf}, "the reward is inf"),
    "large reward": ({"reward": 1e300}, r"the reward is 1e\+300"),
    "wrong shape": ({"obs": np.zeros(3, np.float32)}, r"shape \(3,\)"),
    "scalar for a vector": ({"obs": np.float32(0)}, r"shape \(\)"),
    "text": ({"obs": np.array(["a", "b"])}, "U1"),
    "array reward": ({"reward": np.zeros(1)}, "one number"),
    "no reward": ({"reward": None}, "one number"),
    "complex reward": ({"reward": 1j}, "one number"),
    "integer terminated": ({"terminated": 0}, r"return bool\(terminated\)"),
    "array truncated": ({"truncated": np.zeros(1, bool)}, r"return bool\(truncated\)"),
    "no info": ({"info": None}, "tuple of 5"),
    "old tuple": ({"whole": (ZEROS, 0.0, False, {})}, "old gym API"),
    "no tuple": ({"whole": None}, "a NoneType"),
    "raises": ({"error": RuntimeError("the motor burned")}, "RuntimeError: the motor burned"),
    "asserts": ({"error": AssertionError()}, "AssertionError"),
}


def _one_bad_of_three(wrong, **config):
    made = iter([{}, wrong, {}])
    return make(EnvConfig(**config), 3, factory=lambda: Bad(**next(made)))


@pytest.mark.parametrize(("wrong", "said"), FAULTS.values(), ids=FAULTS)
def test_a_bad_answer_names_environment_step_and_value(wrong, said):
    envs = _one_bad_of_three(wrong)
    envs.reset(0)
    _play(envs, 4)

    with pytest.raises(EnvError, match=said) as refusal:
        envs.step(np.zeros(3, int))

    assert str(refusal.value).startswith("<lambda>, environment 1, step 5: ")


def test_an_old_tuple_is_explained_through_a_time_limit_too():
    envs = _one_bad_of_three({"whole": (ZEROS, 0.0, False, {})}, max_episode_steps=50)
    envs.reset(0)

    with pytest.raises(EnvError, match="old gym API"):
        _play(envs, 5)


def test_an_error_inside_an_environment_is_the_cause():
    error = RuntimeError("the motor burned")
    envs = _one_bad_of_three({"error": error})
    envs.reset(0)

    with pytest.raises(EnvError) as refusal:
        _play(envs, 5)

    assert refusal.value.__cause__ is error


def test_steps_are_counted_without_resets_and_across_episodes():
    class Late(Bad):
        def step(self, action):
            obs, reward, _, truncated, info = super().step(action)
            return obs, reward, self.played % 2 == 0, truncated, info

    envs = _envs(lambda: Late(reward=np.nan), NEXT, num=1)
    envs.reset(0)

    with pytest.raises(EnvError, match="toy, environment 0, step 5: "):
        _play(envs, 20)


class BadReset(Bad):
    def __init__(self, result):
        super().__init__()
        self.result = result

    def reset(self, *, seed=None, options=None):
        return self.result


RESETS = {
    "no info": (ZEROS, "return \\(obs, info\\)"),
    "nan": ((np.array([np.nan, 0], np.float32), {}), r"observation\[0\] is nan"),
    "shape": ((np.zeros((2, 1), np.float32), {}), r"shape \(2, 1\)"),
    "three": ((ZEROS, {}, 1), "tuple of 3"),
}


@pytest.mark.parametrize(("result", "said"), RESETS.values(), ids=RESETS)
def test_a_bad_reset_is_refused(result, said):
    envs = make(EnvConfig(), 2, factory=lambda: BadReset(result))

    with pytest.raises(EnvError, match=said) as refusal:
        envs.reset(0)

    assert "environment 0, step 0: " in str(refusal.value)


def test_a_reset_that_takes_no_seed_is_explained():
    class Old(Bad):
        def reset(self):
            return ZEROS

    with pytest.raises(EnvError, match=r"reset\(self, \*, seed=None, options=None\)"):
        make(EnvConfig(), 1, factory=Old).reset(0)


class Telling(Bad):
    """Ends every step; says what it is told to, a new type each time, in one reused dict."""

    def __init__(self, values):
        super().__init__()
        self.values, self.info = iter(values), {}

    def reset(self, *, seed=None, options=None):
        self.info.clear()
        self.info["begun"] = True
        return ZEROS, self.info

    def step(self, action):
        self.info.clear()
        self.info |= next(self.values)
        return ZEROS, 0.0, True, False, self.info


def test_infos_of_different_types_are_kept_exactly():
    told = [[{"lap": 1, "is_success": True}], [{"lap": 2.5, "deep": {"x": 3}}], [{"lap": "no"}]]
    made = iter(told)
    envs = make(EnvConfig(), 3, factory=lambda: Telling(next(made)))
    envs.reset(0)

    steps = envs.step(np.zeros(3, int))

    found = [envs.finished_info(steps, i, ("lap", "deep/x", "missing")) for i in range(3)]
    assert found == [{"lap": 1.0, "is_success": 1.0}, {"lap": 2.5, "deep/x": 3.0}, {}]


def test_infos_are_found_when_the_reset_comes_a_step_later():
    envs = _envs(lambda: basic.Corridor(length=2), NEXT)
    envs.reset(0)

    steps = envs.step(np.array([1, 0]))

    assert envs.finished_info(steps, 0, ()) == {"is_success": 1.0}
    assert envs.finished_info(steps, 1, ()) == {}


class Reusing(Bad):
    """Writes every observation, that of the next reset too, into the same array."""

    def __init__(self):
        super().__init__()
        self.buffer = np.zeros(2, np.float32)

    def reset(self, *, seed=None, options=None):
        super(Bad, self).reset(seed=seed)
        self.buffer[:] = 0
        return self.buffer, {}

    def step(self, action):
        self.buffer += 0.5
        return self.buffer, 0.0, bool(self.buffer[0] >= 1), False, {}


def test_an_environment_that_reuses_its_memory_keeps_its_final_observation():
    envs = make(EnvConfig(), 1, factory=Reusing)
    first = envs.reset(0)
    steps = [envs.step(np.zeros(1, int)) for _ in range(2)]

    assert steps[1].final_obs.tolist() == [[1, 1]]
    assert first.tolist() == [[0, 0]]
    assert steps[0].obs.tolist() == [[0.5, 0.5]]
