"""Runs from Python, and the flags that choose how a run begins and ends."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rookery
from inline_runs import TINY, inline
from rookery.checkpoints import checkpoint
from rookery.checkpoints.load_weights import pick_checkpoint
from rookery.cli.main import main
from rookery.envs.toy.basic import Corridor
from rookery.errors import ConfigError
from rookery.event import Event, IterationEnded, Saved, Started, Stopped
from rookery.runtime import signals
from run_processes import ALONE, members

__all__ = ["inline"]  # a fixture

OVERRIDES = [f"{key}={json.dumps(value)}" for key, value in TINY.items()]
WORDS = [word for override in OVERRIDES for word in ("--set", override)]


@pytest.mark.usefixtures("inline")
def test_train_returns_a_run_with_its_policy_its_record_and_its_folder(tmp_path):
    run = rookery.train("corridor", overrides=OVERRIDES, run_dir=tmp_path / "run", seed=3)

    assert run.run_dir == tmp_path / "run"
    assert run.answer["env_steps"] == 1_200
    assert {entry["event"] for entry in run.metrics} >= {"logged", "evaluated", "saved", "stopped"}
    observation, _ = Corridor().reset(seed=0)
    action, state = run.policy.act(observation)
    assert action in (0, 1)
    assert state is None


@pytest.mark.usefixtures("inline")
def test_load_takes_the_best_the_last_or_a_numbered_checkpoint(tmp_path):
    rookery.train("corridor", overrides=OVERRIDES, run_dir=tmp_path)
    observation, _ = Corridor().reset(seed=0)

    marks = [int(path.name.split("-")[1]) for path in checkpoint.folders(tmp_path / "checkpoints")]
    for which in ("best", "last", marks[0]):
        action, _ = rookery.load(tmp_path, checkpoint=which).act(observation)
        assert action in (0, 1)
    with pytest.raises(rookery.RookeryError, match="has no checkpoint '7'"):
        rookery.load(tmp_path, checkpoint=7)


@pytest.mark.usefixtures("inline")
def test_callbacks_see_every_event_and_may_ask_for_a_checkpoint_and_for_the_end(tmp_path):
    seen: list[Event] = []

    def ask(event: Event) -> rookery.Ask | None:
        seen.append(event)
        if isinstance(event, IterationEnded) and event.counters.env_steps == 128:
            return rookery.Ask.CHECKPOINT
        if isinstance(event, IterationEnded) and event.counters.env_steps == 192:
            return rookery.Ask.STOP
        return None

    run = rookery.train("corridor", overrides=OVERRIDES, run_dir=tmp_path, callbacks=[ask])

    assert isinstance(seen[0], Started)
    assert isinstance(seen[-1], Stopped)
    assert (run.answer["reason"], run.answer["env_steps"]) == ("callback", 192)
    assert [e.counters.env_steps for e in seen if isinstance(e, Saved)] == [128, 192]
    assert rookery.train(resume=tmp_path).answer["env_steps"] == 1_200


@pytest.mark.usefixtures("inline")
def test_what_a_callback_raises_comes_out_and_the_folder_is_free_again(tmp_path):
    def fail(event: Event) -> None:
        if isinstance(event, IterationEnded):
            raise LookupError("nothing of ours")

    before = signal.getsignal(signal.SIGINT), threading.active_count()

    with pytest.raises(LookupError, match="nothing of ours"):
        rookery.train("corridor", overrides=OVERRIDES, run_dir=tmp_path, callbacks=[fail])

    assert (signal.getsignal(signal.SIGINT), threading.active_count()) == before
    assert rookery.train(resume=tmp_path).answer["env_steps"] == 1_200


@pytest.mark.usefixtures("inline")
def test_a_run_is_an_iterator_that_may_be_left(tmp_path):
    for event in rookery.events("corridor", overrides=OVERRIDES, run_dir=tmp_path / "left"):
        if isinstance(event, IterationEnded) and event.counters.env_steps > 100:
            break
    *_, last = rookery.events("corridor", overrides=OVERRIDES, run_dir=tmp_path / "whole")
    *_, again = rookery.events(resume=tmp_path / "left")

    assert isinstance(last, Stopped)
    assert isinstance(again, Stopped)
    assert again.weights_sha256 == last.weights_sha256
    assert json.loads((tmp_path / "whole" / "result.json").read_text())["reason"] == "env_steps"


@pytest.mark.usefixtures("inline")
@pytest.mark.parametrize(
    ("number", "raised"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)]
)
def test_a_program_that_goes_on_after_a_signal_is_not_ended_later(
    number, raised, tmp_path, monkeypatch
):
    monkeypatch.setattr(signals, "PATIENCE_S", 0.3)

    def interrupt(event: Event) -> None:
        if isinstance(event, IterationEnded) and event.counters.env_steps == 128:
            os.kill(os.getpid(), number)

    with pytest.raises(raised):
        rookery.train("corridor", overrides=OVERRIDES, run_dir=tmp_path, callbacks=[interrupt])
    found = checkpoint.newest(tmp_path / "checkpoints").found
    time.sleep(0.5)  # longer than its patience: the other side may have stopped waiting

    assert found is not None
    assert found.env_steps == 128


@pytest.mark.usefixtures("inline")
def test_a_new_run_may_begin_with_the_weights_of_another(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    rookery.train("corridor", overrides=OVERRIDES, run_dir=first)
    frozen = [*OVERRIDES, "learner.lr=0.0"]

    run = rookery.train("corridor", overrides=frozen, run_dir=second, init_from=str(first), seed=8)

    given = pick_checkpoint(first, "best").weights()
    taken = pick_checkpoint(second, "last").weights()
    assert run.answer["learner_steps"] > 0
    assert given.keys() == taken.keys()
    assert all(np.array_equal(given[name], taken[name]) for name in given)


@pytest.mark.usefixtures("inline")
def test_several_seeds_are_several_runs_in_one_answer(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)

    code = main(["train", "corridor", *WORDS, "--seeds", "0-1", "--tag", "twins", "--json"])

    answer = json.loads(capfd.readouterr().out.splitlines()[-1])
    first, second = answer["runs"]
    assert code == 0
    assert "corridor-twins-seed0-" in first["run_dir"]
    assert "corridor-twins-seed1-" in second["run_dir"]
    assert first["weights_sha256"] != second["weights_sha256"]


@pytest.mark.usefixtures("inline")
def test_a_signal_at_the_end_of_one_seed_keeps_the_next_from_beginning(
    tmp_path, monkeypatch, capfd
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    callback = ["--set", "run.callbacks=[test_api_runs:interrupt_at_the_end]"]

    code = main(["train", "corridor", *WORDS, *callback, "--seeds", "0-4", "--json"])

    answer = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert code == 130
    assert [run["reason"] for run in answer["runs"]] == ["env_steps"]


def interrupt_at_the_end(event: Event) -> None:
    if isinstance(event, Stopped):
        signal.raise_signal(signal.SIGINT)


@pytest.mark.usefixtures("inline")
@pytest.mark.parametrize(
    ("flag", "value", "reason"),
    [("--episodes", "3", "episodes"), ("--minutes", "0.0001", "minutes")],
)
def test_a_run_ends_at_the_first_limit(flag, value, reason, tmp_path, capfd):
    code = main(["train", "corridor", *WORDS, flag, value, "--run-dir", str(tmp_path), "--json"])

    answer = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert (code, answer["reason"]) == (0, reason)
    assert answer["env_steps"] < 1_200
    if reason == "episodes":
        assert answer["episodes"] >= 3


SCRIPT = f"""
import gymnasium
import numpy as np
import rookery

