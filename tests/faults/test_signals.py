"""Ctrl+C and SIGTERM, in every phase of a run."""

import contextlib
import fcntl
import os
import pty
import subprocess
import sys
import termios
from collections.abc import Callable
from pathlib import Path
from signal import SIG_DFL, SIGHUP, SIGINT, SIGKILL, SIGTERM, Signals, signal
from typing import Any

import pytest

import rookery
from eventually import eventually
from rookery.checkpoints import checkpoint
from run_processes import (
    ALONE,
    SMALL,
    SUPPORT,
    CommandForker,
    Started,
    clock,
    members,
    named,
    record,
    settled,
    words,
)

CODES = {SIGINT: 130, SIGTERM: 143, SIGHUP: 143}
LONG = SMALL | {"run.env_steps": 10_000_000}
ENDLESS_WARM_UP = LONG | {
    "replay.capacity": 5_000_000,
    "replay.learning_starts": 5_000_000,
    "checkpoint.replay": "false",
    "checkpoint.period": 5_000,
}
WITHIN_S = 10.0


def staged(stage: str, reached: Path) -> dict[str, Any]:
    """Settings of a run that hangs at a stage."""
    kwargs = f"{{reached: '{reached}', at: {stage}}}"
    return LONG | {
        "env.id": "misbehaving_envs:Staged",
        "env.kwargs": kwargs,
        "run.env_steps": 1_000,
    }


def saved(run_dir: Path) -> bool:
    return bool(checkpoint.folders(run_dir / "checkpoints"))


def writing(run_dir: Path) -> bool:
    return any((run_dir / "checkpoints").glob("*.tmp-*"))


def train(forker: CommandForker, cwd: Path, settings: dict[str, Any]) -> Started:
    argv = ["train", "corridor", "--json", "--quiet", "--run-dir", "run", *words(settings)]
    return forker.start(argv, cwd)


def stop(run: Started, number: Signals) -> float:
    """Sends a signal as a terminal would; returns how long the run took to end as it should."""
    began = clock()
    os.killpg(run.pid, number)
    assert run.wait() == CODES[number], run.said
    took = clock() - began
    assert settled(run.pid)
    assert "Traceback" not in run.said
    return took


@pytest.mark.parametrize("number", [SIGINT, SIGTERM])
@pytest.mark.parametrize("stage", ["check", "wire"])
def test_before_training_a_signal_ends_the_run_too(stage, number, forker, tmp_path):
    """At once, but for one in a hundred that arrives just before Python falls asleep."""
    run = train(forker, tmp_path, staged(stage, tmp_path / "reached"))
    assert eventually((tmp_path / "reached").exists, 30.0), run.said

    assert stop(run, number) < WITHIN_S


PHASES: dict[str, tuple[dict[str, Any], Callable[[Path], bool]]] = {
    "warm-up": (ENDLESS_WARM_UP, saved),
    "training": (LONG, saved),
    "a checkpoint's write": (LONG, writing),
}


@pytest.mark.parametrize("number", [SIGINT, SIGTERM])
@pytest.mark.parametrize("phase", PHASES)
def test_in_training_a_signal_leaves_a_checkpoint_that_verifies(phase, number, forker, tmp_path):
    settings, when = PHASES[phase]
    run = train(forker, tmp_path, settings)
    assert eventually(lambda: when(tmp_path / "run"), 30.0), run.said

    assert stop(run, number) < WITHIN_S

    search = checkpoint.newest(tmp_path / "run" / "checkpoints")
    assert search.broken == []
    assert search.found is not None
    assert search.found.env_steps == run.answer["env_steps"]
    (stopped,) = record(tmp_path / "run", "stopped")
    assert stopped["reason"] == run.answer["reason"]
    assert not list((tmp_path / "run").rglob("*.tmp-*"))


MODES: dict[str, dict[str, Any]] = {
    "async": {"run.mode": "async", "actor.num": 2},
    "sync": {"run.mode": "sync", "actor.num": 2},
}


@pytest.mark.parametrize(("mode", "number"), [("async", SIGINT), ("sync", SIGTERM)])
def test_while_actors_start_a_signal_ends_them_too(mode, number, forker, tmp_path):
    run = train(forker, tmp_path, LONG | MODES[mode])
    assert eventually(lambda: named(run.pid, "rookery-actor-1") is not None, 60.0), run.said

    assert stop(run, number) < WITHIN_S


