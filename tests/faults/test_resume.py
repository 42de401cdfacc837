"""A run that was killed goes on as if nothing had happened."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from signal import SIGKILL
from typing import Any

import pytest

from eventually import eventually
from run_processes import SMALL, CommandForker, Started, record, settled, words

VARIANTS: dict[str, dict[str, Any]] = {
    "exports its state": {
        "env.id": "rookery.envs.toy.basic:Corridor",
        "env.frame_stack": 3,
        "replay.sampling": "prioritized",
        "algo.n_step": 3,
    },
    "cannot be saved": {"env.id": "misbehaving_envs:Wander", "env.kwargs": "{}"},
    "goals in hindsight": {
        "env.id": "rookery.envs.toy.bit_flip:BitFlip",
        "env.kwargs": "{bits: 6}",
        "replay.hindsight": 0.8,
        "algo.n_step": 1,
    },
    "native vector": {
        "env.id": "CartPole-v1",
        "env.kwargs": "{}",
        "replay.sampling": "prioritized",
        "net.hidden": "[256, 256]",  # a faster run can end between two looks on a busy machine
    },
}
RESULT = ("weights_sha256", "env_steps", "learner_steps", "episodes", "best_score", "reason")


def marks(run_dir: Path) -> list[str]:
    """Returns the names in the folder of checkpoints."""
    folder = run_dir / "checkpoints"
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def begun(run_dir: Path) -> bool:
    return (run_dir / "config.yaml").exists()


def writing(run_dir: Path) -> bool:
    return any(".tmp-" in name for name in marks(run_dir))


def past(mark: int) -> Callable[[Path], bool]:
    return lambda run_dir: any(name >= f"ckpt-{mark:012d}" for name in marks(run_dir))


MOMENTS: dict[str, Callable[[Path], bool]] = {
    "before the first checkpoint": begun,
    "while a checkpoint is written": writing,
    "past the second": past(2_000),
    "past the third": past(3_000),
}


def evaluations(run_dir: Path) -> list[tuple[int, int, list[float]]]:
    entries = record(run_dir, "evaluated")
    return [(e["env_steps"], e["version"], e["returns"]) for e in entries]


def logs(run_dir: Path) -> list[tuple[int, int, int]]:
    entries = record(run_dir, "logged")
    return [(e["env_steps"], e["learner_steps"], e["episodes"]) for e in entries]


ALONE: dict[str, Any] = {}
SYNC = {"run.mode": "sync", "actor.num": 2}
CASES: dict[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {
    **{variant: (variant, ALONE, tuple(MOMENTS)) for variant in VARIANTS},
    "two actors, exports": ("exports its state", SYNC, ("past the second",)),
    "two actors, cannot": ("cannot be saved", SYNC, ("while a checkpoint is written",)),
}


def kill(run: Started, when: Callable[[Path], bool], run_dir: Path, rng: random.Random) -> None:
    """Kills a run at a random moment from a condition on."""
    assert eventually(lambda: when(run_dir) or run.poll() is not None, 60.0), run.said
    assert run.poll() is None, run.said
    for _ in range(rng.randrange(50)):  # each look takes some tens of microseconds
        run.poll()
    rng.choice([run.kill_all, lambda: run.send(SIGKILL)])()
    assert run.wait() == -SIGKILL
    assert settled(run.pid)


@pytest.mark.parametrize("case", CASES)
def test_a_run_killed_again_and_again_ends_like_one_that_never_was(
    case: str, forker: CommandForker, tmp_path: Path
) -> None:
    """Where it has several actors, the one that never was has them all in one process."""
    rng = random.Random(case)
    variant, local_actors, moments = CASES[case]
    train = [
        "train",
        "corridor",
        "--json",
        "--quiet",
        *words(SMALL | VARIANTS[variant] | local_actors),
    ]

    whole = forker.start([*train, "--run-dir", "whole", "--engine", "inline"], tmp_path)
    run = forker.start([*train, "--run-dir", "torn"], tmp_path)
    torn = tmp_path / "torn"
    for moment in moments:
        kill(run, MOMENTS[moment], torn, rng)
        run = forker.start(["train", "--resume", "--exact", "torn", "--json", "--quiet"], tmp_path)
    assert run.wait() == 0, run.said
    assert whole.wait() == 0, whole.said

    assert {key: run.answer[key] for key in RESULT} == {key: whole.answer[key] for key in RESULT}
    assert evaluations(torn) == evaluations(tmp_path / "whole")
    assert [mark // 1_000 for mark, _, _ in evaluations(torn)] == [1, 2, 3, 4]
    assert logs(torn) == logs(tmp_path / "whole")
    assert json.loads((torn / "result.json").read_text()) == run.answer
