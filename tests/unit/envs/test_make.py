"""A name, a class or a function becomes environments, or a message that helps."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rookery.config.schema import EnvConfig
from rookery.envs.lookup import find
from rookery.envs.make import check, make
from rookery.envs.toy import basic
from rookery.errors import ConfigError, EnvError

MODULE = """
import gymnasium as gym
from rookery.envs.toy.basic import Corridor, Echo

LENGTH = 5

class Short(Corridor):
    def __init__(self, length=3):
        super().__init__(length)

def echo(classes=2):
    return Echo(classes)

def nothing():
    return 7

class Half(gym.RewardWrapper):
    def __init__(self, env, by=0.5):
        super().__init__(env)
        self.by = by
    def reward(self, reward):
        return reward * self.by

gym.register("{id}", Short, max_episode_steps=4)
"""


@pytest.fixture
def module(tmp_path, monkeypatch, request):
    """An importable module with environments in it; what it registers is forgotten again."""
    name = f"my_envs_{abs(hash(request.node.name))}"
    (tmp_path / f"{name}.py").write_text(MODULE.format(id=f"{name}/Short-v3"))
    monkeypatch.syspath_prepend(str(tmp_path))
    yield name
    gym.registry.pop(f"{name}/Short-v3", None)


def test_cartpole_uses_its_own_vector():
    envs = make(EnvConfig(id="CartPole-v1"), 4)

    assert isinstance(envs._vector, CartPoleVectorEnv)
    assert (envs.num, envs.name, envs.spec.name) == (4, "CartPole-v1", "CartPole-v1")


def test_a_native_vector_takes_the_time_limit_and_kwargs():
    config = EnvConfig(kwargs={"sutton_barto_reward": True}, max_episode_steps=5)
    envs = make(config, 2)
    envs.reset(0)

    steps = [envs.step(np.array([0, 1])) for _ in range(5)]

    assert isinstance(envs._vector, CartPoleVectorEnv)
    assert steps[-1].truncated.all()
    assert not steps[-2].truncated.any()
    assert steps[0].reward.tolist() == [0, 0]


def test_wrappers_turn_a_native_vector_into_single_environments():
    envs = make(EnvConfig(wrappers=("FlattenObservation",)), 2)

    assert isinstance(envs._vector, SyncVectorEnv)
    assert envs._vector.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP


def test_a_native_vector_without_a_parameter_for_a_setting_is_not_used(module):
    class OnlyNumber(CartPoleVectorEnv):
        def __init__(self, num_envs, max_episode_steps=500):
            super().__init__(num_envs, max_episode_steps)

    gym.register(
        f"{module}/Short-v3",
        "gymnasium.envs.classic_control:CartPoleEnv",
        vector_entry_point=OnlyNumber,
    )

    plain = make(EnvConfig(id=f"{module}/Short-v3"), 2)
    with_kwargs = EnvConfig(id=f"{module}/Short-v3", kwargs={"sutton_barto_reward": True})

    assert isinstance(plain._vector, OnlyNumber)
    assert isinstance(make(with_kwargs, 2)._vector, SyncVectorEnv)


def test_a_native_vector_that_does_not_reset_itself_is_not_used(module):
    class Disabled(CartPoleVectorEnv):
        metadata = CartPoleVectorEnv.metadata | {"autoreset_mode": AutoresetMode.DISABLED}

    gym.register(
        f"{module}/Short-v3",
        "gymnasium.envs.classic_control:CartPoleEnv",
        vector_entry_point=Disabled,
    )

    assert isinstance(make(EnvConfig(id=f"{module}/Short-v3"), 2)._vector, SyncVectorEnv)


def test_a_native_vector_of_another_task_is_not_used(module):
    class Scaled(CartPoleVectorEnv):
        def __init__(self, num_envs=1, **kwargs):
            super().__init__(num_envs, **kwargs)
            self.single_observation_space = spaces.Box(-1.0, 1.0, (4,), np.float32)

    gym.register(
        f"{module}/Short-v3",
        "gymnasium.envs.classic_control:CartPoleEnv",
        vector_entry_point=Scaled,
    )

    assert isinstance(make(EnvConfig(id=f"{module}/Short-v3"), 2)._vector, SyncVectorEnv)


def test_an_id_with_only_a_native_vector_is_made_and_not_checked(module):
    gym.register(f"{module}/Short-v3", vector_entry_point=CartPoleVectorEnv)
    config = EnvConfig(id=f"{module}/Short-v3")

    assert check(config) == []
    assert isinstance(make(config, 2)._vector, CartPoleVectorEnv)
    with pytest.raises(ConfigError, match="no entry point"):
        make(EnvConfig(id=config.id, wrappers=("FlattenObservation",)), 2)


def test_single_environments_are_seeded_one_after_another():
    together, alone = make(EnvConfig(id="Acrobot-v1"), 3), make(EnvConfig(id="Acrobot-v1"), 1)

    obs = together.reset(7)

    np.testing.assert_array_equal(obs[2], alone.reset(9)[0])


def test_a_name_may_be_a_class_a_function_or_a_registered_id_of_a_module(module):
    short = make(EnvConfig(id=f"{module}:Short"), 1)
    echo = make(EnvConfig(id=f"{module}:echo", kwargs={"classes": 6}), 1)
    registered = make(EnvConfig(id=f"{module}:{module}/Short-v3"), 1)
    newest = make(EnvConfig(id=f"{module}/Short", imports=(module,)), 1)

    assert [envs.spec.obs[0].shape for envs in (short, echo, registered, newest)] == [
        (3,),
        (6,),
        (3,),
        (3,),
    ]
    assert [envs.name for envs in (short, newest)] == [f"{module}:Short", f"{module}/Short-v3"]


def test_what_python_gives_may_be_a_class_a_function_an_id_or_a_made_environment():
    config = EnvConfig(id="no-such-id")
    given = [basic.Echo, lambda: basic.Echo(), "Acrobot-v1", gym.make("Acrobot-v1")]

    names = [make(config, 2, factory=factory).name for factory in given]

    assert names == ["Echo", "<lambda>", "Acrobot-v1", "Acrobot-v1"]


def test_a_time_limit_holds_for_ids_and_for_callables(module):
    for config in (
        EnvConfig(id=f"{module}:Short", max_episode_steps=2),
        EnvConfig(id=f"{module}:{module}/Short-v3", max_episode_steps=2),
    ):
        envs = make(config, 1)
        envs.reset(0)

        assert [bool(envs.step(np.zeros(1, int)).truncated[0]) for _ in range(4)] == [
            False,
            True,
            False,
            True,
        ]


def test_wrappers_come_by_name_by_path_and_with_settings(module):
    config = EnvConfig(
        id=f"{module}:Short",
        wrappers=(
            {f"{module}:Half": {"by": 100.0}},
            "FlattenObservation",
            {"ClipReward": {"min_reward": -0.5, "max_reward": 0.5}},
        ),
    )
    envs = make(config, 1)
    envs.reset(0)

    assert envs.step(np.zeros(1, int)).reward[0] == -0.5  # 100 * -0.01, then clipped


WRONG = {
    "misspelt id": ({"id": "CartPol-v1"}, "did you mean 'CartPole-v1'"),
    "wrong version": ({"id": "CartPole-v7"}, "did you mean 'CartPole-v1'"),
    "wrong case": ({"id": "cartpole"}, "did you mean 'CartPole-v1'"),
    "unknown id": ({"id": "Quidditch-v0"}, "env.imports"),
    "no id": ({"id": "a b c"}, "not registered"),
    "no module": ({"id": "no_such_module:Thing"}, "no_such_module"),
    "not callable": ({"id": "{module}:LENGTH"}, "has no class or function 'LENGTH'"),
    "no such thing": ({"id": "{module}:Shart"}, "did you mean '{module}:Short'?"),
    "no such id": ({"id": "{module}:CartPol-v1"}, "did you mean 'CartPole-v1'"),
    "no such import": ({"imports": ("no_such_module",)}, "env.imports names the module"),
    "no environment": ({"id": "{module}:nothing"}, "made a int; it must be a gymnasium.Env"),
    "kwargs": ({"id": "{module}:Short", "kwargs": {"depth": 3}}, "check env.kwargs"),
    "kwargs of an id": ({"kwargs": {"depth": 3}}, "check env.kwargs"),
    "wrapper": ({"wrappers": ("ClipRewards",)}, "did you mean 'ClipReward'"),
    "not a wrapper": ({"wrappers": ("vector",)}, "has 'vector'"),
    "wrapper path": ({"wrappers": ("{module}:Hal",)}, "did you mean '{module}:Half'"),
    "wrapper type": ({"wrappers": (3,)}, "module:Class"),
    "wrapper entry": ({"wrappers": ({"a": {}, "b": {}},)}, "begin a new entry"),
    "wrapper settings": ({"wrappers": ({"ClipReward": {"x": 1}},)}, "env.wrappers"),
    "wrapper that cannot": ({"wrappers": ("RescaleAction",)}, "env.wrappers"),
}


def _filled(value, module):
    if isinstance(value, str):
        return value.replace("{module}", module)
    if isinstance(value, tuple):
        return tuple(_filled(part, module) for part in value)
    return value


@pytest.mark.parametrize(("settings", "said"), WRONG.values(), ids=WRONG)
def test_a_wrong_setting_is_refused_with_what_helps(settings, said, module):
    config = EnvConfig(**{key: _filled(value, module) for key, value in settings.items()})

    with pytest.raises(ConfigError) as refusal:
        make(config, 2)

    assert said.replace("{module}", module) in str(refusal.value)


def test_an_unknown_class_of_a_module_suggests_classes_of_that_module_only(module):
    with pytest.raises(ConfigError) as refusal:
        make(EnvConfig(id=f"{module}:Hoper"), 1)

    text = str(refusal.value)
    assert "did you mean" not in text
    assert f"{module} has no class or function 'Hoper'; it has Corridor, Echo, Short, echo" in text


def test_what_is_no_environment_at_all_is_refused():
    for given, said in ((42, "may be an id"), (basic.Echo(), "pass its class")):
        with pytest.raises(ConfigError, match=said):
            make(EnvConfig(), 2, factory=given)


@pytest.mark.parametrize("missing", ["observation_space", "action_space"])
def test_the_check_refuses_an_environment_without_a_space(missing):
    class Spaceless(basic.Echo):
        def __init__(self):
            super().__init__()
            setattr(self, missing, None)

    with pytest.raises(ConfigError, match=f"Spaceless has no {missing} of gymnasium.spaces"):
        check(EnvConfig(), factory=Spaceless)


def test_environments_with_differing_spaces_are_refused():
    sizes = iter([3, 4])

    with pytest.raises(ConfigError, match="not equivalent"):
        make(EnvConfig(), 2, factory=lambda: basic.Corridor(next(sizes)))


def test_unsupported_spaces_are_refused_when_made_and_when_checked():
    class Talking(basic.Echo):
        def __init__(self):
            super().__init__()
            self.observation_space = spaces.Text(5)

    for call in (lambda factory: make(EnvConfig(), 2, factory=factory), check_of):
        with pytest.raises(ConfigError, match="turn the text into numbers"):
            call(Talking)


def check_of(factory):
    return check(EnvConfig(), factory)


def test_a_tuple_is_played_and_checked_without_a_wrapper():
    """Blackjack observes three whole numbers."""
    config = EnvConfig(id="Blackjack-v1")
    assert check(config) == []

    envs = make(config, 2)
    obs = envs.reset(0)
    seen = [envs.step(np.array([0, 1])) for _ in range(20)]

    assert [obs[name].shape for name in ("0", "1", "2")] == [(2, 1)] * 3
    ended = [steps for steps in seen if steps.terminated.any()]
    assert all(set(steps.final_obs) == {"0", "1", "2"} for steps in ended)
    assert len(ended) == 20  # action 0 ends a hand
    decoded = envs.codec.decode(seen[-1].obs)
    assert [part.shape for part in decoded] == [(2,)] * 3


def test_a_wrapper_makes_an_unsupported_space_supported():
    config = EnvConfig(id="Blackjack-v1", wrappers=("FlattenObservation",))

    assert check(config) == []
    assert make(config, 1).spec.obs[0].shape == (45,)


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Acrobot-v1", "Pendulum-v1", "Taxi-v4"])
def test_gymnasiums_own_environments_pass_the_check_without_a_word(env_id):
    assert check(EnvConfig(id=env_id)) == []


@pytest.mark.parametrize(
    "kind", [basic.Corridor, basic.Echo, basic.Loop, basic.Pictures, basic.Reach]
)
def test_toys_pass_the_check_without_a_word(kind):
    assert check(EnvConfig(), kind) == []


class Plain(gym.Env):
    """An environment with one thing wrong in each subclass."""

    def __init__(self):
        self.observation_space = spaces.Box(-1, 1, (2,), np.float32)
        self.action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return np.zeros(2, np.float32), 0.0, False, False, {}


class Outside(Plain):
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.full(2, 5, np.float32), {}


class OldStep(Plain):
    def step(self, action):
        return np.zeros(2, np.float32), 0.0, False, {}


class Unseeded(Plain):
    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}


class NoOptions(Plain):
    def reset(self, *, seed=None):
        return super().reset(seed=seed)


class Raising(Plain):
    def step(self, action):
        raise RuntimeError("the motor burned")


class Doubled(Plain):
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2), {}


class Nested(Plain):
    def __init__(self):
        super().__init__()
        self.observation_space = spaces.Dict({"place": self.observation_space})

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return {"place": np.zeros(2)}, {}

    def step(self, action):
        return {"place": np.zeros(2)}, 0.0, False, False, {}


class Unpaid(Plain):
    paid = float("nan")

    def step(self, action):
        return np.zeros(2, np.float32), self.paid, False, False, {}


class Overpaid(Unpaid):
    paid = float("inf")


class Huge(Unpaid):
    paid = 1e39


CHECKS = {
    Outside: "not within the observation space: observation[0] is 5.0; allowed there: -1.0 to 1.0",
    Doubled: "reset: observation is float64; its space says float32; cast it",
    Nested: "reset: observation 'place' is float64; its space says float32; cast it",
    Unpaid: "step 1: the reward is nan; it must be a finite 32-bit float",
    Overpaid: "step 1: the reward is inf; it must be a finite 32-bit float",
    Huge: "step 1: the reward is 1e+39; it must be a finite 32-bit float",
    OldStep: "old gym API",
    Unseeded: "super().reset(seed=seed)",
    NoOptions: "options=None",
    Raising: "the motor burned",
}


@pytest.mark.parametrize(("kind", "said"), CHECKS.items(), ids=lambda part: str(part)[-20:])
def test_the_check_refuses_what_breaks_the_api(kind, said):
    with pytest.raises(EnvError) as refusal:
        check(EnvConfig(), kind)

    assert said in str(refusal.value)
    assert kind.__name__ in str(refusal.value)


def test_the_check_returns_warnings_and_raises_none():
    class Doubles(Plain):
        def step(self, action):
            return np.zeros(2), 0.0, False, False, {}

    found = check(EnvConfig(), Doubles)

    assert any("dtype" in text for text in found)
    assert not any("\x1b" in text for text in found)


def test_reused_memory_is_only_a_warning():
    class Reusing(Plain):
        def __init__(self):
            super().__init__()
            self.buffer = np.zeros(2, np.float32)

        def step(self, action):
            return self.buffer, 0.0, False, False, {}

    assert any("share an object" in text for text in check(EnvConfig(), Reusing))


def test_numpy_bools_pass_the_check():
    class Numpy(Plain):
        def step(self, action):
            return np.zeros(2, np.float32), 0.0, np.False_, np.False_, {}

    assert check(EnvConfig(), Numpy) == []


def test_the_throw_away_environment_is_closed():
    closed = []

    class Closing(Plain):
        def close(self):
            closed.append(self)

    check(EnvConfig(), Closing)

    assert len(closed) == 1


def test_pictures_come_only_when_asked_for():
    asked = make(EnvConfig(), 2, factory=basic.Pictures, render=True)
    silent = make(EnvConfig(), 2, factory=basic.Pictures)
    for envs in (asked, silent):
        envs.reset(0)

    assert asked.render().shape == (96, 96, 3)
    assert silent.render() is None
    assert (asked.pictures, silent.pictures) == (True, False)
    assert asked.fps == 8


def test_environments_that_cannot_be_drawn_are_made_all_the_same():
    envs = make(EnvConfig(), 2, factory=basic.Echo, render=True)
    envs.reset(0)

    assert envs.render() is None
    assert (envs.pictures, envs.fps) == (False, None)


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Acrobot-v1"])
def test_gymnasiums_environments_draw_a_frame(env_id, monkeypatch):
    pytest.importorskip("pygame")
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    envs = make(EnvConfig(id=env_id), 1, render=True)
    envs.reset(0)

    frame = envs.render()

    assert frame.ndim == 3
    assert frame.shape[-1] == 3
    assert frame.dtype == np.uint8
    envs.close()
    envs.close()


def test_an_error_in_close_or_render_names_the_environment():
    class Stuck(basic.Pictures):
        def close(self):
            raise OSError("window gone")

        def render(self):
            raise OSError("no display")

    envs = make(EnvConfig(), 1, factory=Stuck, render=True)

    with pytest.raises(EnvError, match="Stuck: render raised OSError: no display"):
        envs.render()
    with pytest.raises(EnvError, match="Stuck: close raised OSError: window gone"):
        envs.close()


def test_nothing_is_made_by_looking_it_up():
    made = []

    find(EnvConfig(), lambda: made.append(1))

    assert made == []