@pytest.mark.parametrize(
    ("mode", "phase", "number"),
    [
        ("async", "warm-up", SIGTERM),
        ("async", "training", SIGINT),
        ("sync", "training", SIGTERM),
    ],
)
def test_with_actors_in_training_a_signal_leaves_a_checkpoint_that_verifies(
    mode, phase, number, forker, tmp_path
):
    settings, when = PHASES[phase]
    run = train(forker, tmp_path, settings | MODES[mode])
    assert eventually(lambda: when(tmp_path / "run"), 60.0), run.said

    assert stop(run, number) < WITHIN_S

    search = checkpoint.newest(tmp_path / "run" / "checkpoints")
    assert search.broken == []
    assert search.found is not None
    assert search.found.env_steps == run.answer["env_steps"]
    assert not list((tmp_path / "run").rglob("*.tmp-*"))


def test_a_second_signal_does_not_wait_for_an_actor_that_hangs(forker, tmp_path):
    """In sync all actors wait for it; the first signal alone would wait for nine seconds."""
    settings = staged("play", tmp_path / "reached") | MODES["sync"]
    run = train(forker, tmp_path, settings)
    assert eventually((tmp_path / "reached").exists, 60.0), run.said
    began = clock()

    run.send(SIGINT)
    while run.poll() is None and clock() - began < 5.0:
        run.send(SIGINT)

    assert run.wait() == 130
    assert clock() - began < 5.0
    assert settled(run.pid, within_s=2.0)


@pytest.mark.parametrize("number", [SIGINT, SIGHUP])
def test_while_the_last_evaluation_is_waited_for_a_signal_leaves_it_to_the_resumed_run(
    number, forker, tmp_path
):
    run = train(forker, tmp_path, staged("judge", tmp_path / "reached") | {"eval.queue": 100})
    assert eventually((tmp_path / "reached").exists, 30.0), run.said
    assert eventually(lambda: saved(tmp_path / "run"), 30.0), run.said

    assert stop(run, number) < WITHIN_S

    found = checkpoint.newest(tmp_path / "run" / "checkpoints").found
    assert found is not None
    assert run.answer["reason"] == ("interrupted" if number == SIGINT else "terminated")
    assert [entry["counters"]["env_steps"] for entry in found.state()["pending"]] == [1_000]


def test_a_run_stopped_by_sigterm_goes_on(forker, tmp_path):
    run = train(forker, tmp_path, LONG)
    assert eventually(lambda: saved(tmp_path / "run"), 30.0), run.said
    stop(run, SIGTERM)

    more = str(run.answer["env_steps"] + 1_000)
    again = forker.start(
        ["train", "--resume", "run", "--json", "--quiet", "--env-steps", more], tmp_path
    )

    assert again.wait() == 0, again.said
    assert again.answer["env_steps"] >= int(more)
    assert "resuming from ckpt-" in again.said


def test_whatever_hangs_the_run_ends_within_ten_seconds(forker, tmp_path):
    runs = {}
    for stage in ("play", "compiled", "close"):
        folder = tmp_path / stage
        folder.mkdir()
        settings = staged(stage, folder / "reached")
        if stage == "close":
            settings |= {"eval.episodes": 1}
        runs[stage] = train(forker, folder, settings)
    for stage, run in runs.items():
        assert eventually((tmp_path / stage / "reached").exists, 60.0), run.said

    began = clock()
    for run in runs.values():
        run.send(SIGINT)
    for run in runs.values():
        assert run.wait() == 130, run.said
        assert clock() - began < WITHIN_S
        assert settled(run.pid)
        assert "could not stop in time" in run.said


@pytest.mark.parametrize("stage", ["play", "compiled"])
def test_a_second_signal_ends_the_run_at_once(stage, forker, tmp_path):
    run = train(forker, tmp_path, staged(stage, tmp_path / "reached"))
    assert eventually((tmp_path / "reached").exists, 30.0), run.said
    began = clock()

    run.send(SIGINT)
    while run.poll() is None and clock() - began < 5.0:  # two that come together may merge
        run.send(SIGINT)

    assert run.wait() == 130
    assert clock() - began < 5.0
    assert settled(run.pid)


def test_a_closed_terminal_does_not_end_a_run_under_nohup():
    script = """
import signal
signal.signal(signal.SIGHUP, signal.SIG_IGN)
from rookery.runtime.signals import Interrupts
with Interrupts() as interrupts:
    interrupts.begin()
    signal.raise_signal(signal.SIGHUP)
    assert interrupts.reason is None
    signal.raise_signal(signal.SIGTERM)
    assert interrupts.exit_code == 143
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60
    )

    assert done.returncode == 0, done.stderr


def test_a_worker_that_an_environment_forks_dies_of_a_signal_and_the_run_does_not():
    script = """
