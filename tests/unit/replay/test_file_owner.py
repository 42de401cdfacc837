"""Owners: who is alive, who is provably gone, and who only looks like somebody else."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from eventually import eventually
from rookery.replay import file_owner
from rookery.replay.file_owner import Owner

OTHER_BOOT = bytes(range(16))


@pytest.fixture
def child() -> Iterator["subprocess.Popen[bytes]"]:
    """A process that lives until its standard input is closed."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        yield process


def of(pid: int) -> Owner:
    started = file_owner._started(pid)
    assert started is not None
    return Owner(pid, started, Owner.this().boot)


def end(process: "subprocess.Popen[bytes]") -> None:
    assert process.stdin is not None
    process.stdin.close()


def test_this_process_is_alive() -> None:
    this = Owner.this()

    assert this.alive
    assert (this.pid, len(this.boot)) == (os.getpid(), 16)
    assert this.started > 0
    assert Owner.this() == this


def test_another_living_process_is_alive(child: "subprocess.Popen[bytes]") -> None:
    assert of(child.pid).alive


def test_a_reused_pid_is_not_a_live_owner() -> None:
    assert not Owner.this()._replace(started=Owner.this().started - 1).alive


def test_a_process_of_another_boot_is_not_alive() -> None:
    assert not Owner.this()._replace(boot=OTHER_BOOT).alive


def test_a_zombie_is_not_alive(child: "subprocess.Popen[bytes]") -> None:
    before = of(child.pid)
    end(child)

    assert eventually(lambda: not before.alive, within_s=10)
    assert Path(f"/proc/{child.pid}/stat").exists()  # dead, and not yet waited for


def test_a_process_that_is_gone_is_not_alive(child: "subprocess.Popen[bytes]") -> None:
    before = of(child.pid)
    end(child)
    child.wait()

    assert not before.alive


def test_a_process_that_goes_while_it_is_looked_at_is_not_alive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def gone(_: Path) -> bytes:
        raise ProcessLookupError

    this = Owner.this()
    monkeypatch.setattr(Path, "read_bytes", gone)

    assert not this.alive


def test_a_command_with_brackets_blanks_and_half_a_letter_is_read() -> None:
    """Linux cuts a command to 15 bytes, in the middle of a letter if need be."""
    name = ") Z (ö) 1 2 3é".encode()[:15]
    code = f"open('/proc/self/comm', 'wb').write({name!r}); print(flush=True); input()"
    line = [sys.executable, "-c", code]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert name in Path(f"/proc/{child.pid}/stat").read_bytes()

        assert of(child.pid).alive
        child.kill()


def test_where_there_is_no_proc_the_living_are_alive_and_the_dead_are_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, child: "subprocess.Popen[bytes]"
) -> None:
    monkeypatch.setattr(file_owner, "_PROC", tmp_path / "nothing")
    living = of(child.pid)
    assert Owner.this().alive
    assert living.alive
    assert not Owner.this()._replace(started=1).alive

    end(child)
    child.wait()
    assert not living.alive
