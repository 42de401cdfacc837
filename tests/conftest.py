"""Shared by all tests. The first call of a compiled kernel may compile it: no example has a
deadline, and what hypothesis tries is the same in every run."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from fork_server import SUPPORTED, ForkServer
from run_processes import CommandForker, nothing_new, shared, warm
from xdist_groups import (
    pytest_collection_modifyitems,
    pytest_configure,
    pytest_configure_node,
    pytest_xdist_make_scheduler,
)

__all__ = [
    "pytest_collection_modifyitems",
    "pytest_configure",
    "pytest_configure_node",
    "pytest_xdist_make_scheduler",
]

settings.register_profile("rookery", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("rookery")

# Where Ray writes down the address of a cluster; it takes for granted that somebody has made it.
Path(os.environ.get("RAY_TMPDIR", "/tmp"), "ray").mkdir(exist_ok=True)


@pytest.fixture(scope="session")
def _forker() -> Iterator[CommandForker]:
    forker = warm()
    yield forker
    forker.close()
    warm.cache_clear()


@pytest.fixture
def forker(_forker: CommandForker) -> Iterator[CommandForker]:
    """Starts `rookery` commands; nothing of them outlives the test, or is left in /dev/shm."""
    before = shared()
    yield _forker
    _forker.end_all()
    assert nothing_new(before)


@pytest.fixture(scope="session")
def fork_server() -> Iterator[ForkServer | None]:
    made = ForkServer.fresh() if SUPPORTED else None
    yield made
    if made is not None:
        made.close()
