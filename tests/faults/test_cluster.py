"""Hosts of a cluster are switched off and cut off, shards and heads die, calls get lost.

Wherever rows may be lost the check is exact: a training process that counts for itself
(`cluster_driver.py`) says in the end where every acknowledged row is.
"""

import json
import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from signal import SIGCONT, SIGSTOP
from typing import Any

import pytest

from eventually import eventually
from namespace_hosts import MIB, QUICK, Host, Job, hosts, missing
from rookery.checkpoints import checkpoint
from run_processes import TREE, reached, record, words
from watched_runs import (
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
    pytest.mark.cluster,
    pytest.mark.timeout(300),
    pytest.mark.skipif(missing() is not None, reason=str(missing())),
]

LINE_S = 30.0  # for a refusal
BEYOND = 20  # learner steps: more than the batches that are on their way when a host is lost


@pytest.fixture(scope="module")
def trio() -> Iterator[tuple[Host, Host, Host]]:
    with hosts(3) as made:
        yield made


@pytest.fixture
def cluster(trio: tuple[Host, Host, Host]) -> Iterator[tuple[Host, Host, Host]]:
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
    yield trio
    for host in trio:  # a test that failed may have left its run
        host.end_forked()


def train(host: Host, *argv: str, env: Mapping[str, str] | None = None) -> Job:
    return host.fork(["train", *argv, "--json", "--quiet"], env=env)


def joined(head: Host) -> list[str]:
    return ["--mode", "async", "--actors", "2", "--engine", "ray", "--address", head.address]


def test_a_host_without_power_is_done_without_and_used_when_it_comes_back(cluster):
    a, b, _ = cluster
    run = Watched(a, a, settings={"cluster.actors_per_node": 1})
    run.until(both_play, UP_S)
    run.save()
    run.order("note")
    run.grows("acknowledged_rows", 1_000)

    b.power_off()
    run.until(lambda s: s["restarts"] >= 1 and both_up(s), BACK_S)
    replaced = run.grows("acknowledged_rows", 1_000)
    b.boot()
    run.job.send(SIGSTOP)  # beside it, a node on two processors misses the 15 s that Ray gives it
    b.join(a, cpus=1)
    run.job.send(SIGCONT)
    run.until(lambda s: {*addresses(s)} == {a.ip, b.ip} and both_play(s), 1.5 * BACK_S)
    report = run.finish()

    assert addresses(replaced) == [a.ip, a.ip]
    first, *_ = report["lost"]  # a busy machine may miss more than one
    assert first["place"] == 1
    gone = first["acknowledged"][1] - first["kept"]
    assert gone > 0 < first["kept"]  # Ray gave the host up; what was saved came back
    assert any(f"{gone} rows of its replay shard are lost" in line for line in report["said"])
    logged = record(run.run_dir, "logged")[-1]["metrics"]
    assert logged["cluster/lost_rows"] == report["lost_rows"]
    assert logged["cluster/hosts"] >= 3


def cut_off(run: Watched, b: Host) -> dict[str, Any]:
    """Cuts a link until the host worker behind it is replaced, heals it, and returns the status."""
    run.save()
    run.grows("acknowledged_rows", 1_000)
    b.cut()
    elsewhere = run.until(lambda s: s["hosts"][1]["incarnations"] != [0] and both_up(s), 3 * BACK_S)
    plays_again(run, 1)
    b.heal()
    assert eventually(lambda: not ours(b), BACK_S)
    run.grows("acknowledged_rows", 1_000)
    return elsewhere


def check_moved(
    elsewhere: dict[str, Any], report: dict[str, Any], a: Host, *, incarnation: int
) -> None:
    """The second host worker lives on the first host; the first is the one of before."""
    assert addresses(elsewhere) == [a.ip, a.ip]
    assert elsewhere["hosts"][0]["incarnations"] == [incarnation]
    (moved,) = elsewhere["hosts"][1]["incarnations"]
    assert moved == elsewhere["restarts"] - incarnation
    own = [[0, number] for number in range(incarnation + 1)]
    assert report["shards"][0]["incarnations"] == own
    assert report["shards"][1]["incarnations"] == [[1, 0], [1, moved]]
    gone = sum(lost["acknowledged"][1] - lost["kept"] for lost in report["lost"])
    assert report["lost_rows"] == gone > 0