import os, signal, time
from rookery.runtime import signals as interrupts
interrupts.PATIENCE_S = 0.2
with interrupts.Interrupts() as watched:
    watched.begin()
    ready, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(tell, b"!")
        signal.alarm(60)
        signal.pause()
    os.read(ready, 1)
    os.kill(pid, signal.SIGTERM)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGTERM, status
    time.sleep(0.5)  # longer than its patience
    assert watched.reason is None
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60
    )

    assert done.returncode == 0, done.stderr


def test_ctrl_c_in_a_terminal_ends_the_run_and_gives_the_terminal_back(tmp_path):
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "rookery", "train", "corridor", "--run-dir", "run"]
    run = subprocess.Popen(
        [*command, *words(LONG)],
        cwd=tmp_path,
        env=os.environ | ALONE | {"PYTHONPATH": str(SUPPORT), "TERM": "xterm", "CI": ""},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(theirs)
    screen = Screen(ours)
    try:
        assert eventually(lambda: screen.shows(b"\x1b[?25l") and saved(tmp_path / "run"), 60.0)
        began = clock()
        os.write(ours, b"\x03")
        assert eventually(lambda: screen.shows(b"") and run.poll() is not None, WITHIN_S)

        assert run.returncode == 130, screen.seen[-2000:]
        assert clock() - began < WITHIN_S
        assert not members(run.pid)
        assert screen.seen.rindex(b"\x1b[?25h") > screen.seen.rindex(b"\x1b[?25l")  # the cursor
        assert checkpoint.newest(tmp_path / "run" / "checkpoints").found is not None
    finally:
        for pid in members(run.pid):
            os.kill(pid, SIGKILL)
        run.wait()
        os.close(ours)


class Screen:
    """What a terminal was sent."""

    def __init__(self, fd: int):
        os.set_blocking(fd, False)
        self._fd, self.seen = fd, b""

    def shows(self, text: bytes) -> bool:
        """Reads what has come since, so that the writer does not block."""
        with contextlib.suppress(OSError):  # nothing more for now, or for ever
            while part := os.read(self._fd, 65536):
                self.seen += part
        return text in self.seen


def mapped(pid: int, library: str) -> bool:
    try:
        return library in Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return False


@pytest.mark.parametrize("number", [SIGINT, SIGTERM])
@pytest.mark.parametrize("library", ["python", "libtorch"])
def test_while_it_is_imported_a_signal_ends_it_too(library, number, tmp_path):
    """A signal that comes before our first line runs ends Python by itself: -2, -15, or 1 and a
    traceback of Python's own modules."""
    run = subprocess.Popen(
        [sys.executable, "-m", "rookery", "train", "corridor", "--run-dir", "run"],
        cwd=tmp_path,
        env=os.environ | ALONE | {"PYTHONPATH": str(SUPPORT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=lambda: signal(SIGINT, SIG_DFL),  # in the background it would be ignored
    )
    try:
        assert eventually(lambda: mapped(run.pid, library), 30.0)
        began = clock()
        run.send_signal(number)
        said, _ = run.communicate(timeout=30.0)

        ours = str(Path(rookery.__file__).parent).encode() in said
        early = {-number} if ours else {-number, 1}
        assert run.returncode in {CODES[number]} | (early if library == "python" else set())
        assert clock() - began < WITHIN_S
        assert not members(run.pid)
    finally:
        for pid in members(run.pid):
            os.kill(pid, SIGKILL)
        run.communicate()


AT_A_CALL = """
import signal, sys
from rookery.cli.main import main

moment, number, *words = sys.argv[1:]
calls = 0


def count(frame, event, argument):
    global calls
    calls += 1
    if calls == int(moment):
        sys.setprofile(None)
        signal.raise_signal(int(number))


sys.argv = ["rookery", *words]
sys.setprofile(count)
sys.exit(main())
"""


def test_at_every_moment_of_its_start_a_signal_ends_a_run_without_a_traceback(forker, tmp_path):
    """Moments are counted in calls of functions: from the first line to the first learner steps."""
    moments = [round(3.0**power) for power in range(4, 13)]  # 81 to 531,441
    for place, moment in enumerate(moments):
        number = (SIGINT, SIGTERM)[place % 2]
        folder = tmp_path / str(moment)
        folder.mkdir()
        argv = [str(moment), str(int(number)), "train", "corridor", "--quiet", *words(LONG)]
        began = clock()
        run = forker.start(argv, folder, script=AT_A_CALL)

        assert run.wait() == CODES[number], (moment, run.said)
        assert clock() - began < 30.0
        assert "Traceback" not in run.said, (moment, run.said)
        assert "ignored" not in run.said, (moment, run.said)
        assert settled(run.pid)
