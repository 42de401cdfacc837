"""Where settings come from, and where they go.

    config = load("cartpole", overrides=["replay.batch_size=128"], changes={"run.seed": 3})
    Path("config.yaml").write_text(dump(config))

Later sources win: defaults < file < overrides (text, as after --set) < changes (values). They are
merged first and checked once, so what one source breaks another may mend.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from rookery import plugins
from rookery.config import yaml_text
from rookery.config.algorithms import AlgoConfig
from rookery.config.parse import annotation, dotted, nearest, parse, plain, section
from rookery.config.schema import Config
from rookery.errors import ConfigError
from rookery.version import __version__

__all__ = [
    "RUN_FILE",
    "Difference",
    "Scenario",
    "as_dict",
    "differences",
    "dump",
    "load",
    "load_run",
    "parse",
    "scenarios",
]

SCENARIOS = "rookery.config.scenarios"  # the core's; plugins name theirs
RUN_FILE = "config.yaml"  # the resolved settings in a run folder

_NONE: Mapping[str, Any] = MappingProxyType({})


class Scenario(NamedTuple):
    """A file of settings that comes with the library."""

    path: Path
    about: str


class Difference(NamedTuple):
    """A setting that two configs disagree about."""

    key: str  # dotted
    before: Any
    after: Any


def load(
    source: str | Path | Config | None = None,
    *,
    overrides: Sequence[str] = (),
    changes: Mapping[str, Any] = _NONE,
) -> Config:
    """Reads a packaged scenario by name, a YAML file by path, or goes on from a config.

    `overrides` are `section.key=value` with values in YAML; `changes` maps dotted keys to values.
    A mapping given for a section is merged into it, one given for a single setting replaces it.
    Another `env.id` does not inherit the arguments of the source's environment, and another
    `algo.name` only the discount of the source's algorithm.
    """
    settings = _settings(source)
    given = [*map(_override, overrides), *changes.items()]
    env = settings.get("env")
    if isinstance(env, dict) and any(k == "env.id" and v != env.get("id") for k, v in given):
        env.pop("kwargs", None)
    _forget_algorithm(settings, given)
    for key, value in given:
        _put(settings, key, value)
    return parse(Config, settings)


def _forget_algorithm(settings: dict[str, Any], given: Sequence[tuple[str, Any]]) -> None:
    """Drops the settings of an algorithm that another one takes the place of."""
    algo = section(AlgoConfig, settings.get("algo"), "algo")
    names = [section(AlgoConfig, v, k).get("name") for k, v in given if k == "algo"]
    names += [value for key, value in given if key == "algo.name"]
    if any(name not in (None, algo.get("name", AlgoConfig.name)) for name in names):
        settings["algo"] = {k: v for k, v in algo.items() if k == "gamma"}


def load_run(
    run_dir: str | Path, *, overrides: Sequence[str] = (), changes: Mapping[str, Any] = _NONE
) -> Config:
    """Reads the settings a run was started with, changed as `load` would."""
    folder = Path(run_dir)
    if not folder.is_dir():
        raise ConfigError(
            f"there is no run folder {str(folder)!r}; give the folder that `rookery train` named"
        )
    if not (folder / RUN_FILE).is_file():
        raise ConfigError(
            f"{str(folder)!r} is not a run folder: it has no {RUN_FILE}; "
            "give the folder that `rookery train` named"
        )
    try:
        return load(folder / RUN_FILE, overrides=overrides, changes=changes)
    except ConfigError:
        _check_stored(folder / RUN_FILE)
        raise


def _check_stored(path: Path) -> None:
    """Raises ConfigError that names the file if the settings stored in it cannot be loaded."""
    try:
        load(path)
    except ConfigError as error:
        raise ConfigError(
            f"Rookery {__version__} cannot read the settings stored in {str(path)!r}: {error}. "
            "A run of another version is resumed and evaluated with that version"
        ) from error


def dump(config: Config) -> str:
    """Returns YAML that `load` reads back to an equal config."""
    return yaml_text.write(as_dict(config))


def as_dict(config: Config) -> dict[str, Any]:
    """Returns the settings as nested dicts, lists and plain values."""
    settings: dict[str, Any] = as_plain(config)
    return settings


def differences(before: Config, after: Config) -> list[Difference]:
    """Returns every setting that changed, in the schema's order."""
    old, new = dict(_leaves(before)), dict(_leaves(after))
    every = {**old, **new}  # another algorithm has other settings
    return [
        Difference(key, old.get(key), new.get(key)) for key in every if old.get(key) != new.get(key)
    ]


