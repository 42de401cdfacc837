"""Loads settings from scenarios, files, overrides and run folders, and writes them as YAML.

    config = load("cartpole", overrides=["replay.batch_size=128"], changes={"run.seed": 3})
    Path("config.yaml").write_text(dump(config))

Later sources win: defaults < those of the algorithm < file < overrides (text, as after --set) <
changes (values). They are merged first and checked once, so what one source breaks another may
mend.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import NoneType
from typing import Any, NamedTuple, get_args

from rookery import plugins
from rookery.config import yaml_text
from rookery.config.algorithms import AlgoConfig, defaulted, known, settings_of
from rookery.config.checks import dotted, is_text, nearest
from rookery.config.parse import annotation, parse, section
from rookery.config.refusals import refuse_ignored
from rookery.config.schema import BackendName, Config, LearnerConfig
from rookery.config.section import Section, as_plain, hints, is_section
from rookery.errors import ConfigError
from rookery.version import __version__

SCENARIOS = "rookery.config.scenarios"  # the core's; plugins name theirs
RUN_FILE = "config.yaml"  # the resolved settings in a run folder


class Difference(NamedTuple):
    """A setting whose value differs between two configs."""

    key: str  # dotted
    before: Any
    after: Any


def load(
    source: str | Path | Config | None = None,
    *,
    overrides: Sequence[str] = (),
    changes: Mapping[str, Any] | None = None,
) -> Config:
    """Loads settings from a packaged scenario (by name), a YAML file (by path) or a config.

    The name of an algorithm stands for its defaults; an `env.id` must be given with it.
    `overrides` are `section.key=value` with values in YAML; `changes` maps dotted keys to values.
    A mapping given for a section is merged into it, one given for a single setting replaces it.
    Another `env.id` does not inherit the arguments of the source's environment. Another `algo.name`
    inherits the discount of the source's algorithm, and begins with its own defaults wherever an
    algorithm has some, such as `learner.lr`. What another library's training loop (`backend`) would
    ignore is refused.
    """
    given = _given(overrides, changes)
    if isinstance(source, str) and source in known() and source not in scenarios():
        _refuse_half_named(source, given)
        source, given = None, [("name", source), ("algo.name", source), *given]
    config = _merged(_settings(source), given)
    _refuse_ignored(config, [key for key, _ in given])
    return config


def _refuse_half_named(algorithm: str, given: Sequence[tuple[str, Any]]) -> None:
    """Raises ConfigError for an algorithm without an environment, or with another algorithm."""
    if not any(key == "env.id" for key, _ in given):
        raise ConfigError(f"no environment was given; {_as_algorithm(algorithm)}")
    if (other := dict(given).get("algo.name", algorithm)) != algorithm:
        raise ConfigError(
            f"two algorithms were given, {algorithm!r} and {other!r}; a run has one: name one"
        )


def _given(overrides: Sequence[str], changes: Mapping[str, Any] | None) -> list[tuple[str, Any]]:
    """Returns dotted keys and values of all settings that overrides and changes give."""
    pairs = [*map(_override, overrides), *(changes or {}).items()]
    return [single for key, value in pairs for single in _singles(key, value)]


def _singles(key: str, value: Any) -> list[tuple[str, Any]]:
    """Splits a mapping that is given for a section into single settings."""
    wanted = annotation(key)
    if not is_section(wanted):
        return [(key, value)]
    return [(dotted(key, name), inner) for name, inner in section(wanted, value).items()]


def _merged(settings: dict[str, Any], given: Sequence[tuple[str, Any]]) -> Config:
    """Merges given settings into those of a source, and checks the result."""
    merged = {
        key: dict(section(annotation(key), value)) if is_section(annotation(key)) else value
        for key, value in settings.items()
    }
    env, algo = merged.get("env", {}), merged.get("algo", {})
    if any(key == "env.id" and value != env.get("id") for key, value in given):
        env.pop("kwargs", None)
    names = [value for key, value in given if key == "algo.name"]
    if any(name not in (None, algo.get("name", AlgoConfig.name)) for name in names):
        merged["algo"] = {key: value for key, value in algo.items() if key == "gamma"}
        for where, name in (key.split(".") for key in defaulted()):
            if where in merged and where != "run":  # how long a run is depends on its task
                merged[where].pop(name, None)
    for key, value in given:
        _put(merged, key, value)
    if merged.get("backend", BackendName.ROOKERY) == BackendName.ROOKERY:
        _add_defaults(merged)
    return parse(Config, merged)


def _add_defaults(settings: dict[str, Any]) -> None:
    """Adds the algorithm's defaults for settings that no source has given."""
    name = section(AlgoConfig, settings.get("algo")).get("name", AlgoConfig.name)
    own_optimizer = "optimizer" in section(LearnerConfig, settings.get("learner"))
    for key, value in settings_of(str(name)).defaults.items():
        where, setting = key.split(".")
        inside = section(annotation(where), settings.get(where))
        if setting not in inside and not (own_optimizer and setting == "optimizer_kwargs"):
            settings[where] = {**inside, setting: value}


def _refuse_ignored(config: Config, given: Sequence[str]) -> None:
    """Raises ConfigError for settings that the run's backend does not use.

    A file may hold them with their defaults, as it does if it was written by `dump`.
    """
    row = plugins.backends().get(config.backend)
    if row is not None:
        changed = [difference.key for difference in differences(Config(), config)]
        refuse_ignored([*given, *changed], row.settings)


