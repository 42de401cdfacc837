"""Pickling of what a process is started with; an error names the part that cannot be pickled."""

import inspect
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from types import FunctionType, MethodType

import cloudpickle

from rookery.errors import ConfigError

DEEPEST = 8  # levels of attributes and variables in which the culprit is searched


def pickled(value: object, what: str) -> bytes:
    """Returns `value` as bytes, classes and functions of a script or notebook included.

    Raises ConfigError if a part of it cannot be pickled; the message calls `value` `what`.
    """
    try:
        raw: bytes = cloudpickle.dumps(value)
    except Exception as error:  # a user's object may refuse to be pickled in any way
        place, culprit = _culprit(value)
        where = f"its {place!r}" if place else "it"
        raise ConfigError(
            f"{what} cannot be sent to other processes: {where} is a {_kind(culprit)} "
            f"({type(error).__name__}: {error}); it may hold only what can be pickled; create "
            "locks, files, connections and devices inside the function or in the environment's "
            "constructor, so that each process has its own"
        ) from error
    return raw


def _culprit(value: object) -> tuple[str, object]:
    """Returns the innermost part of `value` that cannot be pickled, and the path to it."""
    path: list[str] = []
    while len(path) < DEEPEST:
        bad = next(((name, part) for name, part in _parts(value) if not _fits(part)), None)
        if bad is None:
            break
        path.append(bad[0])
        value = bad[1]
    return ".".join(path), value


def _fits(value: object) -> bool:
    try:
        cloudpickle.dumps(value)
    except Exception:  # a user's object may refuse to be pickled in any way
        return False
    return True


def _parts(value: object) -> Iterator[tuple[str, object]]:
    """Yields what is pickled with `value`: the variables of a function, attributes, entries."""
    match value:
        case FunctionType():
            known = inspect.getclosurevars(value)
            yield from {**known.nonlocals, **known.globals}.items()
            yield from _numbered("default", value.__defaults__ or ())
        case MethodType():
            yield "self", value.__self__
        case partial():
            yield "function", value.func
            yield from _numbered("argument", value.args)
            yield from value.keywords.items()
        case Mapping():
            yield from ((str(key), part) for key, part in value.items())
        case list() | tuple() | set() | frozenset():
            names = getattr(value, "_fields", None)
            yield from zip(names, value, strict=True) if names else _numbered("entry", value)
        case _:
            yield from getattr(value, "__dict__", {}).items()


def _numbered(noun: str, parts: Iterable[object]) -> Iterator[tuple[str, object]]:
    """Yields `parts` with the names "noun 0", "noun 1" and so on."""
    return ((f"{noun} {index}", part) for index, part in enumerate(parts))


def _kind(value: object) -> str:
    kind = type(value)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
