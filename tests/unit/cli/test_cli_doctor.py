"""What the doctor finds, and what it says about it."""

import json

import pytest

from rookery.cli import doctor
from rookery.cli.doctor import GB, Status, descriptors, enough, recommended, scenarios
from rookery.config.load import load
from rookery.config.load import scenarios as packaged
from rookery.runtime import machine
from rookery.runtime.machine import Space


@pytest.fixture
def group(tmp_path, monkeypatch):
    """A control group file system in which this process lives in the group a/b."""
    (tmp_path / "a" / "b").mkdir(parents=True)
    own = tmp_path / "self"
    own.write_text("0::/a/b\n")
    text = machine._text
    monkeypatch.setattr(
        machine, "_text", lambda path: text(own if str(path) == "/proc/self/cgroup" else path)
    )
    return tmp_path


def test_no_quota_is_no_limit(group):
    (group / "a" / "cpu.max").write_text("max 100000\n")

    assert machine.cpu_quota(group) is None
    assert machine.cores(group) >= 1


def test_the_tightest_quota_above_this_process_counts(group):
    (group / "cpu.max").write_text("800000 100000")
    (group / "a" / "cpu.max").write_text("150000 100000")
    (group / "a" / "b" / "cpu.max").write_text("max 100000")

    assert machine.cpu_quota(group) == 1.5
    assert machine.cores(group) == 1


def test_half_a_cpu_is_still_one_core(group):
    (group / "a" / "cpu.max").write_text("50000 100000")

    assert machine.cores(group) == 1


def test_quotas_of_the_old_kind_count_too(group):
    (group / "cpu").mkdir()
    (group / "cpu" / "cpu.cfs_quota_us").write_text("250000\n")
    (group / "cpu" / "cpu.cfs_period_us").write_text("100000\n")

    assert machine.cpu_quota(group) == 2.5


def test_memory_is_what_the_control_group_leaves(group):
    (group / "a" / "memory.max").write_text(str(1 << 20))
    (group / "a" / "memory.current").write_text(str(1 << 19))

    assert machine.memory(group) == Space(total=1 << 20, free=1 << 19)


def test_unnamed_files_need_a_folder_that_is_there(tmp_path):
    assert machine.unnamed_files(tmp_path / "absent") is False


@pytest.mark.parametrize(
    ("cores", "gpu", "found"),
    [(1, False, (1, 64)), (2, False, (1, 64)), (3, True, (1, 256)), (16, True, (14, 256))],
)
def test_learner_and_evaluator_keep_a_core_each(cores, gpu, found):
    assert recommended(cores, gpu) == found


@pytest.mark.parametrize(
    ("cores", "gpus", "best", "command"),
    [
        (2, 0, "cartpole", "rookery train cartpole"),
        (2, 1, "cartpole", "rookery train cartpole"),
        (6, 0, "cartpole", "rookery train cartpole --mode sync --actors 4"),
        (16, 1, "cartpole-6gpu", "rookery train cartpole-6gpu --device cuda:0"),
        (48, 0, "cartpole-48core", "rookery train cartpole-48core"),
        (48, 6, "cartpole-48core", "rookery train cartpole-48core"),
    ],
)
def test_a_scenario_is_recommended_for_every_machine(cores, gpus, best, command):
    found = scenarios(cores, gpus)

    assert next(iter(found.items())) == (best, command)
    assert set(found) <= set(packaged())


@pytest.mark.parametrize(("cores", "gpus", "last"), [(48, 6, 5), (48, 2, 1), (24, 6, 2)])
def test_every_gpu_that_has_eight_cores_gets_a_run(cores, gpus, last):
    assert scenarios(cores, gpus)["cartpole-6gpu"].endswith(f"for each GPU up to cuda:{last}")


def test_the_large_scenarios_leave_room_for_their_learners():
    large, shared = load("cartpole-48core"), load("cartpole-6gpu")

    assert large.actor.num == recommended(48, has_gpu=False)[0] == 46
    assert (shared.actor.num + 1) * 6 == 48
    for config in (large, shared):
        assert (config.run.mode, config.actor.chunk_episodes) == ("sync", 4)


def test_a_small_shared_memory_is_a_warning_with_a_hint():
    short = enough("/dev/shm", Space(64 << 20, 64 << 20), least=GB // 4, hint="--shm-size")
    ample = enough("/dev/shm", Space(GB, GB), least=GB // 4, hint="--shm-size")

    assert (short.mark, short.hint, short.value) == (
        Status.WARN,
        "--shm-size",
        "64.0 MB free of 64.0 MB",
    )
    assert (ample.mark, ample.hint) == (Status.OK, "")


@pytest.mark.parametrize(
    ("soft", "hard", "mark", "hint"),
    [
        (20_000, 20_000, Status.OK, ""),
        (-1, -1, Status.OK, ""),
        (256, 20_000, Status.WARN, "ulimit -n 4096"),
        (256, -1, Status.WARN, "ulimit -n 4096"),
        (256, 512, Status.WARN, "512"),
    ],
)
def test_few_open_files_are_a_warning_with_a_hint(soft, hard, mark, hint):
    finding = descriptors(soft, hard)

    assert finding.mark is mark
    assert hint in finding.hint


def test_a_torch_that_does_not_import_is_a_finding(monkeypatch, capsys):
    def broken():
        raise ImportError("libcudart.so.13")

    monkeypatch.setattr(machine, "gpus", broken)

    assert doctor.run(_args(json=True)) == 0
    answer = json.loads(capsys.readouterr().out)
    gpu = next(finding for finding in answer["findings"] if finding["name"] == "GPU")

    assert gpu["mark"] == "warn"
    assert answer["recommended"]["batch"] == 64


def test_every_finding_is_a_line(monkeypatch, capsys):
    monkeypatch.setattr(machine, "gpus", lambda: [machine.Gpu(0, "H200", 139 * GB)])

    assert doctor.run(_args(json=False)) == 0
    shown = capsys.readouterr().out

    assert "ok    cuda:0" in shown
    assert "H200, 139.0 GB" in shown
    assert "replay.batch_size 256" in shown
    assert "  rookery train cartpole" in shown
    for name in ("python", "torch", "usable CPUs", "memory", "disk here", "open files"):
        assert f"  {name} " in shown


def _args(**values):
    from argparse import Namespace

    return Namespace(**values)
