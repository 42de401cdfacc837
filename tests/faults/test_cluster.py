"""Hosts of a cluster are switched off and cut off, shards and heads die, calls get lost.

Wherever rows may be lost the check is exact: a driver that counts for itself
(`cluster_driver.py`) says in the end where every acknowledged row is.
"""

import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from eventually import eventually
from hosts import MIB, QUICK, Host, Job, hosts, missing
from rookery.manage import checkpoint
from running import TESTS, Nursery, reached, record, words
from watched import (
    BACK_S,
    END_S,
    FOR_EVER,
    UP_S,
    WATCHED,
    Watched,
    addresses,
    both_play,
    both_up,
    incarnations,
    ours,
    plays_again,
)

pytest.importorskip("ray")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(missing() is not None, reason=str(missing())),
]

LINE_S = 30.0  # for a refusal


@pytest.fixture(scope="module")
def trio() -> Iterator[tuple[Host, Host, Host]]:
    with hosts(3) as made:
        yield made


@pytest.fixture
def cluster(trio: tuple[Host, Host, Host]) -> tuple[Host, Host, Host]:
    """A head on the first host, a node on the second, nothing on the third."""
    a, b, c = trio
    if not a.pids("gcs_server"):
        a.restart()
        b.restart()
        a.start_head(cpus=1, env=QUICK)
        b.join(a, cpus=1)
    elif not b.pids("raylet raylet") or not a.counts(b, within_s=0.0):  # name, then words
        b.restart()
        b.join(a, cpus=1)
    if c.pids("raylet raylet"):
        c.restart()
        assert a.misses(c)
    assert eventually(lambda: not ours(a) and not ours(b), END_S)
    return trio


def train(host: Host, *argv: str, env: Mapping[str, str] | None = None) -> Job:
    return host.popen(["rookery", "train", *argv, "--json", "--quiet"], env=env)


def joined(head: Host) -> list[str]:
    return ["--mode", "async", "--actors", "2", "--engine", "ray", "--address", head.address]


def test_cartpole_is_solved_across_two_hosts_and_the_cluster_stays_without_us(cluster):
    a, b, _ = cluster
    run = train(a, "cartpole", *joined(a), "--run-dir", str(a.shared / "cartpole"))
    used = eventually(lambda: bool(ours(a) and ours(b)), UP_S)
    ended = run.wait(200.0)

    assert used
    assert ended == 0, run.said
    assert run.answer["solved"]
    assert eventually(lambda: not ours(a) and not ours(b), END_S)
    assert _free_cpus(a) == 2.0  # all of both hosts
    assert a.counts(b, within_s=0.0)
    assert record(a.shared / "cartpole", "logged")[-1]["metrics"]["cluster/lost_rows"] == 0


FREE = """
import sys, ray
ray.init(address=sys.argv[1], log_to_driver=False)
print(ray.available_resources().get("CPU", 0.0))
"""


def _free_cpus(head: Host) -> float:
    return float(head.run([sys.executable, "-c", FREE, head.address]).stdout.split()[-1])


def test_a_host_without_power_is_done_without_and_hosts_that_come_are_used(cluster):
    a, b, c = cluster
    run = Watched(a, a, settings={"cluster.actors_per_node": 1})
    run.until(both_play, UP_S)
    run.save()
    run.order("note")
    run.grows("acknowledged_rows", 1_000)

    b.power_off()
    run.until(lambda s: s["restarts"] >= 1 and both_up(s), BACK_S)
    replaced = run.grows("acknowledged_rows", 1_000)
    b.boot()
    for host in (b, c):
        host.start_ray(f"--address={a.address}", cpus=1)
    used = {a.ip, b.ip, c.ip}
    run.until(lambda s: {*addresses(s)} == used and both_play(s), BACK_S)
    report = run.finish()

    assert addresses(replaced) == [a.ip, a.ip]
    first, *_ = report["lost"]  # a busy machine may miss more than one
    assert first["place"] == 1
    gone = first["acknowledged"][1] - first["kept"]
    assert gone > 0
    assert any(f"{gone} rows of replay are gone" in line for line in report["said"])
    logged = record(run.run_dir, "logged")[-1]["metrics"]
    assert logged["cluster/lost_rows"] == report["lost_rows"]
    assert logged["cluster/stations"] >= 4