def load_run(
    run_dir: str | Path,
    *,
    overrides: Sequence[str] = (),
    changes: Mapping[str, Any] | None = None,
) -> Config:
    """Loads the settings of a run from its folder, with changes as in `load`."""
    folder, path = str(run_dir), Path(run_dir) / RUN_FILE
    if not path.is_file():
        what = f"there is no run folder {folder!r}"
        if path.parent.is_dir():
            what = f"{folder!r} is not a run folder: it has no {RUN_FILE}"
        raise ConfigError(f"{what}; give the folder that `rookery train` named")
    try:
        return _merged(_settings(path), _given(overrides, changes))
    except ConfigError:
        _check_stored(path)
        raise


def _check_stored(path: Path) -> None:
    """Raises ConfigError that names the file if the settings stored in it cannot be loaded."""
    try:
        parse(Config, _settings(path))
    except ConfigError as error:
        raise ConfigError(
            f"Rookery {__version__} cannot read the settings stored in {str(path)!r}: {error}. "
            "A run of another version is resumed and evaluated with that version"
        ) from error


def dump(config: Config) -> str:
    """Returns settings as YAML, from which `load` makes an equal config."""
    return yaml_text.write(as_dict(config))


def as_dict(config: Config) -> dict[str, Any]:
    """Converts settings to nested dicts, lists and plain values."""
    settings: dict[str, Any] = as_plain(config)
    return settings


def differences(before: Config, after: Config) -> list[Difference]:
    """Returns all settings that differ between two configs, in the schema's order."""
    old, new = dict(leaves(before)), dict(leaves(after))
    every = {**old, **new}  # another algorithm has other settings
    return [
        Difference(key, old.get(key), new.get(key)) for key in every if old.get(key) != new.get(key)
    ]


@cache
def scenarios() -> Mapping[str, Path]:
    """Returns the files of the packaged scenarios by name."""
    from importlib.resources import files  # 20 ms that a path or a config need not wait for

    folders = [files(package) for package in (SCENARIOS, *plugins.each("scenarios"))]
    found = (path for folder in folders for path in Path(str(folder)).glob("*.yaml"))
    return {path.stem: path for path in sorted(found, key=lambda path: path.stem)}


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
        return scenarios()[source]
    if os.path.isdir(path):  # unlike Path.is_dir, also answers for a name that is far too long
        raise ConfigError(
            f"{str(source)!r} is a folder, not a scenario; to go on with a run: "
            f"rookery train --resume {source}"
        )
    if isinstance(source, Path) or os.path.exists(path):
        return path
    is_file = "/" in source or path.suffix in (".yaml", ".yml")
    hint = _hint(path.stem if is_file else source)
    if is_file:
        if hint:
            raise ConfigError(f"there is no file {source!r}; {hint.strip()}")
        return path
    if re.search(r"-v\d+$|:", source):
        raise ConfigError(
            f"{source!r} is no scenario but looks like an environment; "
            f"write: rookery train --env {source} --algo NAME"
        )
    raise ConfigError(
        f"there is no scenario {source!r}; {hint}Packaged: {', '.join(scenarios())}. Or give the "
        "path of a .yaml file"
    )


def _hint(name: str) -> str:
    """Returns a hint with the scenario or algorithm whose name is most similar, if there is one."""
    near = nearest(name, [*scenarios(), *known()])
    if near is None:
        return ""
    meant = "" if name in known() else f"did you mean {near!r}? "
    return meant + (f"{_as_algorithm(near)}. " if near in known() else "")


def _as_algorithm(name: str) -> str:
    """Returns how to train with an algorithm, and the scenarios that do."""
    configs = (load(scenario) for scenario in scenarios())
    its = [c.name for c in configs if c.backend == "rookery" and c.algo.name == name]
    first, *others = sorted(its, key=lambda scenario: name not in scenario) or [""]
    or_scenario = f", or rookery train {first}" if first else ""
    also = f" (also {', '.join(others)})" if others else ""
    return (
        f"{name} is an algorithm: write rookery train {name} --env ID (in Python "
        f"env=...){or_scenario}{also}"
    )


def _override(given: str) -> tuple[str, Any]:
    key, equals, value = given.partition("=")
    if not equals:
        raise ConfigError(
            f"--set needs section.key=value, got {given!r}; for example --set replay.batch_size=64"
        )
    return key.strip(), _value(key.strip(), value)


def _value(key: str, given: str) -> Any:
    """Parses a value as YAML; for a setting that is text, `5` or `2024-01-01` stays text."""
    value = yaml_text.read(given, f"the value in --set {key}={given}")
    wanted = annotation(key)
    is_null = value is None and NoneType in get_args(wanted)
    return given if is_text(wanted) and not (is_null or isinstance(value, str)) else value


def _put(settings: dict[str, Any], key: str, value: Any) -> None:
    """Sets a dotted key in nested mappings, and adds mappings that are missing."""
    *parents, last = key.split(".")
    where, at = "", settings
    for parent in parents:
        where, inner = dotted(where, parent), at.get(parent)
        if not isinstance(inner, Mapping | None):
            raise ConfigError(
                f"{where} is a single value, {inner!r}, and has no settings inside; "
                f"set {where} itself"
            )
        at[parent] = dict(inner or {})
        at = at[parent]
    at[last] = value


def leaves(value: Any, where: str = "") -> Iterator[tuple[str, Any]]:
    """Yields dotted key (such as `learner.lr`) and value of all settings, as plain data."""
    for name in hints(type(value)):
        inner, key = getattr(value, name), dotted(where, name)
        if isinstance(inner, Section):
            yield from leaves(inner, key)
        else:
            yield key, as_plain(inner)
