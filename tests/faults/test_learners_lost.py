"""Learners that share a run's batches are killed, stopped, interrupted and badly started."""

import os
from pathlib import Path
from signal import SIGINT, SIGKILL, SIGSTOP
from typing import Any

import pytest

from data_parallel_learners import UNLUCKY, batch, free_place, settings, together
from eventually import eventually
from rookery.config.load import load
from rookery.errors import LostError
from run_processes import SMALL, CommandForker, Started, clock, named, reached, settled, words

pytestmark = pytest.mark.timeout(120)
LONG: dict[str, Any] = SMALL | {
    "run.env_steps": 1_000_000,
    "checkpoint.period": 500,
    "report.log_period": 200,
    "learner.device": "cpu",
}
FLAGS = ("--learners", "2", "--json", "--quiet")
END_S = 20.0  # on a busy machine


def start(
    forker: CommandForker, where: Path, settings: dict[str, Any], rank: int | None = None
) -> Started:
    env = {} if rank is None else {"RANK": str(rank)}
    argv = ["train", "corridor", "--run-dir", "a", *FLAGS, *words(settings)]
    return forker.start(argv, where, env)


def learning(run: Started, where: Path) -> bool:
    """Waits until a run has learned for a while and has saved itself."""
    saved = where / "a" / "checkpoints"
    return eventually(
        lambda: (
            run.poll() is not None
            or (reached(where / "a", 800) and saved.is_dir() and any(saved.glob("ckpt-*")))
        ),
        60.0,
    )


def test_those_who_only_noticed_a_loss_are_not_blamed_for_it() -> None:
    unlucky = batch(1)
    unlucky.reward[-1] = UNLUCKY
    algo = load("corridor", changes={"algo": "data_parallel_learners:Superstitious"}).algo

    with together(settings(algo, learners=4)) as lead:  # as processes: a thread cannot be ended
        lead.learn(batch(0))
        with pytest.raises(LostError, match=r"number 3 of 4 learners was lost .*thirteen"):
            lead.learn(unlucky)


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (SIGKILL, "number 1 of 2 learners was lost (exit status -9)"),
        (SIGSTOP, "one of 2 learners has kept the others waiting for 3 s"),
    ],
)
def test_a_learner_that_is_killed_or_stopped_ends_the_run_in_time_and_nothing_is_left(
    number: int, said: str, forker: CommandForker, tmp_path: Path
) -> None:
    run = start(forker, tmp_path, LONG | {"learner.replica_timeout_s": 3.0})
    assert learning(run, tmp_path), run.said
    other = named(run.pid, "rk-learner-1")
    assert other is not None, run.said

    os.kill(other, number)
    began = clock()

    assert run.wait(END_S) == 3, run.said
    assert clock() - began < END_S
    assert said in run.said
    assert "--resume" in run.said
    assert settled(run.pid)

    rest = ["train", "--resume", "a", "--learners", "1", "--json", "--quiet"]
    run = forker.start([*rest, "--env-steps", "1000"], tmp_path)
    assert run.wait() == 0, run.said


def test_a_run_of_two_learners_that_is_interrupted_or_killed_leaves_no_process(
    forker: CommandForker, tmp_path: Path
) -> None:
    run = start(forker, tmp_path, LONG)
    assert learning(run, tmp_path), run.said
    run.send(SIGINT)
    assert run.wait(END_S) == 130, run.said
    assert settled(run.pid)

    run = forker.start(["train", "--resume", "a", "--json", "--quiet"], tmp_path)
    assert eventually(lambda: named(run.pid, "rk-learner-1") is not None, 30.0), run.said
    run.send(SIGKILL)
    assert run.wait() == -SIGKILL
    assert settled(run.pid)


class TestHosts:
    """Followers that the user starts with RANK, here on one machine."""

    def test_they_come_to_a_place_learn_and_leave_with_the_run(self, forker, tmp_path):
        place = {"learner.rendezvous": free_place()}
        settings = LONG | place | {"run.env_steps": 1_500}
        (tmp_path / "other").mkdir()

        other = start(forker, tmp_path / "other", settings, rank=1)
        run = start(forker, tmp_path, settings, rank=0)

        assert run.wait() == 0, run.said
        assert other.wait(END_S) == 0, other.said
        assert run.answer["learner_steps"] > 0
        assert not (tmp_path / "other" / "a").exists()

    def test_who_was_told_something_else_is_refused(self, forker, tmp_path):
        settings = LONG | {"learner.rendezvous": free_place()}
        run = start(forker, tmp_path, settings)
        other = start(forker, tmp_path, settings | {"learner.lr": 0.5}, rank=1)

        assert run.wait() == 2, run.said
        assert other.wait(END_S) == 2, other.said
        for one in (run, other):
            assert "learner 1 has learner.lr 0.5, and the run has 0.00" in one.said
        assert not (tmp_path / "a" / "config.yaml").exists()

    @pytest.mark.parametrize("victim", [0, 1])
    def test_when_one_is_killed_the_other_says_so(self, victim, forker, tmp_path):
        settings = LONG | {"learner.rendezvous": free_place()}
        runs = [start(forker, tmp_path, settings, rank) for rank in (0, 1)]
        assert learning(runs[0], tmp_path), runs[0].said

        runs[victim].send(SIGKILL)
        left = runs[1 - victim]

        assert left.wait(END_S) == 3, left.said
        expected = ("learner 1 lost the run at", "one of 2 learners was lost")
        assert expected[victim] in left.said
        assert settled(left.pid)
