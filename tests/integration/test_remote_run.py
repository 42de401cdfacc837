"""A learner that is sent to the host which has what it needs, on hosts made from namespaces."""

import sys
from collections.abc import Iterator
from pathlib import Path
from signal import SIGINT

import pytest

from eventually import eventually
from namespace_hosts import QUICK, START_S, Host, Job, hosts, missing
from run_processes import SMALL, clock, reached, record, words

pytest.importorskip("ray")
pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(240),
    pytest.mark.skipif(missing() is not None, reason=str(missing())),
]

UP_S = 90.0  # for a run to be on its way, on a busy machine
END_S = 120.0
WITHIN_S = 10.0  # for the end of one that was told to
LOST_S = 30.0  # for Ray to give a host up, and us to say so
LASTING = words(SMALL | {"run.env_steps": 10_000_000})


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[Host, Host]]:
    """A head here, and a host there that has something fast."""
    with hosts(2) as (here, there):
        here.start_head(cpus=1, env=QUICK)
        there.start_ray(f"--address={here.address}", '--resources={"fast": 1}', cpus=1)
        assert here.counts(there, START_S)
        yield here, there


def train(here: Host, run_dir: Path, *settings: str, needs: str = "fast=1") -> Job:
    where = ["--engine", "ray", "--address", here.address, "--learner-resources", needs]
    how = ["--mode", "async", "--actors", "2", "--json", "--quiet", "--run-dir", str(run_dir)]
    return here.fork(["train", "corridor", *where, *how, *settings])


def ours(host: Host) -> list[int]:
    """Returns the processes of runs on a host."""
    return [pid for name in ("ray::RoleServer", "actor-", "learner") for pid in host.pids(name)]


FREE = """
import sys, ray
ray.init(address=sys.argv[1], log_to_driver=False)
print(ray.available_resources().get("CPU", 0.0))
"""


def _free_cpus(head: Host) -> float:
    return float(head.run([sys.executable, "-c", FREE, head.address]).stdout.split()[-1])


def test_a_task_is_solved_across_two_hosts_with_the_learner_where_it_belongs(pair):
    """Its answer comes here, and the cluster stays without the run."""
    here, there = pair
    run_dir = here.shared / "whole"
    run = train(here, run_dir)
    assert eventually(lambda: bool(there.pids("rookery-learner")), UP_S), run.said
    assert eventually(lambda: all(host.pids("actor-") for host in pair), UP_S), run.said

    assert run.wait(END_S) == 0, run.said

    assert f"the learner runs on {there.name} ({there.ip})" in run.said
    assert run.answer["solved"]
    assert run.answer["run_dir"] == str(run_dir)
    (stopped,) = record(run_dir, "stopped")
    assert stopped["weights_sha256"] == run.answer["weights_sha256"]
    assert record(run_dir, "logged")[-1]["metrics"]["cluster/lost_rows"] == 0
    assert eventually(lambda: ours(here) + ours(there) == [], WITHIN_S)
    assert here.counts(there, within_s=0.0)
    assert _free_cpus(here) == 2.0  # all of both hosts


def test_what_no_host_has_is_refused_with_what_they_have(pair):
    here, there = pair
    run = train(here, here.shared / "refused", needs="fast=2")

    assert run.wait(UP_S) == 2, run.said
    (line,) = [line for line in run.stderr.read_text().splitlines() if "learner_resources" in line]
    assert f"{here.name} has fast 0" in line
    assert f"{there.name} has fast 1" in line


def test_ctrl_c_here_ends_the_run_there(pair):
    here, there = pair
    run_dir = here.shared / "interrupted"
    run = train(here, run_dir, *LASTING)
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


@pytest.mark.parametrize("sign", ["the learner runs on", "a process"])
def test_ctrl_c_while_the_run_starts_there_ends_it(pair, sign):
    """Once it is said where it will run, and once its process is there."""
    here, there = pair
    run = train(here, here.shared / sign.replace(" ", "-"), *LASTING)
    assert eventually(lambda: sign in run.said or bool(there.pids("rookery-learner")), UP_S)
    began = clock()

    run.send(SIGINT)

    assert run.wait(UP_S) == 130, run.said
    assert clock() - began < WITHIN_S
    assert "Traceback" not in run.said
    assert eventually(lambda: ours(here) + ours(there) == [], WITHIN_S)


def test_a_request_that_is_wrong_there_is_wrong_here(pair):
    here, _ = pair
    run = train(here, here.shared / "wrong", *words({"env.id": "no_such_module:Env"}))

    assert run.wait(UP_S) == 2, run.said
    assert [line for line in run.said.splitlines() if "no_such_module" in line]
    assert "Traceback" not in run.said


def test_a_learner_whose_host_is_switched_off_is_lost_and_that_is_said(pair):
    """The last one: nothing is started on that host again."""
    here, there = pair
    run_dir = here.shared / "lost"
    run = train(here, run_dir, *LASTING)
    assert eventually(lambda: reached(run_dir, 1_000), UP_S), run.said

    there.power_off()

    assert run.wait(LOST_S) == 3, run.said
    (line,) = [line for line in run.stderr.read_text().splitlines() if "host was lost" in line]
    assert "--resume" in line
    assert "Traceback" not in run.said
    assert eventually(lambda: ours(here) == [], LOST_S)
