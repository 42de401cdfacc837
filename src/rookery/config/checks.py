"""Checks of single values: types and limits of settings, whole numbers, most similar names.

    capacity: Count = 100_000
    eta: Annotated[float, Limit("must be ...", {"minimum": 0.5})] = 0.9

    read(Count, 1e5, "replay.capacity")  # 100000

A limit is an annotation of a field: JSON Schema keywords, which are both what is checked and what
editors show, and the words of the error. `read` takes a value as the annotation says; PLAIN and
NESTED have a reader for each kind of annotation. Every refusal names the dotted key, what was
given, what is allowed and what to do.
"""

import difflib
import functools
import inspect
import math
import operator
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from enum import Enum
from numbers import Integral, Real
from types import UnionType
from typing import Annotated, Any, NamedTuple, TypeVar, Union, cast, get_args, get_origin

from rookery.errors import ConfigError

F = TypeVar("F", bound=Callable[..., Any])

KEYWORDS: Mapping[str, Callable[[Any, Any], bool]] = {  # of JSON Schema; nan satisfies no range
    "minimum": operator.ge,
    "exclusiveMinimum": operator.gt,
    "maximum": operator.le,
    "pattern": lambda value, pattern: re.fullmatch(pattern, value) is not None,
    "enum": lambda value, allowed: value in allowed,
}

_EXPONENT = re.compile(r"[-+]?\d[\d_]*(\.\d*)?[eE][-+]?\d+")  # YAML 1.1 takes 1e-4 for text
_NUMBER = re.compile(r"[-+]?[0-9]+(_[0-9]+)*(\.[0-9]*)?([eE][-+]?[0-9]+)?")


@dataclass(frozen=True, eq=False)
class Limit:
    """A limit of a setting's values, as JSON Schema keywords and in the words of an error."""

    allowed: str  # follows the name of the setting
    schema: Mapping[str, Any]  # JSON Schema keywords
    do: str = "leave it out for the default"

    def check(self, name: str, value: Any) -> None:
        """Raises ConfigError if the value of the setting `name` is not allowed."""
        if all(KEYWORDS[word](value, bound) for word, bound in self.schema.items()):
            return
        near = nearest(str(value), self.schema.get("enum", ()))
        do = f"did you mean {near!r}?" if near else self.do
        raise ConfigError(f"{name} {self.allowed}, got {shown(value)}; {do}")


def one_of(*names: str) -> Limit:
    words = [*map(str, names)]
    return Limit(f"must be one of {', '.join(words)}", {"enum": words}, f"try {words[0]!r}")


POSITIVE = Limit("must be above 0", {"exclusiveMinimum": 0})
AT_LEAST_0 = Limit("must be at least 0", {"minimum": 0})
DEVICE = Limit(
    "must be auto, cpu or cuda:N",
    {"pattern": r"^(auto|cpu|cuda(:\d+)?)$"},
    "`rookery doctor` shows the GPUs of this machine",
)
FRACTION = Limit("must be between 0.0 and 1.0", {"minimum": 0, "maximum": 1})
IMPORTABLE = Limit(
    "must be written module:name",
    {"pattern": r"^[\w.]+:[\w.]+$"},
    "name something that Python can import, such as mypackage.nets:MyNet",
)
FOLDER_WORD = Limit(
    "is part of the run folder's name and takes any characters except / and NUL",
    {"pattern": r"^[^/\x00]*$"},
    "leave them out, or choose the folder with --run-dir",
)
FOLDER = Limit(
    "must name a folder",
    {"pattern": r"^[^\x00]*[^\s\x00][^\x00]*$"},
    "leave it out for a new folder in runs/",
)

Count = Annotated[int, POSITIVE]
CountOr0 = Annotated[int, AT_LEAST_0]
Positive = Annotated[float, POSITIVE]
PositiveOr0 = Annotated[float, AT_LEAST_0]
NegativeOr0 = Annotated[float, Limit("must be at most 0", {"maximum": 0})]
Fraction = Annotated[float, FRACTION]
PositiveFraction = Annotated[
    float, Limit("must be above 0 and at most 1", {"exclusiveMinimum": 0, "maximum": 1})
]
DeviceName = Annotated[str, DEVICE]
ImportName = Annotated[str, IMPORTABLE]
FolderWord = Annotated[str, FOLDER_WORD]
FolderPath = Annotated[str, FOLDER]


def read(wanted: Any, given: Any, path: str) -> Any:
    """Converts a value to the type of an annotation; raises ConfigError if that is impossible."""
    kind = get_origin(wanted) or wanted
    if kind in NESTED:
        return NESTED[kind](*get_args(wanted), given, path)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _choice(kind, given, path)
    if kind not in PLAIN:  # free, or of a type that only Python has
        return plain(given) if kind is Any else given
    value = PLAIN[kind].read(given)
    if value is None:
        raise wrong(path, PLAIN[kind].words, given, PLAIN[kind].do)
    return value


