"""Runs with rollouts go on exactly where they were stopped, in the middle of epochs too."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from signal import SIGKILL
from typing import Any

import pytest

from eventually import eventually
from inline_runs import TINY, finish, inline, resume, stop_at
from loopback_cluster import loopback_cluster
from rookery.checkpoints import checkpoint
from rookery.config.load import load
from rookery.evaluation.backend import RunRequest
from rookery.event import Event, IterationEnded, Learned
from rookery.training.launch import session
from rookery.training.run import TrainingRun
from run_processes import CommandForker, record, words

__all__ = ["inline", "loopback_cluster"]  # fixtures
RESULT = ("weights_sha256", "env_steps", "learner_steps", "episodes", "best_score", "reason")
SMALL: dict[str, Any] = {
    key: value for key, value in TINY.items() if not key.startswith("replay.")
} | {
    "algo.epochs": 3,
    "net.hidden": [16],
    "replay.batch_size": 24,
    "actor.envs": 4,
    "actor.chunk": 60,
    "learner.device": "cpu",
}
VARIANTS: dict[str, dict[str, Any]] = {
    "exports its state": {
        "env.id": "rookery.envs.toy.basic:Corridor",
        "env.frame_stack": 3,
        "env.normalize_reward": True,
        "env.normalize_obs": True,
    },
    "cannot be saved": {"env.id": "misbehaving_envs:Wander"},
    "continuous": {"env.id": "rookery.envs.toy.basic:Reach"},
    "two actors": {
        "env.id": "rookery.envs.toy.basic:Corridor",
        "run.mode": "sync",
        "run.engine": "inline",
        "actor.num": 2,
    },
}


@contextmanager
def begin(run_dir: Path, variant: str, **changes: Any) -> Iterator[TrainingRun]:
    settings = SMALL | VARIANTS[variant] | changes | {"run.run_dir": str(run_dir)}
    with session(load("ppo-cartpole", changes=settings), RunRequest()) as training_run:
        yield training_run


def result(answer: dict[str, Any]) -> dict[str, Any]:
    return {key: answer[key] for key in RESULT}


def evaluations(run_dir: Path) -> list[tuple[int, list[float]]]:
    return [(e["env_steps"], e["returns"]) for e in record(run_dir, "evaluated")]


def places(events: list[Event]) -> list[int]:
    """Chooses where to stop: in the middle of epochs, before and after the last of them."""
    learned = [i for i, e in enumerate(events, 1) if isinstance(e, Learned)]
    turned = [i for i, e in enumerate(events, 1) if isinstance(e, IterationEnded)]
    later = [i for i in learned if i > turned[2]]
    return [*later[1:3], turned[4] - 1, turned[4], turned[4] + 1]


@pytest.mark.usefixtures("inline")
@pytest.mark.parametrize("variant", ["exports its state", "continuous", "two actors"])
def test_wherever_it_is_interrupted_a_run_with_rollouts_loses_nothing(variant, tmp_path):
    events: list[Event] = []
    with begin(tmp_path / "whole", variant) as training_run:
        whole = finish(training_run, lambda _, event: events.append(event))

    for place in places(events):
        run_dir = tmp_path / str(place)
        with begin(run_dir, variant) as training_run:
            stopped = finish(training_run, stop_at(place))
        with resume(run_dir, exact=True) as training_run:
            answer = finish(training_run)

        assert stopped["reason"] == "interrupted", place
        assert result(answer) == result(whole), place
        assert evaluations(run_dir) == evaluations(tmp_path / "whole"), place


@pytest.mark.usefixtures("inline")
@pytest.mark.parametrize("algorithm", ["ppo", "a2c"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_run_with_rollouts_is_exact_from_its_last_periodic_checkpoint(
    variant, algorithm, tmp_path
):
    def of(run_dir: Path) -> Any:
        if algorithm == "ppo":
            return begin(run_dir, variant)
        settings = SMALL | VARIANTS[variant] | {"run.run_dir": str(run_dir)}
        del settings["algo.epochs"]
        return session(load("a2c-cartpole", changes=settings), RunRequest())

    with of(tmp_path / "whole") as training_run:
        whole = finish(training_run)
    with of(tmp_path / "run") as training_run:
        events = 0

        def look(training_run: TrainingRun, event: Event) -> None:
            nonlocal events
            events += event.counters.env_steps > 700
            if events == 5:
                stop_at(1)(training_run, event)

        finish(training_run, look)
    newest = checkpoint.newest(tmp_path / "run" / "checkpoints").found
    assert newest is not None
    if variant == "cannot be saved":  # then the interrupt's is not exact, and the one before is
        assert not newest.manifest["exact"]
    with resume(tmp_path / "run", exact=True) as training_run:
        answer = finish(training_run)

    assert result(answer) == result(whole)
    assert evaluations(tmp_path / "run") == evaluations(tmp_path / "whole")


@pytest.mark.usefixtures("inline")
def test_without_exact_a_run_that_cannot_be_saved_goes_on_from_the_middle_of_an_epoch(tmp_path):
    seen = 0

    def look(training_run: TrainingRun, event: Event) -> None:
        nonlocal seen
        seen += isinstance(event, Learned) and event.counters.env_steps > 400
        if seen == 2:
            stop_at(1)(training_run, event)

    with begin(tmp_path, "cannot be saved") as training_run:
        stopped = finish(training_run, look)
    with resume(tmp_path) as training_run:
        began, left = training_run.parts.counters, training_run.parts.replay.left
        answer = finish(training_run)

    assert began.env_steps == stopped["env_steps"]
    assert left == 3 * 2 - 2  # epochs of two batches each
    assert answer["env_steps"] >= 1_200


@pytest.mark.usefixtures("inline", "loopback_cluster")
def test_with_host_workers_a_run_goes_on_in_the_middle_of_an_epoch_as_it_does_inline(tmp_path):
    events: list[Event] = []
    with begin(tmp_path / "whole", "two actors") as training_run:
        whole = finish(training_run, lambda _, event: events.append(event))
    place = places(events)[1]
    with begin(tmp_path / "run", "two actors", **{"run.engine": "ray"}) as training_run:
        stopped = finish(training_run, stop_at(place))
    with resume(tmp_path / "run", exact=True) as training_run:
        answer = finish(training_run)

    assert stopped["reason"] == "interrupted"
    assert result(answer) == result(whole)


def test_a_killed_run_with_actors_in_processes_ends_like_one_that_never_was(
    forker: CommandForker, tmp_path: Path
) -> None:
    """The one that never was has its actors in one process."""
    settings = SMALL | VARIANTS["two actors"] | {"run.env_steps": 4_000, "eval.target": "null"}
    del settings["run.engine"]
    train = ["train", "ppo-cartpole", "--json", "--quiet", *words(settings)]
    whole = forker.start([*train, "--run-dir", "whole", "--engine", "inline"], tmp_path)
    run = forker.start([*train, "--run-dir", "torn"], tmp_path)
    assert eventually(
        lambda: any(
            folder.name >= f"ckpt-{600:012d}"
            for folder in checkpoint.folders(tmp_path / "torn" / "checkpoints")
        ),
        60.0,
    ), run.said

    run.kill_all()
    assert run.wait() == -SIGKILL
    again = forker.start(["train", "--resume", "--exact", "torn", "--json", "--quiet"], tmp_path)

    assert again.wait() == 0, again.said
    assert whole.wait() == 0, whole.said
    assert result(again.answer) == result(whole.answer)
