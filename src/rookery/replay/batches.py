"""Batches taken apart and put together, whatever their observations are made of."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rookery.types import Array, Batch


def picked(batch: Batch, index: Array) -> Batch:
    """Returns some rows of a batch, by number or by mask."""
    return Batch(*(_changed(field, lambda array: array[index]) for field in batch))


def joined(batches: Sequence[Batch]) -> Batch:
    """Puts batches one after another."""
    if len(batches) == 1:
        return batches[0]
    return Batch(*(_concatenated(fields) for fields in zip(*batches, strict=True)))


def _concatenated(fields: tuple[Any, ...]) -> Any:
    first = fields[0]
    if first is None:
        return None
    if isinstance(first, dict):
        return {name: np.concatenate([field[name] for field in fields]) for name in first}
    return np.concatenate(fields)


def _changed(field: Any, change: Callable[[Array], Array]) -> Any:
    if field is None:
        return None
    if isinstance(field, dict):
        return {name: change(leaf) for name, leaf in field.items()}
    return change(field)
