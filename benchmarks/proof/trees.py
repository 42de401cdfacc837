"""Two checkouts side by side, and the command line of each."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from benchmarks.proof.renames import Names

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 600.0  # of one command, on a busy machine; the first ones compile
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
LAST_WORDS = 300  # characters of what a failed command wrote


Command: TypeAlias = "subprocess.Popen[str]"


class CommandError(Exception):
    """A command that failed, took too long or gave no answer."""


class Commands:
    """What is running now, so that nothing is left behind when the comparison is interrupted."""

    def __init__(self) -> None:
        self._running: set[subprocess.Popen[str]] = set()
        self._closed = False
        self._lock = threading.Lock()

    def start(self, words: Sequence[str], cwd: Path, env: Mapping[str, str]) -> Command:
        with self._lock:
            if self._closed:
                raise CommandError("interrupted")
            command = subprocess.Popen(
                words,
                cwd=cwd,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
            self._running.add(command)
        return command

    def forget(self, command: Command) -> None:
        """Ends a command that has not ended by itself, with its process group."""
        _end(command)
        command.communicate()
        with self._lock:
            self._running.discard(command)

    def close(self) -> None:
        """Ends all of them, and starts none any more."""
        with self._lock:
            self._closed = True
            for command in self._running:
                _end(command)


def _end(command: Command) -> None:
    if command.poll() is None:
        os.killpg(command.pid, signal.SIGKILL)


@dataclass(frozen=True)
class Tree:
    """A checkout that commands run in."""

    root: Path
    commit: str
    commands: Commands
    names: Names  # what it calls otherwise than `BASE`

    @property
    def source(self) -> Path:
        return self.root / "src"

    def answer(self, argv: Sequence[str], cwd: Path, env: Mapping[str, str] = {}) -> dict[str, Any]:
        """Runs a command, given in the names of `BASE`, and returns its JSON answer."""
        command = self.start(argv, cwd, env)
        try:
            out, err = command.communicate(timeout=DEADLINE_S)
        except subprocess.TimeoutExpired:
            raise CommandError(f"no end within {DEADLINE_S:.0f} s: {_said(argv)}") from None
        finally:
            self.commands.forget(command)
        if command.returncode != 0:
            raise CommandError(f"exit {command.returncode}: {err.strip()[-LAST_WORDS:]}")
        try:
            return dict(json.loads(out.strip().splitlines()[-1]))
        except (IndexError, ValueError):
            raise CommandError(f"no JSON answer: {_said(argv)}") from None

    def start(self, argv: Sequence[str], cwd: Path, env: Mapping[str, str] = {}) -> Command:
        """Starts a command in a folder; what it imports of Rookery is this tree's."""
        path = os.pathsep.join([str(self.source), str(ROOT)])  # ours: for benchmarks.proof.hold
        words = [sys.executable, "-m", "rookery", *self.names.argv(argv)]
        return self.commands.start(
            words, cwd, {**os.environ, **ONE_THREAD, "PYTHONPATH": path, **env}
        )


@contextlib.contextmanager
def older(
    commit: str, folder: Path, commands: Commands, *, keep: Path | None = None
) -> Iterator[Tree]:
    """A worktree of a commit: in `keep`, with all that was compiled there before, or for once."""
    place = (keep or folder / "tree").absolute()
    wanted = _git("rev-parse", "--short=12", f"{commit}^{{commit}}")
    if not place.exists():
        _git("worktree", "add", "--detach", str(place), wanted)
    try:
        if (there := _git("rev-parse", "--short=12", "HEAD", cwd=place)) != wanted:
            raise SystemExit(f"{place} holds {there}, not {wanted}; remove it, or choose another")
        yield tree_in(place, wanted, folder, commands)
    finally:
        if keep is None:
            _git("worktree", "remove", "--force", str(place))


def newer(folder: Path, commands: Commands) -> Tree:
    """The tree that this script belongs to, as it is now."""
    dirty = " with changes" if _git("status", "--porcelain", "--", "src") else ""
    return tree_in(ROOT, _git("rev-parse", "--short=12", "HEAD") + dirty, folder, commands)


def tree_in(root: Path, commit: str, cwd: Path, commands: Commands) -> Tree:
    """Finds out what a tree calls otherwise, from its files and from its list of settings."""
    tree = Tree(root, commit, commands, Names())
    listed = tree.answer(["list", "--settings", "--json"], cwd)["settings"]
    known = {setting["key"]: str(setting["type"]) for setting in listed}
    return replace(tree, names=Names.of(tree.source, known))


def _git(*words: str, cwd: Path = ROOT) -> str:
    done = subprocess.run(["git", *words], cwd=cwd, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"git {' '.join(words)} failed: {done.stderr.strip()}")
    return done.stdout.strip()


def _said(argv: Sequence[str]) -> str:
    return "rookery " + " ".join(argv)[:LAST_WORDS]