def test_a_shard_that_is_killed_gets_back_what_was_saved_and_the_rest_is_counted(cluster):
    a, _, _ = cluster
    run = Watched(a, a)
    run.until(both_play, UP_S)
    run.order("note")
    run.save()
    run.grows("acknowledged_rows", 2_000)
    run.order("kill 0")
    run.grows("learner_steps", 200)
    plays_again(run, 0)
    run.grows("acknowledged_rows", 2_000)
    report = run.finish()

    (kill,), (lost,) = report["kills"], report["lost"]
    assert lost["place"] == 0
    assert report["lost_rows"] == lost["acknowledged"][1] - lost["kept"] > 0
    assert kill["committed"] >= lost["kept"] > 0
    assert kill["others_same"]
    assert kill["leaves_finite"]
    assert kill["leaves_least"] >= 0.0
    assert kill["leaves_sum"] == pytest.approx(kill["spread"])
    assert report["shards"][0]["incarnations"] == [[0, 0], [0, 1]]
    assert [noted["missing"] for noted in report["noted"]] == [0, 0]  # noted, then saved


LOSSY = {"req_failure_prob": 4, "resp_failure_prob": 3, "in_flight_failure_prob": 3}


def test_calls_that_fail_on_their_way_are_made_again_and_applied_once(cluster):
    a, _, _ = cluster
    failures = {"CoreWorkerService.grpc_client.PushTask": {"num_failures": -1, **LOSSY}}
    run = Watched(a, a, env={"RAY_testing_rpc_failure": json.dumps(failures)})
    run.until(both_play, UP_S)
    run.order("note")
    run.save()
    run.grows("acknowledged_rows", 500)
    report = run.finish()

    assert report["restarts"] == report["lost_rows"] == 0
    assert [noted["missing"] for noted in report["noted"]] == [0, 0]


def cut_off(a: Host, b: Host, settings: Mapping[str, Any]) -> None:
    """A link is cut until the station behind it is given up, and then healed."""
    run = Watched(a, a, settings=settings)
    run.until(both_play, UP_S)
    run.save()
    run.order("note")
    run.grows("acknowledged_rows", 1_000)
    b.cut()
    elsewhere = run.until(lambda s: s["restarts"] >= 1 and both_up(s), 3 * BACK_S)
    plays_again(run, 1)
    b.heal()
    assert eventually(lambda: not ours(b), BACK_S)
    run.grows("acknowledged_rows", 1_000)
    report = run.finish()

    assert addresses(elsewhere) == [a.ip, a.ip]
    assert elsewhere["stations"][0]["incarnations"] == [0]
    (first,) = elsewhere["stations"][1]["incarnations"]
    assert first == elsewhere["restarts"]
    assert report["shards"][1]["incarnations"] == [[1, 0], [1, first]]
    assert report["lost_rows"] == report["lost"][0]["acknowledged"][1] - report["lost"][0]["kept"]
    assert report["lost_rows"] > 0


def test_what_ray_gives_up_is_moved_and_what_comes_back_is_fenced(cluster):
    a, b, _ = cluster
    cut_off(a, b, {})


