"""A tree without path finding, and one without the games, is complete.

In a copy of each kind the types check, the layers hold, `rookery list` has everything but the
application, CartPole is trained, every unit test module is imported, and those unit tests pass
that ask what plugins add (`SEES_PLUGINS`). `make without-applications` runs all unit tests in both
copies: minutes that here would show nothing more.
"""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from without_application import (
    APPLICATIONS,
    TREE,
    TYPES,
    UNIT,
    copy_without,
    layers,
    listing,
    run,
    train,
    types,
    unit_tests,
)

ADDS = {  # application → its scenarios and algorithms
    "pathfinding": ({"pathfinding", "pathfinding-cpu"}, {"team"}),
    "games": ({"ludo", "connect-four", "tictactoe", "league", "league-exploiter"}, set()),
}
SEES_PLUGINS = re.compile(r"plugins|scenarios\(|ALGORITHMS|known\(|opponents_builder")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module", params=APPLICATIONS)
def application(request) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def tree(application, tmp_path_factory) -> Path:
    return copy_without(application, tmp_path_factory.mktemp("without") / application)


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> Path:
    """What mypy knows of files that did not change, for both copies."""
    folder = tmp_path_factory.mktemp("types")
    if TYPES.is_dir():
        shutil.copytree(TYPES, folder, dirs_exist_ok=True)
    return folder


def test_the_types_check(tree, cache):
    done = run(tree, types(cache))

    assert done.returncode == 0, done.stdout


def test_the_layers_hold(tree):
    done = run(tree, layers())

    assert done.returncode == 0, done.stdout


def test_the_list_lacks_the_application_and_nothing_else(tree, application):
    scenarios, algorithms = ADDS[application]

    there, here = _listed(TREE), _listed(tree)

    assert set(there["scenarios"]) - set(here["scenarios"]) == scenarios
    assert set(there["algorithms"]) - set(here["algorithms"]) == algorithms
    assert "cartpole" in here["scenarios"]


def _listed(tree: Path) -> dict[str, Any]:
    done = run(tree, listing())
    assert done.returncode == 0, done.stdout
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def test_cartpole_is_trained(tree, tmp_path):
    done = run(tree, train(tmp_path / "run"))

    assert done.returncode == 0, done.stdout
    assert (tmp_path / "run/config.yaml").is_file()


def test_every_unit_test_is_imported_and_those_that_see_plugins_pass(tree):
    files = sorted((tree / UNIT).glob("test_*.py"))  # none of the other application's
    chosen = [path.name for path in files if SEES_PLUGINS.search(path.read_text())]

    done = run(tree, unit_tests("-k", " or ".join(chosen)))

    assert done.returncode == 0, done.stdout
    assert "test_plugins.py" in chosen
