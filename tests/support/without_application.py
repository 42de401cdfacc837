"""The tree without one of its applications: a copy, and the commands that have to pass in it.

    python tests/support/without_application.py --workers 2     # each application, all unit tests

Applications are `pathfinding` and `games`. A copy has neither the application nor its unit tests;
nothing else is changed.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

TREE = Path(__file__).parents[2]
APPLICATIONS = ("pathfinding", "games")
UNIT = "tests/unit"
STEPS = 600  # of a short training run: 100 more than its warm-up
TYPES = TREE / ".mypy_cache"
_COPIED = ("src", "tests")  # everything else is linked
_LEFT_OUT = {".git", ".venv", "runs", *(path.name for path in TREE.glob(".*_cache"))}


def copy_without(application: str, folder: Path) -> Path:
    """Copies the tree into a new folder, without an application and its unit tests; returns it.

    Compiled files are copied too: they are as old as their sources, and so are they in the copy.
    """
    folder.mkdir()
    for path in TREE.iterdir():
        if path.name not in _LEFT_OUT and path.name not in _COPIED:
            (folder / path.name).symlink_to(path)
    for name in _COPIED:
        shutil.copytree(TREE / name, folder / name)
    shutil.rmtree(folder / "src/rookery" / application)
    shutil.rmtree(folder / UNIT / application)
    return folder


def run(tree: Path, command: Sequence[str | Path]) -> subprocess.CompletedProcess[str]:
    """Runs a command in a copy, whose modules it imports; stdout has what it wrote."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return subprocess.run(
        list(map(str, command)),
        cwd=tree,
        env=kept | {"PYTHONPATH": str(tree / "src")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def types(cache: Path) -> list[str | Path]:
    return [sys.executable, "-m", "mypy", "--cache-dir", cache]


def layers() -> list[str | Path]:
    return [Path(sys.executable).with_name("lint-imports"), "--no-logo", "--no-cache"]


def listing() -> list[str | Path]:
    return [sys.executable, "-m", "rookery", "list", "--json"]


def train(run_dir: Path) -> list[str | Path]:
    flags = ("--env-steps", str(STEPS), "--run-dir", run_dir, "--quiet")
    return [sys.executable, "-m", "rookery", "train", "cartpole", *flags]


def unit_tests(*flags: str) -> list[str | Path]:
    return [sys.executable, "-m", "pytest", UNIT, "-q", "-p", "no:cacheprovider", *flags]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs every command in a copy for each application; returns the first status that is not 0."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--workers", type=int, default=2, help="test processes (default 2)")
    spread = ("--numprocesses", str(parser.parse_args(argv).workers), "--dist", "loadfile")
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        for application in APPLICATIONS:
            tree = copy_without(application, folder / application)
            commands = {
                "types": types(folder / "types"),
                "layers": layers(),
                "rookery list": listing(),
                "rookery train": train(folder / f"run-{application}"),
                "unit tests": unit_tests(*spread),
            }
            for name, command in commands.items():
                done = run(tree, command)
                print(f"without {application}: {name}: {_last(done.stdout)}", flush=True)
                if done.returncode:
                    print(done.stdout, file=sys.stderr)
                    return done.returncode
    return 0


def _last(written: str) -> str:
    """Returns the last line, cut to 100 characters."""
    return (written.strip().splitlines() or [""])[-1][:100]


if __name__ == "__main__":
    sys.exit(main())