class Mine(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = 10
        return self.np_random.uniform(-1, 1, 3).astype(np.float32), {{}}

    def step(self, action):
        self.left -= 1
        seen = self.np_random.uniform(-1, 1, 3).astype(np.float32)
        return seen, float(action), self.left == 0, False, {{}}

run = rookery.train(env=Mine, overrides={OVERRIDES!r}, run_dir=RUN_DIR)
action, _ = run.policy.act(np.zeros(3, np.float32))
print(run.answer["best_score"], action)
"""


def test_an_environment_of_a_plain_script_or_of_standard_input_needs_no_main_guard(
    forker, tmp_path
):
    """The first with an interpreter of its own for each process, the second forked."""
    text = {name: SCRIPT.replace("RUN_DIR", repr(name)) for name in ("file", "stdin")}
    (tmp_path / "script.py").write_text(text["file"])
    forked = forker.start([], tmp_path, script=text["stdin"])
    program = subprocess.Popen(
        [sys.executable, "script.py"],
        cwd=tmp_path,
        env=os.environ | ALONE,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        told, complaints = program.communicate(timeout=60)
    finally:
        for pid in members(program.pid):
            os.kill(pid, signal.SIGKILL)
        program.communicate()

    assert program.returncode == 0, complaints
    assert forked.wait() == 0, forked.said
    assert forked.stdout.read_text() == told
    score, action = told.split()
    assert float(score) in range(11)
    assert int(action) in (0, 1)


@pytest.mark.usefixtures("inline")
def test_runs_that_overlap_leave_the_signals_as_they_were(tmp_path):
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    first, second = (
        rookery.events("corridor", overrides=OVERRIDES, run_dir=tmp_path / name)
        for name in ("first", "second")
    )
    next(first)
    next(second)

    first.close()  # in the wrong order
    signal.raise_signal(signal.SIGINT)
    *_, last = second

    assert isinstance(last, Stopped)
    assert last.reason == "interrupted"
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
    assert signal.set_wakeup_fd(-1) == -1


@pytest.mark.usefixtures("inline")
def test_a_checkpoint_that_a_live_run_replaces_while_it_is_read_is_looked_for_again(
    tmp_path, monkeypatch
):
    rookery.train("corridor", overrides=OVERRIDES, run_dir=tmp_path)
    read, calls = checkpoint.VerifiedCheckpoint.weights, []

    def weights(found: checkpoint.VerifiedCheckpoint) -> Any:
        calls.append(found.folder)
        if len(calls) == 1:
            checkpoint.remove(found.folder)
        return read(found)

    monkeypatch.setattr(checkpoint.VerifiedCheckpoint, "weights", weights)

    rookery.load(tmp_path)

    assert len(calls) == 2
    assert calls[0] != calls[1]


def test_pictures_that_an_environment_cannot_give_are_missed_aloud(tmp_path):
    blind = [*OVERRIDES, "eval.record=true", "env.kwargs={}"]
    run = rookery.train(
        "corridor", env="rookery.envs.toy.basic:Echo", overrides=blind, run_dir=tmp_path
    )

    said = [entry["message"] for entry in run.metrics if entry["event"] == "warned"]
    assert [text for text in said if "eval.record" in text] == said[:1] != []


@pytest.mark.parametrize("mode", ["single", "async"])
def test_a_factory_with_a_lock_is_refused_and_the_lock_is_named(mode, tmp_path):
    lock = threading.Lock()

    def make_corridor() -> Any:
        with lock:
            return Corridor()

    overrides = [*OVERRIDES, f"run.mode={mode}"]
    with pytest.raises(ConfigError, match=r"make_corridor cannot be sent .* its 'lock' is a _thr"):
        rookery.train("corridor", env=make_corridor, overrides=overrides, run_dir=tmp_path)
