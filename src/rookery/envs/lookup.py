"""Lookup of environments: from a name, a class or a function to a constructor.

A name is one of these; the first two are tried in this order:

    module:Thing        a class or function in an importable module
    module:Id-v0        a Gymnasium id that importing the module registers
    Id-v0               a Gymnasium id
    ludo                a multi-player game that a plugin registers

A class or function may also make a PettingZoo environment, which is a multi-player game.
"""

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias

import gymnasium as gym
from gymnasium import wrappers
from gymnasium.envs import registration
from gymnasium.vector import VectorEnv

from rookery import plugins
from rookery.config.schema import EnvConfig, Stepping
from rookery.envs import atari
from rookery.envs.env_fault import ENV_ERRORS
from rookery.envs.turn_based.game import Games
from rookery.envs.turn_based.pettingzoo import kind_of
from rookery.envs.turn_based.tables import Tables
from rookery.errors import ConfigError

Env: TypeAlias = gym.Env[Any, Any]
Vector: TypeAlias = VectorEnv[Any, Any, Any]
Given: TypeAlias = str | Env | Callable[..., Env]
Wrap: TypeAlias = Callable[[Env], Env]

FRAMES = "rgb_array"
INSTALL = {"pettingzoo": "pip install 'rookery[pettingzoo]'"}  # module → how to get it
WRAPPERS = (*wrappers.__all__, *atari.NAMES)  # names that env.wrappers may have
MOST_NAMED = 8  # classes and functions of a module that an error lists


class EnvEntry(NamedTuple):
    """The two constructors of an environment: of a single instance and of a native vector.

    A native vector is the environment's own batched implementation: Gymnasium's
    `vector_entry_point`, or, for a game of a plugin, its class that runs many games in parallel.
    """

    name: str
    one: Callable[[], Env] | None  # one environment with time limit and wrappers, or a game
    many: Callable[[int], Vector] | None  # the environment's native vector, if it has one


def find(config: EnvConfig, given: Given | None = None, *, render: bool = False) -> EnvEntry:
    """Looks up an environment and returns its constructors.

    `given` is an id, a class, a function or an instance; None means `config.id`. Raises
    `ConfigError` if there is no such environment.
    """
    for module in config.imports:
        _import(module, "env.imports")
    wrap = _wrapping(config.wrappers)
    given = config.id if given is None else given
    if isinstance(given, str):
        _refuse_unnamed(given)
        if given not in gym.registry and (game := _game(given)) is not None:
            _refuse_for_games(given, config)
            games = partial(game, **config.kwargs)
            return EnvEntry(given.replace("-", "_"), None, partial(Tables, games))
        found = _thing(given)
        if found is None:
            _refuse_missing(given)
            return _registered(_spec(given), config, wrap, render)
        return _callable(given, found, config, wrap, render)
    if isinstance(given, gym.Env):
        if given.spec is None:
            raise ConfigError(
                f"env is the instance {given}; a run needs several; pass its class, or a function "
                "that returns a new one"
            )
        return _registered(given.spec, config, wrap, render)
    if not callable(given):
        raise ConfigError(
            f"env is {given!r}; it may be an id, a gymnasium.Env class, or a function that "
            "returns an environment"
        )
    return _callable(_label(given), given, config, wrap, render)


def name_of(given: Given) -> str:
    """Returns the name of the environment `given` in a run's saved settings (`env.id`).

    A string is returned unchanged, a class or function as `module:name`, an instance as its id.
    """
    if isinstance(given, str):
        return given
    if isinstance(given, gym.Env):
        return given.spec.id if given.spec else _label(type(given))
    return f"{getattr(given, '__module__', '__main__')}:{getattr(given, '__qualname__', '?')}"


def _refuse_unnamed(given: str) -> None:
    module, _, name = given.partition(":")
    if module == "__main__" or "<" in name:
        raise ConfigError(
            f"the environment {given!r} was given from Python and cannot be found by its name; "
            "pass it again: rookery.load(run, env=...), rookery.train(resume=run, env=...)"
        )


def load(path: str, setting: str) -> Any:
    """Imports the object whose `path` is `module:name`, the value of the setting `setting`.

    Raises `ConfigError`, which names the setting, if the module or the object does not exist.
    """
    module, _, name = path.partition(":")
    try:
        return attrgetter(name)(_import(module, setting))
    except AttributeError as error:
        near = difflib.get_close_matches(name, dir(plugins.load_module(module)), n=1)
        hint = f"did you mean '{module}:{near[0]}'?" if near else "check the spelling"
        raise ConfigError(f"{setting} is {path!r}; {module} has no {name!r}; {hint}") from error


