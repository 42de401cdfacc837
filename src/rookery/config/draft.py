"""A scenario while it is made from another program's settings, and what could not be taken over."""

from dataclasses import dataclass, field
from typing import Any, get_type_hints

from rookery.config.algorithms import settings_of
from rookery.config.parse import keys
from rookery.config.schema import Backend
from rookery.errors import ConfigError


@dataclass
class Draft:
    """Collects settings under their dotted keys, and a line for each thing that is lost.

    `given` is complete: where the file says nothing it has what the other program would do.
    `stated` are the names that the file has itself; nobody is told of the loss of a default.
    """

    backend: Backend
    algorithm: str  # as rookery names it
    env_id: str
    given: dict[str, Any]
    stated: frozenset[str]
    settings: dict[str, Any] = field(default_factory=dict)  # dotted key → value
    notes: list[str] = field(default_factory=list)

    def put(self, key: str, value: Any, name: str) -> None:
        """Sets a dotted key to what `name` says; a key that the algorithm has not is a note."""
        section, _, last = key.partition(".")
        if section == "algo" and last not in get_type_hints(settings_of(self.algorithm)):
            self.lose(name, value, f"{self.algorithm} has no such setting here")
            return
        self.settings[key] = value

    def append(self, key: str, value: Any) -> None:
        self.settings.setdefault(key, []).append(value)

    def lose(self, name: str, value: Any, why: str) -> None:
        """Notes that something of the file is not taken over."""
        if name.partition(".")[0] in self.stated:
            self.notes.append(f"{name}: {shown(value)} is left out: {why}")

    def change(self, name: str, value: Any, how: str) -> None:
        """Notes that something of the file means another thing here."""
        if name.partition(".")[0] in self.stated:
            self.notes.append(f"{name}: {shown(value)} is changed: {how}")

    def nested(self) -> dict[str, Any]:
        """Returns the settings by section, in the schema's order."""
        order = {key: place for place, key in enumerate(keys())}
        found: dict[str, Any] = {}
        for key in sorted(self.settings, key=lambda key: order.get(_setting(key), len(order))):
            *parents, last = key.split(".")
            at = found
            for parent in parents:
                at = at.setdefault(parent, {})
            at[last] = self.settings[key]
        return found

    def whole(self, name: str, value: Any) -> int:
        """Returns a whole number, which YAML may have as 1e6."""
        number = self.number(name, value)
        if number != int(number):
            raise ConfigError(
                f"{name} of {self.env_id} is {value!r}; it must be a whole number; correct the file"
            )
        return int(number)

    def number(self, name: str, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ConfigError(
                f"{name} of {self.env_id} is {value!r}; it must be a number; correct the file"
            )
        return value


def _setting(key: str) -> str:
    """Returns the setting that a key is part of: sb3.kwargs.gamma is in sb3.kwargs."""
    return ".".join(key.split(".")[:2])


def shown(value: Any) -> str:
    """Returns a value for a message, on one line and not too long."""
    if isinstance(value, bool) or value is None:
        return "null" if value is None else str(value).lower()
    text = " ".join(str(value).split())
    return text if len(text) <= 80 else text[:77] + "..."
