"""Converts nested mappings to settings; unknown names are refused.

    parse(Config, {"replay": {"batch_size": 32}, "net": "mypackage.nets:MyNet"})

Single values are read when a section is made (`section.py`).
"""

from collections.abc import Collection, Mapping
from functools import cache
from typing import Any, TypeVar

from rookery.config.algorithms import AlgoConfig, known, settings_of
from rookery.config.checks import dotted, nearest, read, wrong
from rookery.config.other_libraries import NAMES_ELSEWHERE
from rookery.config.schema import Config
from rookery.config.section import Section, hints, is_section
from rookery.errors import ConfigError

T = TypeVar("T", bound=Section)


def parse(cls: type[T], given: Any) -> T:
    """Makes a section, and all sections that are nested in it, from a mapping."""
    mapping = section(cls, given)
    kind: Any = cls
    if cls is AlgoConfig:  # its name says which settings it has
        kind = settings_of(read(str, mapping.get("name", AlgoConfig.name), "algo.name"))
    wanted = hints(kind)
    values = {}
    for key, value in mapping.items():
        if key not in wanted:
            raise _unknown(kind, key)
        values[key] = parse(wanted[key], value) if is_section(wanted[key]) else value
    made: T = kind(**values)
    return made


def section(cls: type[Section], given: Any) -> Mapping[Any, Any]:
    """Returns the mapping that is given for a section; a bare word and null are short for one."""
    if given is None:
        return {}
    if isinstance(given, str) and cls.bare:
        return {cls.bare: given}
    if not isinstance(given, Mapping):
        raise wrong(cls.where or "the settings", "a mapping", given, "write {name: value}")
    return given


@cache
def annotations() -> Mapping[str, Any]:
    """Returns the annotation of every section and setting, by dotted key in the schema's order.

    Section `algo` has the settings of all algorithms.
    """
    found: dict[str, Any] = {}
    for name, wanted in hints(Config).items():
        found[name] = wanted
        kinds = [entry.settings for entry in known().values()] if name == "algo" else [wanted]
        for kind in filter(is_section, kinds):
            for inner, setting in hints(kind).items():
                found.setdefault(dotted(name, inner), setting)
    return found


def annotation(key: str) -> Any:
    """Returns the annotation of a dotted key; Any in free mappings and for unknown keys."""
    return annotations().get(key, Any)


def keys() -> list[str]:
    """Returns the dotted key of every setting, in the schema's order."""
    return [key for key, wanted in annotations().items() if not is_section(wanted)]


def _unknown(cls: type[Section], key: Any) -> ConfigError:
    allowed = list(hints(cls))
    place = f"in {cls.where}" if cls.where else "at the top"
    return ConfigError(
        f"unknown setting {dotted(cls.where, key)!r}; {_hint(str(key), allowed, cls.where)}"
        f"allowed {place}: {', '.join(allowed)}. `rookery list --settings` explains them"
    )


def _hint(key: str, allowed: list[str], where: str) -> str:
    """Returns a hint: the name in another section or another library, or a similar name."""
    by_name: dict[str, list[str]] = {}
    for path in keys():
        home, _, name = path.rpartition(".")
        if home != where or name in allowed:  # no setting of another algorithm
            by_name.setdefault(name, []).append(path)
    if key in NAMES_ELSEWHERE and key not in by_name and where != "sb3":  # it has sb3.kwargs
        return f"Rookery calls it {NAMES_ELSEWHERE[key]}. "
    near = None if key in by_name else _similar(key, allowed, least=0.6)
    found = [dotted(where, near)] if near else by_name.get(_similar(key, by_name, least=0.7) or "")
    return f"did you mean {' or '.join(found)}? " if found else ""


def _similar(key: str, names: Collection[str], least: float) -> str | None:
    """Returns the most similar name, or the first that begins with all of `key`."""
    longer = (name for name in names if key and name.startswith(f"{key}_"))
    return nearest(key, names, least=least) or next(longer, None)
