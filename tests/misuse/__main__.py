"""Runs every case of `cases.py` and writes the table: `make misuse`.

Whatever a case expects, none may print a traceback, hang, or leave a process or shared memory.

    python tests/misuse --out tests/misuse/table.md
    python tests/misuse --only signals
"""

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "support")]

from cases import (  # noqa: E402
    SMALL,
    Case,
    damaged_folders,
    odd_environments,
    signals,
    wrong_commands,
)

from run_processes import CommandForker, members, nothing_new, shared, words  # noqa: E402

# For the commands and all their children: the environments of `odd_envs.py`.
ENV = {"PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])}


class Runner:
    """Starts the cases one after another, each in a folder of its own."""

    def __init__(self, forker: CommandForker, root: Path):
        self._forker, self._root, self._number = forker, root, 0
        self.run, self.cut = self._made("run"), self._cut("cut")

    def _made(self, name: str) -> Path:
        folder = self._root / name
        settings = SMALL | {"run.run_dir": str(folder)}
        started = self._forker.start(
            ["train", "corridor", "--quiet", *words(settings)], self._root, ENV
        )
        assert started.wait() == 0, started.said
        return folder

    def _cut(self, name: str) -> Path:
        folder = self._root / name
        settings = SMALL | {"run.run_dir": str(folder), "run.env_steps": 10_000_000}
        started = self._forker.start(
            ["train", "corridor", "--quiet", *words(settings)], self._root, ENV
        )
        deadline = time.monotonic() + 60
        while not _evaluated(folder) and time.monotonic() < deadline:
            time.sleep(0.05)
        started.send(signal.SIGINT)
        assert started.wait() == 130, started.said
        return folder

    def files(self) -> list[Path]:
        """Returns the files of an interrupted run, one of each name."""
        found = [path for path in sorted(self.cut.rglob("*")) if path.is_file()]
        names = {re.sub(r"\d+", "N", str(path.relative_to(self.cut))): path for path in found}
        return [path.relative_to(self.cut) for path in names.values()]

    def perform(self, case: Case) -> str:
        """Runs a case; returns what is wrong with it, or an empty text."""
        self._number += 1
        folder = self._root / f"case-{self._number}"
        folder.mkdir()
        before = shared()
        argv = [self._filled(word, folder, case) for word in case.argv]
        if case.send is not None:
            wrong = _signalled(case, argv, folder)
            return wrong or ("" if nothing_new(before) else "left shared memory")
        started = self._forker.start(argv, folder, ENV | case.env)
        try:
            code = started.wait(case.within_s)
        except AssertionError:
            started.kill_all()
            started.wait(10.0)
            return f"still there after {case.within_s:g} s"
        wrong = _judge(case, code, started.said)
        if not wrong and members(started.pid):
            time.sleep(1.0)
            wrong = "left a process" if members(started.pid) else ""
        if not wrong and not nothing_new(before):
            wrong = "left shared memory"
        if not wrong:
            shutil.rmtree(folder, ignore_errors=True)
        return wrong

    def _filled(self, word: str, folder: Path, case: Case) -> str:
        if word == "{new}":
            return str(folder / "new")
        if word == "{empty}":
            (folder / "empty").mkdir(exist_ok=True)
            return str(folder / "empty")
        if word == "{file}":
            (folder / "file").write_text("not a run: [")
            return str(folder / "file")
        if word == "{key}":
            key = folder / "key"
            key.touch(0o600)
            key.write_text("k" * 43)
            return str(key)
        if word not in ("{run}", "{cut}"):
            return word
        source = self.run if word == "{run}" else self.cut
        copy = folder / source.name
        shutil.copytree(source, copy)
        if case.damage is not None:
            _damage(copy / case.damage[1], case.damage[0])
        return str(copy)


def _evaluated(folder: Path) -> bool:
    """Whether a run has saved a checkpoint and its first score."""
    metrics = folder / "metrics.jsonl"
    saved = list(folder.glob("checkpoints/ckpt-*"))
    return bool(saved) and metrics.is_file() and "eval/mean_reward" in metrics.read_text()


def _signalled(case: Case, argv: Sequence[str], folder: Path) -> str:
    """Runs a command in an interpreter of its own, and sends it a signal on its way."""
    assert case.send is not None
    number, after_s = case.send
    said = folder / "said"
    with said.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "rookery", *argv],
            cwd=folder,
            env={**os.environ, **ENV},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
        time.sleep(after_s)
        process.send_signal(number)
        try:
            code = process.wait(case.within_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            return f"still there {case.within_s:g} s after the signal"
    if members(process.pid):
        time.sleep(1.0)
    if members(process.pid):
        return "left a process"
    text = said.read_text()
    if code == -number and not text:
        return ""  # on a busy machine the interpreter itself was still starting
    return _judge(case, code, text)


def _damage(path: Path, how: str) -> None:
    content = path.read_bytes()
    path.unlink()
    if how == "missing":
        return
    if how == "folder":
        path.mkdir()
        return
    flipped = bytearray(content)
    if flipped:
        flipped[len(flipped) // 2] ^= 0x10
    made = {"empty": b"", "half": content[: len(content) // 2], "garbage": b"\x00\xff{" * 99}
    path.write_bytes(made.get(how, bytes(flipped)))


def _judge(case: Case, code: int, said: str) -> str:
    # what a user's environment has raised is shown with its lines, then named in one line
    theirs = case.group == "environments" and re.search(r"^rookery: error: odd_envs:", said, re.M)
    if ("Traceback" in said and not theirs) or "Exception ignored" in said:
        return f"traceback, exit {code}"
    if code != case.code:
        return f"exit {code}: {said.strip()[-200:]!r}"
    if not re.search(case.says, said, re.IGNORECASE):
        return f"exit {code}, but says {said.strip()[-200:]!r}"
    if code in (2, 3) and not re.search(r"^rookery.*error: \S", said, re.MULTILINE):
        return f"exit {code} without an error line: {said.strip()[-200:]!r}"
    return ""


def _settings(forker: CommandForker, root: Path) -> list[dict[str, str]]:
    started = forker.start(["list", "--settings", "--json"], root)
    assert started.wait() == 0, started.said
    listed: list[dict[str, str]] = started.answer["settings"]
    return listed


def _all_cases(runner: Runner, forker: CommandForker, root: Path) -> list[Case]:
    return [
        *wrong_commands(_settings(forker, root)),
        *odd_environments(),
        *signals(),
        *damaged_folders(runner.files()),
    ]


def _table(results: Sequence[tuple[Case, str]]) -> str:
    counted = Counter((case.group, not wrong) for case, wrong in results)
    groups = list(dict.fromkeys(case.group for case, _ in results))
    lines = ["# Misuse", "", "`make misuse`: wrong commands and settings, environments that break"]
    lines += ["their API, signals at many moments, damaged run folders. No case may print a"]
    lines += ["traceback, hang, end well in silence, or leave a process or shared memory.", ""]
    lines += ["| group | cases | as expected |", "|---|---:|---:|"]
    for group in groups:
        good, bad = counted[group, True], counted[group, False]
        lines.append(f"| {group} | {good + bad} | {good} |")
    lines += ["", "| exit | output has | case | |", "|---|---|---|---|"]
    for case, wrong in results:
        says = f"`{case.says}`".replace("|", "\\|") if case.says else ""
        lines.append(f"| {case.code} | {says} | `{case.name}` | {wrong or 'ok'} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="table to write (default: none)")
    parser.add_argument("--only", help="group of cases to run (default: all)")
    parser.add_argument("--match", default="", help="pattern of the cases to run (default: all)")
    args = parser.parse_args()
    results: list[tuple[Case, str]] = []
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where a shell says `&`
    os.environ.update(ENV)  # commands are forked from a process that has its modules' path already
    with tempfile.TemporaryDirectory() as made:
        root, forker = Path(made), CommandForker()
        try:
            runner = Runner(forker, root)
            for case in _all_cases(runner, forker, root):
                if args.only in (None, case.group) and re.search(args.match, case.name):
                    wrong = runner.perform(case)
                    results.append((case, wrong))
                    if wrong:
                        print(f"{case.name}: {wrong}", flush=True)
        finally:
            forker.close()
    failed = sum(bool(wrong) for _, wrong in results)
    print(json.dumps({"cases": len(results), "failed": failed}))
    if args.out is not None:
        args.out.write_text(_table(results))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