def plain(value: Any) -> Any:
    """Converts free values to dicts and lists, as YAML has them: a resumed run gets the same."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value


def is_text(wanted: Any) -> bool:
    """Returns whether an annotation is that of a text, within limits or not."""
    optional = get_origin(wanted) in (Annotated, UnionType, Union)
    return is_text(get_args(wanted)[0]) if optional else wanted is str


def dotted(where: str, key: Any) -> str:
    return f"{where}.{key}" if where else str(key)


def wrong(path: str, allowed: str, given: Any, do: str) -> ConfigError:
    """Returns the error for a value of a wrong type."""
    return ConfigError(f"{path} must be {allowed}, got {shown(given)}; {do}")


def _limited(wanted: Any, limit: Any, given: Any, path: str) -> Any:
    value = read(wanted, given, path)
    limit.check(path, value)
    return value


def _choice(wanted: type[Enum], given: Any, path: str) -> Enum:
    names = [member.value for member in wanted]
    if isinstance(given, bool) and "on" in names:  # YAML's on and off
        given = "on" if given else "off"
    one_of(*names).check(path, given)
    return wanted(given)


def _list(each: Any, _: Any, given: Any, path: str) -> tuple[Any, ...]:
    if not isinstance(given, list | tuple):
        raise wrong(path, "a list", given, "write it in [ ]")
    return tuple(read(each, item, f"{path}[{i}]") for i, item in enumerate(given))


def _mapping(names: Any, values: Any, given: Any, path: str) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        raise wrong(path, "a mapping", given, "write {name: value}")
    return {
        read(names, key, f"a name in {path}"): read(values, value, dotted(path, key))
        for key, value in given.items()
    }


def _or_null(wanted: Any, _: Any, given: Any, path: str) -> Any:
    """Reads `X | None`, the only union that settings have."""
    if given is None:
        return None
    try:
        return read(wanted, given, path)
    except ConfigError as error:
        raise ConfigError(f"{error} (null is allowed too)") from None


def _bool(given: Any) -> bool | None:
    return given if isinstance(given, bool) else None


def _text(given: Any) -> str | None:
    return str(given) if isinstance(given, str) else None


def _float(given: Any) -> float | None:
    """Returns a finite number as a float; so does a text such as 1e-4, which YAML 1.1 leaves."""
    if isinstance(given, str):
        given = float(given) if _EXPONENT.fullmatch(given) else None
    if isinstance(given, bool) or not isinstance(given, Real):
        return None
    try:
        return float(given) if math.isfinite(given) else None
    except OverflowError:
        return None


def _int(given: Any) -> int | None:
    """Returns a number without a fraction as an int; 1e5 and 2.5e6 are whole numbers too."""
    if isinstance(given, bool):
        return None
    number = int(given) if isinstance(given, Integral) else as_whole(_float(given))
    return None if number is None or number.bit_length() > 63 else number


class PlainType(NamedTuple):
    """A plain type: its name in JSON Schema, its converter, and the words of an error."""

    json: str
    read: Callable[[Any], Any]  # None: it is not of this type
    words: str
    do: str


PLAIN: dict[Any, PlainType] = {
    bool: PlainType("boolean", _bool, "true or false", "write true or false without quotes"),
    int: PlainType(
        "integer", _int, "a whole number", "write up to 64 bits as 1000 or 1e3, no quotes"
    ),
    float: PlainType("number", _float, "a number", "write a finite number, no quotes"),
    str: PlainType("string", _text, "text", "write it in quotes"),
}
NESTED: dict[Any, Callable[..., Any]] = {
    Annotated: _limited,
    tuple: _list,
    dict: _mapping,
    UnionType: _or_null,
    Union: _or_null,
}


def shown(given: Any) -> str:
    """Returns a value as an error names it: "nothing (null)", "true", "the text 'many'"."""
    if given is None:
        return "nothing (null)"
    if isinstance(given, bool):
        return str(given).lower()
    text = repr(str(given) if isinstance(given, str) else given)
    text = text if len(text) <= 60 else text[:57] + "..."
    return f"the text {text}" if isinstance(given, str) else text


def check_arguments(function: F) -> F:
    """Decorator that raises ConfigError for arguments outside the limits of their annotations."""
    signature = inspect.signature(function)
    found = {name: _limits(given.annotation) for name, given in signature.parameters.items()}
    limited = {name: limits for name, limits in found.items() if limits}

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        try:
            given = signature.bind(*args, **kwargs).arguments
        except TypeError:  # the function itself says what is wrong with this call
            given = {}
        for name, value in given.items():
            for limit in limited.get(name, ()) if value is not None else ():
                limit.check(name, value)
        return function(*args, **kwargs)

    return cast(F, called) if limited else function


def _limits(hint: Any) -> list[Limit]:
    """Returns the limits in an annotation, or in the X of an `X | None`."""
    kinds = (hint, *get_args(hint)[:1])
    found = (each for kind in kinds for each in getattr(kind, "__metadata__", ()))
    return [each for each in found if isinstance(each, Limit)]


def nearest(word: str, allowed: Collection[str], *, least: float = 0.6) -> str | None:
    """Returns the allowed name that is most similar to `word`, or None if none is by `least`."""
    return next(iter(difflib.get_close_matches(word, allowed, n=1, cutoff=least)), None)


def whole(text: str) -> int | None:
    """Converts a text such as 100_000, 1e5 or 2.5e6 to a whole number, or returns None."""
    if not _NUMBER.fullmatch(text):
        return None
    try:
        return int(text)
    except ValueError:  # with a point or an exponent, or of thousands of digits
        return as_whole(float(text))


def as_whole(number: float | None) -> int | None:
    """Converts a float without a fraction to an int, or returns None."""
    return int(number) if number is not None and number.is_integer() else None
