"""What users install: the wheel, where nothing else is but the dependencies it declares.

The environment is new and lies outside the tree. The wheel is installed; its dependencies, as its
metadata names them and theirs in turn, are links to what the tests run with, since copies would be
gigabytes. What is installed here but not declared there cannot be imported.
"""

import json
import os
import subprocess
import sys
import venv
from collections.abc import Iterator, Sequence
from importlib.metadata import Distribution, distribution
from pathlib import Path
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement

TREE = Path(__file__).parents[2]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Returns the wheel of this tree."""
    folder = tmp_path_factory.mktemp("wheel")
    build = ["-m", "build", "--wheel", "--no-isolation", "--outdir", folder, TREE]
    _ran([sys.executable, *build], cwd=folder)
    (made,) = folder.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def elsewhere(wheel, tmp_path_factory) -> Path:
    """Returns the programs of a new environment that holds the wheel and what it declares."""
    folder = tmp_path_factory.mktemp("elsewhere")
    venv.create(folder, symlinks=True)
    programs, (site,) = folder / "bin", folder.glob("lib/python*/site-packages")
    pip = [sys.executable, "-m", "pip", "--python", programs / "python"]
    _ran([*pip, "install", "--no-deps", "--no-index", wheel], cwd=folder)
    (metadata,) = site.glob("rookery-*.dist-info")
    for dependency in _dependencies(Distribution.at(metadata)):
        _link(dependency, site)
    _ran([*pip, "check"], cwd=folder)
    return programs


def test_the_wheel_has_scenarios_and_types(wheel):
    with ZipFile(wheel) as archive:
        inside = set(archive.namelist())

    scenarios = {path.name for path in (TREE / "src/rookery/config/scenarios").glob("*.yaml")}
    assert {"cartpole.yaml", "acrobot.yaml", "mountaincar.yaml", "corridor.yaml"} <= scenarios
    assert {f"rookery/config/scenarios/{name}" for name in scenarios} <= inside
    assert "rookery/py.typed" in inside


def test_the_wheel_has_every_source_file_and_nothing_else_of_the_tree(wheel):
    with ZipFile(wheel) as archive:
        inside = {name for name in archive.namelist() if ".dist-info/" not in name}

    assert inside == {f"rookery/{name}" for name in _files("src/rookery")}


def test_the_installed_package_is_the_one_of_the_wheel(elsewhere, tmp_path):
    code = "import rookery; print(rookery.__file__)"

    module = _ran([elsewhere / "python", "-c", code], cwd=tmp_path).strip()

    assert Path(module).is_relative_to(elsewhere.parent)


def test_what_the_wheel_does_not_declare_is_not_there(elsewhere, tmp_path):
    code = "from importlib.util import find_spec as find;"
    code += "print([name for name in ('pytest', 'wandb', 'stable_baselines3') if find(name)])"

    assert _ran([elsewhere / "python", "-c", code], cwd=tmp_path).strip() == "[]"


def test_the_command_says_what_it_can_do(elsewhere, tmp_path):
    names = json.loads(_ran([elsewhere / "rookery", "list", "--json"], cwd=tmp_path))
    usage = _ran([elsewhere / "rookery", "train", "--help"], cwd=tmp_path)

    assert "corridor" in names["scenarios"]
    assert "rookery train" in usage
    assert list(tmp_path.iterdir()) == []


def test_training_works_where_only_the_wheel_is_installed(elsewhere, tmp_path):
    train = ["train", "corridor", "--json", "--env-steps", "3000"]

    answer = json.loads(_ran([elsewhere / "rookery", *train], cwd=tmp_path).splitlines()[-1])
    evaluate = ["evaluate", answer["run_dir"], "--episodes", "2", "--json"]
    verdict = json.loads(_ran([elsewhere / "rookery", *evaluate], cwd=tmp_path).splitlines()[-1])

    run_dir = tmp_path / answer["run_dir"]
    assert answer["env_steps"] > 0
    assert answer["learner_steps"] > 0
    assert run_dir.is_relative_to(tmp_path)
    for name in ("config.yaml", "metrics.jsonl", "progress.csv"):
        assert (run_dir / name).stat().st_size > 0
    assert len(verdict["returns"]) == 2


def _ran(command: Sequence[str | Path], *, cwd: Path) -> str:
    """Returns what a program printed; it must succeed, and knows nothing of this environment."""
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL_ENV"))}
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _dependencies(root: Distribution) -> Iterator[Distribution]:
    """Yields what a distribution declares, what those declare, and so on, each once."""
    seen: set[tuple[str, str]] = set()
    todo = [(root, "")]
    while todo:
        for need in _needs(*todo.pop()):
            found = distribution(need.name)
            new = {(need.name, extra) for extra in ("", *need.extras)} - seen
            seen |= new
            todo += [(found, extra) for _, extra in new]
            if (need.name, "") in new:
                yield found


def _needs(dist: Distribution, extra: str) -> Iterator[Requirement]:
    for need in map(Requirement, dist.requires or ()):
        if need.marker is None or need.marker.evaluate({"extra": extra}):
            yield need


def _link(dist: Distribution, site: Path) -> None:
    """Makes a distribution importable from another folder; programs and caches are left out."""
    for name in {path.parts[0] for path in dist.files or ()} - {"..", "__pycache__"}:
        if not (site / name).exists():  # distributions may share a namespace
            (site / name).symlink_to(dist.locate_file(name))


def _files(folder: str) -> set[str]:
    """Returns what lies in a folder of the tree, caches left out."""
    paths = (path for path in (TREE / folder).rglob("*") if path.is_file())
    return {
        str(path.relative_to(TREE / folder)) for path in paths if "__pycache__" not in path.parts
    }
