"""Construction and checking of environments, as the `env` section of the settings says."""

import contextlib
import re
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rookery.config.schema import EnvConfig, Stepping
from rookery.envs.action_masks import Corrected
from rookery.envs.async_vector import AsyncVector
from rookery.envs.env_calls import EnvCalls
from rookery.envs.env_fault import ENV_ERRORS, Fault, named_errors, raised
from rookery.envs.lookup import Env, EnvEntry, Given, Vector, find
from rookery.envs.spaces import SpaceCodec
from rookery.envs.step_checks import BoxingGuard, CheckGuard
from rookery.envs.turn_based.pettingzoo import kind_of
from rookery.envs.turn_based.tables import Tables, any_allowed
from rookery.envs.vector import MODES, Envs, Steps
from rookery.errors import ConfigError, EnvError, RookeryError
from rookery.types import LeafKind

__all__ = ["Envs", "Steps", "check", "make", "make_one"]

# Warnings of gymnasium's checker that do not matter: Rookery handles these cases.
IGNORED = (
    "is different from the unwrapped version",
    "value is -infinity",
    "value is infinity",
    "symmetric and normalized space",
)
REUSED = "share an object"  # an error to the checker; Rookery copies all answers
TRIAL_STEPS = 50  # random steps that check a game
COLOUR = re.compile(r"\x1b\[\d+m")


def make(
    config: EnvConfig,
    num: int,
    *,
    factory: Given | None = None,
    render: bool = False,
    calls: EnvCalls | None = None,
) -> Envs:
    """Makes a vector of `num` environments.

    Uses the environment's native vector (its own batched implementation) if it has a suitable one.
    Without one, single environments are stepped as `config.vector` says, and PettingZoo
    environments in a `Tables`, the vector environment of multi-player games.

    `factory` (an id, a class, a function) replaces `config.id`. With `render`, the environments are
    made with the render mode rgb_array if they support it. `calls` records each call of each
    environment, for a watchdog.
    """
    entry, calls = find(config, factory, render=render), calls or EnvCalls()
    together = config.vector is Stepping.ASYNC and num > 1 and not render
    vector = _native(entry, num, calls) or _single(entry, num, calls, together)
    try:
        return Envs(vector, entry.name, config.frame_stack, calls)
    except ConfigError:
        with contextlib.suppress(EnvError):
            _close(entry, vector)
        raise


def make_one(config: EnvConfig, factory: Given | None = None) -> Env:
    """Makes a single, unvectorized environment, for example to call its `compute_reward`.

    Raises `ConfigError` for multi-player games, and for environments that exist only as a native
    vector (a batched implementation of their own).
    """
    entry = find(config, factory)
    if entry.one is None:
        raise ConfigError(
            f"{entry.name} has only a native vector, and a single environment is needed; register "
            "it with an entry point"
        )
    env: Env = _made(entry, entry.one, EnvCalls())
    if kind_of(env) is not None:
        _close(entry, env)
        raise ConfigError(
            f"{entry.name} is a game, and an environment for one agent is needed; leave out "
            "settings that need it, such as replay.hindsight"
        )
    return env


def check(
    config: EnvConfig, factory: Given | None = None, calls: EnvCalls | None = None
) -> list[str]:
    """Runs gymnasium's checker on a temporary environment and returns its warnings.

    Raises `EnvError` if the checker or `close` fails and `ConfigError` for unsupported spaces. A
    PettingZoo environment is checked with a few random steps instead. For an environment that
    exists only as a native vector (a batched implementation of its own), nothing is checked.
    `calls` records each call of the environment, for a watchdog.
    """
    entry, calls = find(config, factory), calls or EnvCalls()
    if entry.one is None:  # a native vector only, for which there is no checker
        return []
    env = _made(entry, entry.one, calls)
    try:
        if kind_of(env) is not None:
            found = _try_game(make(config, 1, factory=factory, calls=calls))
        else:
            found = _checked(entry.name, env, calls)
    except BaseException:  # raised again, and more important than an error of `close`
        with contextlib.suppress(EnvError):
            _close(entry, env)
        raise
    _close(entry, env)
    return found


def _try_game(envs: Envs) -> list[str]:
    """Tests a multi-player game with random actions; raises `EnvError` if the game fails.

    Always returns an empty list, since there are no warnings for games. Closes `envs`.
    """
    rng, codec = np.random.default_rng(0), envs.codec
    try:
        obs = envs.reset(seed=0)
        for _ in range(TRIAL_STEPS):
            action = any_allowed(codec.action_space, codec.decode(obs), rng)
            obs = envs.step(codec.encode_action(action)).obs
    finally:
        envs.close()
    return []