def test_without_its_head_a_run_ends_and_goes_on_with_a_new_one(cluster):
    a, b, c = cluster
    settings = {**WATCHED, "cluster.lost_s": 5.0, "checkpoint.period": 1_000}
    run_dir = a.shared / "headless"
    run = train(a, "corridor", *joined(a), *words(settings), "--run-dir", str(run_dir))
    assert eventually(lambda: reached(run_dir, 3_000), UP_S), run.said
    a.power_off()
    first = _newest(run_dir)

    b.restart()
    c.start_head(cpus=1, env=QUICK)
    b.join(c, cpus=1)
    resume = ("--resume", str(run_dir), "--address")
    again = train(b, *resume, c.address)
    assert eventually(lambda: reached(run_dir, first.env_steps + 3_000), UP_S), again.said
    c.power_off()
    code = again.wait(60.0)
    second = _newest(run_dir)

    a.boot()
    a.start_head(cpus=1, env=QUICK)
    last = train(a, *resume, a.address, "--env-steps", str(second.env_steps + 2_000))
    ended = last.wait(UP_S)
    c.boot()

    assert second.env_steps > first.env_steps > 0
    assert code == 3, again.said
    assert "the head of the Ray cluster has not answered" in _lines(again)[-1]
    assert ended == 0, last.said
    assert last.answer["env_steps"] >= second.env_steps + 2_000
    marks = [entry["env_steps"] for entry in record(run_dir, "logged")]
    assert marks == sorted(set(marks))


def _newest(run_dir: Path) -> checkpoint.Found:
    """Returns the newest checkpoint; none may be broken."""
    found, broken, _ = checkpoint.newest(run_dir / "checkpoints")
    assert found is not None
    assert broken == []
    return found


def _lines(job: Job) -> list[str]:
    return job.stderr.read_text().splitlines()


# What cannot work is one line.


def refused(job: Job, *said: str, code: int = 2) -> None:
    ended = job.wait(LINE_S)
    lines = [line for line in _lines(job) if "starting" not in line and "memory:" not in line]

    assert ended == code, job.said
    assert len(lines) == 1, job.said
    for word in said:
        assert word in lines[0]


def test_a_host_without_the_token_says_so(cluster):
    a, b, _ = cluster
    b.set_token(None)
    without = train(b, "corridor", *joined(a), "--run-dir", str(a.shared / "no-token"))
    refused(without, b.name, "token")
    b.set_token("0" * 64)
    wrong = train(b, "corridor", *joined(a), "--run-dir", str(a.shared / "wrong-token"))
    refused(wrong, b.name, "token")
    b.set_token(b.token)

    assert a.counts(b, within_s=0.0)


HERE_ONLY = """
from rookery.envs.toy import Corridor
class Mine(Corridor): ...
"""


def test_an_environment_that_one_host_cannot_import_is_refused_with_its_name(cluster):
    a, b, _ = cluster
    folder = a.root / "tmp" / "mine"
    folder.mkdir()
    (folder / "here_only.py").write_text(HERE_ONLY)
    flags = ("--env", "here_only:Mine", "--run-dir", str(a.shared / "mine"))
    run = train(a, *flags, *joined(a), env={"PYTHONPATH": "/tmp/mine"})
    refused(run, b.name, "here_only")
    shutil.rmtree(folder)

    assert eventually(lambda: not ours(a) and not ours(b), END_S)
    assert a.counts(b, within_s=0.0)


def test_a_host_with_another_version_is_refused_with_both(cluster):
    a, b, _ = cluster
    b.restart()
    other = b.root / "tmp" / "other" / "rookery"
    shutil.copytree(TESTS.parent / "src" / "rookery", other)
    init = other / "__init__.py"
    init.write_text(f"{init.read_text()}\n__version__ = '0.0.1'\n")
    b.join(a, cpus=1, env={"PYTHONPATH": "/tmp/other"})
    run = train(a, "corridor", *joined(a), "--run-dir", str(a.shared / "version"))
    refused(run, b.name, "0.0.1")
    b.restart()

    assert a.pids("gcs_server")


# With Ray's own patience.


@pytest.fixture(scope="module")
def patient() -> Iterator[tuple[Host, Host]]:
    with hosts(2) as (a, b):
        a.start_head(cpus=1)
        b.join(a, cpus=1)
        yield a, b


