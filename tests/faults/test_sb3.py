"""Signals in a run whose loop is not ours."""

import os
from pathlib import Path
from signal import SIGINT, SIGTERM

import pytest

from eventually import eventually
from run_processes import clock, reached, record, settled, words

ENDLESS = {
    "run.env_steps": 10_000_000,
    "eval.period": 1_000_000,
    "report.log_period": 200,
    "report.tensorboard": "false",
}


@pytest.mark.parametrize(("number", "code"), [(SIGINT, 130), (SIGTERM, 143)])
def test_a_signal_ends_a_run_of_sb3s_in_time_with_its_model(number, code, forker, tmp_path):
    argv = ["train", "sb3-sac", "--json", "--quiet", "--run-dir", "run", *words(ENDLESS)]
    run = forker.start(argv, tmp_path)
    assert eventually(lambda: reached(tmp_path / "run", 400), 60.0), run.said

    began = clock()
    os.killpg(run.pid, number)
    assert run.wait() == code, run.said

    assert clock() - began < 10.0
    assert settled(run.pid)
    assert "Traceback" not in run.said
    assert (tmp_path / "run" / "model.zip").exists()
    (stopped,) = record(tmp_path / "run", "stopped")
    assert stopped["reason"] == run.answer["reason"]
    assert not Path(tmp_path / "run" / "result.json").exists()