def _native(entry: EnvEntry, num: int, calls: EnvCalls) -> Vector | None:
    """Makes an environment's native vector: its own batched implementation.

    Returns None if there is none, or it cannot be used. It cannot be used if it has no argument for
    a setting, if its autoreset mode is unknown, or if its spaces differ from those of the single
    environment (the vector of ale_py stacks small grey frames). If there is no single environment,
    the native vector is always used.
    """
    if entry.many is None:
        return None
    try:
        vector: Vector = _made(entry, partial(entry.many, num), calls)
    except ConfigError as error:
        if entry.one is None or not isinstance(error.__cause__, TypeError):
            raise
        return None
    known = vector.metadata.get("autoreset_mode") in MODES
    if entry.one is None or (known and _alike(entry, vector, _made(entry, entry.one, calls))):
        return vector
    _close(entry, vector)
    return None


def _alike(entry: EnvEntry, vector: Vector, one: Env) -> bool:
    """Returns whether a vector has the same spaces as a single environment; closes the latter."""
    spaces = (one.observation_space, one.action_space)
    _close(entry, one)
    return spaces == (vector.single_observation_space, vector.single_action_space)


def _single(entry: EnvEntry, num: int, calls: EnvCalls, together: bool) -> Vector:
    """Makes a vector of single environments; `together`: each in a process of its own.

    The constructor may also make a PettingZoo environment; then it is a vector of games.
    """
    if entry.one is None:
        raise ConfigError(f"{entry.name} has no entry point; register it with one")
    one = entry.one
    first = _made(entry, one, calls)
    if (kind := kind_of(first)) is not None:
        _close(entry, first)
        tables: Vector = _made(entry, partial(Tables, partial(kind, one, calls=calls), num), calls)
        return tables
    codec = SpaceCodec(first.observation_space, first.action_space)
    if together:
        makers = [partial(_guarded, one, codec, index) for index in range(num)]
        processes: Vector = _made(entry, partial(AsyncVector, makers, first), calls)
        return processes
    rest = (_made(entry, one, calls) for _ in range(num - 1))
    guards = [BoxingGuard(env, codec, index, calls) for index, env in enumerate((first, *rest))]
    factories, mode = [_returning(guard) for guard in guards], AutoresetMode.SAME_STEP
    # copy=False, since the codec copies
    build = partial(SyncVectorEnv, factories, copy=False, autoreset_mode=mode)
    vector: Vector = _made(entry, build, calls)
    return vector


def _guarded(one: Callable[[], Env], codec: SpaceCodec, index: int) -> Env:
    return BoxingGuard(one(), codec, index)


def _returning(env: Env) -> Callable[[], Env]:
    return lambda: env


def _made(entry: EnvEntry, build: Callable[[], Any], calls: EnvCalls) -> Any:
    try:
        with calls.during("the constructor"):
            return build()
    except RookeryError:
        raise
    except SystemExit as error:
        raise EnvError(f"{entry.name}: {raised('the constructor', error)}") from error
    except Exception as error:  # a constructor may raise anything
        raise ConfigError(
            f"{entry.name} could not be made ({type(error).__name__}: {error}); "
            "check env.kwargs, env.wrappers and what the environment needs installed"
        ) from error


def _close(entry: EnvEntry, env: Env | Vector) -> None:
    with named_errors(entry.name, "close"):
        env.close()


def _checked(name: str, bare: Env, calls: EnvCalls) -> list[str]:
    for space in ("observation_space", "action_space"):
        if not isinstance(getattr(bare, space, None), gym.Space):
            raise ConfigError(
                f"{name} has no {space} of gymnasium.spaces; an environment needs "
                "observation_space and action_space; set both in its constructor"
            )
    codec = SpaceCodec(bare.observation_space, bare.action_space)
    env: Env = CheckGuard(bare, codec, calls)
    if any(leaf.kind is LeafKind.MASK for leaf in codec.leaves):
        env = Corrected(env)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        reused = _run_checker(name, env)
    texts = [_plain(str(one.message)) for one in caught]
    relevant = [text for text in texts if not any(part in text for part in IGNORED)]
    return list(dict.fromkeys(relevant + reused))


def _run_checker(name: str, env: Env) -> list[str]:
    try:
        check_env(env, skip_render_check=True, skip_close_check=True)
    except Fault as fault:
        raise EnvError(f"{name}: {fault.what}") from fault.__cause__
    except ENV_ERRORS as error:  # the checker, and the environment in it, may raise anything
        text = _plain(str(error))
        if isinstance(error, AssertionError) and REUSED in text:
            return [text]
        raise EnvError(
            f"{name} violates the Gymnasium API: {text or type(error).__name__}; correct the "
            "environment, or set env.check=false to skip this check"
        ) from error
    return []


def _plain(text: str) -> str:
    return COLOUR.sub("", text).removeprefix("WARN: ")


Factory = Callable[..., Any]
