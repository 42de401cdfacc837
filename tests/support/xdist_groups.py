"""How tests are spread over the processes of `pytest --numprocesses N --dist loadfile`.

The tests of a file stay in one process, which has a /dev/shm of its own, and all tests that are
marked `cluster` go to one process: two Rays at once are too much for two cores. What takes longest
begins first.
"""

import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from private_shm import set_apart

FOLDERS = ("faults", "integration", "learning", "property", "unit")  # in this order
CLUSTER = "cluster"
TESTS = Path(__file__).parents[1]
_list = pytest.StashKey[Path]()  # a file with the names of the tests of clusters


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):  # one of several processes that run tests
        with suppress(OSError):  # the Makefile has said so, and runs whole runs one by one
            set_apart()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tells a process that is about to start where to write what only it can know."""
    path = Path(tempfile.gettempdir(), f"rookery-tests-{node.workerinput['testrunuid']}")
    node.config.stash[_list] = path
    node.workerinput[CLUSTER] = str(path)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    given: Mapping[str, Any] = getattr(config, "workerinput", {})
    if CLUSTER not in given:
        return
    items.sort(key=_turn)
    names = [item.nodeid for item in items if item.get_closest_marker(CLUSTER)]
    Path(given[CLUSTER]).write_text("\n".join(names))


def _turn(item: pytest.Item) -> tuple[bool, int]:
    folder = item.path.relative_to(TESTS).parts[0]
    place = FOLDERS.index(folder) if folder in FOLDERS else len(FOLDERS)
    return item.get_closest_marker(CLUSTER) is None, place


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Returns the scheduler of `--dist loadfile`, with one group for the tests of clusters."""
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling  # type: ignore[import-not-found]

    class Spread(LoadFileScheduling):  # type: ignore[misc]
        def schedule(self) -> None:
            if self.collection is None:  # every process has just collected its tests
                path = config.stash[_list]
                self.of_clusters = set(path.read_text().splitlines())
                path.unlink()
            super().schedule()

        def _split_scope(self, nodeid: str) -> str:
            return CLUSTER if nodeid in self.of_clusters else str(super()._split_scope(nodeid))

    return Spread(config, log)
