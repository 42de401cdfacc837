"""Descriptions of all settings: their JSON Schema, and a list with one line for each.

The comments are read from the source of the settings, so that nothing is written twice.
"""

import inspect
import re
import sys
from collections.abc import Iterator
from enum import Enum
from functools import cache
from types import UnionType
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin

from rookery.config.algorithms import AlgoConfig, known, settings_of
from rookery.config.checks import PLAIN, dotted
from rookery.config.schema import Config
from rookery.config.section import Section, as_plain, hints, is_section

FIRST = ("env.id", "run.env_steps", "learner.lr")  # settings that matter most to every algorithm
MATTER = ("algo", "net", "replay", "actor", "learner", "run", "env", "eval")  # sections, in order
TYPES = {"boolean": "bool", "integer": "int", "number": "float", "string": "str"}

_CLASS = re.compile(r"class (\w+)")
_FIELD = re.compile(r"    (\w+): [^#]+  # (.+)")


class Setting(NamedTuple):
    """One line of `rookery list --settings`."""

    key: str  # dotted
    type: str
    default: Any  # plain, as in YAML
    comment: str


def settings() -> list[Setting]:
    """Returns all settings in the schema's order, then those that each algorithm adds."""
    return list(_settings(json_schema(), ""))


def settings_for(algorithm: str) -> list[Setting]:
    """Returns the settings that matter to an algorithm, with its defaults, the first ones most.

    After those that matter to every algorithm come its own, and those for which it has defaults.
    Settings that it takes with one value only are left out.
    """
    kind = settings_of(algorithm)
    properties = {**_object(Config)["properties"], "algo": _object(kind)}
    of_run = {name: properties[name] for name in MATTER}
    found = {setting.key: setting for setting in _settings({"properties": of_run}, "")}
    for key, value in kind.defaults.items():
        found[key] = found[key]._replace(default=value)
    fixed = {"algo.name"} | {key for key, (allowed, _) in kind().takes.items() if len(allowed) == 1}
    own = [key for key in found if key.startswith("algo.")]
    ordered = dict.fromkeys([*FIRST, *own, *kind.defaults, *found])
    return [found[key] for key in ordered if key not in fixed]


def _settings(schema: dict[str, Any], where: str) -> Iterator[Setting]:
    for name, found in schema["properties"].items():
        key = dotted(where, name)
        if "properties" in found:
            yield from _settings(found, key)
        else:
            yield Setting(key, type_name(found), found["default"], found["description"])
    for branch in schema.get("allOf", ()):
        kind = branch["if"]["properties"]["name"]["const"]
        for setting in _settings(branch["then"], where):
            if setting.key.removeprefix(f"{where}.") not in schema["properties"]:
                yield setting._replace(comment=f"{kind}: {setting.comment}")


def json_schema() -> dict[str, Any]:
    """Returns the JSON Schema of a scenario file, for editors."""
    return {"$schema": "http://json-schema.org/draft-07/schema#", **_object(Config)}


def _object(cls: type[Section]) -> dict[str, Any]:
    """Returns the schema of a section; that of the algorithm depends on its name."""
    defaults = as_plain(cls())
    found = {
        "description": inspect.getdoc(cls),
        "type": ["object", "null", *(["string"] if cls.bare else [])],
        "properties": {
            name: {"description": comment(cls, name), **_value(wanted), "default": defaults[name]}
            for name, wanted in hints(cls).items()
        },
    }
    if cls is AlgoConfig:
        branches = [_if_named(name, entry.settings) for name, entry in known().items()]
        return {**found, "allOf": branches}
    return {**found, "additionalProperties": False}


def _if_named(name: str, kind: type[Section]) -> dict[str, Any]:
    """Returns the schema of one algorithm; dqn is that of a section without a name."""
    unnamed = {} if name == AlgoConfig.name else {"required": ["name"]}
    return {"if": {"properties": {"name": {"const": name}}, **unnamed}, "then": _object(kind)}


def _value(annotation: Any) -> dict[str, Any]:
    """Returns the JSON Schema of a value, from its annotation."""
    if is_section(annotation):
        return _object(annotation)
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return {"enum": [member.value for member in annotation]}
    kind, inside = get_origin(annotation), get_args(annotation)
    if kind is Annotated:
        return {**_value(inside[0]), **inside[1].schema}
    if kind in (UnionType, Union):
        return {"anyOf": [_value(inside[0]), {"type": "null"}]}
    if kind is tuple:
        return {"type": "array", "items": _value(inside[0])}
    if kind is dict:
        names, values = map(_value, inside)
        return {"type": "object", "propertyNames": names, "additionalProperties": values}
    return {"type": PLAIN[annotation].json} if annotation in PLAIN else {}


def type_name(schema: dict[str, Any]) -> str:
    """Returns the type of a value from its JSON Schema: int, float or null, list of str, a|b."""
    if "anyOf" in schema:
        return f"{type_name(schema['anyOf'][0])} or null"
    if "enum" in schema:
        return "|".join(schema["enum"])
    if schema["type"] == "array":
        return f"list of {type_name(schema['items'])}" if schema["items"] else "list"
    return TYPES.get(schema["type"], "mapping")


def about(key: str) -> str:
    """Returns the description of a setting, given by its dotted key."""
    section, _, name = key.partition(".")
    return comment(hints(Config)[section], name)


def comment(cls: type, name: str) -> str:
    """Returns the comment beside a field of a class or of its base classes."""
    beside = (_comments(kind.__module__).get((kind.__name__, name)) for kind in cls.__mro__[:-1])
    return next(filter(None, beside), "")


@cache
def _comments(module: str) -> dict[tuple[str, str], str]:
    """Returns the comment beside each field of a module's classes, by class and field name."""
    found, cls = {}, ""
    for line in inspect.getsource(sys.modules[module]).splitlines():
        if match := _CLASS.match(line):
            cls = match[1]
        elif match := _FIELD.match(line):
            found[cls, match[1]] = match[2]
    return found
