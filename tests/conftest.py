"""Shared by all tests. The first call of a compiled kernel may compile it: no example has a
deadline, and what hypothesis tries is the same in every run."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from running import Nursery, nothing_new, shared
from zygote import SUPPORTED, Zygote

settings.register_profile("rookery", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("rookery")

# Where Ray writes down the address of a cluster; it takes for granted that somebody has made it.
Path(os.environ.get("RAY_TMPDIR", "/tmp"), "ray").mkdir(exist_ok=True)


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


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote | None]:
    made = Zygote.fresh() if SUPPORTED else None
    yield made
    if made is not None:
        made.close()
