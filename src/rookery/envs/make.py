"""Makes environments from the `env` section, and checks them before a run depends on them."""

import re
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rookery.config.schema import EnvConfig
from rookery.envs.entry import Entry, Env, Given, Vector, find
from rookery.envs.fault import Fault
from rookery.envs.games.zoo import ZooGames, kind_of
from rookery.envs.guard import BoxingGuard, Guard
from rookery.envs.masks import Corrected
from rookery.envs.spaces import Codec
from rookery.envs.tables import Tables, any_allowed
from rookery.envs.vector import MODES, Envs, Steps
from rookery.errors import ConfigError, EnvError, RookeryError
from rookery.types import Kind

__all__ = ["Envs", "Steps", "check", "make", "make_one"]

# What gymnasium's checker says about every wrapped environment, or about what is settled here.
SETTLED = (
    "is different from the unwrapped version",
    "value is -infinity",
    "value is infinity",
    "symmetric and normalized space",
)
REUSED = "share an object"  # an error to the checker; here everything is copied at the door
REHEARSED = 50  # steps
COLOUR = re.compile(r"\x1b\[\d+m")


def make(
    config: EnvConfig, num: int, *, factory: Given | None = None, render: bool = False
) -> Envs:
    """Makes `num` environments: a native vector where there is one, else one after another.

    `factory` (an id, a class, a function) takes the place of `config.id`. With `render`,
    environments that can are made to give pictures.
    """
    entry = find(config, factory, render=render)
    vector = _native(entry, num) or _synchronous(entry, num)
    try:
        return Envs(vector, entry.name, config.frame_stack)
    except ConfigError:
        vector.close()
        raise


def make_one(config: EnvConfig, factory: Given | None = None) -> Env:
    """Makes one environment as it is: to be asked something, not to be trained in."""
    entry = find(config, factory)
    if entry.one is None:
        raise ConfigError(
            f"{entry.name} has only a native vector; one environment by itself is needed; "
            "register it with an entry point"
        )
    env: Env = _made(entry, entry.one)
    if kind_of(env) is not None:
        env.close()
        raise ConfigError(
            f"{entry.name} is a game; one environment for one agent is needed; leave out what asks "
            "for it, such as replay.hindsight"
        )
    return env


def check(config: EnvConfig, factory: Given | None = None) -> list[str]:
    """Runs gymnasium's checker on a throw-away environment and returns its warnings.

    What it refuses is an `EnvError`; spaces that cannot be learned from are a `ConfigError`.
    Of PettingZoo's environments a few steps are played at random.
    """
    entry = find(config, factory)
    if entry.one is None:  # there is only a native vector, and nothing to check one with
        return []
    env = _made(entry, entry.one)
    try:
        if kind_of(env) is not None:
            return _rehearsed(make(config, 1, factory=factory))
        codec = Codec(env.observation_space, env.action_space)
        guarded = Guard(env, codec)
        masked = any(leaf.kind is Kind.MASK for leaf in codec.leaves)
        return _checked(entry.name, Corrected(guarded) if masked else guarded)
    finally:
        env.close()


def _rehearsed(envs: Envs) -> list[str]:
    """Plays a game at random; whatever is wrong with it is an `EnvError`. It has no warnings."""
    rng, codec = np.random.default_rng(0), envs.codec
    try:
        obs = envs.reset(seed=0)
        for _ in range(REHEARSED):
            action = any_allowed(codec.action_space, codec.decode(obs), rng)
            obs = envs.step(codec.encode_action(action)).obs
    finally:
        envs.close()
    return []


def _native(entry: Entry, num: int) -> Vector | None:
    """Makes the environment's own vector, unless it resets in a way nobody can follow.

    Nor where it is another task than a single environment: that of ale_py stacks small grey frames
    and clips rewards.
    """
    if entry.many is None:
        return None
    many = entry.many
    vector: Vector = _made(entry, lambda: many(num))
    known = vector.metadata.get("autoreset_mode") in MODES
    if entry.one is None or (known and _alike(vector, _made(entry, entry.one))):
        return vector
    vector.close()
    return None


def _alike(vector: Vector, one: Env) -> bool:
    """Says whether a vector is made of environments like this one, which is closed."""
    spaces = (one.observation_space, one.action_space)
    one.close()
    return spaces == (vector.single_observation_space, vector.single_action_space)


def _synchronous(entry: Entry, num: int) -> Vector:
    if entry.one is None:
        raise ConfigError(f"{entry.name} has no entry point; register it with one")
    first = _made(entry, entry.one)
    if (kind := kind_of(first)) is not None:
        first.close()
        return _tables(entry, kind, num)
    codec = Codec(first.observation_space, first.action_space)
    rest = (_made(entry, entry.one) for _ in range(num - 1))
    guards = [BoxingGuard(env, codec, index) for index, env in enumerate((first, *rest))]
    givers, mode = [_giving(guard) for guard in guards], AutoresetMode.SAME_STEP
    # copy=False: the codec copies anyway
    vector: Vector = _made(entry, lambda: SyncVectorEnv(givers, copy=False, autoreset_mode=mode))
    return vector


def _tables(entry: Entry, kind: type[ZooGames], num: int) -> Vector:
    one = entry.one
    assert one is not None, "it made the first"
    tables: Vector = _made(entry, lambda: Tables(lambda count: kind(one, count), num))
    return tables


def _giving(env: Env) -> Callable[[], Env]:
    return lambda: env


def _made(entry: Entry, build: Callable[[], Any]) -> Any:
    try:
        return build()
    except RookeryError:
        raise
    except Exception as error:  # a constructor may raise anything: it gets a name
        raise ConfigError(
            f"{entry.name} could not be made ({type(error).__name__}: {error}); "
            "check env.kwargs, env.wrappers and what the environment needs installed"
        ) from error


def _checked(name: str, env: Env) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        reused = _run_checker(name, env)
    texts = [_plain(str(one.message)) for one in caught]
    told = [text for text in texts if not any(part in text for part in SETTLED)]
    return list(dict.fromkeys(told + reused))


def _run_checker(name: str, env: Env) -> list[str]:
    try:
        check_env(env, skip_render_check=True, skip_close_check=True)
    except Fault as fault:
        raise EnvError(f"{name}: {fault.what}") from fault.__cause__
    except Exception as error:  # the checker, and the environment in it, may raise anything
        text = _plain(str(error))
        if isinstance(error, AssertionError) and REUSED in text:
            return [text]
        raise EnvError(
            f"{name} does not keep to the Gymnasium API: {text or type(error).__name__}; "
            "correct the environment, or set env.check=false where you know better"
        ) from error
    return []


def _plain(text: str) -> str:
    return COLOUR.sub("", text).removeprefix("WARN: ")
