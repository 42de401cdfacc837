"""What users install: the wheel, where nothing else is but the dependencies it declares."""

import json
import os
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator, Sequence
from pathlib import Path
from zipfile import ZipFile

import pytest

TREE = Path(__file__).parents[2]
# pip copies a gigabyte here, and several where it takes the CUDA build of torch.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Returns the wheel of this tree."""
    folder = tmp_path_factory.mktemp("wheel")
    build = ["-m", "build", "--wheel", "--no-isolation", "--outdir", folder, TREE]
    _ran([sys.executable, *build], cwd=folder)
    (made,) = folder.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def elsewhere(wheel) -> Iterator[Path]:
    """Returns the programs of a new environment, outside the tree, that holds the wheel."""
    # not tmp_path: pytest would keep three of these, each larger than a gigabyte
    with tempfile.TemporaryDirectory(prefix="rookery-wheel-") as folder:
        venv.create(folder, with_pip=True)
        programs = Path(folder, "bin")
        pins = ("--constraint", TREE / "constraints.txt")
        install = ["-m", "pip", "install", "--no-compile", "--quiet", *pins, wheel]
        _ran([programs / "python", *install], cwd=Path(folder))
        yield programs


def test_the_wheel_has_scenarios_types_and_benchmarks(wheel):
    with ZipFile(wheel) as archive:
        inside = set(archive.namelist())

    scenarios = {path.name for path in (TREE / "src/rookery/config/scenarios").glob("*.yaml")}
    assert {"cartpole.yaml", "acrobot.yaml", "mountaincar.yaml", "corridor.yaml"} <= scenarios
    assert {f"rookery/config/scenarios/{name}" for name in scenarios} <= inside
    assert {"rookery/py.typed", "rookery/_benchmarks/trial.py"} <= inside


def test_the_wheel_has_every_source_file_and_nothing_else(wheel):
    with ZipFile(wheel) as archive:
        inside = {name for name in archive.namelist() if ".dist-info/" not in name}

    package, benchmarks = _files("src/rookery"), _files("benchmarks")
    assert inside == {f"rookery/{name}" for name in package} | {
        f"rookery/_benchmarks/{name}" for name in benchmarks
    }


def test_the_installed_package_is_the_one_of_the_wheel(elsewhere, tmp_path):
    code = "import rookery.cli.bench as bench; print(bench.__file__, bench.folder())"

    module, benchmarks = _ran([elsewhere / "python", "-c", code], cwd=tmp_path).split()

    assert Path(module).is_relative_to(elsewhere.parent)
    assert Path(benchmarks).is_relative_to(elsewhere.parent)


def test_the_command_says_what_it_can_do(elsewhere, tmp_path):
    names = json.loads(_ran([elsewhere / "rookery", "list", "--json"], cwd=tmp_path))
    usage = _ran([elsewhere / "rookery", "bench", "--help"], cwd=tmp_path)

    assert "corridor" in names["scenarios"]
    assert "rookery bench" in usage
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
        timeout=500,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _files(folder: str) -> set[str]:
    """Returns what lies in a folder of the tree, caches left out."""
    paths = (path for path in (TREE / folder).rglob("*") if path.is_file())
    return {
        str(path.relative_to(TREE / folder)) for path in paths if "__pycache__" not in path.parts
    }
