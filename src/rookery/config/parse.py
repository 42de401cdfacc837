"""Mappings become settings, and nothing of a wrong type gets through.

    parse(Config, {"replay": {"batch_size": 32}, "net": "mypackage.nets:MyNet"})

The annotations of the schema are the rules; READERS has one function for each kind of annotation.
Every refusal names the dotted key, what was given, what is allowed and what to do.
"""

import difflib
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import is_dataclass
from enum import Enum
from numbers import Integral, Real
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from rookery.config.algorithms import AlgoConfig, known, settings_of
from rookery.config.checks import as_whole
from rookery.config.other_libraries import NAMES_ELSEWHERE
from rookery.config.schema import Config, NetConfig
from rookery.errors import ConfigError

T = TypeVar("T")

SHORT: dict[type, str] = {NetConfig: "custom", AlgoConfig: "name"}  # what a bare word stands for

_EXPONENT = re.compile(r"[-+]?\d[\d_]*(\.\d*)?[eE][-+]?\d+")  # YAML 1.1 takes 1e-4 for text


def parse(cls: type[T], given: Any, where: str = "") -> T:
    """Builds `cls` and all that is nested in it; `where` is the dotted key of `given`."""
    mapping = section(cls, given, where)
    cls = _meant_class(cls, mapping)
    known = get_type_hints(cls)
    for key in mapping:
        if key not in known:
            raise _unknown(cls, key, where)
    return cls(**{key: read(known[key], mapping[key], dotted(where, key)) for key in mapping})


def _meant_class(cls: type[T], mapping: Mapping[Any, Any]) -> type[T]:
    """Returns the settings of the algorithm that a section names; any other class is itself."""
    name = mapping.get("name", AlgoConfig.name)
    if cls is not AlgoConfig or not isinstance(name, str):
        return cls
    return settings_of(name)  # type: ignore[return-value]


def hints(cls: Any) -> dict[str, Any]:
    """Returns what a section may hold; `algo` what any of our algorithms takes."""
    found: dict[str, Any] = {}
    for one in [
        cls,
        *(entry.settings for entry in (known().values() if cls is AlgoConfig else ())),
    ]:
        found |= {name: wanted for name, wanted in get_type_hints(one).items() if name not in found}
    return found


def section(cls: type, given: Any, where: str) -> Mapping[Any, Any]:
    """Returns a section as a mapping: spells out a bare word, and reads null as all defaults."""
    if given is None:
        return {}
    if isinstance(given, str) and cls in SHORT:
        return {SHORT[cls]: given}
    if not isinstance(given, Mapping):
        raise _wrong(where or "the settings", cls, given, f"write {_example(cls, where)}")
    return given


def read(wanted: Any, given: Any, path: str) -> Any:
    """Returns `given` as the annotation `wanted` has it, or says why that is impossible."""
    return READERS[_kind(wanted)](wanted, given, path)


def annotation(key: str) -> Any:
    """Returns what the schema wants at a dotted key: Any in free mappings, None if unknown."""
    wanted: Any = Config
    for part in key.split("."):
        wanted = hints(wanted).get(part) if is_dataclass(wanted) else Any
    return wanted


def keys(cls: Any = Config, where: str = "") -> Iterator[str]:
    """Yields the dotted key of every setting, in the schema's order."""
    for name, wanted in hints(cls).items():
        if is_dataclass(wanted):
            yield from keys(wanted, dotted(where, name))
        else:
            yield dotted(where, name)


def dotted(where: str, key: Any) -> str:
    return f"{where}.{key}" if where else str(key)


def nearest(word: str, allowed: list[str]) -> str | None:
    """Returns the allowed name that looks most like `word`, if any does."""
    return next(iter(difflib.get_close_matches(word, allowed, n=1)), None)


def plain(value: Any) -> Any:
    """Returns free values as YAML has them: a resumed run gets the lists that this one got."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def words(wanted: Any) -> str:
    """Says an annotation in a user's words: "a whole number or null", "a list (text)"."""
    kind = _kind(wanted)
    if kind is Enum:
        return "one of " + ", ".join(member.value for member in wanted)
    if kind is UnionType:
        return " or ".join(words(part) for part in get_args(wanted))
    if kind is tuple and get_args(wanted)[0] is not Any:
        return f"a list (each: {words(get_args(wanted)[0])})"
    return WORDS[kind]


def _kind(wanted: Any) -> Any:
    if is_dataclass(wanted):
        return parse
    if isinstance(wanted, type) and issubclass(wanted, Enum):
        return Enum
    return get_origin(wanted) or wanted


def _anything(wanted: Any, given: Any, path: str) -> Any:
    return plain(given)


def _bool(wanted: Any, given: Any, path: str) -> bool:
    if isinstance(given, bool):
        return given
    raise _wrong(path, wanted, given, "write true or false without quotes")