def _import(module: str, setting: str) -> Any:
    try:
        return plugins.load_module(module)
    except ENV_ERRORS as error:  # importing runs a user's code, which may raise anything
        install = INSTALL.get(module.partition(".")[0], "install it")
        raise ConfigError(
            f"{setting} names the module {module!r}, which cannot be imported "
            f"({type(error).__name__}: {error}); {install}, or put its folder on PYTHONPATH"
        ) from error


def _thing(path: str) -> Callable[..., Env] | None:
    """Imports the class or function whose `path` is `module:name`.

    Returns None if `path` has no colon, or the module has no class or function of that name. Raises
    `ConfigError` if the module cannot be imported.
    """
    module, colon, name = path.partition(":")
    if not colon:
        return None
    try:
        found = attrgetter(name)(_import(module, "env.id"))
    except AttributeError:
        return None
    return found if callable(found) else None


def _refuse_missing(path: str) -> None:
    """Raises `ConfigError` if `path`, `module:name`, names no class or function of its module.

    Does nothing if the name is that of a registered Gymnasium id, or no Python name: it may be a
    misspelt id, such as `module:Id-v0`.
    """
    module, colon, name = path.partition(":")
    registered = name in gym.registry or registration.find_highest_version(None, name) is not None
    if not colon or not name.replace(".", "").isidentifier() or registered:
        return
    members = vars(plugins.load_module(module)).items()
    there = [key for key, own in members if _makes_envs(own, module)]
    near = difflib.get_close_matches(name, there, n=1)
    hint = f"did you mean '{module}:{near[0]}'? " if near else ""
    raise ConfigError(
        f"env.id is {path!r}; {module} has no class or function {name!r}; {hint}"
        f"it has {', '.join(there[:MOST_NAMED]) or 'none that makes environments'}; correct the "
        "name"
    )


def _makes_envs(own: Any, module: str) -> bool:
    """Returns whether a member of a module is an environment class or a function defined there."""
    if inspect.isclass(own):
        return issubclass(own, gym.Env) and not issubclass(own, gym.Wrapper) and own is not gym.Env
    return inspect.isfunction(own) and own.__module__ == module


def _game(name: str) -> Callable[..., Games] | None:
    """Returns the constructor of the game that a plugin registers under this name, else None.

    The name may be written with hyphens or underscores.
    """
    plain = name.replace("-", "_")
    if not plain.isidentifier() or plain != plain.lower():
        return None
    rules = plugins.names("games").get(plain)
    return None if rules is None else plugins.load(rules)


def _refuse_for_games(name: str, config: EnvConfig) -> None:
    """Raises `ConfigError` for settings of a multi-player game that need Gymnasium environments."""
    if config.vector is Stepping.ASYNC:
        raise ConfigError(
            f"env.vector is async, and {name} is a game, whose seats wait for each other; set "
            "env.vector=sequential"
        )
    if config.wrappers:
        raise ConfigError(
            f"env.wrappers has {list(config.wrappers)}, which are for Gymnasium environments, and "
            f"{name} is a game; wrap it in a function of your own with PettingZoo's wrappers"
        )
    if config.max_episode_steps is not None:
        raise ConfigError(
            f"env.max_episode_steps is {config.max_episode_steps}, and {name} is a game, which "
            "ends by its own rules; set the game's own limit in env.kwargs, or leave it out"
        )


def _spec(env_id: str) -> registration.EnvSpec:
    """Returns the Gymnasium spec of an environment id; of the newest version if none is given.

    Raises `ConfigError` if the id is not registered.
    """
    _, _, plain = env_id.rpartition(":")
    try:
        namespace, name, version = registration.parse_env_id(plain)
    except gym.error.Error:
        raise _unknown(env_id, plain) from None
    newest = registration.find_highest_version(namespace, name)
    if version is None and newest is not None:
        plain = registration.get_env_id(namespace, name, newest)
    if plain not in gym.registry:
        raise _unknown(env_id, plain)
    return gym.registry[plain]


def _unknown(env_id: str, plain: str) -> ConfigError:
    near = _nearest(plain)
    hint = f"did you mean {near!r}? " if near else ""
    return ConfigError(
        f"env.id is {env_id!r}, which is not registered; {hint}an id of another package needs that "
        "package in env.imports, or before it: package:Id-v0; a class of yours is module:Class"
    )


def _nearest(plain: str) -> str | None:
    """Returns the registered Gymnasium id most similar to `plain`, or None if none is similar.

    If an environment has several versions, it is the id of the newest one.
    """
    by_name: dict[str, str] = {}
    for spec in sorted(gym.registry.values(), key=lambda spec: spec.version or 0):
        by_name[registration.get_env_id(spec.namespace, spec.name, None).lower()] = spec.id
    name = plain.rpartition("-v")[0] if "-v" in plain else plain
    near = difflib.get_close_matches(name.lower(), by_name, n=1)
    return by_name[near[0]] if near else None


