"""Types of arguments that users give: Python's numbers and NumPy's, but neither text nor bool."""

from numbers import Integral, Real
from typing import Any


def is_number(value: Any) -> bool:
    """Returns whether a value is a real number; nan is one."""
    return isinstance(value, Real) and not isinstance(value, bool)


def is_whole(value: Any) -> bool:
    """Returns whether a value is a whole number of an integer type."""
    return isinstance(value, Integral) and not isinstance(value, bool)