@cache
def scenarios() -> Mapping[str, Scenario]:
    """Returns the packaged scenarios by name."""
    from importlib.resources import files  # 20 ms that a path or a config need not wait for

    folders = [files(package) for package in (SCENARIOS, *plugins.each("scenarios"))]
    found = (path for folder in folders for path in Path(str(folder)).glob("*.yaml"))
    paths = sorted(found, key=lambda path: path.stem)
    return {path.stem: Scenario(path, yaml_text.read_file(path).get("about", "")) for path in paths}


def _settings(source: str | Path | Config | None) -> dict[str, Any]:
    if source is None:
        return {}
    if isinstance(source, Config):
        return as_dict(source)
    path = _path(source)
    settings = yaml_text.read_file(path)
    settings.setdefault("name", path.stem)
    return settings


def _path(source: str | Path) -> Path:
    path = Path(source)
    if source == "":
        raise ConfigError(
            "the name of a scenario is empty; give one that `rookery list` shows, or a .yaml file"
        )
    if isinstance(source, str) and source in scenarios():
        return scenarios()[source].path
    if os.path.isdir(path):  # unlike Path.is_dir, also answers for a name that is far too long
        raise ConfigError(
            f"{str(source)!r} is a folder, not a scenario; to go on with a run: "
            f"rookery train --resume {source}"
        )
    if isinstance(source, Path) or "/" in source or path.suffix in (".yaml", ".yml"):
        return path
    return path if os.path.exists(path) else _no_scenario(source)


def _no_scenario(name: str) -> Path:
    known = list(scenarios())
    near = nearest(name, known)
    raise ConfigError(
        f"there is no scenario {name!r}; "
        + (f"did you mean {near!r}? " if near else "")
        + f"Packaged: {', '.join(known)}. Or give the path of a .yaml file"
    )


def _override(given: str) -> tuple[str, Any]:
    key, equals, value = given.partition("=")
    if not equals:
        raise ConfigError(
            f"--set needs section.key=value, got {given!r}; for example --set replay.batch_size=64"
        )
    return key.strip(), _value(key.strip(), value)


def _value(key: str, given: str) -> Any:
    """Reads the value with YAML, but leaves `5` or `2024-01-01` as it is where text is wanted."""
    value = yaml_text.read(given, f"the value in --set {key}={given}")
    wanted = annotation(key)
    takes_text = wanted is str or (wanted == str | None and value is not None)
    return given if takes_text and not isinstance(value, str) else value


def _put(settings: dict[str, Any], key: str, value: Any) -> None:
    """Sets a dotted key, making the sections on the way to it."""
    *parents, last = key.split(".")
    where, at = "", settings
    for parent in parents:
        where = dotted(where, parent)
        inner = _inside(where, at.get(parent))
        at[parent], at = inner, inner
    wanted = annotation(key)
    if is_dataclass(wanted):
        value = _inside(key, at.get(last)) | dict(section(_class(wanted), value, key))
    at[last] = value


def _inside(where: str, given: Any) -> dict[str, Any]:
    """Returns a fresh mapping of what stands at `where`, which must be able to hold names."""
    wanted = annotation(where)
    if is_dataclass(wanted):
        return dict(section(_class(wanted), given, where))
    if given is None:
        return {}
    if isinstance(given, Mapping):
        return dict(given)
    raise ConfigError(
        f"{where} is a single value, {given!r}, and has no settings inside; set {where} itself"
    )


def _class(wanted: Any) -> type:
    assert isinstance(wanted, type)
    return wanted


def as_plain(value: Any) -> Any:
    """Returns a setting, or a section of them, as YAML has it."""
    if is_dataclass(value):
        return {field.name: as_plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Enum):
        return value.value
    return plain(value)


def _leaves(value: Any, where: str = "") -> Iterator[tuple[str, Any]]:
    for field in fields(value):
        inner, key = getattr(value, field.name), dotted(where, field.name)
        if is_dataclass(inner):
            yield from _leaves(inner, key)
        else:
            yield key, as_plain(inner)
