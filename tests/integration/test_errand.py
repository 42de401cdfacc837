"""A learner that is sent to the host which has what it needs, on hosts made from namespaces."""

from collections.abc import Iterator
from pathlib import Path
from signal import SIGINT
from typing import Any

import pytest

from eventually import eventually
from hosts import QUICK, START_S, Host, Job, hosts, missing
from running import SMALL, clock, reached, record, words

pytest.importorskip("ray")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(240),
    pytest.mark.skipif(missing() is not None, reason=str(missing())),
]

UP_S = 90.0  # for a run to be on its way, on a busy machine
END_S = 120.0
WITHIN_S = 10.0  # for the end of one that was told to
LOST_S = 30.0  # for Ray to give a host up, and us to say so
FOR_EVER = 10_000_000


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[Host, Host]]:
    """A head here, and a host there that has something fast."""
    with hosts(2) as (here, there):
        here.start_head(cpus=1, env=QUICK)
        there.start_ray(f"--address={here.address}", '--resources={"fast": 1}', cpus=1)
        assert here.counts(there, START_S)
        yield here, there


def train(here: Host, run_dir: Path, needs: str = "fast=1", **settings: Any) -> Job:
    where = ["--engine", "ray", "--address", here.address, "--learner-resources", needs]
    how = ["--mode", "async", "--actors", "2", "--json", "--quiet", "--run-dir", str(run_dir)]
    own = {name.replace("__", "."): value for name, value in settings.items()}
    return here.popen(["rookery", "train", "corridor", *where, *how, *words(SMALL | own)])


def ours(host: Host) -> list[int]:
    """Returns the processes of runs on a host."""
    return [pid for name in ("ray::Resident", "actor-", "learner") for pid in host.pids(name)]


def test_the_learner_lives_on_the_host_that_has_it_and_its_answer_comes_here(pair):
    here, there = pair
    run_dir = here.shared / "whole"
    run = train(here, run_dir)
    assert eventually(lambda: bool(there.pids("rookery-learner")), UP_S), run.said

    assert run.wait(END_S) == 0, run.said

    assert f"the learner goes to {there.name} ({there.ip})" in run.said
    assert run.answer["env_steps"] >= SMALL["run.env_steps"]
    assert run.answer["run_dir"] == str(run_dir)
    (stopped,) = record(run_dir, "stopped")
    assert stopped["weights_sha256"] == run.answer["weights_sha256"]
    assert eventually(lambda: ours(here) + ours(there) == [], WITHIN_S)


def test_what_no_host_has_is_refused_with_what_they_have(pair):
    here, there = pair
    run = train(here, here.shared / "refused", "fast=2")

    assert run.wait(UP_S) == 2, run.said
    (line,) = [line for line in run.stderr.read_text().splitlines() if "learner_resources" in line]
    assert f"{here.name} has fast 0" in line
    assert f"{there.name} has fast 1" in line


def test_ctrl_c_here_ends_the_run_there(pair):
    here, there = pair
    run_dir = here.shared / "interrupted"
    run = train(here, run_dir, run__env_steps=FOR_EVER)
    assert eventually(lambda: reached(run_dir, 1_000), UP_S), run.said
    began = clock()

    run.send(SIGINT)

    assert run.wait(UP_S) == 130, run.said
    assert clock() - began < WITHIN_S
    assert "Traceback" not in run.said
    assert run.answer["reason"] == "interrupted"
    (stopped,) = record(run_dir, "stopped")
    assert stopped["reason"] == "interrupted"
    assert eventually(lambda: ours(here) + ours(there) == [], WITHIN_S)


def test_a_request_that_is_wrong_there_is_wrong_here(pair):
    here, _ = pair
    run = train(here, here.shared / "wrong", env__id="no_such_module:Env")

    assert run.wait(UP_S) == 2, run.said
    assert [line for line in run.said.splitlines() if "no_such_module" in line]
    assert "Traceback" not in run.said


def test_a_learner_whose_host_is_switched_off_is_lost_and_that_is_said(pair):
    """The last one: nothing is started on that host again."""
    here, there = pair
    run_dir = here.shared / "lost"
    run = train(here, run_dir, run__env_steps=FOR_EVER)
    assert eventually(lambda: reached(run_dir, 1_000), UP_S), run.said

    there.power_off()

    assert run.wait(LOST_S) == 3, run.said
    (line,) = [line for line in run.stderr.read_text().splitlines() if "is gone" in line]
    assert "--resume" in line
    assert "Traceback" not in run.said
    assert eventually(lambda: ours(here) == [], LOST_S)