def _newest(run_dir: Path) -> checkpoint.VerifiedCheckpoint:
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
from rookery.envs.toy.basic import Corridor
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
    a, _, c = cluster
    other = c.root / "tmp" / "other" / "rookery"
    shutil.copytree(TREE / "src" / "rookery", other)
    version = other / "version.py"
    version.write_text(f"{version.read_text()}\n__version__ = '0.0.1'\n")
    c.join(a, cpus=1, env={"PYTHONPATH": "/tmp/other"})
    each = ("--set", "cluster.actors_per_node=1")
    run = train(a, "corridor", *joined(a), *each, "--run-dir", str(a.shared / "version"))
    refused(run, c.name, "0.0.1")

    assert a.pids("gcs_server")


# The last one: it takes the head away.


def test_without_its_head_a_run_ends_and_goes_on_with_a_new_one(cluster):
    a, b, c = cluster
    settings = {**WATCHED, "cluster.lost_s": 5.0, "checkpoint.period": 1_000}
    run_dir = a.shared / "headless"
    run = train(b, "corridor", *joined(a), *words(settings), "--run-dir", str(run_dir))
    assert eventually(lambda: reached(run_dir, 3_000), UP_S), run.said
    a.power_off()
    code = run.wait(60.0)
    first = _newest(run_dir)

    b.restart()
    c.start_head(cpus=1, env=QUICK)
    b.join(c, cpus=1)
    more = str(first.env_steps + 3_000)
    again = train(c, "--resume", str(run_dir), "--address", c.address, "--env-steps", more)
    ended = again.wait(UP_S)
    a.boot()

    assert code == 3, run.said
    assert "the head of the Ray cluster has not answered" in _lines(run)[-1]
    assert first.env_steps > 0
    assert ended == 0, again.said
    assert again.answer["env_steps"] >= first.env_steps + 3_000
    marks = [entry["env_steps"] for entry in record(run_dir, "logged")]
    assert marks == sorted(set(marks))


# With Ray's own patience.


@pytest.fixture(scope="module")
def patient_pair() -> Iterator[tuple[Host, Host]]:
    with hosts(2, shm=1024 * MIB) as (a, b):
        a.start_head(cpus=2, object_store=80 * MIB)
        b.join(a, cpus=2, object_store=80 * MIB)
        yield a, b


@pytest.fixture
def patient(patient_pair: tuple[Host, Host]) -> Iterator[tuple[Host, Host]]:
    yield patient_pair
    for host in patient_pair:  # a test that failed may have left its run, and a cut
        host.end_forked()
        host.heal()


# A row has 16 KiB, and the 16 batches that are on their way 128 MiB.
LARGE: dict[str, Any] = {
    "env.kwargs": {"length": 4_096},
    "net.hidden": [4],
    "run.env_steps": 700,
    "eval.target": "null",
    "replay.capacity": 4_000,
    "replay.batch_size": 256,
    "replay.learning_starts": 512,
    "replay.samples_per_insert": 16.0,
    "checkpoint.period": 600,
    "eval.period": FOR_EVER,
    "eval.episodes": 1,
    "report.log_period": 100,
    "report.tensorboard": "false",
}


def test_an_object_store_that_is_too_small_slows_a_run_and_does_not_end_it(patient):
    a, _ = patient
    flags = ("corridor", "--run-dir", str(a.shared / "large"))
    run = train(a, *flags, *joined(a), *words(LARGE))
    ended = run.wait(200.0)

    assert ended == 0, run.said
    assert run.answer["env_steps"] >= 700


LONG = pytest.mark.skipif("ROOKERY_LONG" not in os.environ, reason="ROOKERY_LONG=1 waits for it")


# Two runs share their replay on both hosts: the second host is cut off for 5 s, then a host worker
# of the first run is killed, and the second host is cut off for long.

POOL = "/dev/shm/pool"
CUT_S = 5.0
# Removes what is left of a pool, and says how much that was.
SWEEP = f"""
from rookery.sharing.registry import create_distributed_registry
registry = create_distributed_registry(path="{POOL}")
print(len(registry.sweep()))
registry.stop()
"""