def _registered(
    spec: registration.EnvSpec, config: EnvConfig, wrap: Wrap, render: bool
) -> EnvEntry:
    kwargs = dict(config.kwargs)
    if config.max_episode_steps is not None:
        kwargs["max_episode_steps"] = config.max_episode_steps
    if render and _renders(_creator(spec.entry_point or spec.vector_entry_point)):
        kwargs["render_mode"] = FRAMES

    def one() -> Env:
        # Rookery's own checks replace gymnasium's checker
        return wrap(gym.make(spec, disable_env_checker=True, **kwargs))

    def many(num: int) -> Vector:
        mode = registration.VectorizeMode.VECTOR_ENTRY_POINT
        return gym.make_vec(spec, num_envs=num, vectorization_mode=mode, **kwargs)

    native = spec.vector_entry_point and not (config.wrappers or spec.additional_wrappers)
    return EnvEntry(spec.id, one if spec.entry_point else None, many if native else None)


def _creator(entry_point: Any) -> Any:
    if not isinstance(entry_point, str):
        return entry_point
    try:
        return registration.load_env_creator(entry_point)
    except ENV_ERRORS as error:  # importing runs other code, which may raise anything
        raise ConfigError(
            f"the environment's {entry_point!r} cannot be imported "
            f"({type(error).__name__}: {error}); install what it needs"
        ) from error


def _callable(
    name: str, make: Callable[..., Env], config: EnvConfig, wrap: Wrap, render: bool
) -> EnvEntry:
    kwargs = dict(config.kwargs)
    if render and _renders(make):
        kwargs["render_mode"] = FRAMES

    def one() -> Env:
        env = make(**kwargs)
        if kind_of(env) is not None:
            _refuse_for_games(name, config)
            return env
        _refuse_non_envs(name, env)
        if config.max_episode_steps is not None:
            env = wrappers.TimeLimit(env, config.max_episode_steps)
        return wrap(env)

    return EnvEntry(name, one, None)


def _label(make: Callable[..., Any]) -> str:
    return getattr(make, "__name__", type(make).__name__)


def _renders(make: Any) -> bool:
    """Returns whether environments of the constructor `make` support render mode rgb_array.

    Reads the class's metadata; for a function, whether it has a parameter `render_mode`.
    """
    metadata = getattr(make, "metadata", None)
    if isinstance(metadata, Mapping):
        return FRAMES in (metadata.get("render_modes") or ())
    try:
        return "render_mode" in inspect.signature(make).parameters
    except (TypeError, ValueError):  # written in C, or not callable: it has no signature
        return False


def _refuse_non_envs(name: str, env: Any) -> None:
    if isinstance(env, gym.Env):
        return
    old = any(base.__module__.partition(".")[0] == "gym" for base in type(env).__mro__)
    hint = (
        "it belongs to the old gym package: derive it from gymnasium.Env"
        if old
        else "it must be a gymnasium.Env, or one of PettingZoo's environments"
    )
    raise ConfigError(f"{name} made a {type(env).__name__}; {hint}")


def _wrapping(given: Iterable[Any]) -> Wrap:
    """Returns a function that applies the wrappers of `env.wrappers` to an environment.

    The first wrapper is the innermost.
    """
    parts = [_wrapper(one) for one in given]

    def wrap(env: Env) -> Env:
        for make, kwargs in parts:
            env = make(env, **kwargs)
            _refuse_non_envs(_label(make), env)
        return env

    return wrap


def _wrapper(given: Any) -> tuple[Callable[..., Env], dict[str, Any]]:
    if isinstance(given, Mapping) and len(given) == 1:
        name, kwargs = next(iter(given.items()))
        return _wrapper_class(name), dict(kwargs or {})
    if isinstance(given, Mapping):
        raise ConfigError(
            f"env.wrappers has {dict(given)!r}; an entry is a name, or one name with its settings; "
            "begin a new entry with '-' for each wrapper"
        )
    return _wrapper_class(given), {}


def _wrapper_class(name: Any) -> Callable[..., Env]:
    if callable(name):
        return name  # type: ignore[no-any-return]
    if not isinstance(name, str):
        raise ConfigError(
            f"env.wrappers has {name!r}; it may be a name in gymnasium.wrappers or module:Class"
        )
    found: Any = load(name, "env.wrappers") if ":" in name else atari.NAMES.get(name)
    if name in wrappers.__all__:
        found = getattr(wrappers, name)
    if not callable(found):
        near = difflib.get_close_matches(name, WRAPPERS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else "a class of your own is module:Class"
        raise ConfigError(f"env.wrappers has {name!r}, which gymnasium.wrappers has not; {hint}")
    return found  # type: ignore[no-any-return]