def test_a_link_that_is_cut_for_5_s_restarts_nothing_and_loses_nothing(patient):
    a, b = patient
    run = Watched(a, a)
    before = run.until(both_play, UP_S)
    run.order("note")
    b.cut()
    healed = time.monotonic() + 5.0
    absent = run.until(lambda s: s["stations"][1]["absent"], 5.0)
    during = run.grows("learner_steps", 50, 5.0)
    assert eventually(lambda: time.monotonic() >= healed, 6.0)
    b.heal()
    run.until(both_up, BACK_S)
    after = run.grows("acknowledged_rows", 2_000)
    report = run.finish()

    assert during["learner_steps"] > absent["learner_steps"]
    assert incarnations(after) == incarnations(before) == [[0], [0]]
    assert after["stations"][1]["acknowledged"][1] > during["stations"][1]["acknowledged"][1]
    assert report["restarts"] == report["lost_rows"] == 0
    assert [noted["missing"] for noted in report["noted"]] == [0, 0]


LONG = pytest.mark.skipif("ROOKERY_LONG" not in os.environ, reason="ROOKERY_LONG=1 waits for it")


# Removes what is left of a pool, and says how much that was.
SWEEP = """
from rookery.sharing.registry import create_distributed_registry
registry = create_distributed_registry(path="/dev/shm/pool")
print(len(registry.sweep()))
registry.stop()
"""


@pytest.mark.parametrize("lost_s", [5.0, pytest.param(30.0, marks=LONG)])
def test_what_is_silent_for_long_is_moved_and_what_comes_back_is_fenced(patient, lost_s):
    """In the pool of its host too: whoever comes next removes a buffer of the dead."""
    a, b = patient
    cut_off(a, b, {"cluster.lost_s": lost_s, "sharing.pool": "/dev/shm/pool"})
    swept = b.run([sys.executable, "-c", SWEEP])

    assert swept.stdout == "1\n", swept.stderr
    assert [host for host in patient if "pool" in host.shm()] == []


# A row has 16 KiB, and the 16 batches that are on their way 128 MiB.
LARGE: dict[str, Any] = {
    "env.kwargs": {"length": 4_096},
    "net.hidden": [4],
    "run.env_steps": 1_000,
    "eval.target": "null",
    "replay.capacity": 4_000,
    "replay.batch": 256,
    "replay.warmup": 512,
    "replay.samples_per_insert": 16.0,
    "checkpoint.period": 800,
    "eval.period": FOR_EVER,
    "eval.episodes": 1,
    "report.log_period": 100,
    "report.tensorboard": "false",
}


def test_an_object_store_that_is_too_small_slows_a_run_and_does_not_end_it():
    with hosts(2, shm=1024 * MIB) as (a, b):
        a.start_head(cpus=1, object_store=80 * MIB)
        b.join(a, cpus=1, object_store=80 * MIB)
        flags = ("corridor", "--run-dir", str(a.shared / "run"))
        run = train(a, *flags, *joined(a), *words(LARGE))
        ended = run.wait(200.0)

        assert ended == 0, run.said
        assert run.answer["env_steps"] >= 1_000


# On one host.


def test_two_runs_with_a_ray_of_their_own_do_not_see_each_other(nursery: Nursery, tmp_path: Path):
    own = tempfile.mkdtemp(prefix="t-", dir="/tmp")  # short: Ray's sockets are in it
    argv = [
        "corridor",
        "--mode",
        "async",
        "--actors",
        "1",
        "--engine",
        "ray",
        "--env-steps",
        "3000",
    ]
    runs = [
        nursery.start(
            ["train", *argv, "--run-dir", f"run-{i}", "--json", "--quiet"],
            tmp_path,
            {"TMPDIR": own},
        )
        for i in range(2)
    ]
    ended = [run.wait(UP_S + END_S) for run in runs]

    assert ended == [0, 0], [run.said for run in runs]
    assert eventually(lambda: not os.listdir(own), END_S)
    os.rmdir(own)