def buffers(host: Host) -> list[str]:
    """Returns the run ids in the pool of a host."""
    notes = (host.root / POOL[1:]).glob("*.json")
    shared = [note for note in notes if note.stem not in ("pool", "terms")]
    return sorted(json.loads(note.read_text())["run_id"] for note in shared)


def borrows(run: Watched, rows: int) -> dict[str, Any]:
    """Waits until it has sampled so many more rows of the other run."""

    def foreign(status: dict[str, Any]) -> float:
        return float(status["sharing"]["sharing/foreign_rows"])

    goal = foreign(run.status) + rows
    return run.until(lambda s: foreign(s) >= goal, BACK_S)


def outlive_a_short_cut(runs: list[Watched], b: Host) -> None:
    """Cuts the second host off for 5 s: both runs learn on without it, and lose nothing."""
    before = [run.status for run in runs]
    b.cut()
    healed = time.monotonic() + CUT_S
    absent = [run.until(lambda s: s["hosts"][1]["absent"], CUT_S) for run in runs]
    goals = [status["learner_steps"] + BEYOND for status in absent]
    during = [
        run.until(lambda s, goal=goal: s["learner_steps"] >= goal, 2 * CUT_S)
        for run, goal in zip(runs, goals, strict=True)
    ]
    assert eventually(lambda: time.monotonic() >= healed, CUT_S)
    b.heal()
    for run in runs:
        run.until(both_up, BACK_S)
        borrows(run, 200)
    after = [run.grows("acknowledged_rows", 1_000) for run in runs]
    for place in range(len(runs)):
        assert incarnations(after[place]) == incarnations(before[place]) == [[0], [0]]
        late, brought = (s[place]["hosts"][1]["acknowledged"][1] for s in (during, after))
        assert brought > late
        assert after[place]["restarts"] == after[place]["lost_rows"] == 0


def check_kill(report: dict[str, Any]) -> None:
    """A killed shard gets back what was saved; the other one is not touched."""
    (kill,), (killed, moved, *_) = report["kills"], report["lost"]
    assert [killed["place"], moved["place"]] == [0, 1]
    assert killed["acknowledged"][1] > killed["kept"] > 0
    assert kill["committed"] >= killed["kept"]
    assert kill["others_same"]
    assert kill["leaves_finite"]
    assert kill["leaves_least"] >= 0.0
    assert kill["leaves_sum"] == pytest.approx(kill["spread"])
    assert [noted["missing"] for noted in report["noted"]] == [0, 0]  # noted, then saved


@pytest.mark.timeout(420)
@pytest.mark.parametrize("lost_s", [25.0, pytest.param(50.0, marks=LONG)])
def test_runs_that_share_lose_nothing_in_a_short_cut_and_what_was_not_saved_in_a_long_one(
    patient, lost_s
):
    """What comes back late is fenced, in the pool of its host too: its buffer is removed there.

    Both runs have the same name, and each buffer an id of its own.
    """
    a, b = patient
    shared = {"sharing.pool": POOL, "sharing.cross_sample_ratio": 0.25}
    runs = []
    for _ in range(2):  # one after the other: what starts has the processors
        runs.append(Watched(a, a, settings={"cluster.lost_s": lost_s, **shared}))
        runs[-1].until(both_play, UP_S)
    for run in runs:
        run.until(lambda s: s["sharing"]["sharing/peers"] == 2, UP_S)
        borrows(run, 100)
        run.order("note")
    lending = [buffers(host) for host in (a, b)]
    outlive_a_short_cut(runs, b)
    first, second = runs[0], runs[1].finish()

    first.save()
    first.grows("acknowledged_rows", 1_000)
    first.order("kill 0")
    first.grows("learner_steps", BEYOND)
    plays_again(first, 0)
    elsewhere = cut_off(first, b)
    report = first.finish()
    swept = b.run([sys.executable, "-c", SWEEP])

    assert lending == [["run", "run"], ["run.1", "run.1"]]
    assert any(
        "run 'run' is in the pool already" in line for line in report["said"] + second["said"]
    )
    assert second["restarts"] == second["lost_rows"] == 0
    assert second["sharing"]["sharing/foreign_share"] < 0.26
    check_kill(report)
    check_moved(elsewhere, report, a, incarnation=1)
    assert swept.stdout == "1\n", swept.stderr
    assert [host for host in patient if "pool" in host.shm()] == []
