"""What there is to set: every key with its type, its default and its comment in the schema.

The comments are read from the schema's own source, so that nothing is written twice.
"""

import ast
import inspect
import io
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import MISSING, is_dataclass
from enum import Enum
from types import ModuleType, UnionType
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

from rookery.config import algorithms, schema
from rookery.config.algorithms import AlgoConfig, known
from rookery.config.load import as_dict, as_plain
from rookery.config.parse import dotted
from rookery.config.schema import Config


class Setting(NamedTuple):
    """One line of `rookery list --settings`."""

    key: str  # dotted
    type: str
    default: Any  # plain, as in YAML
    comment: str


def settings() -> list[Setting]:
    """Returns every setting in the schema's order, and what each algorithm adds to them."""
    comments = _comments(schema) | _comments(algorithms)
    for home in {entry.settings.__module__ for entry in known().values()}:
        comments |= _comments(sys.modules[home])
    found = list(_settings(Config, as_dict(Config()), "", comments))
    at = max(i for i, setting in enumerate(found) if setting.key.startswith("algo.")) + 1
    return found[:at] + list(_added(comments)) + found[at:]


def _added(comments: dict[tuple[str, str], str]) -> Iterator[Setting]:
    """Yields the settings that only some algorithms have, with the algorithm before the comment."""
    common = get_type_hints(AlgoConfig)
    for name, entry in known().items():
        cls = entry.settings
        for key, wanted in get_type_hints(cls).items():
            if key not in common:
                default = as_plain(_default(cls, key))
                comment = _inherited(cls, key, comments) or _summary(wanted)
                yield Setting(f"algo.{key}", _type(wanted), default, f"{name}: {comment}")


def _default(cls: type[AlgoConfig], key: str) -> Any:
    found = cls.__dataclass_fields__[key]
    return found.default if found.default_factory is MISSING else found.default_factory()


def _inherited(cls: type, key: str, comments: dict[tuple[str, str], str]) -> str:
    found = (comments.get((parent.__name__, key)) for parent in cls.__mro__)
    return next(filter(None, found), "")


def _settings(
    cls: Any, defaults: dict[str, Any], where: str, comments: dict[tuple[str, str], str]
) -> Iterator[Setting]:
    for name, wanted in get_type_hints(cls).items():
        key, default = dotted(where, name), defaults[name]
        if is_dataclass(wanted):
            yield from _settings(wanted, default, key, comments)
        else:
            comment = _inherited(cls, name, comments) or _summary(wanted)
            yield Setting(key, _type(wanted), default, comment)


def _comments(module: ModuleType) -> dict[tuple[str, str], str]:
    """Returns the comment beside each field, by class and field name."""
    source = inspect.getsource(module)
    beside = _by_line(source)
    return {
        (cls.name, line.target.id): beside.get(line.end_lineno or line.lineno, "")
        for cls in ast.parse(source).body
        if isinstance(cls, ast.ClassDef)
        for line in cls.body
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)
    }


def _by_line(source: str) -> dict[int, str]:
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return {
        token.start[0]: token.string.lstrip("# ")
        for token in tokens
        if token.type == tokenize.COMMENT
    }


def _summary(wanted: Any) -> str:
    """Returns what an enum says of itself: a choice often needs no other comment."""
    is_enum = isinstance(wanted, type) and issubclass(wanted, Enum)
    return (inspect.getdoc(wanted) or "").rstrip(".") if is_enum else ""


def _type(wanted: Any) -> str:
    if isinstance(wanted, type) and issubclass(wanted, Enum):
        return "|".join(member.value for member in wanted)
    if get_origin(wanted) is UnionType:
        return f"{_type(get_args(wanted)[0])} or null"
    if get_origin(wanted) is tuple:
        each = get_args(wanted)[0]
        return "list" if each is Any else f"list of {_type(each)}"
    return "mapping" if get_origin(wanted) is dict else str(wanted.__name__)
