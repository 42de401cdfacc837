"""Base class of all sections of settings, which checks types and limits."""

from collections.abc import Mapping
from dataclasses import fields
from enum import Enum
from functools import cache
from typing import Any, ClassVar, TypeGuard, get_type_hints

from rookery.config.checks import dotted, plain, read


def hints(cls: type) -> Mapping[str, Any]:
    """Returns the annotation of each setting of a section."""
    return _hints(cls)


@cache
def _hints(cls: Any) -> Mapping[str, Any]:
    found = get_type_hints(cls, include_extras=True)
    return {field.name: found[field.name] for field in fields(cls)}


def is_section(wanted: Any) -> "TypeGuard[type[Section]]":
    """Returns whether an annotation is a section, not a single setting."""
    return isinstance(wanted, type) and issubclass(wanted, Section)


class Section:
    """Base class of a section of settings, a frozen dataclass.

    No object of a section has a value of another type than its annotation, or outside its limits.
    """

    where: ClassVar[str] = ""  # name of the section: "replay" for ReplayConfig, "" for Config
    bare: ClassVar[str] = ""  # name of the setting that a bare word for the section stands for

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if Section in cls.__bases__:
            cls.where = cls.__name__.removesuffix("Config").lower()

    def __post_init__(self) -> None:
        for name, wanted in hints(type(self)).items():
            if not is_section(wanted):
                value = read(wanted, getattr(self, name), dotted(self.where, name))
                object.__setattr__(self, name, value)


def as_plain(value: Any) -> Any:
    """Converts a setting, or a section of settings, to plain data as YAML has it."""
    if isinstance(value, Section):
        return {name: as_plain(getattr(value, name)) for name in hints(type(value))}
    return value.value if isinstance(value, Enum) else plain(value)
