"""What there is to set: every key with its type, its default and its comment in the schema.

The comments are read from the schema's own source, so that nothing is written twice.
"""

import ast
import inspect
import io
import tokenize
from collections.abc import Iterator
from dataclasses import is_dataclass
from enum import Enum
from types import UnionType
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

from rookery.config import schema
from rookery.config.load import as_dict
from rookery.config.parse import dotted
from rookery.config.schema import Config


class Setting(NamedTuple):
    """One line of `rookery list --settings`."""

    key: str  # dotted
    type: str
    default: Any  # plain, as in YAML
    comment: str


def settings() -> list[Setting]:
    """Returns every setting in the schema's order."""
    return list(_settings(Config, as_dict(Config()), "", _comments()))


def _settings(
    cls: Any, defaults: dict[str, Any], where: str, comments: dict[tuple[str, str], str]
) -> Iterator[Setting]:
    for name, wanted in get_type_hints(cls).items():
        key, default = dotted(where, name), defaults[name]
        if is_dataclass(wanted):
            yield from _settings(wanted, default, key, comments)
        else:
            comment = comments.get((cls.__name__, name)) or _summary(wanted)
            yield Setting(key, _type(wanted), default, comment)


def _comments() -> dict[tuple[str, str], str]:
    """Returns the comment beside each field, by class and field name."""
    source = inspect.getsource(schema)
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
