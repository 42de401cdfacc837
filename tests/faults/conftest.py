"""Everything in this folder kills, corrupts and interrupts real runs."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from running import Nursery, nothing_new, shared


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.faults)


@pytest.fixture(scope="session")
def _nursery() -> Iterator[Nursery]:
    nursery = Nursery()
    yield nursery
    nursery.close()


@pytest.fixture
def nursery(_nursery: Nursery) -> Iterator[Nursery]:
    """Starts `rookery` commands; nothing of them outlives the test, or is left in /dev/shm."""
    before = shared()
    yield _nursery
    _nursery.end_all()
    assert nothing_new(before)
