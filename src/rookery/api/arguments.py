"""Arguments of Python functions that stand for settings: which is which, in errors too."""

import contextlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from rookery.errors import ConfigError


def refuse_arguments(settings: Mapping[str, Any], arguments: Mapping[str, str]) -> None:
    """Raises ConfigError for settings that are arguments of their own: setting → argument."""
    for key in settings:
        if key in arguments:
            raise ConfigError(f"settings has {key!r}; use the argument {arguments[key]} instead")


@contextlib.contextmanager
def argument_names(arguments: Mapping[str, str]) -> Iterator[None]:
    """Context in which `ConfigError` messages name arguments instead of settings."""
    try:
        yield
    except ConfigError as error:
        known = "|".join(map(re.escape, arguments))
        message = re.sub(rf"\b({known})\b", lambda found: arguments[found[1]], str(error))
        error.args = (message,)
        raise
