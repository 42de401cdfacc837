"""Checks that settings share: each refuses with what was given, what is allowed, what to do."""

import difflib
import math
import re

from rookery.errors import ConfigError

_NUMBER = re.compile(r"[-+]?[0-9]+(_[0-9]+)*(\.[0-9]*)?([eE][-+]?[0-9]+)?")


def whole(text: str) -> int | None:
    """Returns the whole number that a text such as 100_000, 1e5 or 2.5e6 writes, otherwise None."""
    if not _NUMBER.fullmatch(text):
        return None
    try:
        return int(text)
    except ValueError:  # with a point or an exponent, or of thousands of digits
        return as_whole(float(text))


def as_whole(number: float) -> int | None:
    """Returns a float as an int if it has no fraction, otherwise None."""
    return int(number) if math.isfinite(number) and number == int(number) else None


def positive(name: str, value: float) -> None:
    if not value > 0:  # refuses nan too
        raise ConfigError(f"{name} must be above 0, got {value}; leave it out for the default")


def at_least_0(name: str, value: float) -> None:
    if not value >= 0:
        raise ConfigError(f"{name} must be at least 0, got {value}; leave it out for the default")


def within(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise ConfigError(
            f"{name} must be between {low} and {high}, got {value}; leave it out for the default"
        )


def one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        near = difflib.get_close_matches(value, allowed, n=1)
        do = f"did you mean {near[0]!r}?" if near else f"try {allowed[0]!r}"
        raise ConfigError(f"{name} must be one of {', '.join(allowed)}, got {value!r}; {do}")


def device(name: str, value: str) -> None:
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", value):
        raise ConfigError(
            f"{name} must be auto, cpu or cuda:N, got {value!r}; "
            "`rookery doctor` shows the GPUs of this machine"
        )


def word_of_folder(name: str, value: str) -> None:
    """Refuses a word that would make a path of the run folder's name."""
    if "/" in value or "\0" in value:
        raise ConfigError(
            f"{name} is part of the run folder's name and takes any characters except / and NUL, "
            f"got {value!r}; leave them out, or choose the folder with --run-dir"
        )


def folder(name: str, value: str) -> None:
    """Refuses a path that is empty or that no file system takes."""
    if not value.strip() or "\0" in value:
        raise ConfigError(
            f"{name} must name a folder, got {value!r}; leave it out for a new folder in runs/"
        )


def reference(name: str, value: str) -> None:
    if not re.fullmatch(r"[\w.]+:[\w.]+", value):
        raise ConfigError(
            f"{name} must be written module:name, got {value!r}; "
            "name something that Python can import, such as mypackage.nets:MyNet"
        )
