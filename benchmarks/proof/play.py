"""One case on one tree: its command lines, and what they come to."""

import hashlib
import json
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.proof import cases, checkpoints, hold
from benchmarks.proof.cases import Case, Kind, train
from benchmarks.proof.trees import DEADLINE_S, LAST_WORDS, CommandError, Tree

COUNTS = ("env_steps", "learner_steps", "episodes")


class Outcome(NamedTuple):
    """What a computation came to."""

    sha: str  # of the weights, or of the measures
    counts: tuple[int, ...] = ()  # env steps, learner steps, episodes
    score: float | None = None  # of the last evaluation


def play(case: Case, engine: str, tree: Tree, folder: Path) -> Outcome:
    """Does a case in an empty folder."""
    return KINDS[case.kind](case, engine, tree, folder)


def halve(case: Case, engine: str, tree: Tree, folder: Path) -> Path:
    """Does the first half of a run and returns its folder."""
    tree.answer(train(case, engine, steps=cases.HALF, run_dir="run"), folder)
    return folder / "run"


def resume(tree: Tree, half: Path, folder: Path, *, renamed: bool) -> Outcome:
    """Does the other half in a copy, which is translated where another tree wrote it."""
    copy = folder / "run"
    shutil.copytree(half, copy)
    if renamed:
        checkpoints.translate(copy, tree.names)
    argv = ["train", "--resume", "run", "--exact", "--env-steps", str(cases.STEPS)]
    return _outcome(tree.answer([*argv, "--json", "--quiet"], folder))


def _train(case: Case, engine: str, tree: Tree, folder: Path) -> Outcome:
    return _outcome(tree.answer(train(case, engine, run_dir="run"), folder))


def _borrow(case: Case, engine: str, tree: Tree, folder: Path) -> Outcome:
    """Runs a lender up to its last env step, and beside it, while it waits, the borrower."""
    with tempfile.TemporaryDirectory(prefix="rookery-proof-pool-") as pool:
        shared = ["--set", f"sharing.pool={pool}/pool"]
        callback = ["--set", "run.callbacks=[benchmarks.proof.hold:until_released]"]
        env = {hold.HOLD: str(folder / "lender"), hold.STEPS: str(cases.STEPS)}
        argv = train(case, engine, run_dir="lender-run")
        lender = tree.start([*argv, *shared, *callback], folder, env)
        try:
            held = folder / "lender.held"
            _wait_until(lambda: held.exists() or lender.poll() is not None)
            if not held.exists():
                said = lender.communicate()[1].strip()[-LAST_WORDS:]
                raise CommandError(f"the lender ended before it had played all env steps: {said}")
            answer = tree.answer([*train(case, engine, run_dir="run"), *shared], folder)
            (folder / "lender.released").touch()
            _wait_until(lambda: lender.poll() is not None)
        finally:
            tree.commands.forget(lender)
    _refuse_alone(folder / "run")
    return _outcome(answer)


def _wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > deadline:
            raise CommandError(f"the lender got no further within {DEADLINE_S:.0f} s")
        time.sleep(0.1)


def _refuse_alone(run_dir: Path) -> None:
    """A run that found no lender would be equal on both trees for the wrong reason."""
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    metrics = [line["metrics"] for line in lines if "metrics" in line]
    if not metrics or not metrics[-1].get("sharing/foreign_rows"):
        raise CommandError("the borrower has borrowed nothing")


def _evaluate(case: Case, engine: str, tree: Tree, folder: Path) -> Outcome:
    answer = tree.answer(cases.EVALUATE, folder)
    text = json.dumps([answer["results"], answer["planner"]], sort_keys=True)
    return Outcome(hashlib.sha256(text.encode()).hexdigest())


def _outcome(answer: dict[str, Any]) -> Outcome:
    counts = tuple(int(answer[name]) for name in COUNTS)
    return Outcome(answer["weights_sha256"], counts, answer["best_score"])


KINDS: dict[Kind, Callable[[Case, str, Tree, Path], Outcome]] = {
    Kind.TRAIN: _train,
    Kind.BORROW: _borrow,
    Kind.EVALUATE: _evaluate,
}
