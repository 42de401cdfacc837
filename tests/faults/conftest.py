"""Everything in this folder kills, corrupts and interrupts real runs."""

from pathlib import Path

import pytest

from fork_server import warm_children

__all__ = ["warm_children"]  # a fixture


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.faults)