def _int(wanted: Any, given: Any, path: str) -> int:
    number = _as_whole(given)
    if number is None:
        raise _wrong(path, wanted, given, "write digits, such as 1000 or 1e3, no quotes")
    if number.bit_length() > 63:
        raise ConfigError(f"{path} must fit into 64 bits, got far more; write a smaller number")
    return number


def _float(wanted: Any, given: Any, path: str) -> float:
    number = _as_float(given)
    if number is None:
        raise _wrong(path, wanted, given, "write digits, no quotes")
    if not math.isfinite(number):
        raise _wrong(path, wanted, given, "write a finite number")
    return number


def _text(wanted: Any, given: Any, path: str) -> str:
    if isinstance(given, str):
        return str(given)
    raise _wrong(path, wanted, given, "put it in quotes" if given is not None else "give a value")


def _choice(wanted: Any, given: Any, path: str) -> Any:
    allowed = [member.value for member in wanted]
    if given in allowed:
        return wanted(given)
    near = nearest(given, allowed) if isinstance(given, str) else None
    raise _wrong(path, wanted, given, f"did you mean {near!r}?" if near else "choose one of them")


def _list(wanted: Any, given: Any, path: str) -> tuple[Any, ...]:
    if not isinstance(given, list | tuple):
        raise _wrong(path, wanted, given, "write it in [ ]" if given is not None else "write []")
    each = get_args(wanted)[0]
    return tuple(read(each, item, f"{path}[{i}]") for i, item in enumerate(given))


def _mapping(wanted: Any, given: Any, path: str) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        raise _wrong(path, wanted, given, "write {name: value}")
    for key in given:
        _text(str, key, f"a name in {path}")
    return {key: plain(value) for key, value in given.items()}


def _either(wanted: Any, given: Any, path: str) -> Any:
    """Reads `X | None`, the only union the schema has."""
    if given is None:
        return None
    try:
        return read(get_args(wanted)[0], given, path)
    except ConfigError as error:
        raise ConfigError(f"{error} (null is allowed too)") from None


READERS: dict[Any, Callable[[Any, Any, str], Any]] = {
    parse: parse,
    Any: _anything,
    bool: _bool,
    int: _int,
    float: _float,
    str: _text,
    Enum: _choice,
    tuple: _list,
    dict: _mapping,
    UnionType: _either,
}

WORDS: dict[Any, str] = {
    parse: "a mapping",
    Any: "anything",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    tuple: "a list",
    dict: "a mapping",
    type(None): "null",
}


def _as_whole(given: Any) -> int | None:
    """Returns a number without a fraction as an int; 1e5 and 2.5e6 are whole numbers too."""
    if not isinstance(given, bool) and isinstance(given, Integral):
        return int(given)
    number = _as_float(given)
    return None if number is None else as_whole(number)


def _as_float(given: Any) -> float | None:
    if isinstance(given, bool):
        return None
    if isinstance(given, str):
        return float(given) if _EXPONENT.fullmatch(given) else None
    try:
        return float(given) if isinstance(given, Real) else None
    except OverflowError:
        return math.inf


def _wrong(path: str, wanted: Any, given: Any, do: str) -> ConfigError:
    return ConfigError(f"{path} must be {words(wanted)}, got {_shown(given)}; {do}")


def _shown(given: Any) -> str:
    if given is None:
        return "nothing (null)"
    if isinstance(given, bool):
        return str(given).lower()
    text = repr(given)
    text = text if len(text) <= 60 else text[:57] + "..."
    return f"the text {text}" if isinstance(given, str) else text


def _example(cls: type, where: str) -> str:
    name = next(iter(get_type_hints(cls)))
    return f"{where}: {{{name}: ...}}" if where else f"{name}: ..."


def _unknown(cls: type, key: Any, where: str) -> ConfigError:
    allowed = list(get_type_hints(cls))
    hint = _hint(str(key), allowed, where)
    place = f"in {where}" if where else "at the top"
    return ConfigError(
        f"unknown setting {dotted(where, key)!r}; {hint}"
        f"Allowed {place}: {', '.join(allowed)}. `rookery list --settings` explains them"
    )


def _hint(key: str, allowed: list[str], where: str) -> str:
    """Looks for the name in another section, in other libraries, then for a similar one."""
    by_name: dict[str, list[str]] = {}
    for path in keys():
        if path == dotted(where, key):  # of another algorithm
            continue
        by_name.setdefault(path.rpartition(".")[2], []).append(path)
    if key in by_name:
        return _meant(by_name[key])
    if key in NAMES_ELSEWHERE and where != "sb3":  # SB3's own settings are in sb3.kwargs
        return f"Rookery calls it {NAMES_ELSEWHERE[key]}. "
    if near := nearest(key, allowed):
        return _meant([dotted(where, near)])
    far = nearest(key, list(by_name))
    return _meant(by_name[far]) if far else ""


def _meant(found: list[str]) -> str:
    return f"did you mean {' or '.join(found)}? "
