"""Selects rows of batches and concatenates batches; observations may be arrays or dicts."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rookery.types import Array, ArrayBatch, Batch, Rows, SampledBatch


def arrays_in(batch: SampledBatch) -> list[Array]:
    """Returns all arrays of a batch, in order, without its row numbers."""
    found: list[Array] = []
    replaced(batch, found.append)
    return found


def replaced(  # type: ignore[explicit-any]  # any field
    batch: SampledBatch, change: Callable[[Array], Any]
) -> dict[str, Any]:
    """Returns the fields of a batch, of which `change` has replaced each array but row numbers."""
    fields = batch._asdict()
    return {k: v if k == "rows" else _changed(v, change) for k, v in fields.items()}


def picked(batch: ArrayBatch, index: Array) -> ArrayBatch:
    """Returns a new batch with some rows (transitions or sequences) of a batch.

    `index` holds row indices or a boolean mask.
    """
    return Batch(*(_changed(field, lambda array: array[index]) for field in batch))


def joined(batches: Sequence[ArrayBatch]) -> ArrayBatch:
    """Returns one batch that concatenates the given batches along the first axis."""
    if len(batches) == 1:
        return batches[0]
    return Batch(*(_concatenated(fields) for fields in zip(*batches, strict=True)))


def others_for(missing: Array, rng: np.random.Generator) -> Rows:
    """Returns indices of a batch in which random other rows replace those that are `missing`.

    Returns no indices if all rows are missing.
    """
    index = np.arange(missing.size)
    if missing.all():
        return index[:0]
    index[missing] = rng.choice(index[~missing], size=int(missing.sum()))
    return index


def _concatenated(fields: tuple[Any, ...]) -> Any:  # type: ignore[explicit-any]  # any field
    first = fields[0]
    if first is None:
        return None
    if isinstance(first, dict):
        return {name: np.concatenate([field[name] for field in fields]) for name in first}
    return np.concatenate(fields)


def _changed(  # type: ignore[explicit-any]  # any field
    field: Any, change: Callable[[Array], Any]
) -> Any:
    if field is None:
        return None
    if isinstance(field, dict):
        return {name: change(leaf) for name, leaf in field.items()}
    return change(field)
